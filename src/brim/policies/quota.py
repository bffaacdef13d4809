"""Quotas: the devices that each tenant may use now.

Its own, then loans of others. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from brim.domain.tenancy import Tenant
from brim.errors import SpecError


def check_quota(tenants: Sequence[Tenant], capacity: int) -> None:
    """Refuse quotas that cannot all be honoured at once.

    Raises:
        SpecError: more is guaranteed than there is, or two tenants have one id.
    """
    total = sum(tenant.guaranteed for tenant in tenants)
    if total > capacity:
        raise SpecError("tenants", got=f"{total} devices guaranteed", need=f"at most {capacity}")
    if len({tenant.id for tenant in tenants}) < len(tenants):
        raise SpecError("tenants", got="an id twice", need="one entry per tenant")


def allowances(
    tenants: Sequence[Tenant], demand: Mapping[str, int], capacity: int
) -> dict[str, int]:
    """Devices by tenant, work-conserving within the rights of each.

    Everyone first gets what it wants of its own guarantee. What is left is lent: idle guarantees
    inside the cohort (never the exclusive part), and devices that nobody owns to anyone, one at a
    time to the tenant with the least borrowed per weight, up to its limit. So an owner that asks
    has its guarantee in this very cycle: nothing that was lent counts as the borrower's (the
    reclaim law).

    Args:
        demand: devices that each tenant's jobs could use; tenants not named want none.
        capacity: at least what is guaranteed in all; where services have taken some of that,
            guarantees shrink in proportion, rounded down.

    >>> a, b = Tenant(id="a", guaranteed=8), Tenant(id="b", guaranteed=8, exclusive=2)
    >>> allowances([a, b], {"a": 16}, 16), allowances([a, b], {"a": 16, "b": 5}, 16)
    ({'a': 14, 'b': 0}, {'a': 11, 'b': 5})
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
    heap = [(0.0, tenant.id, k) for k, tenant in enumerate(owners)]
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
        heapq.heappush(heap, (borrowed[name] / tenant.weight, name, k))
    return granted
