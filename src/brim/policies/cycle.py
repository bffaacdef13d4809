"""One pass of the scheduler: rights, then the policy inside each right, then places. Pure.

The rules for taking devices from others, and why that ends:

* An owner takes back its loans: from a borrower, which by definition is above its guarantee. The
  borrower cannot take them back, for they are not its own; it gets them again when the owner stops
  asking.
* A higher priority takes from a lower one of the same tenant, never the other way round.
* Among equals a policy decides. Under `brim` a device goes from job B to job A only if its return
  with A is more than `stay` (1.5) times that with B (`brim.policies.surplus`). A return is a slope
  of a fixed curve over the work that is left: while A runs it can only grow, and while B waits it
  stays. For B to take the device back its return would have to exceed 1.5 times A's, thus 2.25
  times itself.

The first two relations are strict orders and the third cannot go round, so no two jobs preempt each
other in a loop; new arrivals and changed rights can start a new sequence, but only once each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from brim.domain.quantities import counted
from brim.domain.schedule import (
    Decision,
    JobState,
    Policy,
    Reason,
    Snapshot,
    Standing,
    Verdict,
)
from brim.domain.tenancy import Tenant
from brim.domain.workload import Priority
from brim.policies.placement import DeviceBlock, Placement, place
from brim.policies.quota import allowances, unowned_parts
from brim.policies.reclaim import ReclaimCandidate, give_back

# Why jobs give workers where a node goes, by its state; the most wilful comes first.
_REASONS_OF_NODES = {
    "drained": Reason.NODE_DRAINED,
    "leaving": Reason.NODE_LEAVING,
    "lost": Reason.NODE_LOST,
}
# The decisions of a policy, by tenant and priority.
_Parts: TypeAlias = list[tuple[tuple[str, int], Decision]]
_LOOKS = 32  # cycles in a half-life, at least, while several tenants have jobs


@dataclass(frozen=True, slots=True)
class CycleMemory:
    """The memory that one cycle leaves to the next.

    Each policy's own memory, and the placement of jobs.
    """

    policies: Mapping[tuple[str, int], object] = field(default_factory=dict)
    blocks: Mapping[str, tuple[DeviceBlock, ...]] = field(default_factory=dict)


def cycle(snapshot: Snapshot, policy: Policy, *, placed: bool = True) -> Decision:
    """Decide for the whole cluster.

    The policy is asked once for each tenant and priority that has jobs.

    Args:
        placed: whether to place the workers on devices and plan migrations.

    Returns:
        The decision, with a reason for every job; its memory is a `CycleMemory`, to be handed back.
    """
    last: CycleMemory = snapshot.memory or CycleMemory()
    tenants = _tenants(snapshot)
    groups = _groups(snapshot)
    wishes = {
        name: _wants(states, snapshot.capacity) for name, states in _by_tenant(groups).items()
    }
    allow = partial(
        allowances,
        tenants,
        capacity=snapshot.capacity,
        recent=snapshot.recent,
        held=_by_owner(snapshot.jobs, lambda state: state.workers),
        promised=_counted_on(groups),
    )
    allowed = allow(demand=wishes)

    def ask(tenant: Tenant, limit: int) -> _Parts:
        remaining, lent, parts = limit, limit - allowed[tenant.id], []
        for key, states in groups.items():
            if key[0] != tenant.id:
                continue
            capacity = max(remaining - _kept_for_running(groups, key), 0)
            part = policy(
                replace(
                    snapshot,
                    capacity=capacity,
                    assured=_assured(tenant, tenants, snapshot, max(capacity - lent, 0)),
                    jobs=tuple(states),
                    arrived=tuple(s.job.id for s in states if s.job.id in snapshot.arrived),
                    memory=last.policies.get(key),
                )
            )
            remaining -= sum(part.workers.values())
            parts.append((key, part))
        return parts

    by_tenant = {tenant.id: ask(tenant, allowed[tenant.id]) for tenant in tenants}
    if len(tenants) > 1:
        allowed |= _lend_idle(snapshot, allow, wishes, by_tenant, allowed, ask)
    parts = sorted(
        (part for tenant_parts in by_tenant.values() for part in tenant_parts),
        key=lambda part: part[0],
    )
    return _joined(snapshot, parts, allowed, last, placed)


def _lend_idle(
    snapshot: Snapshot,
    allow: Callable[..., dict[str, int]],
    wishes: Mapping[str, int],
    parts: dict[str, _Parts],
    allowed: Mapping[str, int],
    ask: Callable[[Tenant, int], _Parts],
) -> dict[str, int]:
    """Lend unusable allowances of tenants to others, where a job needs them to run at all.

    Jobs of two tenants could else wait for each other for ever, where each needs more workers at
    once than its tenant may have. Jobs of lower priority of its own tenant give way to it as ever.
    Jobs that run come first, so nothing changes from one cycle to the next, then the one submitted
    first. A promise never counts on these loans. Jobs keep what they hold beyond that while nobody
    can use it: a loan with which a gang runs would else end as soon as it does, and begin again.

    Args:
        allow: `allowances` of these tenants, which wants their demand.
        parts: the decisions for each tenant; those of tenants that are lent something are replaced.

    Returns:
        The devices that these tenants may use.
    """
    owners = {tenant.id: tenant for tenant in _tenants(snapshot)}
    lent: dict[str, int] = {}
    workers, used = _used(snapshot, parts, allowed)
    giving = _giving(snapshot, workers)
    offers: dict[str, int] = {}
    for state in sorted(snapshot.jobs, key=lambda s: (not s.workers, s.job.submitted, s.job.id)):
        name, fewest = state.job.tenant, state.job.minimum
        idle = snapshot.capacity - sum(used.values())
        below = sum(n for rank, n in giving[name].items() if rank < state.job.priority)
        if (
            name in lent
            or workers.get(state.job.id)
            or not allowed[name] - used[name] < fewest <= idle + below
        ):
            continue
        if name not in offers:
            others = {**used, name: wishes[name]}
            offer = allow(demand=others)[name]
            offers[name] = min(offer, used[name] + idle)
        if fewest <= offers[name] - used[name] + below:
            lent[name] = offers[name]
            parts[name] = ask(owners[name], lent[name])
            workers, used = _used(snapshot, parts, {**allowed, **lent})
            giving = _giving(snapshot, workers)
            offers.clear()
    for name, held in _by_owner(snapshot.jobs, lambda state: state.workers).items():
        idle = snapshot.capacity - sum(used.values())
        if idle and name not in lent and held > max(allowed[name], used[name]):
            offer = min(allow(demand={**used, name: held})[name], used[name] + idle)
            if offer > allowed[name]:
                lent[name] = offer
                parts[name] = ask(owners[name], offer)
                workers, used = _used(snapshot, parts, {**allowed, **lent})
    return lent


def _giving(snapshot: Snapshot, workers: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """Return the devices that jobs give to higher priorities of their tenant, by both."""
    found: dict[str, dict[int, int]] = {}
    for state in snapshot.jobs:
        job, kept = state.job, 0
        if state.workers and job.priority is Priority.PRESERVED:
            kept = job.minimum
        given = found.setdefault(job.tenant, {})
        given[job.priority] = given.get(job.priority, 0) + max(0, workers.get(job.id, 0) - kept)
    return found


def _used(
    snapshot: Snapshot, parts: Mapping[str, _Parts], allowed: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the workers of jobs, and of tenants."""
    flat = [part for tenant_parts in parts.values() for part in tenant_parts]
    wished = {job: count for _, part in flat for job, count in part.workers.items() if count}
    workers = _settled(snapshot, flat, wished, allowed)
    of_jobs = _by_owner(snapshot.jobs, lambda state: workers.get(state.job.id, 0))
    return workers, dict.fromkeys(parts, 0) | of_jobs


