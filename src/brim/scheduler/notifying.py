"""Sends notifications that are in the book, each by a process of its channel.

A notification is written down in one transaction with what it is about, and forgotten once its
receiver has taken it: a scheduler that dies in between leaves it to the next one, so that it may
come twice. Cycles wait for none of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.channels import Channel, Notification
from brim.domain.course import Change
from brim.errors import SpecError, StorageFault
from brim.host.process import run_module
from brim.interfaces import Clock
from brim.storage.book import Book

_POLL_INTERVAL = 0.5  # seconds between two looks for channels on which something waits
_AT_ONCE = 20  # notifications that one process sends
_TO_SEND = 25.0  # seconds for one of them, after which its process is killed
_FIRST_REST, _LONGEST_REST = 1.0, 300.0  # seconds after a failure; doubled each time
_GIVEN_UP = 24 * 3600.0  # seconds after which a notification that nobody takes is dropped
_LONGEST_ANSWER = 4 << 10  # bytes of a line

_log = logging.getLogger(__name__)

Send = Callable[[Channel, Sequence[Notification]], AsyncGenerator[str, None]]
"""Sends some on a channel; yields for each, in order, what went wrong, or nothing."""


def check_channels(channels: Sequence[Channel]) -> None:
    """Raises SpecError where a file of a channel cannot be read on this host, or run."""
    for channel in channels:
        for name, path in channel.secrets.items():
            if not os.access(path, os.R_OK):
                raise SpecError(
                    f"notify {channel.name}: {name}",
                    got=f"file:{path}, which cannot be read",
                    need="a file on the scheduler's host that its account can read",
                    hint=f"put the secret there, in one line, and chmod 600 {path}",
                )
        if channel.command and not os.access(channel.command[0], os.X_OK):
            raise SpecError(
                f"notify {channel.name}: command",
                got=repr(channel.command[0]),
                need="a program on the scheduler's host that its account can run",
            )


class Notifying:
    """The notifications of one cluster.

    Args:
        channels: of the cluster, as it was described last.
        send: by what they are sent.

    Attributes:
        outcomes: notifications by (channel, outcome): `sent`, `failed` attempts, and `given up`.
    """

    def __init__(
        self,
        book: Book,
        *,
        channels: Callable[[], Sequence[Channel]],
        clock: Clock,
        send: Send | None = None,
    ) -> None:
        self._book, self._channels, self._clock = book, channels, clock
        self._send = send or by_courier
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures = Counter[str]()  # in a row, by channel
        self._rests: dict[str, float] = {}  # until when
        self.outcomes = Counter[tuple[str, str]]()

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                self._pass_on_faults()
                self._begin()
                await asyncio.sleep(_POLL_INTERVAL)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _pass_on_faults(self) -> None:
        """Raise the fault of a task; one that is done makes room for the next."""
        for name, task in list(self._tasks.items()):
            if not task.done():
                continue
            del self._tasks[name]
            try:
                task.result()
            except StorageFault:
                raise
            except Exception:  # noqa: BLE001 - whatever it is, other channels go on
                self._rests[name] = self._clock.now() + _LONGEST_REST
                _log.exception("%s cannot be notified", name)

    def _begin(self) -> None:
        """Begin to send on each channel that has something to send, and does not rest."""
        channels = {channel.name: channel for channel in self._channels()}
        for name, count in list(self._book.waiting.items()):
            if name not in channels:
                self._book.drop_channel(name)
            elif (
                count > 0
                and name not in self._tasks
                and self._rests.get(name, 0.0) <= self._clock.now()
            ):
                self._tasks[name] = asyncio.create_task(self._deliver(channels[name]))

    async def _deliver(self, channel: Channel) -> None:
        """Send some of what waits for a channel, up to the first that is not taken."""
        waiting = self._book.notifications(channel.name, _AT_ONCE)
        if not waiting:
            return
        by_host_clock = [self._by_host_clock(notification) for notification in waiting.values()]
        numbers = iter(waiting.items())
        async with contextlib.aclosing(self._send(channel, by_host_clock)) as answers:
            async for problem in answers:
                number, notification = next(numbers)
                if problem:
                    self._failed(channel.name, number, notification, problem)
                    return
                self._book.drop_notification(channel.name, number)
                self._failures.pop(channel.name, None)
                self.outcomes[channel.name, "sent"] += 1

    def _by_host_clock(self, notification: Notification) -> Notification:
        offset = self._clock.set_by()
        if not offset:
            return notification
        moments = {
            name: moment + offset
            for name in ("at", "deadline", "finish")
            if (moment := getattr(notification, name)) is not None
        }
        return msgspec.structs.replace(notification, **moments)

    def _failed(self, name: str, number: int, notification: Notification, problem: str) -> None:
        """Let a channel rest; give a notification up that has waited too long."""
        self._failures[name] += 1
        rest = min(_LONGEST_REST, _FIRST_REST * 2.0 ** min(20, self._failures[name] - 1))
        self._rests[name] = self._clock.now() + rest
        self.outcomes[name, "failed"] += 1
        if self._failures[name] == 1:
            _log.warning("%s cannot be notified: %s; trying again", name, problem)
        now = self._clock.wall()
        if now - notification.at < _GIVEN_UP:
            self._book.notification_failed(number)
            return
        self.outcomes[name, "given up"] += 1
        with self._book.transaction():
            self._book.drop_notification(name, number)
            if notification.job in self._book.jobs:
                detail = f"{name}, of {notification.event}: {problem}"
                self._book.note(Change(now, notification.job, "not notified", detail=detail))


async def by_courier(
    channel: Channel, notifications: Sequence[Notification]
) -> AsyncGenerator[str, None]:
    """Send by a process, which is killed where it takes too long."""
    lines = [msgspec.json.encode(each) + b"\n" for each in (channel, *notifications)]
    try:
        process = await asyncio.create_subprocess_exec(
            *run_module("brim.wire.courier"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LONGEST_ANSWER,
        )
    except OSError as error:  # too many processes, too little memory
        yield f"no process can be started: {error.strerror}"
        return
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with contextlib.suppress(ConnectionError):  # it has died: there is no answer either
            process.stdin.writelines(lines)
            await process.stdin.drain()
            process.stdin.close()
        for _ in notifications:
            problem = await _answer(process.stdout)
            yield problem
            if problem:
                return
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a command's processes as well
        await process.wait()


async def _answer(answers: asyncio.StreamReader) -> str:
    try:
        async with asyncio.timeout(_TO_SEND):
            line = await answers.readline()
        return msgspec.json.decode(line, type=str) if line else _NO_ANSWER
    except TimeoutError:
        return f"no end in {_TO_SEND:.0f} s"
    except UNDECODABLE:
        return _NO_ANSWER


_NO_ANSWER = "the process that sends it died: of too long or too large an answer, or was killed"
