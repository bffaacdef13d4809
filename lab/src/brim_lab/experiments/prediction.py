"""The simulator's prediction for an experiment's jobs: the policies are the scheduler's own.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brim.domain.cluster import Cluster
from brim.domain.job import WorkerRange
from brim.domain.measuring import curve_of
from brim.domain.resizing import Overheads
from brim.domain.workload import Job
from brim.simulator.engine import Settings, simulate
from brim.user_code.policies import POLICIES
from brim_lab.experiments.course import Workers
from brim_lab.experiments.scale import Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """Measurements of a job: steps per second by number of workers, and the cost of changes."""

    rates: Mapping[int, float]
    overheads: Overheads


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Seconds since the first submission, by job."""

    workers: Mapping[str, Workers]
    ends: Mapping[str, float]

    @property
    def makespan(self) -> float:
        return max(self.ends.values())


def predict(
    submitted: Mapping[str, float],
    *,
    policy: str,
    steps: int,
    workers: WorkerRange,
    scale: Scale,
    learnt: Learnt,
    capacity: Sequence[tuple[float, int]] = (),
) -> Predicted:
    """Simulate alike jobs.

    Args:
        submitted: when each is, by name.
        steps: of each job.
        workers: that each may have.
        scale: of the cluster and of a step.
        capacity: see `Settings`.

    >>> from brim_lab.experiments.scale import TWO_JOBS
    >>> curve = Learnt(rates={1: 1.0, 5: 5.0}, overheads=Overheads(name="none"))
    >>> two = {"first": 0.0, "second": 10.0}
    >>> same = {"steps": 100, "scale": TWO_JOBS, "learnt": curve}
    >>> predict(two, policy="fifo-gang", workers=WorkerRange.parse("5"), **same).makespan
    40.0
    >>> predict(two, policy="brim", workers=WorkerRange.parse("1:5"), **same).makespan
    34.0
    """
    minimum, maximum = workers.minimum, workers.maximum
    curve = curve_of(learnt.rates, parts=scale.micro_batches, minimum=minimum, maximum=maximum)
    jobs = [
        Job(
            id=name,
            submitted=submitted_at,
            work=float(steps),
            curve=curve,
            requested=maximum,
            duration=steps / curve.best[maximum],
            minimum=minimum,
            maximum=maximum,
        )
        for name, submitted_at in submitted.items()
    ]
    settings = Settings(overheads=learnt.overheads, capacity=tuple(capacity), record=True)
    cluster = Cluster.uniform(nodes=1, devices=scale.slots)
    run = simulate(jobs, cluster, POLICIES[policy], settings=settings)
    return Predicted(
        workers={
            name: tuple((change.at, change.after) for change in run.changes if change.job == name)
            for name in submitted
        },
        ends={outcome.job.id: outcome.finished or 0.0 for outcome in run.outcomes},
    )