def _tenants(snapshot: Snapshot) -> list[Tenant]:
    """The tenants, with an owner of nothing for every job whose tenant nobody declared."""
    declared = {tenant.id for tenant in snapshot.tenants}
    undeclared = sorted({state.job.tenant for state in snapshot.jobs} - declared)
    return [*snapshot.tenants, *(Tenant(id=name) for name in undeclared)]


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
    return min(sum(map(_most, states)), capacity)


def _most(state: JobState) -> int:
    """Return the most devices that a job could use now."""
    return max(state.job.ceiling, state.workers)


def _is_promised(state: JobState) -> bool:
    return state.standing is Standing.ADMITTED and state.job.deadline is not None


def _counted_on(groups: Mapping[tuple[str, int], list[JobState]]) -> dict[str, int]:
    """Devices that each tenant's promises count on, with all that its policy serves before them.

    That is what higher priorities may use, and the gangs that they leave alone.
    """
    found: dict[str, int] = {}
    before: dict[str, int] = {}  # of higher priorities
    for key, states in groups.items():
        tenant = key[0]
        if promised := sum(map(_most, filter(_is_promised, states))):
            found[tenant] = before.get(tenant, 0) + promised + _kept_for_running(groups, key)
        before[tenant] = before.get(tenant, 0) + sum(map(_most, states))
    return found


