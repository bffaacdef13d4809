"""Quotas: the devices that each tenant may use now.

Its own, then loans of others. Pure.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from brim.domain.quantities import counted
from brim.domain.tenancy import Tenant
from brim.domain.usage import RecentUse
from brim.errors import SpecError

_NOTHING: Mapping[str, int] = MappingProxyType({})
_KEPT = 0.5**0.25  # of an average, after a quarter of a half-life


def check_quota(tenants: Sequence[Tenant], capacity: int) -> None:
    """Refuse quotas that cannot all be honoured at once.

    Raises:
        SpecError: more is guaranteed than there is, or two tenants have one id.
    """
    total = sum(tenant.guaranteed for tenant in tenants)
    if total > capacity:
        raise SpecError(
            "tenants", got=f"{counted(total, 'device')} guaranteed", need=f"at most {capacity}"
        )
    if len({tenant.id for tenant in tenants}) < len(tenants):
        raise SpecError("tenants", got="an id twice", need="one entry per tenant")


def allowances(
    tenants: Sequence[Tenant],
    demand: Mapping[str, int],
    capacity: int,
    *,
    recent: RecentUse | None = None,
    held: Mapping[str, int] = _NOTHING,
    promised: Mapping[str, int] = _NOTHING,
) -> dict[str, int]:
    """Devices by tenant, work-conserving within the rights of each.

    Everyone first gets what it wants of its own guarantee. What is left is lent: idle guarantees
    inside the cohort (never the exclusive part), and devices that nobody owns to anyone, one at a
    time to the tenant with the least borrowed per weight, up to its limit. So an owner that asks
    has its guarantee in this very cycle: nothing that was lent counts as the borrower's (the
    reclaim law).

    With recent use, the next device goes to the tenant whose average would be the least per weight
    a quarter of a half-life from now: with b devices lent to it in this call, and an average of r
    borrowed lately, a tenant of weight w comes at (k r + (1 - k) b) / w, where k is 2^(-1/4). A
    device that it holds comes as if it were the one before, since else the last one would change
    hands in each cycle.

    Args:
        demand: devices that each tenant's jobs could use; tenants not named want none.
        capacity: at least what is guaranteed in all; where services have taken some, guarantees
            shrink in proportion, rounded down.
        recent: what tenants have borrowed lately; None: only the present counts.
        held: devices that each tenant's jobs hold; counts only with `recent`.
        promised: devices that each tenant's promises count on, with those of its jobs that come
            before them. Those beyond its guarantee are lent
            before all others, as long as they are within its weight's part of what nobody owns.

    >>> a, b = Tenant(id="a", guaranteed=8), Tenant(id="b", guaranteed=8, exclusive=2)
    >>> allowances([a, b], {"a": 16}, 16), allowances([a, b], {"a": 16, "b": 5}, 16)
    ({'a': 14, 'b': 0}, {'a': 11, 'b': 5})
    >>> a, b = Tenant(id="a"), Tenant(id="b")
    >>> recent = RecentUse(half_life=86_400.0, borrowed={"a": 1.0})
    >>> allowances([a, b], {"a": 8, "b": 8}, 8, recent=recent)
    {'a': 1, 'b': 7}
    """
    owners = sorted(tenants, key=lambda tenant: tenant.id)
    owned = sum(tenant.guaranteed for tenant in owners)
    scale = min(1.0, capacity / owned) if owned else 1.0
    right = {tenant.id: int(tenant.guaranteed * scale) for tenant in owners}
    exclusive = {tenant.id: int(tenant.exclusive * scale) for tenant in owners}
    granted = {tenant.id: min(demand.get(tenant.id, 0), right[tenant.id]) for tenant in owners}
    free = capacity - sum(right.values())  # what nobody owns
    idle: dict[str, int] = {}
    for tenant in owners:
        # An owner that uses less than its exclusive part still keeps that part for itself.
        lendable = right[tenant.id] - max(granted[tenant.id], exclusive[tenant.id])
        idle[tenant.cohort] = idle.get(tenant.cohort, 0) + lendable
    parts = unowned_parts(owners, capacity)

    def turn(tenant: Tenant, borrowed: int) -> float:
        """Return the place in line of the next device that is lent to a tenant."""
        counted_on = promised.get(tenant.id, 0) - right[tenant.id]
        if borrowed < min(counted_on, parts[tenant.id]):
            return -math.inf
        if recent is None:
            return borrowed / tenant.weight
        is_held = borrowed < held.get(tenant.id, 0) - right[tenant.id]
        average = recent.borrowed.get(tenant.id, 0.0)
        return (_KEPT * average + (1.0 - _KEPT) * (borrowed - is_held)) / tenant.weight

    heap = [(turn(tenant, 0), tenant.id, k) for k, tenant in enumerate(owners)]
    heapq.heapify(heap)
    borrowed = {tenant.id: 0 for tenant in owners}
    while heap and (free or any(idle.values())):
        _, name, k = heapq.heappop(heap)
        tenant = owners[k]
        limit = capacity if tenant.limit is None else tenant.limit
        if granted[name] >= min(demand.get(name, 0), limit):
            continue
        if idle[tenant.cohort]:
            idle[tenant.cohort] -= 1
        elif free:
            free -= 1
        else:
            continue
        granted[name] += 1
        borrowed[name] += 1
        heapq.heappush(heap, (turn(tenant, borrowed[name]), name, k))
    return granted


def unowned_parts(tenants: Sequence[Tenant], capacity: int) -> dict[str, int]:
    """Devices that nobody owns, by tenant in the ratio of the weights, rounded down.

    >>> unowned_parts([Tenant(id="a", guaranteed=2), Tenant(id="b", weight=2.0)], 8)
    {'a': 2, 'b': 4}
    """
    unowned = max(0, capacity - sum(tenant.guaranteed for tenant in tenants))
    total = sum(tenant.weight for tenant in tenants)
    return {tenant.id: int(unowned * tenant.weight / total) for tenant in tenants}
