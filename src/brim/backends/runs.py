"""The processes of scheduled jobs on this host: each job is a run in a directory of its own.

They are children of the agents of nodes: a scheduler that dies leaves them training, and the next one finds them by a
lock that the agent of a run holds from before it was started until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import brim
from brim import client
from brim.backends.local import agent_log, fresh_token, prepare
from brim.backends.nodes import Nodes
from brim.backends.processes import NodeSeen, Seen
from brim.backends.watching import RunWatch
from brim.clock import SystemClock
from brim.domain.job import JobSpec, WorkerRange
from brim.errors import EnvironmentFault
from brim.storage.book import JobRecord
from brim.storage.contact import read_contact
from brim.storage.files import is_locked, lock
from brim.storage.journal import set_aside_if_damaged
from brim.wire.nodes import Begin

__all__ = ["RunProcesses"]

_AGENT_LOCK = ".agent.lock"
_JOURNAL_LOCK = ".journal.lock"  # held by a master, see `brim.storage.journal`
_TO_FOLLOW = 5.0  # seconds that a master may take to end once its agent is gone


@dataclass(slots=True)
class _Job:
    watch: RunWatch
    alone_since: float | None = None


@dataclass(slots=True)
class RunProcesses:
    """Runs below `folder`, by the ids of their jobs, on these nodes."""

    folder: Path
    _nodes: Nodes
    _jobs: dict[str, _Job] = field(default_factory=dict)

    def nodes(self, names: Iterable[str]) -> Mapping[str, NodeSeen]:
        return self._nodes.keep(names)

    def run_dir(self, record: JobRecord) -> Path:
        return self.folder / record.id

    def look(self, record: JobRecord) -> Seen:
        """What is so; in this order: who is not alive any more has written its last words."""
        job, run_dir = self._job(record), self.run_dir(record)
        alive = self._is_alive(job, run_dir)
        watch = job.watch
        watch.poll()
        return Seen(
            alive=alive,
            workers=len(watch.workers) if alive else 0,
            step=watch.step,
            steps=watch.steps,
            saved=watch.saved,
            first_step=watch.first_step,
            last_step=watch.last_step,
            reached=watch.reached,
            outcome=str(watch.summary.get("exit", "")),
            who=watch.failed.who if watch.failed else "",
            problem=watch.failed.message if watch.failed else "",
            summary=watch.summary,
            measured=watch.measured,
        )

    def _job(self, record: JobRecord) -> _Job:
        if record.id not in self._jobs:
            self._jobs[record.id] = _Job(RunWatch(self.run_dir(record)))
        return self._jobs[record.id]

    def _is_alive(self, job: _Job, run_dir: Path) -> bool:
        """Whether there is an agent, or a master that still writes down how it ended; not for ever."""
        if is_locked(run_dir / _AGENT_LOCK):
            job.alone_since = None
            return True
        if not is_locked(run_dir / _JOURNAL_LOCK):
            return False
        now = SystemClock().now()
        job.alone_since = job.alone_since or now
        if now - job.alone_since > _TO_FOLLOW:
            _kill(_master_of(run_dir))
        return True

    async def start(self, record: JobRecord, workers: int) -> None:
        """Raises EnvironmentFault where it cannot."""
        run_dir = self.run_dir(record)
        run_dir.mkdir(parents=True, exist_ok=True)
        self._jobs[record.id] = job = _Job(RunWatch(run_dir))
        job.watch.begin(SystemClock().wall())
        set_aside_if_damaged(run_dir / "journal")
        held = lock(run_dir / _AGENT_LOCK)
        if held is None:
            raise EnvironmentFault(f"{run_dir} has an agent already")
        # Its standard input ends with the agent itself, which holds the other end: with nobody else.
        ours, theirs = os.pipe()
        spec = _spec(record.submission.spec, workers, first=record.launches <= 1)
        try:
            begin = Begin(
                job=record.id,
                arguments=prepare(spec, run_dir.resolve()),
                python=(sys.executable, brim.__version__),
                environment={**os.environ, **fresh_token()},
                directory=spec.directory or os.getcwd(),
            )
            with agent_log(run_dir) as log:
                self._nodes.ask(self._nodes.first, begin, [ours, log.fileno(), held, theirs])
        except OSError as error:
            raise EnvironmentFault(f"cannot start {record.id}: {error}") from error
        finally:
            for descriptor in (held, ours, theirs):
                os.close(descriptor)

    async def resize(self, record: JobRecord, workers: int) -> None:
        await asyncio.to_thread(client.resize, self.run_dir(record), workers)

    async def suspend(self, record: JobRecord) -> None:
        await asyncio.to_thread(client.suspend, self.run_dir(record))

    async def force(self, record: JobRecord, workers: int) -> None:
        """End what is beyond so many workers; where nothing is to be left, all processes."""
        if workers:
            for pid in self._job(record).watch.beyond(workers):
                _kill(pid)
            return
        self._nodes.kill_job(record.id)
        _kill(_master_of(self.run_dir(record)))


def _spec(spec: JobSpec, workers: int, *, first: bool) -> JobSpec:
    """What one start of the job is told; a spare would be a device that nobody counts.

    All its workers begin together: their devices are free, and a first step on the fastest of them alone would take
    longer than the others need to come.
    """
    now = WorkerRange(minimum=workers, maximum=workers)
    return replace(spec, workers=now, spares=0, faults=spec.faults if first else ())


def _master_of(run_dir: Path) -> int:
    """The process that writes the journal of a run; 0 where there is none."""
    contact = read_contact(run_dir)
    return contact.pid if contact and is_locked(run_dir / _JOURNAL_LOCK) else 0


def _kill(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