def _by_owner(states: Iterable[JobState], count: Callable[[JobState], int]) -> dict[str, int]:
    """Add up devices of jobs by tenant."""
    found: dict[str, int] = {}
    for state in states:
        found[state.job.tenant] = found.get(state.job.tenant, 0) + count(state)
    return found


def _kept_for_running(
    groups: Mapping[tuple[str, int], list[JobState]], key: tuple[str, int]
) -> int:
    """Devices that jobs of this priority leave alone.

    The gangs of preserved jobs that run below them.
    """
    return sum(
        state.job.minimum
        for (tenant, priority), states in groups.items()
        if tenant == key[0] and priority > key[1] and -priority == Priority.PRESERVED
        for state in states
        if state.workers
    )


def _assured(tenant: Tenant, tenants: Sequence[Tenant], snapshot: Snapshot, capacity: int) -> int:
    """Return the devices that a tenant's promises may count on.

    These are its guarantee, and its weight's part of the unowned devices.
    """
    assured = tenant.guaranteed + unowned_parts(tenants, snapshot.capacity)[tenant.id]
    return min(capacity, assured if tenant.limit is None else min(assured, tenant.limit))


def _joined(
    snapshot: Snapshot,
    parts: Sequence[tuple[tuple[str, int], Decision]],
    allowed: Mapping[str, int],
    last: CycleMemory,
    placed: bool,
) -> Decision:
    wished = {job: count for _, part in parts for job, count in part.workers.items() if count}
    workers = _settled(snapshot, parts, wished, allowed)
    reasons = {job: reason for _, part in parts for job, reason in part.reasons.items()}
    verdicts: list[Verdict] = [verdict for _, part in parts for verdict in part.verdicts]
    order = {name: k for k, name in enumerate(snapshot.arrived)}
    verdicts.sort(key=lambda verdict: order.get(verdict.job, -1))
    wakes = [part.wake for _, part in parts if part.wake is not None]
    is_shared = len({tenant for (tenant, _), _ in parts}) > 1
    if snapshot.recent is not None and is_shared and (workers or snapshot.recent.borrowed):
        wakes.append(snapshot.now + snapshot.recent.half_life / _LOOKS)
    pinned = frozenset(job for _, part in parts for job in part.pinned)
    books = _Books(snapshot, workers, allowed)
    for state in snapshot.jobs:
        name = state.job.id
        policy_reason = reasons.get(name) if workers.get(name, 0) == wished.get(name, 0) else None
        reasons[name] = _reason(state, workers.get(name, 0), books, policy_reason)
    blocks = last.blocks
    moved: frozenset[str] = frozenset()
    if placed:
        placement: Placement = place(
            last.blocks, workers, devices=snapshot.cluster.devices, pinned=pinned
        )
        blocks, moved = placement.blocks, placement.moved
    return Decision(
        workers=workers,
        verdicts=tuple(verdicts),
        wake=min(wakes, default=None),
        reasons=reasons,
        pinned=pinned,
        moved=moved,
        memory=CycleMemory(policies={key: part.memory for key, part in parts}, blocks=blocks),
    )


