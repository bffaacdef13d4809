"""Jobs as they are shown to people."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from brim.coordination.cluster.sightings import NodeSeen
from brim.domain.cluster import Node
from brim.domain.estimates import Estimate
from brim.domain.lifecycle import Phase
from brim.domain.schedule import JobState
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.tenancy import Tenant
from brim.domain.usage import RecentUse
from brim.policies.what_if import AdmissionForecast
from brim.wire.cluster import EstimateView, Forecast, JobView, NodeView, Times, UsageRow

USAGE_BY = ("tenant", "user", "job")


def view_of(
    record: ScheduledJob, state: JobState | None, *, run_dir: Path, waits: str, now: float
) -> JobView:
    """One job.

    Args:
        state: as a policy sees it; None where it has no processes.
        waits: what it waits for, in words.
    """
    submission, workers = record.submission, record.submission.spec.workers
    return JobView(
        job=record.id,
        state=record.life.phase.value,
        wish=record.life.wish.value,
        run=str(run_dir),
        tenant=submission.tenant,
        priority=submission.priority.name.lower(),
        minimum=workers.minimum,
        maximum=workers.maximum,
        nodes=record.held if record.running else {},
        workers=record.target if record.running else 0,
        planned=record.workers,
        step=record.progress.step if submission.spec.service is None else 0,
        steps=record.progress.steps,
        submitted=record.submitted,
        started=record.progress.started,
        ended=record.ended,
        deadline=submission.deadline,
        promised=record.promised,
        judged=record.judgement.judged,
        reason=record.judgement.reason,
        detail=record.judgement.detail,
        earliest=record.judgement.earliest,
        estimate=record.judgement.finish,
        finish=_finish(record, state, now),
        first_estimate=_estimate(record.estimates.first, record),
        half_estimate=_estimate(record.estimates.half, record),
        attained_seconds=record.progress.attained,
        launches=record.starts.launches,
        problem=record.problem,
        waits=waits,
        array=submission.conditions.array,
        index=submission.conditions.index,
        retries=record.starts.retries,
        summary=record.summary,
    )


def node_view(
    node: Node,
    seen: NodeSeen | None,
    *,
    drained: Collection[str],
    workers_on: Mapping[str, int],
    unlike: str = "",
) -> NodeView:
    """One node.

    Args:
        seen: as it was seen last; None before the first look.
        unlike: how it differs from most nodes; empty where it does not.
        drained: names of the drained nodes.
        workers_on: workers by node.
    """
    seen = seen or NodeSeen(up=False)
    return NodeView(
        node=node.id,
        devices=node.devices,
        held=workers_on.get(node.id, 0),
        switch=node.switch,
        address=seen.address,
        state=_state_of(seen),
        drained=node.id in drained,
        problem=unlike if seen.up else seen.problem,
    )


def _state_of(seen: NodeSeen) -> str:
    if seen.lost:
        return "lost"
    if seen.leaving:
        return "leaving"
    return "up" if seen.up else "away"


# All but when it started: that is in the records of its run, whose clock is another.
_MOMENTS = ("submitted", "ended", "deadline", "earliest", "estimate", "finish")


def by_the_hosts_clock(view: JobView, set_by: float) -> JobView:
    """A view with times as people read them from their clocks.

    Args:
        set_by: seconds by which the host's clock was set.
    """
    if not set_by:
        return view
    moments = {name: getattr(view, name) for name in _MOMENTS}
    estimates = {name: getattr(view, name) for name in ("first_estimate", "half_estimate")}
    return msgspec.structs.replace(
        view,
        **{name: moment + set_by for name, moment in moments.items() if moment is not None},
        **{
            name: msgspec.structs.replace(
                estimate, at=estimate.at + set_by, finish=estimate.finish + set_by
            )
            for name, estimate in estimates.items()
            if estimate is not None
        },
    )


def _finish(record: ScheduledJob, state: JobState | None, now: float) -> float | None:
    """Return the expected end of a job; before any look ahead, that on the workers that it has."""
    if record.estimates.last is not None and not record.life.ended:
        return max(now, record.estimates.last.finish)
    if record.progress.steps is None or state is None or not state.workers:
        return None
    rate = state.job.curve.rate(state.workers)
    return max(now, state.ready) + state.remaining / rate if rate else None


def _estimate(estimate: Estimate | None, record: ScheduledJob) -> EstimateView | None:
    if estimate is None or not math.isfinite(estimate.finish):
        return None
    ended = record.ended if record.life.phase is Phase.DONE else None
    return EstimateView(
        at=estimate.at,
        finish=estimate.finish,
        step=estimate.step,
        error_seconds=None if ended is None else ended - estimate.finish,
        error=None if ended is None else estimate.error(ended),
    )


def forecast_of(forecast: AdmissionForecast, *, has_lessons: bool, set_by: float = 0.0) -> Forecast:
    """Return the forecast for a job, as far as anything is known of it.

    Args:
        set_by: see `by_the_hosts_clock`.
    """
    verdict = forecast.verdict
    admitted = (
        bool(getattr(verdict, "promises", False)) if has_lessons and verdict is not None else None
    )
    return Forecast(
        known=has_lessons,
        admitted=admitted,
        reason=str(verdict.reason) if verdict else "",
        detail=verdict.detail
        if verdict
        else "its steps are measured first: no job like it has run here",
        workers=forecast.workers,
        takes=dict(forecast.takes),
        finish=forecast.finish + set_by if has_lessons and forecast.finish is not None else None,
        earliest=forecast.earliest + set_by
        if has_lessons and forecast.earliest is not None
        else None,
    )


def usage_rows(
    used: Iterable[tuple[str, str, str, float]],
    shares: Mapping[str, tuple[float, float, float]],
    group_by: str,
) -> list[UsageRow]:
    """Sum up the usage of a month.

    Args:
        used: (tenant, account, job, device-seconds).
        shares: device-seconds that each tenant owned, borrowed and lent.
        group_by: one of `USAGE_BY`.
    """
    totals: dict[tuple[str, str], float] = {}
    if group_by == "tenant":
        totals = {(tenant, tenant): 0.0 for tenant in shares}
    for tenant, user, job, seconds in used:
        key = {"tenant": (tenant, tenant), "user": ("", user), "job": (tenant, job)}[group_by]
        totals[key] = totals.get(key, 0.0) + seconds
    rows = []
    for (tenant, name), seconds in sorted(totals.items()):
        row = UsageRow(name=name, tenant=tenant, used_seconds=seconds)
        if group_by == "tenant":
            owned, borrowed, lent = shares.get(tenant, (0.0, 0.0, 0.0))
            row = msgspec.structs.replace(
                row, owned_seconds=owned, borrowed_seconds=borrowed, lent_seconds=lent
            )
        rows.append(row)
    return rows


def with_recent_use(
    rows: Iterable[UsageRow], recent: RecentUse, tenants: Iterable[Tenant]
) -> list[UsageRow]:
    """Return the usage of tenants with what each has borrowed lately, and its weight."""
    weights = {tenant.id: tenant.weight for tenant in tenants}
    return [
        msgspec.structs.replace(
            row,
            lately=recent.borrowed.get(row.name, 0.0),
            lately_share=recent.share_of(row.name),
            weight=weights.get(row.name),
        )
        for row in rows
    ]


def times_of(seconds: Iterable[float]) -> Times:
    """Return the number, the median and the 99th percentile of these seconds."""
    ordered = sorted(1000.0 * second for second in seconds) or [0.0]
    last = len(ordered) - 1
    return Times(
        count=len(ordered), median_ms=ordered[last // 2], p99_ms=ordered[round(0.99 * last)]
    )
