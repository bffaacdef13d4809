"""Experiment 2: training fills in around an online service, which comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
from brim_lab.experiments.course import TrainingCourse, Workers, use_of, waits
from brim_lab.experiments.measure import measure
from brim_lab.experiments.prediction import Learnt, Predicted, predict
from brim_lab.experiments.scale import Scale

_LIMIT = 1200.0  # seconds for the job


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledOnce:
    """The job beside the service, once.

    Args:
        wanted, had: slots of the service, in seconds since the job's submission.
        launches: how often the job was started.
    """

    course: TrainingCourse
    wanted: Workers
    had: Workers
    launches: int

    @property
    def waited(self) -> list[float]:
        """Seconds that the service waited, for each rise of its demand."""
        return waits(self.wanted, self.had)

    def use(self, slots: int) -> float:
        """Return the part of the slots that was used, from the job's first step to its last."""
        return self._use([self.course.workers, self.had], slots)

    def use_of_service(self, slots: int) -> float:
        """Return the part of the slots that the service used meanwhile."""
        return self._use([self.had], slots)

    def _use(self, parts: Sequence[Workers], slots: int) -> float:
        steps = self.course.steps
        return use_of(parts, slots, begin=steps[0], end=steps[-1])

    @property
    def longest_pause(self) -> float:
        """The longest time between two steps, in seconds."""
        return max(current - previous for previous, current in pairwise(self.course.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideService:
    """The findings of experiment 2.

    Args:
        alone: seconds until the service had the most that it ever wants, on free slots.
        predicted: from what was `learnt` before, for a service that has at once what it wants.
        calm: digest of an undisturbed run.
    """

    scale: Scale
    learnt: Learnt
    alone: float
    rounds: Sequence[FilledOnce]
    predicted: Predicted
    calm: str

    @property
    def predicted_use(self) -> float:
        """The part of the slots that the simulator uses."""
        scale, workers = self.scale, self.predicted.workers["elastic"]
        service = tuple(
            (moment, scale.slots - left_slots)
            for moment, left_slots in scale.capacity(end=self.predicted.makespan)
        )
        end = self.predicted.makespan
        return use_of([workers, service], scale.slots, begin=0.0, end=end)

    @property
    def claims(self) -> list[Claim]:
        """The claims, each with whether it held in every repetition."""
        return claims.in_all(
            [
                claims.beside_service(
                    round_of.course,
                    waited=round_of.waited,
                    use=round_of.use(self.scale.slots),
                    predicted=self.predicted_use,
                    launches=round_of.launches,
                    calm=self.calm,
                )
                for round_of in self.rounds
            ]
        )


def beside_service(
    scale: Scale,
    folder: Path,
    tell: Tell,
    *,
    repeat: int = 1,
    make_cluster: MakeCluster = demo_cluster,
) -> BesideService:
    """Run it.

    Args:
        folder: for everything that it leaves.
        make_cluster: makes the cluster.
    """
    with make_cluster(scale, folder, tell) as cluster:
        time_alone = _serve_alone(cluster)
        tell(f"alone, the service has its slots after {time_alone:.1f} s")
        tell("measuring the job alone, for the prediction")
        learnt = measure(cluster, tell)
        rounds = [_fill(cluster) for _ in range(repeat)]
    tell("an undisturbed run, for the digest")
    calm = calm_run(scale, folder / "calm", "fixed", workers=scale.fixed[0]).digest
    predicted = predict(
        {"elastic": 0.0},
        policy="brim",
        steps=len(rounds[0].course.steps),
        workers=_worker_range(scale),
        scale=scale,
        learnt=learnt,
        capacity=scale.capacity(end=_LIMIT),
    )
    return BesideService(
        scale=scale, learnt=learnt, alone=time_alone, rounds=rounds, predicted=predicted, calm=calm
    )


def _serve_alone(cluster: DemoCluster) -> float:
    most_slots, started = max(cluster.scale.service), cluster.wall()
    cluster.serve(most_slots)
    cluster.until_served(most_slots)
    took = cluster.wall() - started
    cluster.serve(0)
    return took


def _fill(cluster: DemoCluster) -> FilledOnce:
    """The job, on the slots that the service leaves."""
    cluster.serve(0)
    job = cluster.submit("elastic", _worker_range(cluster.scale))
    course, demand = cluster.serve_until_ended(job, timeout=_LIMIT)
    had = cluster.served(demand, course, job.submitted)
    launches = cluster.client.job(job.job).launches
    return FilledOnce(course=course, wanted=demand, had=had, launches=launches)


def _worker_range(scale: Scale) -> WorkerRange:
    return WorkerRange(minimum=1, maximum=scale.workers)