def _settled(
    snapshot: Snapshot,
    parts: Sequence[tuple[tuple[str, int], Decision]],
    wished: Mapping[str, int],
    allowed: Mapping[str, int],
) -> dict[str, int]:
    """Return the policy's wishes, except where a right takes devices from running jobs.

    There few jobs give, and these shrink.

    That is so for a tenant that holds more than it may (a reclaim), and where a lower priority
    would stop although a higher one has more than it needs (a preemption). It ends in promised
    shares, gangs, and the smallest set of victims for the rest (`brim.policies.reclaim`).
    """
    workers = dict(wished)
    for tenant, states in _by_tenant(_groups(snapshot)).items():
        tenant_parts = [part for (owner, _), part in parts if owner == tenant]
        if any(part.needed is None for part in tenant_parts):
            continue  # sizes are fixed: the policy's order decides
        needed = {
            job: count for part in tenant_parts if part.needed for job, count in part.needed.items()
        }
        limit = allowed[tenant]
        running = [state for state in states if state.workers]
        if sum(state.workers for state in running) > limit:
            holdings = _reclaimed(states, wished, needed)
        elif len(tenant_parts) > 1 and any(wished.get(state.job.id, 0) == 0 for state in running):
            holdings = [
                _holding(s, max(wished.get(s.job.id, 0), _floor(s, needed)), needed)
                for s in running
            ]
            holdings += [
                _holding(s, wished[s.job.id], needed)
                for s in states
                if not s.workers and s.job.id in wished
            ]
        else:
            continue
        settled = give_back(holdings, limit)
        spare = limit - sum(settled.values())
        in_order = sorted(states, key=lambda s: (-s.job.priority, s.job.id))
        for state in in_order:
            name, granted = state.job.id, settled.get(state.job.id, 0)
            wish = wished.get(name, 0)
            count = granted + max(0, min(wish - granted, spare))
            if count < wish:
                count = _of_use(state, count, needed)
            if granted or count >= max(1, state.job.minimum):
                settled[name] = count
                spare += granted - count
        for state in in_order:
            name, granted = state.job.id, settled.get(state.job.id, 0)
            if granted and name not in needed:  # who keeps what nobody else has use for
                kept = max(0, min(state.workers - granted, spare))
                settled[name] = granted + kept
                spare -= kept
            workers[name] = settled.get(name, 0)
    return {job: count for job, count in workers.items() if count}


def _reclaimed(
    states: Sequence[JobState], wished: Mapping[str, int], needed: Mapping[str, int]
) -> list[ReclaimCandidate]:
    """Return the workers that jobs of a reclaiming tenant would keep.

    Running jobs keep their workers, newcomers only their needs.
    """
    lowest = min(state.job.priority for state in states if state.workers)
    holdings = []
    for state in states:
        name, wish = state.job.id, wished.get(state.job.id, 0)
        if state.workers and name in needed:  # its plan says how long it can afford a surplus
            count = max(needed[name], min(state.workers, wish))
        elif state.workers:
            count = state.workers
        elif wish and (name in needed or state.job.priority > lowest):
            count = min(_floor(state, needed), wish)
        else:
            count = 0
        if count:
            holdings.append(_holding(state, count, needed))
    return holdings


def _of_use(state: JobState, count: int, needed: Mapping[str, int]) -> int:
    """Return the fewest workers with which a job is as fast as with so many."""
    best, fewest = state.job.curve.best, _floor(state, needed)
    return next((n for n in range(fewest, count) if best[n] >= best[count]), count)


def _floor(state: JobState, needed: Mapping[str, int]) -> int:
    return needed.get(state.job.id, state.job.minimum)


def _holding(state: JobState, count: int, needed: Mapping[str, int]) -> ReclaimCandidate:
    job = state.job
    retained = min(_floor(state, needed), count)
    lost = state.unsaved * state.workers
    return ReclaimCandidate(job.id, count, retained, int(job.priority), job.id in needed, lost)


