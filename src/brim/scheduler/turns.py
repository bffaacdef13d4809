"""Turns of tenants, and their threads: one tenant's requests hold up no other's.

However much one of them asks for at once, the request of another finds no more than a few of its in
the way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from brim.errors import EnvironmentFault
from brim.host.shortage import words_of_shortage
from brim.host.threads import Threads

_LONGEST_REST = 1.0  # seconds
_THREADS_OF_CALLER = 4
_THREADS_IN_ALL = 32
# Seconds that work waits for a thread. With those that a master has for its answer, fewer than a client
# waits for the scheduler's.
_TO_BEGIN = 15.0
RETRY_AFTER = 10  # seconds, in which masters that do not answer have given their threads back
_T = TypeVar("_T")


class NoThread(EnvironmentFault):
    """Requests that do not end have the threads for which a request has waited."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class TenantTurns:
    """The turns of callers, of which each has one at a time."""

    def __init__(self) -> None:
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)

    @contextlib.asynccontextmanager
    async def turn_of(self, caller: str) -> AsyncIterator[None]:
        """Wait for the turn of a caller; the next one comes after a rest as long as this one takes."""
        loop, lock = asyncio.get_running_loop(), self._locks[caller]
        await lock.acquire()
        started = loop.time()
        try:
            yield
        finally:
            loop.call_later(min(loop.time() - started, _LONGEST_REST), lock.release)


class TenantThreads:
    """Threads for requests of one kind, which may hang: at a job's master, or at files of its account.

    They are none of those that decisions need. Work that finds all threads busy is begun in the
    order in which it came, and a caller never has more than its part of that line.

    Args:
        cause: of their waits, in words: `answers of their jobs`.
        of_caller: for one caller at once.
        in_all: for all callers at once.
        to_begin: seconds that work waits for a thread.
    """

    def __init__(
        self,
        cause: str,
        *,
        of_caller: int = _THREADS_OF_CALLER,
        in_all: int = _THREADS_IN_ALL,
        to_begin: float = _TO_BEGIN,
    ) -> None:
        self._cause = cause
        self._executor = Threads(in_all, thread_name_prefix="requests")
        self._threads = asyncio.Semaphore(in_all)
        self._places = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(of_caller))
        self._to_begin = to_begin

    async def run(self, caller: str, work: Callable[[], _T]) -> _T:
        """Do work of a caller in a thread.

        Raises:
            NoThread: too much other work, of this caller or of all, did not end in time.
        """
        places, whose = self._places[caller], f"of {caller}"
        try:
            async with asyncio.timeout(self._to_begin):
                await places.acquire()
                whose = "of all tenants"
                try:
                    await self._threads.acquire()
                except asyncio.CancelledError:
                    places.release()
                    raise
        except TimeoutError:
            crowd = f"too many requests {whose} wait for {self._cause}"
            raise NoThread(f"{crowd}: ask again in {RETRY_AFTER} s") from None
        loop = asyncio.get_running_loop()
        try:
            future = self._executor.submit(work)
        except RuntimeError as error:
            self._threads.release()
            places.release()
            raise NoThread(f"{words_of_shortage(error) or error}: ask again") from error

        def give_back(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is over
                loop.call_soon_threadsafe(self._threads.release)
                loop.call_soon_threadsafe(places.release)

        future.add_done_callback(give_back)  # of the thread: its caller may be gone before
        return await asyncio.wrap_future(future)
