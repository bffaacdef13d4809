"""How fast a job trains, by `brim train` and under a scheduler: both at once, of which one is
always stopped.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness.brim_cluster import BrimCluster
from benchmarks.harness.brim_run import repository
from brim_lab.driver import Driver

_STARTED = 40  # steps after which a job trains as it will for ever
_SETTLE = 0.15  # seconds of a turn that do not count: caches fill again
_LOOK = 0.1
_LIMIT = 120.0  # seconds until a job must have started


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The figures of one turn.

    Args:
        steps: that were made.
        seconds: that it took.
        workers, others: processor time, in seconds: of the workers, and of the job's other processes
            (agent, template, master; the command, or scheduler and agent of the node).
    """

    steps: int
    seconds: float
    workers: float
    others: float

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds


@dataclass(frozen=True, slots=True)
class Side:
    """A job that trains for ever, with all the processes that are there for it.

    Args:
        run_dir: of its run.
        root: the process that has started all others.
    """

    run_dir: Path
    root: psutil.Process

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def go(self) -> None:
        self._signal(signal.SIGCONT)

    def until_it_trains(self) -> None:
        """Raises RuntimeError where it does not within two minutes."""
        end = time.monotonic() + _LIMIT
        while self._steps() < _STARTED:
            if time.monotonic() > end:
                raise RuntimeError(f"the run came to no step {_STARTED}: {self.run_dir}")
            time.sleep(_LOOK)

    def turn(self, seconds: float) -> Speed:
        """Let it train for a moment, and stop it."""
        self.go()
        time.sleep(_SETTLE)
        started, used_before, step = time.perf_counter(), self._used(), self._steps()
        time.sleep(seconds)
        passed, used_after, steps = (
            time.perf_counter() - started,
            self._used(),
            self._steps() - step,
        )
        self.stop()
        workers, other_seconds = (used_after[kind] - used_before[kind] for kind in (True, False))
        return Speed(steps=steps, seconds=passed, workers=workers, others=other_seconds)

    def _processes(self) -> list[psutil.Process]:
        return [self.root, *self.root.children(recursive=True)]

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _steps(self) -> int:
        path = self.run_dir / "steps.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def _used(self) -> dict[bool, float]:
        """Seconds of processor time until now: True: of workers, False: of all others."""
        found = {True: 0.0, False: 0.0}
        for process in self._processes():
            times = process.cpu_times()
            found[process.name().startswith("brim-w")] += times.user + times.system
        return found


@contextlib.contextmanager
def by_brim_train(words: Sequence[str]) -> Iterator[Side]:
    """A job by the command `brim train`.

    Args:
        words: arguments of the command.
    """
    with tempfile.TemporaryDirectory(prefix="brim-benchmark-") as folder:
        run_dir = Path(folder) / "run"
        driver = Driver(PYTHONPATH=str(repository()))
        command = ("train", *words, "--spares", "0", "--run-dir", str(run_dir))
        with (Path(folder) / "output").open("wb") as output:
            process = driver.start(*command, stdout=output, stderr=output)
        side = Side(run_dir, psutil.Process(process.pid))
        try:
            side.until_it_trains()
            yield side
        finally:
            side.go()
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_LIMIT)
            finally:
                driver.end()
                process.wait()


@contextlib.contextmanager
def under_scheduler(
    cluster: BrimCluster, scheduler: psutil.Process, words: Sequence[str]
) -> Iterator[Side]:
    """A job by the command `brim submit`.

    Args:
        scheduler: of the cluster, which has nothing else to do, and is stopped with the job.
        words: arguments of the command.
    """
    job = cluster.brim("submit", *words).strip()
    side = Side(cluster.state / "jobs" / job, scheduler)
    try:
        side.until_it_trains()
        yield side
    finally:
        side.go()
        cluster.brim("cancel", job)


def in_turns(first: Side, second: Side, *, pairs: int, seconds: float) -> list[tuple[Speed, Speed]]:
    """Let two stopped jobs train in turns; the first one changes with each pair.

    Args:
        pairs: how often each has a turn.
        seconds: that a turn counts.
    """
    found = []
    for number in range(pairs):
        order = (second, first) if number % 2 else (first, second)
        speeds = [side.turn(seconds) for side in order]
        found.append((speeds[1], speeds[0]) if number % 2 else (speeds[0], speeds[1]))
    return found
