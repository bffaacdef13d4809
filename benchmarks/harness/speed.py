"""How fast a job trains, by `brim train` and under a scheduler: steps a second, and processor time of a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness.brim_cluster import BrimCluster
from benchmarks.harness.brim_run import repository

__all__ = ["Speed", "by_brim_train", "stopped", "under_scheduler"]

_SETTLE = 20  # first steps of a run that do not count
_ENDING = 100  # last ones: a second, in which the workers are certainly still there to be asked
_LOOK = 0.2
_LIMIT = 300.0  # seconds that a run may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One run.

    Args:
        steps_per_second: by the times of the commits.
        workers_ms, others_ms: processor time of a step: of the workers, and of whatever else is there for the job
            (agent, template, master; the command, or scheduler and agent of the node).
    """

    steps_per_second: float
    workers_ms: float
    others_ms: float

    @property
    def processor_ms(self) -> float:
        return self.workers_ms + self.others_ms


def by_brim_train(words: Sequence[str], steps: int) -> Speed:
    """The job by the command `brim train`.

    Args:
        words: what `brim train` and `brim submit` are told.
        steps: that it has.
    """
    with tempfile.TemporaryDirectory(prefix="brim-benchmark-") as folder:
        run_dir = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "brim.cli",
            "train",
            *words,
            "--spares",
            "0",
            "--run-dir",
            str(run_dir),
        ]
        environment = {**os.environ, "PYTHONPATH": str(repository())}
        with (Path(folder) / "output").open("wb") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            found = _watch(run_dir, psutil.Process(process.pid), steps, process.poll)
            if process.wait(_LIMIT):
                raise RuntimeError(f"brim train failed: {Path(output.name).read_text()}")
        finally:
            process.kill()
        return found()


def under_scheduler(
    cluster: BrimCluster, scheduler: psutil.Process, words: Sequence[str], steps: int
) -> Speed:
    """The job by the command `brim submit`.

    Args:
        scheduler: of the cluster, which has nothing else to do.
        words, steps: see `by_brim_train`.
    """
    job = cluster.brim("submit", *words).strip()
    run_dir = cluster.state / "jobs" / job
    found = _watch(run_dir, scheduler, steps)
    cluster.brim("status", job, "--wait")
    return found()


@contextmanager
def stopped(scheduler: psutil.Process) -> Iterator[None]:
    """A scheduler without jobs, and the agents of its nodes, take no time within."""
    processes = [scheduler, *scheduler.children()]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def _watch(
    run_dir: Path, root: psutil.Process, steps: int, ended: Callable[[], int | None] = lambda: None
) -> Callable[[], Speed]:
    """Follow a run nearly to its end; what is to be asked once it has ended.

    Args:
        root: the process that has started all others.
        ended: its exit status. The scheduler is not asked: that would take its time.
    """
    _until_step(_SETTLE, run_dir, ended)
    began, before = time.time(), _used(root)
    _until_step(steps - _ENDING, run_dir, ended)
    until, after = time.time(), _used(root)

    def found() -> Speed:
        commits = _commits(run_dir)
        counted = commits[_SETTLE:]
        made = sum(began < at <= until for at in commits)
        workers, others = (1000.0 * (after[kind] - before[kind]) / made for kind in (True, False))
        speed = (len(counted) - 1) / (counted[-1] - counted[0])
        return Speed(steps_per_second=speed, workers_ms=workers, others_ms=others)

    return found


def _until_step(step: int, run_dir: Path, ended: Callable[[], int | None]) -> None:
    end = time.monotonic() + _LIMIT
    while len(_commits(run_dir)) < step:
        if ended() is not None or time.monotonic() > end:
            raise RuntimeError(f"the run came to no step {step}")
        time.sleep(_LOOK)


def _commits(run_dir: Path) -> list[float]:
    """When each step was made."""
    path = run_dir / "steps.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [float(json.loads(line)["at"]) for line in lines if line.endswith("}")]


def _used(root: psutil.Process) -> dict[bool, float]:
    """Seconds of processor time until now: True: of workers, False: of all others."""
    found = {True: 0.0, False: 0.0}
    for process in [root, *root.children(recursive=True)]:
        times = process.cpu_times()
        found[process.name().startswith("brim-w")] += times.user + times.system
    return found
