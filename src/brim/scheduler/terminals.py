"""The terminals of people at interactive jobs: from one request, and its answer, to the job's master.

The answer goes on for as long as the job: its lines have the program's output. Input comes by
requests of its own. Where either ends, the job ends: no other terminal is attached to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.responses import Response

from brim.domain.course import reason_of, sentence_of
from brim.domain.lifecycle import Happening
from brim.domain.rights import Caller
from brim.errors import BrimError, EnvironmentFault, ProtocolError, SpecError
from brim.host.account import acting_as
from brim.scheduler.lives import Lives
from brim.storage.contact import read_contact
from brim.wire.cluster import Input, JobView, TerminalNews, Window
from brim.wire.frames import frame
from brim.wire.messages import Exited, FromPerson, Shown, Sized, Typed
from brim.wire.proofs import workers_secret
from brim.wire.terminals import call_for_person, from_person, shown_by

_TERMINALS, _MOST_OF_TENANT = 64, 8  # at once
_SIGN_OF_LIFE = 5.0  # seconds between two lines of an answer at most
_SILENCE = 30.0  # seconds without a word after which a person is gone
_CALL_INTERVAL = 0.2  # seconds between two calls of a master that is not there yet
_PAUSE = 0.02  # seconds between two parts of what a program prints, and between two requests
_TO_TAKE = 10.0  # seconds in which a program's host takes what was typed
_TO_SAY_WHY = 5.0  # seconds until a job whose line has ended must have done so, too
_TO_END = 30.0  # seconds for a job whose program has ended
_NO_SUCH = "terminal"  # the field of the error for one that is not there

_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Terminals:
    """The terminals that are attached, each to one job.

    Args:
        lives: the scheduler.
    """

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._terminals: dict[str, _Terminal] = {}  # by job

    def attach(self, job: str, window: Window, caller: Caller) -> Response:
        """Return the answer that is the terminal of a job.

        Raises:
            SpecError: the job is not interactive.
            EnvironmentFault: it has a terminal, or has ended, or there are too many.
        """
        if not self._lives.now.is_interactive(job):
            raise SpecError(
                "job",
                got=f"{job}, which has no terminal",
                need="an interactive job",
                hint="brim submit --tty -- bash",
            )
        if self._lives.now.job(job).has_ended:
            raise EnvironmentFault(f"{job} has ended")
        if job in self._terminals:
            raise EnvironmentFault(f"somebody is at the terminal of {job} already")
        of_caller = Counter(terminal.caller.name for terminal in self._terminals.values())
        is_crowded = caller.tenant is not None and of_caller[caller.name] >= _MOST_OF_TENANT
        if is_crowded or len(self._terminals) >= _TERMINALS:
            limit = _MOST_OF_TENANT if is_crowded else _TERMINALS
            raise EnvironmentFault(f"{limit} terminals are attached already: end one first")
        terminal = self._terminals[job] = _Terminal(self._lives, job, window, caller)
        return _Answer(terminal, forget=lambda: self._terminals.pop(job))

    async def type(self, job: str, name: str, typed: Input) -> TerminalNews:
        """Pass on input.

        Raises:
            SpecError: there is no such terminal now.
        """
        terminal = self._terminals.get(job)
        if terminal is None or not secrets.compare_digest(name.encode(), terminal.name.encode()):
            need = "a terminal that is attached"
            raise SpecError(_NO_SUCH, got="another name, or that of one that has ended", need=need)
        await terminal.type(typed)
        return TerminalNews()


class _Terminal:
    """One terminal, from the first line of its answer to the last."""

    def __init__(self, lives: Lives, job: str, window: Window, caller: Caller) -> None:
        self.name, self.caller = secrets.token_urlsafe(16), caller
        self._lives, self._job, self._window = lives, job, window
        self._writer: asyncio.StreamWriter | None = None
        self._turn = asyncio.Lock()
        self._word_at = _now()

    @property
    def is_silent(self) -> bool:
        """Return whether nothing was heard of the person for too long."""
        return _now() - self._word_at > _SILENCE

    async def type(self, typed: Input) -> None:
        """Pass on input, no faster than the program's host takes it."""
        self._word_at = _now()
        async with self._turn:
            self._window = typed.window or self._window
            if self._writer is None:
                return
            with contextlib.suppress(OSError):  # the answer says that the line is broken
                if typed.window is not None:
                    await self._tell(Sized(rows=typed.window.rows, columns=typed.window.columns))
                if typed.data:
                    await self._tell(Typed(data=typed.data))
            await asyncio.sleep(_PAUSE)

    async def _tell(self, message: FromPerson) -> None:
        assert self._writer is not None
        self._writer.write(frame(from_person.encode(message)))
        try:
            async with asyncio.timeout(_TO_TAKE):
                await self._writer.drain()
        except TimeoutError:  # its host reads nothing of it
            self._writer.transport.abort()

    async def news(self) -> AsyncGenerator[TerminalNews, None]:
        """Yield all that the person is told."""
        yield TerminalNews(terminal=self.name)
        reader: asyncio.StreamReader | None = None
        note = ""
        while reader is None and not self._is_over():
            view = self._view()
            if view is not None and (text := _waits(view)) != note:
                note = text
                yield TerminalNews(note=note)
            reader = await self._called() if view is not None and view.workers else None
            if reader is None:
                await self._lives.waiting.news(self._job, deadline=_now() + _CALL_INTERVAL)
        if reader is not None:
            yield TerminalNews(opened=True)
            async for news in self._of_program(reader):
                yield news
            await self._until_over(_now() + _TO_SAY_WHY, planned=True)
        yield TerminalNews(ended=True, note=self._last_words())

    async def _of_program(self, reader: asyncio.StreamReader) -> AsyncIterator[TerminalNews]:
        with contextlib.suppress(OSError, ProtocolError):
            while (message := await shown_by(reader)) is not None:
                if isinstance(message, Shown):
                    yield TerminalNews(shown=message.data)
                    await asyncio.sleep(_PAUSE)
                elif isinstance(message, Exited):
                    yield TerminalNews(status=message.status)
                    await self._until_over(_now() + _TO_END)

    async def _called(self) -> asyncio.StreamReader | None:
        """Return the output that the job's master passes on; None: there is no master to call yet."""
        try:
            run_dir = Path(self._lives.now.job(self._job).run)
            user = self._lives.now.user_of(self._job)
            with acting_as(user):
                contact = read_contact(run_dir)
            if contact is None:
                return None
            secret = workers_secret(contact.token)
            reader, writer = await call_for_person(run_dir, secret, user=user)
        except (BrimError, OSError, EOFError):
            return None
        async with self._turn:
            self._writer = writer
            with contextlib.suppress(OSError):
                await self._tell(Sized(rows=self._window.rows, columns=self._window.columns))
        return reader

    async def _until_over(self, deadline: float, *, planned: bool = False) -> None:
        """Wait until the job has ended, not beyond a time.

        Args:
            planned: not once it is to have no device, either.
        """
        while not self._is_over() and _now() < deadline:
            view = self._view()
            if planned and view is not None and not view.planned:
                return
            await self._lives.waiting.news(self._job, deadline=deadline)

    def _view(self) -> JobView | None:
        with contextlib.suppress(BrimError):
            return self._lives.now.job(self._job)
        return None

    def _is_over(self) -> bool:
        view = self._view()
        return self._lives.is_over or (view is not None and view.has_ended)

    def _last_words(self) -> str:
        view = self._view()
        if self._lives.is_over or view is None:
            return "the scheduler ends, and the job with its terminal"
        if view.has_ended:
            return f"{view.state}{f': {view.problem}' if view.problem else ''}"
        return f"{self._why_ended()}; an interactive job does not go on: it is cancelled"

    def _why_ended(self) -> str:
        """Return the last decision on the job that has a reason, in a sentence."""
        with contextlib.suppress(BrimError):
            for change in reversed(self._lives.now.story(self._job)):
                if reason_of(change):
                    return sentence_of(change)
        return "its processes have ended"

    def end(self) -> None:
        """End the line, and the job where it has not ended."""
        if self._writer is not None:
            self._writer.transport.abort()
        view = self._view()
        if view is not None and not view.has_ended:
            with contextlib.suppress(BrimError):  # its program is hung up in any case
                self._lives.to_change.wish(self._job, Happening.CANCEL, actor=str(self.caller))


