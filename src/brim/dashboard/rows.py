"""Rows of the dashboard's tables: values to sort by, and texts to show. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brim.domain.accounting import PART_NAMES
from brim.domain.course import deadline_kept
from brim.domain.quantities import counted
from brim.domain.services import describe_ready
from brim.wire.cluster import JobView, NodeView, TenantView, UsageView

_HOUR = 3600
_LONGEST = 300  # characters of a text that others wrote

Row = dict[str, Any]
Clock = Callable[[float], str]
"""Says a time as people read it."""


def job_row(view: JobView, clock: Clock) -> Row:
    """One job."""
    end = view.ended if view.has_ended else view.finish
    return {
        "job": view.job,
        "state": state_of(view),
        "tenant": view.tenant,
        "workers": view.workers,
        "workers_text": workers_of(view),
        "progress": progress_of(view),
        "steps_text": steps_of(view),
        "deadline": view.deadline,
        "deadline_text": promise_of(view, clock),
        "finish": end,
        "finish_text": clock(end) if end is not None else "",
        "why": shortened(why_of(view)),
        "late": is_at_risk(view),
        "submitted": view.submitted,
        "active": not view.has_ended,
    }


def state_of(view: JobView) -> str:
    """The state of a job, and the wish of its owner where it is another."""
    wish = {"hold": "held", "cancel": "to be cancelled"}.get(view.wish, "")
    return f"{view.state} ({wish})" if wish and not view.has_ended else view.state


def workers_of(view: JobView) -> str:
    """The workers that a job has, gets and may have."""
    if view.has_ended:
        return ""
    now = str(view.workers) if view.workers == view.planned else f"{view.workers} → {view.planned}"
    return f"{now} of {range_of(view)}"


def range_of(view: JobView) -> str:
    """The workers that a job may have.

    >>> range_of(type("V", (), {"minimum": 2, "maximum": 2}))
    '2'
    """
    minimum, maximum = view.minimum, view.maximum
    return str(maximum) if minimum == maximum else f"{minimum}–{maximum}"


def progress_of(view: JobView) -> float | None:
    """Percent of its steps that a job has done; None where their number is unknown."""
    if view.state == "done":
        return 100.0
    return round(100.0 * min(1.0, view.step / view.steps), 1) if view.steps else None


def steps_of(view: JobView) -> str:
    """The steps that a job has done, of how many."""
    return f"{view.step:,} / {view.steps:,}" if view.steps else f"{view.step:,}"


def promise_of(view: JobView, clock: Clock) -> str:
    """The deadline of a job, whether it was promised, and whether it was kept."""
    if view.deadline is None:
        return ""
    word = "promised" if view.promised else "not promised" if view.judged else "not judged yet"
    is_kept = deadline_kept(view.deadline, view.ended) if view.state == "done" else None
    return (
        f"{clock(view.deadline)} {word}{ {True: ', kept', False: ', missed', None: ''}[is_kept] }"
    )


def service_of(view: JobView) -> str:
    """The address of a service and its replicas; empty where the job is none."""
    service = view.service
    if service is None:
        return ""
    load = "" if service.current is None else f", load {service.current:.3g}"
    return f"at {service.address}, {describe_ready(service.ready, service.wanted)}{load}"


def margin_of(view: JobView) -> str:
    """The time between the expected end of a job and its deadline."""
    if view.has_ended or view.deadline is None or view.finish is None:
        return ""
    margin = view.deadline - view.finish
    return f"{span_of(abs(margin))} {'before' if margin >= 0 else 'after'} the deadline"


def estimates_of(view: JobView, clock: Clock) -> str:
    """The ends that were expected at first and halfway, which show how far to trust the present one."""
    parts = []
    for name, estimate in (("at first", view.first_estimate), ("halfway", view.half_estimate)):
        if estimate is None:
            continue
        error = estimate.error_seconds
        off = ""
        if error is not None:
            off = f" ({span_of(abs(error))} too {'early' if error >= 0 else 'late'})"
        parts.append(f"{name} {clock(estimate.finish)}{off}")
    return ", ".join(parts)


def span_of(seconds: float) -> str:
    """Seconds, no finer than a person needs.

    >>> span_of(12.4), span_of(754.0), span_of(9000.0)
    ('12 s', '13 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


def facts_of(view: JobView, clock: Clock) -> dict[str, str]:
    """The facts about one job, by name; those that say nothing are empty."""
    progress = progress_of(view)
    end = view.ended if view.has_ended else view.finish
    return {
        "State": state_of(view),
        "Tenant": f"{view.tenant}, {view.priority}",
        "Workers": workers_of(view) or f"may have had {range_of(view)}",
        "Serves": service_of(view),
        "Steps": steps_of(view) + (f", {progress:g} %" if progress is not None else ""),
        "Deadline": promise_of(view, clock),
        "Ends": clock(end) if end is not None else "",
        "Margin": margin_of(view),
        "Expected": estimates_of(view, clock),
        "On": ", ".join(f"{node}: {count}" for node, count in view.nodes.items()),
        "Device hours": f"{view.attained_seconds / _HOUR:,.2f}",
        "Why": why_of(view),
        "Records": view.run,
    }


def comparison_rows(
    first_facts: Mapping[str, str],
    second_facts: Mapping[str, str],
    first_options: Mapping[str, object],
    second_options: Mapping[str, object],
) -> list[Row]:
    """Two jobs side by side: the options that differ, then all facts.

    An option that only one of them has differs, too.
    """
    names = sorted(first_options.keys() | second_options.keys())
    options = {
        f"option {name}": (first_options.get(name), second_options.get(name)) for name in names
    }
    rows = [
        {"name": name, "first": shortened(_said(first)), "second": shortened(_said(second))}
        for name, (first, second) in options.items()
        if first_options and second_options and first != second
    ]
    for name in dict.fromkeys((*first_facts, *second_facts)):
        first, second = first_facts.get(name, ""), second_facts.get(name, "")
        if first or second:
            rows.append({"name": name, "first": shortened(first), "second": shortened(second)})
    return rows


def _said(value: object) -> str:
    return "" if value is None else str(value)


def time_rows(parts: Mapping[str, float]) -> list[Row]:
    """The parts of a run's time, in the order of a step, with their shares."""
    total = sum(parts.values()) or 1.0
    return [
        {
            "part": PART_NAMES[name],
            "seconds": round(seconds, 3),
            "share": round(100.0 * seconds / total, 1),
        }
        for name, seconds in parts.items()
    ]


def why_of(view: JobView) -> str:
    """The reason for a job's wait, end, or number of workers."""
    if view.waits and not view.has_ended:
        return view.waits
    if view.problem and (view.state != "done"):
        return view.problem
    return ": ".join(part for part in (view.reason, view.detail) if part)


def shortened(text: str) -> str:
    """A text of a length that a table can show, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def node_rows(nodes: Sequence[NodeView], jobs: Mapping[str, JobView]) -> list[Row]:
    """All nodes, with the jobs on each."""
    found: dict[str, list[str]] = defaultdict(list)
    for view in jobs.values():
        for node, count in view.nodes.items() if not view.has_ended else ():
            found[node].append(f"{view.job} ({count})")
    return [
        {
            "node": view.node,
            "state": f"{view.state}, drained" if view.drained else view.state,
            "devices": view.devices,
            "held": view.held,
            "free": max(0, view.devices - view.held) if not view.drained else 0,
            "host": view.address or "the scheduler's",
            "jobs": ", ".join(sorted(found[view.node])),
            "problem": shortened(view.problem),
            "drained": view.drained,
        }
        for view in nodes
    ]


def tenant_rows(tenants: Sequence[TenantView]) -> list[Row]:
    """All tenants, with the devices that each owns, uses, has lent and has borrowed, now and lately."""
    lent = lent_by(tenants)
    return [
        {
            "tenant": view.tenant,
            "cohort": view.cohort,
            "owed": view.guaranteed,
            "used": view.holds,
            "lent": lent[view.tenant],
            "borrowed": view.borrows,
            "lately": None if view.lately is None else round(view.lately, 1),
            "share": None if view.lately_share is None else round(view.lately_share, 2),
            "exclusive": view.exclusive,
            "limit": view.limit,
            "weight": view.weight,
            "jobs": view.jobs,
        }
        for view in tenants
    ]


def usage_rows(views: Sequence[UsageView]) -> list[Row]:
    """The device hours of tenants in months, those of each month by what was used."""
    return [
        {
            "id": f"{view.month} {row.name}",
            "month": view.month,
            "tenant": row.name,
            "used": row.used_seconds / _HOUR,
            "owned": _hours(row.owned_seconds),
            "borrowed": _hours(row.borrowed_seconds),
            "lent": _hours(row.lent_seconds),
        }
        for view in views
        for row in sorted(view.rows, key=lambda row: (-row.used_seconds, row.name))
    ]


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / _HOUR


def lent_by(tenants: Sequence[TenantView]) -> dict[str, int]:
    """The devices that each tenant lends.

    A borrowed device has no particular owner: the borrowed ones of a cohort count against the
    idle ones of those that lend, in the ratio of these.
    """
    found = dict.fromkeys((view.tenant for view in tenants), 0)
    borrowed = Counter[str]()
    idle: dict[str, dict[str, int]] = defaultdict(dict)
    for view in tenants:
        borrowed[view.cohort] += view.borrows
        idle[view.cohort][view.tenant] = max(0, view.guaranteed - max(view.holds, view.exclusive))
    for cohort, parts in idle.items():
        total = sum(parts.values())
        lent = min(borrowed[cohort], total)
        shares = {tenant: lent * part / total for tenant, part in parts.items() if part}
        found.update({tenant: int(share) for tenant, share in shares.items()})
        remainder = lent - sum(int(share) for share in shares.values())
        by_rest = sorted(shares, key=lambda tenant: (int(shares[tenant]) - shares[tenant], tenant))
        for tenant in by_rest[:remainder]:
            found[tenant] += 1
    return found


def summary_of(jobs: Mapping[str, JobView]) -> str:
    """The jobs of a cluster in a line."""
    states = Counter(view.state for view in jobs.values() if not view.has_ended)
    waiting = sum(states.values()) - states["running"]
    at_risk = sum(is_at_risk(view) for view in jobs.values())
    parts = [f"{states['running']:,} running", f"{waiting:,} waiting"]
    if at_risk:
        parts.append(f"{counted(at_risk, 'deadline')} at risk")
    return ", ".join(parts)


def is_at_risk(view: JobView) -> bool:
    """Return whether a job is expected to end behind its deadline."""
    if view.has_ended or view.deadline is None or view.finish is None:
        return False
    return view.finish > view.deadline
