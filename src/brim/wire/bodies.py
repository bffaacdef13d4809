"""The bodies of requests to an HTTP API: so many bytes of them are held at once.

Room for a body is taken before any of it is read, and given back once its request is answered: so
no two bodies, half of each read, wait for each other. Each caller has so much room, and all have
so much together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from starlette.requests import Request

_MOST_WAITING = 32  # bodies of one caller


class BodyTooLarge(Exception):
    """A body has no end, or a far one."""


class NoRoom(Exception):
    """A body was not read: others take all the room."""


class Bodies:
    """The room for bodies.

    Args:
        largest: bytes of one body.
        of_caller: bytes of those of one caller.
        in_all: bytes of all; callers that may have all room have as much as one caller besides.
        to_send: seconds that a body may take, with the wait for its room.
    """

    def __init__(self, *, largest: int, of_caller: int, in_all: int, to_send: float) -> None:
        self._largest, self._of_caller, self._in_all = largest, of_caller, in_all
        self._to_send = to_send
        self._bytes_held, self._waiting = Counter[str](), Counter[str]()
        self._given_back = asyncio.Condition()

    @property
    def held(self) -> int:
        """The bytes for which room is taken."""
        return self._bytes_held.total()

    @contextlib.asynccontextmanager
    async def read(
        self, request: Request, caller: str, *, all_room: bool = False
    ) -> AsyncIterator[bytearray]:
        """Read the body of a request; its room is taken until the end of the block.

        Args:
            caller: whose request it is.
            all_room: the caller may have the room that is left for such callers.

        Raises:
            BodyTooLarge: it is longer than a body may be.
            NoRoom: there was no room for it in time.
            TimeoutError: it did not come to its end in time.
        """
        size = self._size_of(request)
        deadline = asyncio.get_running_loop().time() + self._to_send
        await self._take(size, caller, self._in_all + self._of_caller * all_room, deadline)
        try:
            content = bytearray()
            async with asyncio.timeout_at(deadline):
                async for part in request.stream():
                    content += part
                    if len(content) > size:
                        raise BodyTooLarge
            yield content
        finally:
            self._bytes_held[caller] -= size
            self._bytes_held += Counter()  # without callers that hold nothing
            async with self._given_back:
                self._given_back.notify_all()

    def _size_of(self, request: Request) -> int:
        """The bytes that a body may have, by its sender; a silent one takes all."""
        length_text = request.headers.get("content-length", "")
        if not (length_text.isascii() and length_text.isdecimal()):
            return self._largest
        if len(length_text) > len(str(self._largest)) or int(length_text) > self._largest:
            raise BodyTooLarge
        return int(length_text)

    async def _take(self, size: int, caller: str, in_all: int, deadline: float) -> None:
        def fits() -> bool:
            own_size = self._bytes_held[caller] + size <= self._of_caller
            return own_size and self._bytes_held.total() + size <= in_all

        if not fits():
            if self._waiting[caller] >= _MOST_WAITING:
                raise NoRoom
            self._waiting[caller] += 1
            try:
                async with asyncio.timeout_at(deadline), self._given_back:
                    await self._given_back.wait_for(fits)
            except TimeoutError:
                raise NoRoom from None
            finally:
                self._waiting[caller] -= 1
                self._waiting += Counter()
        self._bytes_held[caller] += size