class _Answer(Response):
    """The answer of HTTP that is a terminal, with signs of life in it."""

    media_type = "application/x-ndjson"

    def __init__(self, terminal: _Terminal, *, forget: Callable[[], object]) -> None:
        super().__init__()
        self._terminal, self._forget = terminal, forget
        del self.headers["content-length"]

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send
    ) -> None:
        """Send it until it ends, or its reader is gone or silent."""
        telling = asyncio.create_task(self._tell(send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            while not (telling.done() or leaving.done() or self._terminal.is_silent):
                await asyncio.wait(
                    {telling, leaving},
                    timeout=_SIGN_OF_LIFE,
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            for task in (telling, leaving):
                task.cancel()
            self._terminal.end()
            self._forget()
        if telling.done() and not telling.cancelled():
            telling.result()

    async def _tell(self, send: _Send) -> None:
        headers = [*self.raw_headers, (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        line = asyncio.Lock()

        async def say(news: TerminalNews, *, more: bool = True) -> None:
            async with line:
                body = msgspec.json.encode(news) + b"\n"
                await send({"type": "http.response.body", "body": body, "more_body": more})

        async def live() -> None:
            while True:
                await asyncio.sleep(_SIGN_OF_LIFE)
                await say(TerminalNews())

        living = asyncio.create_task(live())
        try:
            async with contextlib.aclosing(self._terminal.news()) as all_news:
                async for news in all_news:
                    if news.ended:
                        living.cancel()
                        await asyncio.wait([living])
                    await say(news, more=not news.ended)
        finally:
            living.cancel()


async def _until_gone(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _waits(view: JobView) -> str:
    """Return the reason for which a job waits, in a sentence."""
    if view.workers:
        return "it has its device, and starts"
    reason = view.waits or view.detail
    return f"it waits for a device{f': {reason}' if reason else ''}"


def _now() -> float:
    return asyncio.get_running_loop().time()
