"""One pass of the scheduler: rights, then the policy inside each right, then places. Pure.

Who can take devices from whom, and why that ends:

* An owner takes back what it lent: from a borrower, which by definition is above its guarantee. The borrower
  cannot take them back, for they are not its own; it gets them again when the owner stops asking.
* A higher priority takes from a lower one of the same tenant, never the other way round.
* Among equals a policy decides. Under `brim` a device goes from job B to job A only if its return with A is
  more
  than `stay` (1.5) times that with B (`brim.policies.surplus`). A return is a slope of a fixed curve over the
  work that is left: while A runs it can only grow, and while B waits it stays. For B to take the device back
  its return would have to exceed 1.5 times A's, thus 2.25 times itself.

The first two relations are strict orders and the third cannot go round, so no two jobs preempt each other in
a loop; new arrivals and changed rights can start a new sequence, but only once each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from brim.domain.schedule import Decision, JobState, Policy, Reason, Snapshot, Verdict
from brim.domain.tenancy import Tenant
from brim.domain.workload import Priority
from brim.policies.placement import Block, Placement, place
from brim.policies.quota import allowances

__all__ = ["Memory", "cycle"]

_EVERYONE = Tenant(id="default")


@dataclass(frozen=True, slots=True)
class Memory:
    """What one cycle leaves to the next: each policy's own memory, and where jobs sit."""

    policies: Mapping[tuple[str, int], object] = field(default_factory=dict)
    blocks: Mapping[str, tuple[Block, ...]] = field(default_factory=dict)


def cycle(snapshot: Snapshot, policy: Policy, *, placed: bool = True) -> Decision:
    """Decide for the whole cluster: the policy is asked once for each tenant and priority that has jobs.

    Args:
        placed: whether to place the workers on devices and plan migrations.

    Returns:
        The decision, with a reason for every job; its memory is a `Memory`, to be handed back.
    """
    last: Memory = snapshot.memory or Memory()
    tenants = _tenants(snapshot)
    groups = _groups(snapshot)
    wanted = {name: _wants(states, snapshot.capacity) for name, states in _by_tenant(groups).items()}
    allowed = allowances(tenants, wanted, snapshot.capacity)
    parts: list[tuple[tuple[str, int], Decision]] = []
    left = dict(allowed)
    for key, states in groups.items():
        tenant = next(one for one in tenants if one.id == key[0])
        keep = _kept_for_running(groups, key)
        capacity = max(left[key[0]] - keep, 0)
        assured = _assured(tenant, tenants, snapshot, capacity)
        part = policy(
            replace(
                snapshot,
                capacity=capacity,
                assured=assured,
                jobs=tuple(states),
                arrived=tuple(s.job.id for s in states if s.job.id in snapshot.arrived),
                memory=last.policies.get(key),
            )
        )
        left[key[0]] -= sum(part.workers.values())
        parts.append((key, part))
    return _joined(snapshot, parts, allowed, last, placed)


def _tenants(snapshot: Snapshot) -> list[Tenant]:
    """The tenants, with an owner of nothing for every job whose tenant nobody declared."""
    known = {tenant.id for tenant in snapshot.tenants}
    others = sorted({state.job.tenant for state in snapshot.jobs} - known)
    return [*snapshot.tenants, *(replace(_EVERYONE, id=name) for name in others)]


def _groups(snapshot: Snapshot) -> dict[tuple[str, int], list[JobState]]:
    """Jobs by (tenant, priority), the highest priority of a tenant first."""
    groups: dict[tuple[str, int], list[JobState]] = {}
    for state in snapshot.jobs:
        groups.setdefault((state.job.tenant, -int(state.job.priority)), []).append(state)
    return dict(sorted(groups.items()))


def _by_tenant(groups: Mapping[tuple[str, int], list[JobState]]) -> dict[str, list[JobState]]:
    found: dict[str, list[JobState]] = {}
    for (tenant, _), states in groups.items():
        found.setdefault(tenant, []).extend(states)
    return found


