"""Experiment 3: a job whose workers come and go with an online service's load.

The same job runs undisturbed beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brim.domain.job import WorkerRange
from brim_lab.experiments import claims
from brim_lab.experiments.claims import Claim
from brim_lab.experiments.cluster import (
    DemoCluster,
    MakeCluster,
    Tell,
    calm_run,
    demo_cluster,
)
from brim_lab.experiments.course import TrainingCourse
from brim_lab.experiments.measure import measure
from brim_lab.experiments.prediction import Learnt, Predicted, predict
from brim_lab.experiments.scale import Scale

_LIMIT = 900.0  # seconds for the job


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingWorkers:
    """The findings of experiment 3.

    Args:
        rounds: the elastic job, once for each repetition.
        fixed: undisturbed runs, each on a number of workers of its own.
    """

    scale: Scale
    learnt: Learnt
    rounds: Sequence[TrainingCourse]
    predicted: Predicted
    fixed: Sequence[TrainingCourse]

    @property
    def claims(self) -> list[Claim]:
        """The claims, each with whether it held in every repetition."""
        return claims.in_all(
            [claims.changing_workers(course, self.fixed) for course in self.rounds]
        )


def changing_workers(
    scale: Scale,
    folder: Path,
    tell: Tell,
    *,
    repeat: int = 1,
    make_cluster: MakeCluster = demo_cluster,
) -> ChangingWorkers:
    """Run it.

    Args:
        folder: for everything that it leaves.
        make_cluster: makes the cluster.
    """
    with make_cluster(scale, folder, tell) as cluster:
        tell("measuring the job alone, for the prediction")
        learnt = measure(cluster, tell)
        rounds = [_beside_a_service(cluster) for _ in range(repeat)]
    tell("undisturbed runs, for the digests and the AUC")
    fixed = [
        calm_run(scale, folder / "calm", f"fixed-{workers}", workers=workers)
        for workers in scale.fixed
    ]
    predicted = predict(
        {"elastic": 0.0},
        policy="brim",
        steps=len(rounds[0].steps),
        workers=_worker_range(scale),
        scale=scale,
        learnt=learnt,
        capacity=scale.capacity(end=_LIMIT),
    )
    return ChangingWorkers(
        scale=scale, learnt=learnt, rounds=rounds, predicted=predicted, fixed=fixed
    )


def _beside_a_service(cluster: DemoCluster) -> TrainingCourse:
    """The job, on the slots that the service leaves."""
    scale = cluster.scale
    cluster.configure()
    job = cluster.submit("elastic", _worker_range(scale))
    course, _ = cluster.serve_until_ended(job, timeout=_LIMIT)
    return course


def _worker_range(scale: Scale) -> WorkerRange:
    return WorkerRange(minimum=1, maximum=scale.workers)
