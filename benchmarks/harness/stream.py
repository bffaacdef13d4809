"""A seeded stream of short jobs with deadlines, and the simulator's forecast of it. Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.brim_cluster import Kind
from benchmarks.harness.waiting import MICRO_BATCHES, STEPS_PER_EPOCH
from brim.domain.cluster import Cluster
from brim.domain.measuring import Measured, curve_of
from brim.domain.resizing import Overheads
from brim.domain.workload import Job
from brim.simulator.engine import Settings, simulate
from brim.simulator.run import SimulatedRun
from brim.user_code.policies import POLICIES

KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="small", wait=0.06, maximum=4),
        Kind(name="medium", wait=0.1),
        Kind(name="large", wait=0.16),
    )
}
_START = 2.5  # seconds that a deadline allows for a start
_WORK = 24.0, 80.0  # seconds of one worker that a job is, from and to


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One job of the stream; times are seconds since its beginning.

    Args:
        new: its model has never been measured.
    """

    name: str
    kind: str
    epochs: int
    at: float
    deadline: float
    new: bool = False

    @property
    def steps(self) -> int:
        return self.epochs * STEPS_PER_EPOCH


def nominal(kind: Kind, workers: int) -> float:
    """Seconds that a step of this kind waits for."""
    return math.ceil(MICRO_BATCHES / workers) * kind.wait


def stream(*, jobs: int, slots: int, seed: int) -> list[Item]:
    """Draw it: Poisson arrivals of as much work as the slots can do, each with the deadline that
    its user would set.

    As in the traces of ElasticFlow a user knows how long the job takes on some number of workers,
    and allows 1 to 1.5 times that.
    """
    rng = random.Random(seed)  # nosec: a stream, not a secret
    found, arrival = [], 0.0
    for number in range(jobs):
        kind = KINDS[rng.choice(sorted(KINDS))]
        epochs = max(4, round(rng.uniform(*_WORK) / nominal(kind, 1) / STEPS_PER_EPOCH))
        requested = rng.choice((2, 4, kind.maximum))
        duration = epochs * STEPS_PER_EPOCH * nominal(kind, requested)
        found.append(
            Item(
                name=f"{kind.name}-{requested}",
                kind=kind.name,
                epochs=epochs,
                at=arrival,
                deadline=arrival + _START + duration * rng.uniform(1.0, 1.5),
                new=number in (jobs // 3, 2 * jobs // 3),
            )
        )
        arrival += rng.expovariate(slots / statistics.mean(_WORK))
    return found


def predict(
    items: Sequence[Item], policy: str, *, slots: int, measured: Mapping[str, Measured], overheads: Overheads
) -> SimulatedRun:  # fmt: skip
    """The same stream under the simulator.

    Args:
        measured: by kind.

    Returns:
        The run, whose jobs are in the order of the stream.
    """
    curves = {
        name: curve_of(
            measurement.rates, parts=MICRO_BATCHES, minimum=1, maximum=KINDS[name].maximum
        )
        for name, measurement in measured.items()
    }
    jobs = [
        Job(
            id=f"{place:03}",
            submitted=item.at,
            work=float(item.steps),
            curve=curves[item.kind],
            deadline=item.deadline,
            requested=KINDS[item.kind].maximum,
            duration=item.steps / curves[item.kind].maximum_rate,
            maximum=KINDS[item.kind].maximum,
            label=item.name,
        )
        for place, item in enumerate(items)
    ]
    settings = Settings(overheads=overheads, record=True)
    return simulate(
        jobs, Cluster.uniform(nodes=1, devices=slots), POLICIES[policy], settings=settings
    )
