"""A coroutine in a thread and an event loop of its own: nothing that this loop does holds it up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class OwnThread:
    """Runs a coroutine elsewhere; to be made in an event loop, where its end is heard.

    Args:
        work: is called in the thread, with this.
        name: of the thread.

    Attributes:
        ended: has the coroutine's result or error; cancelled where it was.
    """

    def __init__(
        self, work: Callable[[OwnThread], Coroutine[Any, Any, None]], *, name: str
    ) -> None:
        self._work, self._home = work, asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self.ended: asyncio.Future[None] = self._home.create_future()
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def tell(self, call: Callable[..., object], *arguments: object) -> None:
        """Call something in the loop that made it; to be called in the thread."""
        with contextlib.suppress(RuntimeError):  # that loop is closed
            self._home.call_soon_threadsafe(call, *arguments)

    def cancel(self) -> None:
        """Cancel the coroutine; `ended` says when it has ended."""

        def cancel() -> None:
            self._is_cancelled = True
            if self._task is not None:
                self._task.cancel()

        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(cancel)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._tracked())
            except asyncio.CancelledError:
                self.tell(self.ended.cancel)
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                self.tell(self._fail, error)
            else:
                self.tell(self._succeed)

    async def _tracked(self) -> None:
        self._task = asyncio.current_task()
        if self._is_cancelled:
            raise asyncio.CancelledError
        await self._work(self)

    def _fail(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _succeed(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
