"""The course of a simulated cluster, from the simulation's records. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from brim.domain.course import (
    Change,
    Course,
    Incident,
    JobCourse,
    Origin,
    Supply,
    holdings_of,
    reason_of,
)
from brim.domain.schedule import Admitted, Verdict
from brim.domain.tenancy import Tenant
from brim.simulator.run import Outcome, SimulatedRun


def course_of(
    run: SimulatedRun,
    *,
    subject: str,
    policy: str,
    tenants: Sequence[Tenant] = (),
    capacity: Sequence[tuple[float, int]] = (),
    origin: Origin = Origin.SIMULATED,
) -> Course:
    """The course of one trace under one policy, or as it happened.

    Of a run that did not record changes, jobs have an end and no workers.

    Args:
        subject: the trace.
        tenants, capacity: as in `Settings`.
    """
    stories: dict[str, list[Change]] = defaultdict(list)
    for change in run.changes:
        stories[change.job].append(change)
    verdicts: dict[str, list[tuple[float, Verdict]]] = defaultdict(list)
    for moment, verdict in run.verdicts:
        verdicts[verdict.job].append((moment, verdict))
    jobs = [
        _job(outcome, stories[outcome.job.id], verdicts[outcome.job.id], recorded=bool(run.changes))
        for outcome in sorted(
            run.outcomes, key=lambda outcome: (outcome.job.submitted, outcome.job.id)
        )
    ]
    start = min((job.submitted for job in jobs), default=0.0)
    ends = [max(job.submitted if job.ended is None else job.ended, start) for job in jobs]
    end = max(ends, default=start)
    guaranteed = {tenant.id: tenant.guaranteed for tenant in tenants}
    supply = [Supply(moment, devices, guaranteed) for moment, devices in capacity if moment <= end]
    return Course(
        origin=origin,
        subject=subject,
        policy=policy,
        start=start,
        end=max(end, start + 1e-3),
        jobs=jobs,
        supply=supply or [Supply(start, run.devices, guaranteed)],
        incidents=[
            Incident(job.deadline, "lost", f"{job.job} did not keep its promised deadline")
            for job in sorted(jobs, key=lambda job: job.deadline or 0.0)
            if job.promised and job.deadline is not None and job.kept(end) is False
        ],
    )


def _job(
    outcome: Outcome,
    changes: Sequence[Change],
    verdicts: Sequence[tuple[float, Verdict]],
    *,
    recorded: bool,
) -> JobCourse:
    job = outcome.job
    refused = max((moment for moment, _ in verdicts), default=job.submitted)
    ended = refused if outcome.finished is None else outcome.finished
    story = [
        Change(job.submitted, job.id, "submitted"),
        *(_judged(at, verdict) for at, verdict in verdicts),
        *changes,
    ]
    worker_changes = ((change.at, change.after, reason_of(change)) for change in changes)
    return JobCourse(
        job=job.id,
        tenant=job.tenant,
        state="refused" if outcome.finished is None else "done",
        submitted=job.submitted,
        ended=ended,
        deadline=job.deadline,
        promised=outcome.admitted,
        holdings=holdings_of(worker_changes, start=job.submitted, end=ended) if recorded else [],
        story=sorted(story, key=lambda change: change.at),
    )


def _judged(timestamp: float, verdict: Verdict) -> Change:
    event = "admitted" if isinstance(verdict, Admitted) else "refused"
    return Change(timestamp, verdict.job, event, 0, 0, str(verdict.reason), verdict.detail)
