"""One run of brim, seen from outside: started, followed through its records, ended with nothing
left behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from brim import client
from brim.backends import local
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.step_records import StepRecord
from brim.telemetry.events import RoundFormed, WorkerChanged, WorldReFormed
from brim.telemetry.history import RunHistory, RunReader, WorkerLife

_POLL = 0.01


def repository() -> Path:
    """The root of the checkout, which training files import `benchmarks` from."""
    return Path(__file__).resolve().parents[2]


def import_path() -> str:
    """The checkout and its own brim, whichever one is installed, as `PYTHONPATH` has them."""
    return os.pathsep.join((str(repository() / "src"), str(repository())))


def alive(pid: int) -> bool:
    """Whether a process exists that could still do something: a zombie cannot."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


class BrimStuck(RuntimeError):
    """The event for which the benchmark waited did not come."""


class BrimRun:
    """A job under a local master and agent.

    Args:
        file: the training file.
        workers: how many to start with.
        resume: from the checkpoints that are where a field says.
        fields: further fields of the JobSpec.
    """

    def __init__(self, file: Path, *, workers: int, resume: bool = False, **fields: Any) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
        self._file, self._workers, self._fields, self._resumes = file, workers, fields, resume

    def __enter__(self) -> Self:
        os.environ["PYTHONPATH"] = import_path()
        os.environ["BRIM_KEEP_WARM"] = "0"  # nothing is left for the next one
        count = WorkerRange(minimum=self._workers, maximum=self._workers)
        spec = JobSpec(
            file=str(self._file),
            parameters=self._fields.pop("parameters", {}),
            workers=count,
            **self._fields,
        )
        self._handle = local.start(spec, self.directory, resume=self._resumes, listen=None)
        self._reader = RunReader(self.directory)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.poll()
        self._handle.kill()
        deadline = time.monotonic() + 10
        while self._handle.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL)
        pids = [
            life.pid
            for life in self._reader.history.workers.values()
            if life.pid and not life.until
        ]
        while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(_POLL)
        survivors = [pid for pid in pids if alive(pid)]
        for pid in survivors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if survivors:
            print(f"warning: workers {survivors} outlived their agent and were killed", flush=True)
        if error is None:
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            print(f"the records of the run that failed: {self.directory}", flush=True)

    # What is known --------------------------------------------------------------------------------

    def poll(self) -> None:
        self._reader.poll()

    @property
    def history(self) -> RunHistory:
        """All that its records said up to the last poll."""
        return self._reader.history

    @property
    def steps(self) -> list[StepRecord]:
        return self._reader.history.steps

    @property
    def rounds(self) -> dict[int, RoundFormed]:
        return {
            event.round: event
            for event in self._reader.history.events
            if isinstance(event, RoundFormed)
        }

    @property
    def re_formed(self) -> dict[int, WorldReFormed]:
        return {
            event.round: event
            for event in self._reader.history.events
            if isinstance(event, WorldReFormed)
        }

    @property
    def round(self) -> RoundFormed:
        found = self._reader.history.round
        if found is None:
            raise BrimStuck("no round has been formed")
        return found

    @property
    def members(self) -> list[WorkerLife]:
        """The living members of the present round, in rank order."""
        workers = self._reader.history.workers
        return [workers[name] for name in self.round.workers if workers[name].until is None]

    @property
    def spares_ready(self) -> int:
        members = set(self.round.workers)
        workers = self._reader.history.workers.values()
        return sum(life.state == "ready" and life.worker not in members for life in workers)

    def lost_at(self, worker: str) -> float | None:
        """When the master wrote down that a worker is gone."""
        for event in self._reader.history.events:
            if (
                isinstance(event, WorkerChanged)
                and event.worker == worker
                and event.state == "lost"
            ):
                return event.at
        return None

    def reason(self, worker: str) -> str:
        """Why a worker left or was lost, as the records say."""
        return self._reader.history.workers[worker].reason

    def steps_of(self, round: int) -> list[StepRecord]:
        """The commits of a round that is recent."""
        found = []
        for step in reversed(self.steps):
            if step.round < round:
                break
            if step.round == round:
                found.append(step)
        return found[::-1]

    def median_step(self, world_size: int) -> float:
        """Seconds between commits within rounds of this size."""
        rounds = {
            formed.round for formed in self.rounds.values() if formed.world_size == world_size
        }
        gaps = [
            after.at - step.at
            for step, after in zip(self.steps, self.steps[1:], strict=False)
            if step.round == after.round and after.round in rounds
        ]
        return statistics.median(gaps)

    # What is done ---------------------------------------------------------------------------------

    def until(self, subject: str, true: Callable[[], Any], *, timeout: float = 30.0) -> Any:
        """Follow the records until `true()` is; its value.

        Raises:
            BrimStuck: it took longer than `timeout` seconds, or the run ended.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.poll()
            value = true()
            if value:
                return value
            history = self._reader.history
            if history.failed or history.ended or self._handle.poll() is not None:
                detail = history.failed.message if history.failed else "see its logs"
                raise BrimStuck(f"the run ended while waiting for {subject}: {detail}")
            if time.monotonic() > deadline:
                raise BrimStuck(f"no {subject} within {timeout:g} s")
            time.sleep(_POLL)

    def until_steady(
        self, world_size: int, *, steps: int = 15, spares: int = 0, timeout: float = 30.0
    ) -> None:
        """Until a round of this size has committed some steps and its spares are warm."""
        self.until(
            f"{steps} steps of {world_size} workers with {spares} spares",
            lambda: (
                self._reader.history.round is not None
                and self.round.world_size == world_size
                and len(self.steps_of(self.round.round)) >= steps
                and self.spares_ready >= spares
            ),
            timeout=timeout,
        )

    def resize(self, workers: int) -> float:
        """Ask for so many workers; the wall clock before the question."""
        asked_at = time.time()
        client.resize(self.directory, workers)
        return asked_at
