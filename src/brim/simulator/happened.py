"""Jobs to simulate, and a run to compare with, made of the past of a cluster. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import lru_cache

from brim.domain.cluster import Cluster, Node
from brim.domain.course import Change
from brim.domain.quantities import counted
from brim.domain.scaling import MOST_WORKERS, ScalingCurve
from brim.domain.workload import Job
from brim.errors import SpecError
from brim.simulator.past_jobs import History, Occupancy, summed
from brim.simulator.run import Outcome, SimulatedRun

AS_IT_HAPPENED = "as it happened"
_NODE = 8  # devices of a node, where a log has no other number


class Scaling(enum.StrEnum):
    """The numbers of devices on which a past job would have run.

    `LINEAR` is any up to as many as it had, with a speed in proportion; `FIXED` is that number.
    """

    LINEAR = "linear"
    FIXED = "fixed"


def jobs_of(history: History, *, scaling: Scaling = Scaling.LINEAR) -> tuple[Job, ...]:
    """Return the jobs of a history, in its order.

    The first one is submitted at 0. Their work is in device-seconds: as much as they had. Their ids
    sort as they were submitted, so that ties break by that.
    """
    width = len(str(len(history.jobs) - 1))
    return tuple(
        Job(
            id=f"{number:0{width}}-{past.job.id}",
            submitted=past.submitted - history.start,
            work=past.device_seconds,
            curve=_curve(past.peak, scaling),
            requested=past.peak,
            duration=past.device_seconds / past.peak,
            minimum=past.peak if scaling is Scaling.FIXED else 1,
            maximum=past.peak,
            tenant=past.job.tenant,
            label=past.job.user,
        )
        for number, past in enumerate(history.jobs)
    )


@lru_cache(maxsize=4096)  # it is large, and one for all jobs of a size
def _curve(devices: int, scaling: Scaling) -> ScalingCurve:
    if scaling is Scaling.FIXED:
        return ScalingCurve(points=((devices, float(devices)),))
    return ScalingCurve.linear(rate=1.0, maximum=devices)


def cluster_of(history: History) -> Cluster:
    """Return the cluster of a history.

    It has as many devices as its log says, or else as were in use at once at most.

    Raises:
        SpecError: it would be larger than any cluster.
    """
    devices, size = history.size or (history.peak, _NODE)
    if devices > MOST_WORKERS:
        need = f"at most {MOST_WORKERS:,}"
        raise SpecError("--from", got=f"{devices:,} devices", need=need, hint="--cluster 16x8")
    sizes = [size] * (devices // size) + [devices % size] * (devices % size > 0)
    width = len(str(len(sizes) - 1))
    nodes = (Node(id=f"node{place:0{width}}", devices=count) for place, count in enumerate(sizes))
    return Cluster(nodes=tuple(nodes))


def assumptions(
    history: History, cluster: Cluster, *, scaling: Scaling, is_known: bool
) -> list[str]:
    """Return sentences on all that a simulation of a history takes for granted.

    Args:
        is_known: the user said how large the cluster is.
    """
    runs_on = {
        Scaling.LINEAR: "each job scales linearly from 1 device up to as many as it had",
        Scaling.FIXED: "each job runs on exactly as many devices as it had at most",
    }
    found = [
        *history.assumed,
        runs_on[scaling],
        "its work is the device time that it had, even if it failed or was cancelled",
        "no job has a deadline",
    ]
    nodes = f"{counted(len(cluster.nodes), 'node')} of {cluster.node_size:,}"
    if not is_known:
        source = "as its log says" if history.size else "the most in use at once"
        found.append(f"the cluster has {counted(cluster.devices, 'device')}, {source}, on {nodes}")
    if history.peak > cluster.devices:
        found.append(
            f"up to {history.peak:,} devices were in use at once, more than the cluster's "
            f"{cluster.devices:,}"
        )
    return found


def as_it_happened(history: History, jobs: Sequence[Job], *, devices: int) -> SimulatedRun:
    """Return the past in the form of a simulated run.

    Args:
        jobs: of `jobs_of`.
        devices: of the cluster.
    """
    outcomes = []
    changes: list[Change] = []
    used: list[tuple[float, int]] = []
    waiting: list[tuple[float, int]] = []
    for past, job in zip(history.jobs, jobs, strict=True):
        story = _changes(past, job.id, history.start)
        changes += story
        used += [(change.at, change.after - change.before) for change in story]
        waiting.append((job.submitted, 1))
        waiting += [(change.at, _begins_to_wait(change)) for change in story]
        waiting.append((story[-1].at, -1))
        outcomes.append(
            Outcome(
                job=job,
                started=past.started - history.start,
                finished=past.ended - history.start,
                admitted=False,
                refused=False,
                attained=past.device_seconds,
                changes=len(story) - 1,
            )
        )
    return SimulatedRun(
        outcomes=tuple(outcomes),
        devices=devices,
        usage=_usage(summed(used), summed(waiting)),
        changes=tuple(sorted(changes, key=lambda change: change.at)),
    )


def _changes(past: Occupancy, job: str, start: float) -> list[Change]:
    found = []
    previous = 0
    for time, devices in past.steps:
        found.append(Change(time - start, job, "workers", previous, devices, "recorded", ""))
        previous = devices
    last = found[-1]
    found[-1] = Change(last.at, job, "workers", last.before, 0, "finished", past.job.state)
    return found


def _begins_to_wait(change: Change) -> int:
    return (change.after == 0) - (change.before == 0)


def _usage(
    used: Sequence[tuple[float, int]], waiting: Sequence[tuple[float, int]]
) -> tuple[tuple[float, int, int], ...]:
    """Return (time, devices in use, jobs that wait), where either changes."""
    used_at, waiting_at = dict(used), dict(waiting)
    points = []
    devices = jobs = 0
    for time in sorted(used_at.keys() | waiting_at.keys()):
        devices, jobs = used_at.get(time, devices), waiting_at.get(time, jobs)
        points.append((time, devices, jobs))
    return tuple(points)
