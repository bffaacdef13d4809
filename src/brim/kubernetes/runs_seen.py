"""Runs of jobs as their operator sees them: each followed over the port of its master."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from brim.backends.watching import RunWatch
from brim.errors import EnvironmentFault
from brim.storage.mirror import RecordsMirror
from brim.wire.following import RecordsFollower

_STEPS_AT_MOST = 1 << 20  # bytes of new steps: what a look takes in
_LARGEST = 256 << 20  # bytes of a run's records here: a master says what its job's owner wants
_log = logging.getLogger(__name__)


class RunFollower(Protocol):
    """Brings a mirror of a run up to date."""

    async def run(self) -> None:
        """Follow the run, until the call is cancelled."""
        ...


FollowRun = Callable[[RecordsMirror, str, str, Callable[[], None]], RunFollower]
"""Returns what follows a run: its mirror, `HOST:PORT`, token, what to call with news."""


def follow_by_port(
    mirror: RecordsMirror, address: str, token: str, news: Callable[[], None]
) -> RunFollower:
    """Return what follows a run over the port of its master."""
    return RecordsFollower(
        mirror, address, token=token, steps_at_most=_STEPS_AT_MOST, on_change=news
    )


@dataclass(slots=True)
class _SeenRun:
    """One run.

    Args:
        watch: reads what came.
        mirror: what it reads; None: it is as an earlier operator has left it.
        news: more has come.
        address: that is called; empty: nobody is.
    """

    watch: RunWatch
    mirror: RecordsMirror | None = None
    news: bool = True
    address: str = ""
    restarts: int = 0
    task: asyncio.Task[None] | None = None


class RunsSeen:
    """The runs of jobs below a folder, by the ids of their jobs.

    Args:
        follow: makes what follows one.
    """

    def __init__(self, folder: Path, follow: FollowRun) -> None:
        self._folder, self._follow = folder, follow
        self._runs: dict[str, _SeenRun] = {}

    def watch(self, job: str) -> RunWatch:
        """Return what is known of a run, up to date."""
        run = self._of(job)
        if run.mirror is not None and run.mirror.restarts != run.restarts:
            run.restarts, run.watch = run.mirror.restarts, RunWatch(self._folder / job)
        if run.news or run.watch.behind:
            run.news = False
            run.watch.poll()
        return run.watch

    def begin(self, job: str, now: float) -> None:
        """Know that processes are about to be started: what the last ones said of their end is over.

        Args:
            now: seconds since 1970.
        """
        self._hang_up(self._of(job))
        self._of(job).watch.begin(now)

    def call(self, job: str, address: str, token: str) -> None:
        """Follow a run at this address from now on; it may be called again."""
        run = self._of(job)
        if run.address == address and run.task is not None and not run.task.done():
            return
        self._hang_up(run)
        try:
            run.mirror = run.mirror or RecordsMirror(self._folder / job, limit=_LARGEST)
        except EnvironmentFault as fault:  # the disk may have room again later
            _log.warning("%s is not followed now: %s", job, fault)
            return
        run.address = address
        follower = self._follow(run.mirror, address, token, lambda: self._hear(run))
        run.task = asyncio.create_task(follower.run())

    def keep(self, jobs: Iterable[str]) -> None:
        """Follow no other jobs than these any more."""
        for job in self._runs.keys() - set(jobs):
            run = self._runs.pop(job)
            self._hang_up(run)
            if run.mirror is not None:
                run.mirror.close()

    def close(self) -> None:
        """Follow nobody any more."""
        self.keep(())

    def _of(self, job: str) -> _SeenRun:
        if job not in self._runs:
            folder = self._folder / job
            folder.mkdir(parents=True, exist_ok=True)
            self._runs[job] = _SeenRun(RunWatch(folder))
        return self._runs[job]

    @staticmethod
    def _hear(run: _SeenRun) -> None:
        run.news = True

    def _hang_up(self, run: _SeenRun) -> None:
        if run.task is not None:
            run.task.cancel()
            if run.task.done() and not run.task.cancelled() and (why := run.task.exception()):
                _log.warning("a run was not followed any more: %s", why)
        run.task, run.address = None, ""
