"""Looks at files of accounts that may never be answered: the server of a file system may be gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from brim.errors import EnvironmentFault

_TO_ANSWER = 5.0  # seconds
_T = TypeVar("_T")


class AccountLooks:
    """Looks at files of accounts, each in a thread; an account has one at a time.

    A look that is not answered keeps its thread, and its account waits for it. It holds up no other
    account, nor the end of this process.

    Attributes:
        to_answer: seconds that a look may take, with the wait for its account's turn.
    """

    def __init__(self, *, to_answer: float = _TO_ANSWER) -> None:
        self.to_answer = to_answer
        self._last: dict[str, asyncio.Future[Any]] = {}

    async def look(self, account: str, at: str, work: Callable[[], _T]) -> _T:
        """Return what `work` does.

        Args:
            account: whose files it looks at.
            at: what it looks at, for the error.

        Raises:
            EnvironmentFault: there was no answer in time.
        """
        loop = asyncio.get_running_loop()
        latest = loop.time() + self.to_answer
        while (last := self._last.get(account)) is not None and not last.done():
            await self._answered(last, latest, at)
        answer = asyncio.wrap_future(_in_thread(work))
        self._last[account] = answer
        answer.add_done_callback(_has_been_seen)
        await self._answered(answer, latest, at)
        return answer.result()

    async def _answered(self, look: asyncio.Future[_T], latest: float, at: str) -> None:
        patience = max(0.0, latest - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait([look], timeout=patience)
        if not done:
            raise EnvironmentFault(f"{at} did not answer within {self.to_answer:g} s")


def _in_thread(work: Callable[[], _T]) -> Future[_T]:
    answer = Future[_T]()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 it is the caller's
            answer.set_exception(error)
        else:
            answer.set_result(result)

    threading.Thread(target=run, name="brim-look", daemon=True).start()
    return answer


def _has_been_seen(look: asyncio.Future[Any]) -> None:
    """Have no error reported of a look whose caller has gone."""
    if not look.cancelled():
        look.exception()
