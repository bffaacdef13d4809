"""Jobs that wait for devices: which more nodes would have run, and who holds what they wait for. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from brim.domain.course import Change
from brim.domain.quantities import counted, format_duration
from brim.domain.schedule import Decision, Reason
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.tenancy import Tenant

_MOST_NAMED = 3  # holders that a sentence names
_AT_ONCE = 1.0  # seconds from the moment when a job gives devices to the start of another on them
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


class ExpectedStart(NamedTuple):
    """The expected moment at which a job that waits gets its first workers.

    Attributes:
        moment: seconds since 1970.
        giver: the id of the job whose devices it gets; empty: they are free before.
        ends: that job ends then, else it only gives some.
    """

    moment: float
    giver: str = ""
    ends: bool = False


def expected_starts(changes: Sequence[Change]) -> dict[str, ExpectedStart]:
    """Return the expected start of each job that has no workers at first, by id.

    Args:
        changes: of workers that are expected, by time.

    >>> expected_starts(
    ...     [Change(9.0, "a", "workers", 2, 0, "finished"), Change(9.0, "b", "workers", 0, 2)]
    ... )
    {'b': ExpectedStart(moment=9.0, giver='a', ends=True)}
    """
    gifts = [change for change in changes if change.after < change.before]
    moments = [change.at for change in gifts]
    found: dict[str, ExpectedStart] = {}
    for change in changes:
        if change.before or not change.after or change.job in found:
            continue
        place = bisect_right(moments, change.at)
        gift = gifts[place - 1] if place else None
        if gift is None or change.at - gift.at > _AT_ONCE:
            found[change.job] = ExpectedStart(change.at)
        else:
            found[change.job] = ExpectedStart(change.at, gift.job, not gift.after)
    return found


def describe_start(start: ExpectedStart | None, giver: str, now: float) -> str:
    """Say when a job that waits is expected to begin, and on whose devices.

    Args:
        start: None where nobody can foresee it.
        giver: the name of the job that gives them, as the owner of the other may know it.

    >>> describe_start(ExpectedStart(90.0, "a-1", ends=True), "a-1", 30.0)
    'it is expected to begin in 1m, when a-1 ends'
    """
    if start is None:
        return "it begins once enough come free, which cannot be foreseen yet"
    begins = f"it is expected to begin in {format_duration(max(1.0, round(start.moment - now)))}"
    return f"{begins}, when {giver} {'ends' if start.ends else 'gives some'}" if giver else begins


def describe_holders(holders: Mapping[str, int], unavailable: Mapping[str, str]) -> str:
    """Say who holds devices, the most first, and which nodes have none.

    Args:
        holders: devices by the name of the job that holds them, as the reader may know it.
        unavailable: why nodes have no devices now, by their ids.

    >>> describe_holders({"a-1": 2, "a-2": 1, "a-3": 1, "a-4": 1, "a-5": 1}, {"n3": "drained"})
    'a-1 has 2, a-2 has 1, a-3 has 1, 2 others have 2, n3 is drained'
    """
    ordered = sorted(holders.items(), key=lambda entry: (-entry[1], entry[0]))
    parts = [f"{name} has {count:,}" for name, count in ordered[:_MOST_NAMED]]
    if rest := ordered[_MOST_NAMED:]:
        verb = "has" if len(rest) == 1 else "have"
        parts.append(f"{counted(len(rest), 'other')} {verb} {sum(dict(rest).values()):,}")
    parts += [f"{node} is {state}" for node, state in sorted(unavailable.items())[:_MOST_NAMED]]
    return ", ".join(parts)


def describe_shortage(
    reason: Reason, detail: str, *, need: int, free: int, in_all: int, holders: str, start: str
) -> str:
    """Say which devices a job waits for, who holds them, and when it is expected to begin.

    Args:
        reason, detail: why the policy gives it none.
        need: the fewest devices that it can have.
        free: devices that nobody holds.
        in_all: devices that jobs can have, held or not.
        holders: as `describe_holders` says them.
        start: as `describe_start` says it.

    >>> describe_shortage(
    ...     Reason.CLUSTER_FULL, "", need=2, free=1, in_all=3, holders="a-1 has 2", start="it begins soon"
    ... )
    'it needs 2 devices, and only 1 is free: a-1 has 2; it begins soon'
    >>> describe_shortage(Reason.CLUSTER_FULL, "", need=4, free=1, in_all=3, holders="", start="")
    'it needs 4 devices, and the cluster has 3: it waits for further nodes, or for fewer workers'
    """
    if reason is Reason.AHEAD_OF_PLAN:  # it waits on purpose, and the plan says when it begins
        return detail
    if reason is Reason.CLUSTER_FULL and in_all < need:
        return (
            f"it needs {counted(need, 'device')}, and the cluster has {in_all}: it waits for further "
            "nodes, or for fewer workers"
        )
    if reason is Reason.CLUSTER_FULL and free < need:
        available = f"only {free} {'is' if free == 1 else 'are'} free" if free else "none is free"
        detail = f"it needs {counted(need, 'device')}, and {available}"
    return f"{detail}: {holders}; {start}" if holders else f"{detail}; {start}"
