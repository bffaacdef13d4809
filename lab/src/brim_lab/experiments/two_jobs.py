"""Experiment 1: two jobs that want more than half of the cluster each, as gangs and elastically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

SIDES = {"gang": "fifo-gang", "elastic": "brim"}
"""The two ways to run the jobs, and the policy of each."""

_JOBS = ("first", "second")
_LIMIT = 900.0  # seconds for one side


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoJobs:
    """The findings of experiment 1.

    Args:
        rounds: of each repetition, the courses of both jobs by side.
        predicted: by side, from what was `learnt` before.
        calm: digests of undisturbed runs, by name of the job.
    """

    scale: Scale
    learnt: Learnt
    rounds: Sequence[Mapping[str, Sequence[TrainingCourse]]]
    predicted: Mapping[str, Predicted]
    calm: Mapping[str, str]

    @property
    def claims(self) -> list[Claim]:
        """The claims, each with whether it held in every repetition."""
        return claims.in_all(
            [
                claims.two_jobs(sides_of["gang"], sides_of["elastic"], self.predicted, self.calm)
                for sides_of in self.rounds
            ]
        )


def two_jobs(
    scale: Scale,
    folder: Path,
    tell: Tell,
    *,
    repeat: int = 1,
    make_cluster: MakeCluster = demo_cluster,
) -> TwoJobs:
    """Run it.

    Args:
        folder: for everything that it leaves.
        make_cluster: makes the cluster.
    """
    with make_cluster(scale, folder, tell) as cluster:
        tell("measuring the job alone, for the prediction")
        learnt = measure(cluster, tell)
        # Elastic first: a scheduler that has to start anew for another policy may forget what it
        # has just measured.
        found = {
            side: [_side(cluster, side, tell) for _ in range(repeat)] for side in reversed(SIDES)
        }
    rounds = [{side: found[side][turn] for side in SIDES} for turn in range(repeat)]
    tell("undisturbed runs, for the digests")
    calm = {
        name: calm_run(scale, folder / "calm", name, workers=scale.fixed[0], seed=seed).digest
        for seed, name in enumerate(_JOBS)
    }
    steps = len(rounds[0]["gang"][0].steps)
    predicted = {
        side: predict(
            {"first": 0.0, "second": scale.gap},
            policy=policy,
            steps=steps,
            workers=_worker_range(scale, side),
            scale=scale,
            learnt=learnt,
        )
        for side, policy in SIDES.items()
    }
    return TwoJobs(scale=scale, learnt=learnt, rounds=rounds, predicted=predicted, calm=calm)


def _side(cluster: DemoCluster, side: str, tell: Tell) -> list[TrainingCourse]:
    """Both jobs under one policy."""
    scale, policy = cluster.scale, SIDES[side]
    tell(f"{side}: policy {policy}")
    cluster.configure(policy=policy)
    workers_wished = _worker_range(scale, side)
    first = cluster.submit("first", workers_wished, seed=0)
    cluster.pause(scale.gap, origin=first.submitted)
    second = cluster.submit("second", workers_wished, seed=1)
    return cluster.ended([first, second], timeout=_LIMIT, origin=first.submitted)


def _worker_range(scale: Scale, side: str) -> WorkerRange:
    """Return the workers that the jobs ask for: a gang has all of its workers or none."""
    return WorkerRange(minimum=scale.workers if side == "gang" else 1, maximum=scale.workers)