def _wants(states: Sequence[JobState], capacity: int) -> int:
    return min(sum(max(state.job.ceiling, state.workers) for state in states), capacity)


def _kept_for_running(groups: Mapping[tuple[str, int], list[JobState]], key: tuple[str, int]) -> int:
    """Devices that jobs of this priority leave alone: the gangs of preserved jobs that run below them."""
    return sum(
        state.job.minimum
        for (tenant, priority), states in groups.items()
        if tenant == key[0] and priority > key[1] and -priority == Priority.PRESERVED
        for state in states
        if state.workers
    )


def _assured(tenant: Tenant, tenants: Sequence[Tenant], snapshot: Snapshot, capacity: int) -> int:
    """What this tenant's promises may count on: its guarantee, and its weight's part of what nobody owns."""
    unowned = snapshot.capacity - sum(one.guaranteed for one in tenants)
    part = int(unowned * tenant.weight / sum(one.weight for one in tenants)) if unowned > 0 else 0
    most = tenant.guaranteed + part
    return min(capacity, most if tenant.limit is None else min(most, tenant.limit))


def _joined(
    snapshot: Snapshot,
    parts: Sequence[tuple[tuple[str, int], Decision]],
    allowed: Mapping[str, int],
    last: Memory,
    placed: bool,
) -> Decision:
    workers = {job: count for _, part in parts for job, count in part.workers.items() if count}
    reasons = {job: reason for _, part in parts for job, reason in part.reasons.items()}
    verdicts: list[Verdict] = [verdict for _, part in parts for verdict in part.verdicts]
    order = {name: k for k, name in enumerate(snapshot.arrived)}
    verdicts.sort(key=lambda verdict: order.get(verdict.job, -1))
    wakes = [part.wake for _, part in parts if part.wake is not None]
    pinned = frozenset(job for _, part in parts for job in part.pinned)
    for state in snapshot.jobs:
        reasons[state.job.id] = _reason(
            state, workers.get(state.job.id, 0), allowed, reasons.get(state.job.id), snapshot
        )
    blocks = last.blocks
    moved: frozenset[str] = frozenset()
    if placed:
        placement: Placement = place(last.blocks, workers, devices=snapshot.cluster.devices, pinned=pinned)
        blocks, moved = placement.blocks, placement.moved
    return Decision(
        workers=workers,
        verdicts=tuple(verdicts),
        wake=min(wakes, default=None),
        reasons=reasons,
        pinned=pinned,
        moved=moved,
        memory=Memory(policies={key: part.memory for key, part in parts}, blocks=blocks),
    )


def _reason(
    state: JobState,
    count: int,
    allowed: Mapping[str, int],
    given: tuple[Reason, str] | None,
    snapshot: Snapshot,
) -> tuple[Reason, str]:
    """Why the job has `count` workers; rights are the reason where they took something from it."""
    job = state.job
    tenant = next((one for one in snapshot.tenants if one.id == job.tenant), None)
    if count < state.workers and tenant is not None:
        held = sum(s.workers for s in snapshot.jobs if s.job.tenant == job.tenant)
        if held > allowed[job.tenant]:
            text = f"tenant {job.tenant} held {held} devices and may use {allowed[job.tenant]} now"
            return Reason.RECLAIMED, f"{text} (guaranteed: {tenant.guaranteed})"
    if count == 0 and tenant is not None and allowed[job.tenant] < snapshot.capacity and given is None:
        return (
            Reason.OVER_QUOTA,
            f"tenant {job.tenant} may use {allowed[job.tenant]} of {snapshot.capacity} devices",
        )
    if given is not None:
        return given
    if count < state.workers:
        return Reason.PREEMPTED, "jobs of a higher right need its devices"
    if count:
        return Reason.ORDER, f"{count} workers"
    return Reason.CLUSTER_FULL, f"no device of {snapshot.capacity} is left for it"
