"""Random clusters and jobs for property tests."""

from __future__ import annotations

import random

from brim.domain.scaling import ScalingCurve
from brim.domain.workload import Job

CONCAVE = ScalingCurve(points=((1, 1.0), (2, 1.9), (4, 3.4), (8, 5.6), (16, 7.5)))
NARROW = ScalingCurve(points=((1, 2.0), (2, 3.0), (4, 3.3)))
BUMPY = ScalingCurve(points=((1, 1.0), (2, 2.2), (4, 3.0), (8, 2.5)))


def random_jobs(
    seed: int, count: int, *, spread: float = 2000.0, best_effort: float = 0.2
) -> tuple[Job, ...]:
    """`count` jobs whose deadlines are from impossible to loose."""
    rng = random.Random(seed)
    jobs = []
    for number in range(count):
        curve = rng.choice((CONCAVE, NARROW, BUMPY))
        submitted = round(rng.uniform(0, spread), 1)
        work = round(rng.uniform(50, 4000), 1)
        due = submitted + work / curve.maximum_rate * rng.uniform(0.8, 6.0)
        free = rng.random() < best_effort
        size = rng.choice((1, 2, 4))
        jobs.append(
            Job(
                id=f"{number:03}",
                submitted=submitted,
                work=work,
                curve=curve,
                deadline=None if free else due,
                requested=size,
                duration=work / curve.rate(size),
            )
        )
    return tuple(sorted(jobs, key=lambda job: (job.submitted, job.id)))
