"""Metrics of a scheduler, its tenants and its jobs, for Prometheus. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import brim
from brim.domain.lifecycle import Phase
from brim.domain.scheduled_job import ScheduledJob
from brim.telemetry.prometheus import Histogram, MetricFamily, MetricSample, gauge
from brim.wire.cluster import ClusterView, JobView, NodeView, TenantView

MOST_JOBS = 500  # with series of their own: a scraper keeps each for weeks
_WAITING = (Phase.SUBMITTED, Phase.ADMITTED, Phase.SUSPENDED)
_NODE_STATES = ("up", "leaving", "away", "lost")


class JobSeries(NamedTuple):
    """The figures of a job that has not ended.

    Attributes:
        view: as people see it.
        rate: steps per second on the workers that it has, as measured; None: not measured.
        gain: steps per second that one more worker would add; None: unknown.
    """

    view: JobView
    rate: float | None
    gain: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFigures:
    """The figures of a cluster.

    Args:
        cluster, tenants, nodes: as people see them.
        states: unfinished jobs by (tenant, state).
        at_risk: jobs by tenant that are expected to miss their promised deadlines.
        ended: jobs that ended under this scheduler, by (tenant, state).
        jobs: at most `MOST_JOBS` of those that have not ended.
        jobs_left_out: the rest of them.
        cycles, looks: seconds that each took.
        notifications: by (channel, outcome).
        waiting: notifications that are to be sent, by channel.
        used: device-seconds that jobs of each tenant have held, ever.
    """

    cluster: ClusterView
    tenants: Sequence[TenantView]
    nodes: Sequence[NodeView]
    states: Mapping[tuple[str, str], int]
    at_risk: Mapping[str, int]
    ended: Mapping[tuple[str, str], int]
    jobs: Sequence[JobSeries]
    jobs_left_out: int
    cycles: Histogram
    looks: Histogram
    notifications: Mapping[tuple[str, str], int]
    waiting: Mapping[str, int]
    used: Mapping[str, float]


def is_at_risk(record: ScheduledJob) -> bool:
    """Say if a job is expected to miss its promised deadline."""
    deadline, last = record.submission.deadline, record.estimates.last
    return record.promised and deadline is not None and last is not None and last.finish > deadline


def metrics_of(figures: SchedulerFigures | None, *, holds: bool) -> Iterator[MetricFamily]:
    """Yield the metrics of a scheduler.

    Labels are a tenant, a state, or a job that has not ended: a job's series end with it.

    Args:
        figures: None where the database cannot be read.
        holds: it decides nothing.
    """
    yield MetricFamily(
        "brim_build_info",
        "gauge",
        "1, with the version of brim.",
        [MetricSample(1, {"version": brim.__version__})],
    )
    yield gauge(
        "brim_scheduler_holding",
        "1 while the scheduler decides nothing, because it cannot use its database.",
        int(holds),
    )
    if figures is None:
        return
    yield from _of_cluster(figures)
    yield from _of_tenants(figures)
    yield from _of_jobs(figures.jobs)


def _of_cluster(figures: SchedulerFigures) -> Iterator[MetricFamily]:
    nodes = Counter(node.state for node in figures.nodes)
    yield gauge("brim_devices", "Devices of all nodes.", figures.cluster.devices)
    yield gauge("brim_devices_held", "Devices held by workers of jobs.", figures.cluster.held)
    yield MetricFamily(
        "brim_nodes",
        "gauge",
        "Nodes by state.",
        [MetricSample(nodes[state], {"state": state}) for state in _NODE_STATES],
    )
    drained = sum(node.drained for node in figures.nodes)
    yield gauge("brim_nodes_drained", "Nodes on which nothing is to run.", drained)
    yield figures.cycles.metric("brim_cycle_seconds", "Seconds that a decision took.")
    yield figures.looks.metric("brim_look_seconds", "Seconds that a look at all jobs took.")
    yield MetricFamily(
        "brim_notifications_total",
        "counter",
        "Notifications by channel and outcome: sent, failed attempts, and given up.",
        [
            MetricSample(count, {"channel": channel, "outcome": outcome})
            for (channel, outcome), count in sorted(figures.notifications.items())
        ],
    )
    yield MetricFamily(
        "brim_notifications_waiting",
        "gauge",
        "Notifications that are to be sent, by channel.",
        [
            MetricSample(max(0, count), {"channel": channel})
            for channel, count in sorted(figures.waiting.items())
        ],
    )


def _of_tenants(figures: SchedulerFigures) -> Iterator[MetricFamily]:
    tenants = figures.tenants

    def by_tenant(name: str, help: str, value: Callable[[TenantView], int]) -> MetricFamily:
        samples = [MetricSample(value(view), {"tenant": view.tenant}) for view in tenants]
        return MetricFamily(name, "gauge", help, samples)

    yield MetricFamily(
        "brim_jobs",
        "gauge",
        "Jobs that have not ended, by tenant and state.",
        [
            MetricSample(figures.states.get((view.tenant, state), 0), _pair(view.tenant, state))
            for view in tenants
            for state in (*_WAITING, Phase.RUNNING)
        ],
    )
    yield by_tenant(
        "brim_jobs_at_risk",
        "Jobs that are expected to miss their promised deadlines.",
        lambda view: figures.at_risk.get(view.tenant, 0),
    )
    yield MetricFamily(
        "brim_ended_jobs_total",
        "counter",
        "Jobs that have ended since the scheduler started, by tenant and state.",
        [
            MetricSample(count, _pair(tenant, state))
            for (tenant, state), count in sorted(figures.ended.items())
        ],
    )
    yield by_tenant(
        "brim_tenant_devices_owned", "Devices that a tenant owns.", lambda view: view.guaranteed
    )
    yield by_tenant(
        "brim_tenant_devices_held", "Devices that a tenant's jobs hold.", lambda view: view.holds
    )
    yield by_tenant(
        "brim_tenant_devices_borrowed",
        "Devices that a tenant's jobs hold beyond those that it owns.",
        lambda view: view.borrows,
    )
    yield MetricFamily(
        "brim_tenant_device_seconds_total",
        "counter",
        "Device-seconds for which jobs of a tenant have held devices, also forgotten jobs.",
        [
            MetricSample(figures.used.get(view.tenant, 0.0), {"tenant": view.tenant})
            for view in tenants
        ],
    )
    yield gauge(
        "brim_jobs_without_series",
        f"Jobs that have not ended and have no series of their own: only {MOST_JOBS} have.",
        figures.jobs_left_out,
    )


def _pair(tenant: str, state: str) -> dict[str, str]:
    return {"tenant": tenant, "state": str(state)}


def _of_jobs(jobs: Sequence[JobSeries]) -> Iterator[MetricFamily]:
    rows: tuple[tuple[str, str, Callable[[JobSeries], float | None]], ...] = (
        ("brim_job_workers", "Workers that a job holds.", lambda job: job.view.workers),
        (
            "brim_job_progress_ratio",
            "Steps of a job that are done, as a part of all its steps.",
            lambda job: job.view.step / job.view.steps if job.view.steps else None,
        ),
        (
            "brim_job_steps_per_second",
            "Steps per second of a job on the workers that it has, as measured.",
            lambda job: job.rate,
        ),
        (
            "brim_job_marginal_steps_per_second",
            "Steps per second that one more worker would add to a job, where that is known.",
            lambda job: job.gain,
        ),
        (
            "brim_job_deadline_timestamp_seconds",
            "The deadline of a job, in seconds since 1970.",
            lambda job: job.view.deadline,
        ),
        (
            "brim_job_finish_timestamp_seconds",
            "The expected end of a job, in seconds since 1970.",
            lambda job: job.view.finish,
        ),
        (
            "brim_service_load",
            "Load of a service, in the unit of what it is measured by.",
            lambda job: job.view.service.current if job.view.service else None,
        ),
        (
            "brim_service_replicas_wanted",
            "Replicas that a service is to have, by the load that is foreseen.",
            lambda job: job.view.service.wanted if job.view.service else None,
        ),
        (
            "brim_service_replicas_ready",
            "Replicas of a service that take requests.",
            lambda job: job.view.service.ready if job.view.service else None,
        ),
    )
    labels = [{"tenant": job.view.tenant, "name": job.view.job} for job in jobs]
    for name, help, value in rows:
        values = [(value(job), label) for job, label in zip(jobs, labels, strict=True)]
        samples = [MetricSample(each, label) for each, label in values if each is not None]
        yield MetricFamily(name, "gauge", help, samples)
