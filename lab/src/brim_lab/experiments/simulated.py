"""ElasticDL's experiments 1 and 2, simulated.

Two jobs share a cluster, and training fills in around a service.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS, Overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Policy
from brim.domain.workload import Job
from brim.simulator.engine import Settings, simulate
from brim.simulator.run import SimulatedRun

_DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPair:
    """Seconds until both are done, and that the second waited for its first worker."""

    makespan: float
    second_waited: float


def two_jobs(policy: Policy, *, overheads: Overheads = OVERHEADS["brim"]) -> SimulatedPair:
    """Two jobs of 175 CPUs, 650 s each when alone, on 320 CPUs; the second comes after 300 s.

    Gangs cannot run together: 1,300 s. Elastic, the second starts on the 145 that are left: 650 +
    360 s at least. Source: ElasticDL, experiment 1.
    """
    curve = ScalingCurve.linear(rate=1.0, maximum=175)
    jobs = [
        Job(
            id=name,
            submitted=submitted_at,
            work=175.0 * 650,
            curve=curve,
            requested=175,
            duration=650.0,
        )
        for name, submitted_at in (("first", 0.0), ("second", 300.0))
    ]
    run = simulate(
        jobs, Cluster.uniform(nodes=40, devices=8), policy, settings=Settings(overheads=overheads)
    )
    second = next(outcome for outcome in run.outcomes if outcome.job.id == "second")
    assert second.started is not None
    return SimulatedPair(
        makespan=max(outcome.finished or math.inf for outcome in run.outcomes),
        second_waited=second.started - 300.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A day of training beside a service.

    Args:
        utilisation: CPUs used by either, over all CPUs, on average.
        shortest: the least that was left for the service beyond its demand; below 0 it was short.
        service_alone: what the utilisation would have been without training.
    """

    utilisation: float
    shortest: float
    service_alone: float


def demand(time: float, *, cpus: int = 320) -> float:
    """CPUs that the service needs at `time`: from 20 % at night to 80 % by day."""
    return cpus * (0.5 - 0.3 * math.cos(2 * math.pi * time / _DAY))


def around_a_service(
    policy: Policy, *, cpus: int = 320, headroom: int = 2, interval: float = 60.0
) -> Shared:
    """A day of three elastic jobs on the CPUs left by the service, less `headroom`.

    The demand is read each `interval` seconds and rises on between two readings: the headroom is for
    that. Source: ElasticDL, experiment 2.
    """
    readings = [k * interval for k in range(int(_DAY / interval))]
    left_cpus = [int(cpus - demand(time, cpus=cpus)) - headroom for time in readings]
    curve = ScalingCurve.linear(rate=1.0, maximum=cpus)
    jobs = [Job(id=name, submitted=0.0, work=cpus * _DAY, curve=curve) for name in ("a", "b", "c")]
    world = Settings(
        overheads=OVERHEADS["brim"], capacity=tuple(zip(readings, left_cpus, strict=True))
    )
    run = simulate(jobs, Cluster.uniform(nodes=cpus // 8, devices=8), policy, settings=world)
    return _measured(run, cpus)


def _measured(run: SimulatedRun, cpus: int) -> Shared:
    used = busy = 0.0
    shortest = math.inf
    for (start, training, _), (stop, _, _) in zip(run.usage, run.usage[1:], strict=False):
        end = min(stop, _DAY)
        if start >= end:
            break
        for second in range(int(start), int(end), 10):
            length = min(second + 10, end) - max(second, start)
            service = demand(second, cpus=cpus)
            shortest = min(shortest, cpus - training - demand(min(second + 10, end), cpus=cpus))
            used += length * (training + service)
            busy += length * service
    return Shared(
        utilisation=used / (cpus * _DAY), shortest=shortest, service_alone=busy / (cpus * _DAY)
    )
