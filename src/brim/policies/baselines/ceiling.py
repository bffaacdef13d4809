"""The share of deadlines that could be met at all: a bound that no policy can exceed. Pure.

Two bounds. Per job: the whole cluster to itself, at once. With capacity: a linear relaxation in
which jobs may be met in part and devices are handed out as a fluid, so that every real schedule is
among its solutions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from brim.domain.workload import Job

# Most time buckets of the relaxation; fewer make it faster and the bound looser, never wrong.
_BUCKETS = 1000


def _possible(job: Job, devices: int) -> bool:
    if job.deadline is None:
        return False
    rate = job.curve.best[min(job.ceiling, devices)]
    return rate > 0 and job.submitted + job.work / rate <= job.deadline + 1e-6


def ceiling_per_job(jobs: Sequence[Job], *, devices: int) -> float | None:
    """Return the share of the deadlines that jobs would meet, each alone on `devices` devices.

    None without any deadline.
    """
    with_deadline = [job for job in jobs if job.deadline is not None]
    return (
        sum(_possible(job, devices) for job in with_deadline) / len(with_deadline)
        if with_deadline
        else None
    )


def least_device_time(job: Job) -> float:
    """Return the least device-seconds that do the job between submission and deadline.

    On a concave curve an even pace needs least (Jensen), so it is the window times the workers
    whose envelope is the average speed that the window asks for; fractions of a worker allowed.

    Source: our own; the argument for uniform shares is in ElasticFlow, section 4.1.
    """
    assert job.deadline is not None
    envelope = job.curve.envelope
    window = max(job.deadline - job.submitted, job.work / envelope[-1])  # possible but for rounding
    pace = min(job.work / window, envelope[-1])
    place = bisect_left(envelope, pace)
    lower, upper = envelope[place - 1], envelope[place]
    workers = place - 1 + (pace - lower) / (upper - lower)
    return min(workers, float(place)) * window


class _Programme(NamedTuple):
    """Rows of the relaxation in compressed form.

    For each row its bounds and its (column, factor) pairs.
    """

    upper: list[float]
    starts: list[int]
    columns: list[int]
    factors: list[float]

    def add(self, upper: float, terms: Sequence[tuple[int, float]]) -> None:
        self.upper.append(upper)
        self.starts.append(len(self.columns))
        self.columns.extend(column for column, _ in terms)
        self.factors.extend(factor for _, factor in terms)


def ceiling_with_capacity(
    jobs: Sequence[Job], *, devices: int, buckets: int = _BUCKETS
) -> float | None:
    """Bound the share of deadlines that any policy could meet on `devices` devices together.

    None without any deadline.

    Maximise the number of jobs met, in parts, such that each gets its least device-time inside its
    window, no faster than its most workers allow, and no bucket of time gives more than its
    devices.
    """
    with_deadline = [job for job in jobs if job.deadline is not None]
    if not with_deadline:
        return None
    able = [job for job in with_deadline if _possible(job, devices)]
    if not able:
        return 0.0
    moments = sorted({t for job in able for t in (job.submitted, job.deadline or 0.0)})
    if len(moments) > buckets:
        moments = [
            moments[k]
            for k in np.linspace(0, len(moments) - 1, buckets).round().astype(int).tolist()
        ]
    used: list[list[tuple[int, float]]] = [[] for _ in moments]
    rows = _Programme([], [], [], [])
    column = len(
        able
    )  # columns: one for each job's part that is met, then device-time per job and bucket
    for k, job in enumerate(able):
        assert job.deadline is not None
        terms = [(k, least_device_time(job))]
        maximum = min(job.ceiling, devices)
        for bucket in range(
            bisect_right(moments, job.submitted) - 1, bisect_left(moments, job.deadline)
        ):
            overlap = min(moments[bucket + 1], job.deadline) - max(moments[bucket], job.submitted)
            rows.add(0.0, [(column, 1.0), (k, -maximum * overlap)])
            used[bucket].append((column, 1.0))
            terms.append((column, -1.0))
            column += 1
        rows.add(0.0, terms)
    for bucket, terms in enumerate(used):
        if terms:
            rows.add(devices * (moments[bucket + 1] - moments[bucket]), terms)
    met = _maximise(len(able), column, rows)
    return int(met + 1e-6) / len(with_deadline)


def _maximise(parts: int, columns: int, rows: _Programme) -> float:
    """The largest sum of the first `parts` columns, each in [0, 1], under `rows`."""
    import highspy  # here, since only this bound and Chronus need a solver

    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    infinity = solver.getInfinity()
    upper = np.full(columns, infinity)
    upper[:parts] = 1.0
    solver.addVars(columns, np.zeros(columns), upper)
    solver.changeColsCost(parts, np.arange(parts, dtype=np.int32), -np.ones(parts))
    solver.addRows(
        len(rows.upper), np.full(len(rows.upper), -infinity), np.array(rows.upper), len(rows.columns),
        np.array(rows.starts, dtype=np.int32), np.array(rows.columns, dtype=np.int32), np.array(rows.factors),
    )  # fmt: skip
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal, solver.getModelStatus()
    return -float(solver.getObjectiveValue())
