"""Wakes callers that wait for news of a job, so that none has to ask every moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Iterable
from itertools import islice, takewhile
from pathlib import Path

_MOST_FILES = 4_096  # of a job's logs that are looked at: a tenant may put more there
_POLL_INTERVAL = 0.2  # seconds between two looks at all logs that somebody follows


class Waiting:
    """Requests that wait for news or log lines, by job.

    News of a job are rung. Where its processes print something, no ring comes: one task looks for
    all who follow logs.

    Attributes:
        name: of this object: counts of another one mean nothing here.
        count: rings so far.
    """

    def __init__(self) -> None:
        self.name = secrets.token_hex(4)
        self.count = 0
        self._last_rings: dict[str, int] = {}  # the last ring of each job, the newest at the end
        self._for_any: asyncio.Event = asyncio.Event()
        self._for_news: dict[str, asyncio.Event] = {}
        self._for_lines: dict[str, asyncio.Event] = {}
        self._logs: dict[
            str, tuple[Path, int]
        ] = {}  # followed lately, with the bytes of them at the last look
        self._looking: asyncio.Task[None] | None = None

    def ring(self, job: str) -> None:
        """Tell of news of a job; the woken tasks look for themselves."""
        self.count += 1
        self._last_rings.pop(job, None)
        self._last_rings[job] = self.count
        self._wake_any()
        for waiting in (self._for_news, self._for_lines):
            event = waiting.pop(job, None)
            if event is not None:
                event.set()

    def ring_all(self) -> None:
        """Wake all: nothing has to be waited for any more."""
        self._wake_any()
        for job in [*self._for_news, *self._for_lines]:
            self.ring(job)

    def rung_after(self, count: int, limit: int) -> tuple[list[str], int]:
        """Return the jobs that have been rung since then, and the count of the last of them.

        Args:
            limit: at most so many, those rung first.
        """
        newest = takewhile(lambda ring: ring[1] > count, reversed(self._last_rings.items()))
        rung = list(newest)[::-1]
        last = rung[limit - 1][1] if len(rung) > limit else self.count
        return [job for job, _ in rung[:limit]], last

    async def any_news(self, *, deadline: float) -> None:
        """Wait for news of any job, until a time of the event loop's clock."""
        await _wait(self._for_any, deadline)

    async def news(self, job: str, *, deadline: float) -> None:
        """Wait for news of a job, until a time of the event loop's clock."""
        await _wait(self._for_news.setdefault(job, asyncio.Event()), deadline)

    async def lines(self, job: str, folder: Path, *, deadline: float) -> None:
        """Wait for news of a job, or lines in its logs, which are in this folder."""
        event = self._for_lines.setdefault(job, asyncio.Event())
        self._logs.setdefault(job, (folder, -1))
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        await _wait(event, deadline)

    async def _look(self) -> None:
        try:
            while self._for_lines:
                folders = {job: self._logs[job][0] for job in self._for_lines}
                # In one thread for all: the disk may take its time.
                sizes = await asyncio.to_thread(_sizes, folders.values())
                for (job, folder), size in zip(folders.items(), sizes, strict=True):
                    if size != self._logs[job][1]:
                        self._logs[job] = folder, size
                        self._rung_for_lines(job)
                await asyncio.sleep(_POLL_INTERVAL)
        finally:
            self._looking = None
            self._logs.clear()

    def _wake_any(self) -> None:
        event, self._for_any = self._for_any, asyncio.Event()
        event.set()

    def _rung_for_lines(self, job: str) -> None:
        event = self._for_lines.pop(job, None)
        if event is not None:
            event.set()


async def _wait(event: asyncio.Event, deadline: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await event.wait()


def _sizes(folders: Iterable[Path]) -> list[int]:
    return [_size(folder) for folder in folders]


def _size(folder: Path) -> int:
    """Bytes of all files of a folder; 0 where unknown."""
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat().st_size for entry in islice(entries, _MOST_FILES))
    except OSError:
        return 0
