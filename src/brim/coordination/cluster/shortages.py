"""Jobs that wait for nothing but free devices: more nodes would have them run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from brim.domain.schedule import Decision, Reason
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.tenancy import Tenant

# A job that is over its quota, or ahead of its plan, would not run on more nodes either.
_FOR_LACK_OF_DEVICES = frozenset({Reason.CLUSTER_FULL, Reason.GANG_INCOMPLETE, Reason.ITS_NODES})


def short_of_devices(
    jobs: Iterable[ScheduledJob], decision: Decision, tenants: Sequence[Tenant]
) -> tuple[str, ...]:
    """Return the ids of jobs that have no workers for lack of devices alone, in the order of their right.

    Promised ones come first, then higher priorities, then those that were submitted first. A job
    that would take its tenant above the most that it may hold is left out.

    Args:
        jobs: that have not ended, with the plans of this decision.
    """
    all_jobs = list(jobs)
    used_by_tenant: dict[str, int] = {}
    for job in all_jobs:
        tenant = job.submission.tenant
        used_by_tenant[tenant] = used_by_tenant.get(tenant, 0) + job.workers
    limits = {tenant.id: tenant.limit for tenant in tenants if tenant.limit is not None}
    waiting = [job for job in all_jobs if _is_short(job, decision.reasons)]
    found: list[str] = []
    for job in sorted(waiting, key=_by_right):
        tenant, fewest = job.submission.tenant, job.submission.spec.workers.minimum
        if tenant in limits and used_by_tenant[tenant] + fewest > limits[tenant]:
            continue
        used_by_tenant[tenant] += fewest
        found.append(job.id)
    return tuple(found)


def _is_short(job: ScheduledJob, reasons: Mapping[str, tuple[Reason, str]]) -> bool:
    if job.allocation.plan or not job.life.may_run:
        return False
    return job.id in reasons and reasons[job.id][0] in _FOR_LACK_OF_DEVICES


def _by_right(job: ScheduledJob) -> tuple[bool, int, int]:
    return not job.promised, -int(job.submission.priority), job.number
