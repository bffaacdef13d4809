"""Keeps the sight of a cluster current: asks its scheduler for news, in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from brim.client import Client, TokenRefused
from brim.dashboard.sight import ClusterSight
from brim.errors import BrimError
from brim.host.clock import monotonic

_WAIT = 1.0  # seconds that one question waits for news: progress of jobs is no news, and is shown
_PAUSE = 0.3  # seconds between two questions while a page is open
_IDLE_PAUSE = 3.0  # seconds between two while none is
_PLAN_EVERY = 2.0  # seconds between two looks at the plan
_RETRY = 1.0  # seconds until a scheduler that does not answer is asked again
T = TypeVar("T")


async def answer_of(ask: Callable[[], T]) -> T:
    """Ask in a thread that need not end before the process does.

    The threads of `asyncio.to_thread` are waited for: a scheduler that does not answer would keep
    its viewer's terminal until the question times out.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def give(result: T | None, error: Exception | None) -> None:
        if answer.done():
            return  # nobody waits for it any more
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, failure = None, None
        try:
            result = ask()
        except Exception as error:  # noqa: BLE001 it is raised where the answer is awaited
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(give, result, failure)

    threading.Thread(target=work, daemon=True).start()
    return await answer


class Following:
    """One sight, kept current by one client.

    Args:
        looked_at: whether a page is open.
        refused: is called where the scheduler refuses the token.
    """

    def __init__(
        self, client: Client, *, looked_at: Callable[[], bool], refused: Callable[[], None]
    ) -> None:
        self._client, self._looked_at, self._refused = client, looked_at, refused
        self._place, self._planned_at = "", -_PLAN_EVERY
        self.sight = ClusterSight()
        self.wake = asyncio.Event()

    async def run(self) -> None:
        """Follow until this task is cancelled, or the token is refused."""
        while True:
            pause = _PAUSE if self._looked_at() else _IDLE_PAUSE
            try:
                await self._look()
            except TokenRefused as error:
                self.sight.fail(str(error), ended=True)
                self._refused()
                return
            except BrimError as error:
                self.sight.fail(str(error))
                pause = _RETRY
            self.wake.clear()
            try:
                async with asyncio.timeout(pause):
                    await self.wake.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        news = await answer_of(lambda: self._client.news(self._place, wait=_WAIT))
        if not news.complete:
            jobs = await answer_of(self._client.jobs)
            self.sight.take_all(jobs)
        self.sight.take(news)
        self._place = news.place
        if monotonic() - self._planned_at >= _PLAN_EVERY:
            self.sight.plan = await answer_of(self._client.plan)
            self._planned_at = monotonic()