class _Books:
    """The devices of each tenant before and after.

    They show the devices taken from each tenant, and the takers.
    """

    def __init__(
        self, snapshot: Snapshot, workers: Mapping[str, int], allowed: Mapping[str, int]
    ) -> None:
        self.snapshot, self.allowed = snapshot, allowed
        self.owners = {tenant.id: tenant for tenant in snapshot.tenants}
        self.held = _by_owner(snapshot.jobs, lambda state: state.workers)
        totals = _by_owner(snapshot.jobs, lambda state: workers.get(state.job.id, 0))
        self.gains = {
            name: totals[name] - before_count for name, before_count in sorted(self.held.items())
        }
        self.ranks: dict[tuple[str, int], int] = {}
        for state in snapshot.jobs:
            rank = state.job.tenant, int(state.job.priority)
            gain = workers.get(state.job.id, 0) - state.workers
            self.ranks[rank] = self.ranks.get(rank, 0) + gain
        self.nodes_gone = self._nodes_gone()

    def _nodes_gone(self) -> tuple[Reason, str] | None:
        """Say which nodes take devices from jobs as they go; None where none does."""
        snapshot, total = self.snapshot, sum(self.held.values())
        occupied = {node for state in snapshot.jobs for node, count in state.nodes.items() if count}
        gone = {
            node: state for node, state in sorted(snapshot.unavailable.items()) if node in occupied
        }
        if not gone or total <= snapshot.capacity:
            return None
        reason = next(
            reason for state, reason in _REASONS_OF_NODES.items() if state in gone.values()
        )
        names = " and ".join(f"{node} is {state}" for node, state in gone.items())
        remaining = counted(snapshot.capacity, "device")
        return reason, f"{names}, which leaves {remaining} where {total:,} were in use"

    def takers(self, tenant: str) -> str:
        """Name the tenants that have more than before, and their right to it."""
        found = []
        for name, gain in self.gains.items():
            if gain > 0 and name != tenant:
                owner = self.owners.get(name)
                right = owner.guaranteed if owner else 0
                found.append(
                    f"tenant {name} takes {gain} (held {self.held[name]}, guaranteed {right}"
                    f"{self.lately(name)})"
                )
        return ", ".join(found) or f"training has {counted(self.snapshot.capacity, 'device')} now"

    def lately(self, tenant: str) -> str:
        """Say what a tenant has borrowed lately, where that counts."""
        recent = self.snapshot.recent
        if recent is None:
            return ""
        average = recent.borrowed.get(tenant, 0.0)
        return f", borrowed lately {average:.1f} on average"

    def above(self, state: JobState) -> str:
        """Name the higher priorities of the same tenant that have more than before."""
        own_priority = int(state.job.priority)
        found = [
            f"priority {Priority(rank).name.lower()} takes {gain}"
            for (tenant, rank), gain in sorted(self.ranks.items())
            if tenant == state.job.tenant and rank > own_priority and gain > 0
        ]
        return ", ".join(found)


def _reason(
    state: JobState, count: int, books: _Books, policy_reason: tuple[Reason, str] | None
) -> tuple[Reason, str]:
    """Explain why the job has `count` workers.

    A right is the reason where it took something from the job.
    """
    job, capacity = state.job, books.snapshot.capacity
    tenant, allowed = books.owners.get(job.tenant), books.allowed[job.tenant]
    if count < state.workers:
        gives = f"gives {state.workers - count} of {state.workers}"
        if count == 0 and state.unsaved:
            gives += f", {state.unsaved:.0f} s since its last checkpoint"
        if books.nodes_gone is not None:
            reason, text = books.nodes_gone
            return reason, f"{text}; this job {gives}"
        devices_held = books.held[job.tenant]
        if devices_held > allowed and tenant is not None:
            held = counted(devices_held, "device")
            text = f"tenant {job.tenant} held {held} and may use {allowed} now"
            text += (
                f" (guaranteed: {tenant.guaranteed}{books.lately(job.tenant)}); "
                f"{books.takers(job.tenant)}; this job {gives}"
            )
            return Reason.RECLAIMED, text
        preemptors = books.above(state)
        if preemptors and (policy_reason is None or count == 0):
            return Reason.PREEMPTED, f"{preemptors}; this job {gives}"
    if count == 0 and tenant is not None and allowed < capacity and policy_reason is None:
        text = f"tenant {job.tenant} may use {allowed} of {counted(capacity, 'device')}"
        return Reason.OVER_QUOTA, f"{text}{books.lately(job.tenant)}"
    if policy_reason is not None:
        return policy_reason
    if count < state.workers:
        return Reason.PREEMPTED, f"jobs of its tenant that run keep their gangs; this job {gives}"
    if count:
        return Reason.ORDER, f"{counted(count, 'worker')}, as its tenant's rights allow"
    return Reason.CLUSTER_FULL, f"no device of {capacity} is left for it"
