"""The jobs that a cluster really had, as its log tells of them. Pure.

An importer adds jobs to a `Log`, and simulations begin from `Log.history`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class PastRun(NamedTuple):
    """A job had so many devices from `start` to `end`; without an end, it was still running."""

    start: float
    end: float | None
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """One job.

    Args:
        id: its id in the log.
        user: empty where the log has none.
        tenant: its account, virtual cluster or queue.
        submitted: seconds on the clock of the log; None where the log has no such time.
        runs: in any order. A job that was put back in line has several, and one of several tasks
            has some at the same time.
        state: the word of the log for how it ended.
    """

    id: str
    user: str
    tenant: str
    submitted: float | None
    runs: tuple[PastRun, ...]
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """A past job that had devices, and how many of them at each time.

    Args:
        submitted: seconds on the clock of the log.
        steps: (time, devices from then on), ascending in time; the last one has 0 devices.
    """

    job: PastJob
    submitted: float
    steps: tuple[tuple[float, int], ...]

    @property
    def peak(self) -> int:
        """The largest number of devices that it had at once."""
        return max(devices for _, devices in self.steps)

    @property
    def started(self) -> float:
        """The start of its first run."""
        return self.steps[0][0]

    @property
    def ended(self) -> float:
        """The end of its last run."""
        return self.steps[-1][0]

    @property
    def device_seconds(self) -> float:
        """The sum of its runs, each its seconds times its devices."""
        return device_seconds(self.job.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The past of a cluster.

    Args:
        jobs: that had devices, by time of submission.
        assumed: sentences on gaps of the log, and on jobs left out.
        size: (devices, devices of a node) as the log has it; None where it does not.
    """

    jobs: tuple[Occupancy, ...]
    assumed: tuple[str, ...]
    size: tuple[int, int] | None = None

    @property
    def start(self) -> float:
        """The first submission."""
        return self.jobs[0].submitted

    @property
    def peak(self) -> int:
        """The largest number of devices that were in use at once."""
        changes = (change for job in self.jobs for change in _changes(job.steps))
        return max(devices for _, devices in summed(changes))


@dataclass(slots=True, kw_only=True)
class Log:
    """Takes the jobs of a log as they are read.

    Args:
        assumed: sentences of the importer.
        size: see `History`.
        left_out: jobs that cannot be counted, by the reason.
        odd: how often something was read otherwise than it is written, by the way of reading.
        last: the last time in the log.
    """

    assumed: list[str] = field(default_factory=list)
    size: tuple[int, int] | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    _jobs: list[PastJob] = field(default_factory=list)
    last: float = float("-inf")

    def add(self, job: PastJob) -> None:
        """Take a job in the order of the log, unless it cannot be counted."""
        for time in (job.submitted, *(time for run in job.runs for time in run[:2])):
            if time is not None and time > self.last:
                self.last = time
        forward = tuple(run for run in job.runs if run.end is None or run.end >= run.start)
        self.odd["runs left out that end before they start"] += len(job.runs) - len(forward)
        runs = tuple(sorted((run for run in forward if run.devices), key=lambda run: run[0]))
        if job.submitted is None:
            self.left_out["without a time of submission"] += 1
        elif not job.runs:
            self.left_out["that never started"] += 1
        elif not runs and forward:
            self.left_out["that had no device"] += 1
        elif not runs:
            self.left_out["without a run that ends after its start"] += 1
        else:
            self._jobs.append(replace(job, runs=runs))

    def history(self) -> History:
        """Return the past; jobs that had not ended when the log does count up to there."""
        jobs = []
        unfinished = 0
        for job in self._jobs:
            runs = tuple(
                run._replace(end=self.last) if run.end is None else run for run in job.runs
            )
            unfinished += any(run.end is None for run in job.runs)
            if not device_seconds(runs):
                self.left_out["that ran for no time"] += 1
                continue
            submitted = min(job.submitted or 0.0, runs[0].start)
            if submitted != job.submitted:
                self.odd["jobs that started before they were submitted: submitted then"] += 1
            steps = tuple(summed((time, change) for run in runs for time, change in _ends(run)))
            jobs.append(Occupancy(job=replace(job, runs=runs), submitted=submitted, steps=steps))
        jobs.sort(key=lambda job: job.submitted)
        return History(jobs=tuple(jobs), assumed=tuple(self._sentences(unfinished)), size=self.size)

    def _sentences(self, unfinished: int) -> Iterable[str]:
        yield from self.assumed
        if unfinished:
            yield f"jobs that had not ended have what they had until the log ends ({unfinished:,})"
        parts = [f"{count:,} {reason}" for reason, count in self.left_out.items() if count]
        if parts:
            yield f"jobs left out: {', '.join(parts)}"
        yield from (f"{words} ({count:,})" for words, count in self.odd.items() if count)


def device_seconds(runs: Iterable[PastRun]) -> float:
    """Return the sum of runs that have ended, each its seconds times its devices.

    >>> device_seconds([PastRun(0.0, 10.0, 2), PastRun(5.0, 10.0, 1)])
    25.0
    """
    return sum((run.end - run.start) * run.devices for run in runs if run.end is not None)


def summed(changes: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the sum after each time at which it changes.

    Args:
        changes: (time, change of the sum), in any order.

    >>> summed([(0.0, 2), (5.0, 1), (9.0, -2), (9.0, -1), (5.0, 1), (7.0, -1)])
    [(0.0, 2), (5.0, 4), (7.0, 3), (9.0, 0)]
    """
    sums: dict[float, int] = {}
    for time, change in changes:
        sums[time] = sums.get(time, 0) + change
    points = []
    total = 0
    for time in sorted(sums):
        if sums[time]:
            total += sums[time]
            points.append((time, total))
    return points


def _ends(run: PastRun) -> Iterable[tuple[float, int]]:
    assert run.end is not None, "a run that still goes on has the end of the log"
    return (run.start, run.devices), (run.end, -run.devices)


def _changes(steps: Iterable[tuple[float, int]]) -> Iterable[tuple[float, int]]:
    previous = 0
    for time, devices in steps:
        yield time, devices - previous
        previous = devices
