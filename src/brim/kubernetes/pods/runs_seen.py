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
# Seconds between two calls in vain at most. They are as far apart as the master has been silent, so one
# that nobody can reach is heard again after twice the time of that; a thousand of them cost little.
_LONGEST_PAUSE = 300.0
_LARGEST = 256 << 20  # bytes of a run's records here: a master says what its job's owner wants
_log = logging.getLogger(__name__)


class RunFollower(Protocol):
    """Brings a mirror of a run up to date."""

    @property
    def is_connected(self) -> bool:
        """True while the run's master answers."""
        ...

    async def run(self) -> None:
        """Follow the run, until the call is cancelled."""
        ...


FollowRun = Callable[[RecordsMirror, str, str, Callable[[], None]], RunFollower]
"""Returns what follows a run: its mirror, `HOST:PORT`, token, what to call with news."""


def follow_by_port(
    mirror: RecordsMirror, address: str, token: str, news: Callable[[], None]
) -> RunFollower:
    """Return the follower of a run, over the port of its master."""
    return RecordsFollower(
        mirror,
        address,
        token=token,
        steps_at_most=_STEPS_AT_MOST,
        longest_pause=_LONGEST_PAUSE,
        on_change=news,
    )


@dataclass(slots=True)
class _SeenRun:
    """One run.

    Args:
        watch: reads the records that came.
        mirror: the records; None: as an earlier operator has left them.
        news: more has come.
        address: that is called; empty: none is.
        version: of the master's pod when that began.
        follower: that calls.
    """

    watch: RunWatch
    mirror: RecordsMirror | None = None
    news: bool = True
    address: str = ""
    version: str = ""
    restarts: int = 0
    follower: RunFollower | None = None
    task: asyncio.Task[None] | None = None


class RunsSeen:
    """The runs of jobs below a folder, by the ids of their jobs.

    Args:
        follow: makes the follower of one.
    """

    def __init__(self, folder: Path, follow: FollowRun) -> None:
        self._folder, self._follow = folder, follow
        self._runs: dict[str, _SeenRun] = {}

    def watch(self, job: str) -> RunWatch:
        """Return the present knowledge of a run."""
        run = self._run_of(job)
        if run.mirror is not None and run.mirror.restarts != run.restarts:
            run.restarts, run.watch = run.mirror.restarts, RunWatch(self._folder / job)
        if run.news or run.watch.has_more:
            run.news = False
            run.watch.poll()
        return run.watch

    def is_calm(self) -> bool:
        """Return whether nothing has come of any run since it was looked at."""
        return not any(run.news or run.watch.has_more for run in self._runs.values())

    def begin(self, job: str, now: float) -> None:
        """Forget the words of the last processes about their end: others are about to be started.

        Args:
            now: seconds since 1970.
        """
        self._hang_up(self._run_of(job))
        self._run_of(job).watch.begin(now)

    def call(self, job: str, address: str, token: str, *, version: str = "") -> None:
        """Follow a run at this address from now on; it may be called again.

        Args:
            version: of the master's pod: where it is another one, a master that does not answer is
                called at once.
        """
        run = self._run_of(job)
        if run.address == address and run.task is not None and not run.task.done():
            connected = run.follower is not None and run.follower.is_connected
            if connected or run.version == version:
                run.version = version
                return
        self._hang_up(run)
        try:
            run.mirror = run.mirror or RecordsMirror(self._folder / job, limit=_LARGEST)
        except EnvironmentFault as fault:  # the disk may have room again later
            _log.warning("%s is not followed now: %s", job, fault)
            return
        run.address, run.version = address, version
        run.follower = self._follow(run.mirror, address, token, lambda: self._hear(run))
        run.task = asyncio.create_task(run.follower.run())

    def keep(self, jobs: Iterable[str]) -> None:
        """Follow no other jobs than these any more."""
        for job in self._runs.keys() - set(jobs):
            run = self._runs.pop(job)
            self._hang_up(run)
            if run.mirror is not None:
                run.mirror.close()

    def close(self) -> None:
        """Follow no run any more."""
        self.keep(())

    def _run_of(self, job: str) -> _SeenRun:
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
            if run.task.done() and not run.task.cancelled() and (error := run.task.exception()):
                _log.warning("a run was not followed any more: %s", error)
        run.task, run.follower, run.address = None, None, ""
