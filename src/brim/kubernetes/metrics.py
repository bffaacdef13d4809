"""Metrics of an operator, and of its jobs' gain by one more worker. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brim.kubernetes.objects.identities import KubeJob
from brim.telemetry.prometheus import Histogram, MetricFamily, MetricSample, gauge


class JobFigures(NamedTuple):
    """The figures of a job that runs.

    Attributes:
        job: its id.
        workers: as many as it was asked to have.
        rate: steps per second on so many, as measured; None: not measured.
        gain: steps per second that one more worker would add; None: it is unknown.
    """

    job: str
    workers: int
    rate: float | None
    gain: float | None


class ServiceFigures(NamedTuple):
    """The figures of a service that is scaled.

    Attributes:
        load: now; None: it was not measured yet.
        wanted: replicas that follow from the load that is foreseen.
        ready: replicas.
    """

    namespace: str
    name: str
    kind: str
    load: float | None
    wanted: int
    ready: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFigures:
    """The figures of a cluster's scheduler.

    Args:
        states: jobs by state.
        stalled: jobs of which nothing comes, by the reason of their condition.
        slots: of all nodes whose slots jobs may have.
        held: that workers hold.
        cycles, looks: seconds that each took.
        jobs: those that run.
        services: that are scaled.
    """

    states: Mapping[str, int]
    stalled: Mapping[str, int]
    slots: int
    held: int
    cycles: Histogram
    looks: Histogram
    jobs: Sequence[JobFigures]
    services: Sequence[ServiceFigures] = ()


@dataclass(slots=True)
class Requests:
    """Requests to an API server that were answered, or were not, by verb and code."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def answered(self, verb: str, code: int) -> None:
        """Count one; 0 is the code of an unanswered one."""
        self.counts[verb, str(code or "none")] += 1


def metrics_of(
    *, holds: bool, requests: Mapping[tuple[str, str], int], cluster: ClusterFigures | None
) -> Iterator[MetricFamily]:
    """Yield the metrics of an operator.

    Args:
        holds: the Lease.
        requests: to the API server, by verb and code.
        cluster: None where another operator schedules.
    """
    yield gauge("brim_lease_held", "1 where this operator holds the Lease and decides.", int(holds))
    yield MetricFamily(
        "brim_api_requests_total",
        "counter",
        "Requests to the API server, by verb, and by the code of the answer.",
        [
            MetricSample(count, {"verb": verb, "code": code})
            for (verb, code), count in sorted(requests.items())
        ],
    )
    if cluster is None:
        return
    yield _by_label("brim_jobs", "Jobs by state.", "state", cluster.states)
    yield _by_label(
        "brim_stalled_jobs",
        "Jobs that cannot go on without an intervention, by reason.",
        "reason",
        cluster.stalled,
    )
    yield gauge("brim_slots_held", "Slots held by workers.", cluster.held)
    yield gauge("brim_slots_free", "Free slots.", max(0, cluster.slots - cluster.held))
    yield cluster.cycles.metric("brim_cycle_seconds", "Seconds that a decision took.")
    yield cluster.looks.metric("brim_look_seconds", "Seconds that a look at all jobs took.")
    rows = [(_labels(figures.job), figures) for figures in cluster.jobs]
    yield MetricFamily(
        "brim_job_workers",
        "gauge",
        "Workers that a job was asked to have.",
        [MetricSample(figures.workers, labels) for labels, figures in rows],
    )
    yield MetricFamily(
        "brim_job_steps_per_second",
        "gauge",
        "Steps per second of a job on the workers that it has, as measured.",
        [
            MetricSample(figures.rate, labels)
            for labels, figures in rows
            if figures.rate is not None
        ],
    )
    yield MetricFamily(
        "brim_job_marginal_steps_per_second",
        "gauge",
        "Steps per second that one more worker would add to a job, where that is known.",
        [
            MetricSample(figures.gain, labels)
            for labels, figures in rows
            if figures.gain is not None
        ],
    )
    yield from _of_services(cluster.services)


def _of_services(services: Sequence[ServiceFigures]) -> Iterator[MetricFamily]:
    """Yield the metrics of services, by the names that those of a scheduler have."""
    rows = [
        ({"namespace": each.namespace, "name": each.name, "kind": each.kind}, each)
        for each in services
    ]
    yield MetricFamily(
        "brim_service_load",
        "gauge",
        "Load of a service, in the unit of what it is measured by.",
        [MetricSample(each.load, labels) for labels, each in rows if each.load is not None],
    )
    yield MetricFamily(
        "brim_service_replicas_wanted",
        "gauge",
        "Replicas that a service is to have, by the load that is foreseen.",
        [MetricSample(each.wanted, labels) for labels, each in rows],
    )
    yield MetricFamily(
        "brim_service_replicas_ready",
        "gauge",
        "Replicas of a service that take requests.",
        [MetricSample(each.ready, labels) for labels, each in rows],
    )


def _by_label(name: str, help: str, label: str, counts: Mapping[str, int]) -> MetricFamily:
    samples = [MetricSample(count, {label: word}) for word, count in sorted(counts.items())]
    return MetricFamily(name, "gauge", help, samples)


def _labels(job: str) -> dict[str, str]:
    job_of_row = KubeJob.parse(job)
    return {
        "namespace": job_of_row.namespace,
        "name": job_of_row.name,
        "kind": job_of_row.kind_name,
    }
