from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.tenancy import Tenant
from brim.errors import SpecError
from brim.policies.quota import allowances, check_quota


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[list[Tenant], dict[str, int], int]:
    tenants = []
    for name in "abcde"[: draw(st.integers(1, 5))]:
        guaranteed = draw(st.integers(0, 20))
        limit = draw(st.none() | st.integers(guaranteed, 60))
        tenants.append(
            Tenant(
                id=name,
                cohort=draw(st.sampled_from(("x", "y"))),
                guaranteed=guaranteed,
                exclusive=draw(st.integers(0, guaranteed)),
                limit=limit,
                weight=draw(st.sampled_from((0.5, 1.0, 3.0))),
            )
        )
    demand = {tenant.id: draw(st.integers(0, 60)) for tenant in tenants}
    capacity = sum(tenant.guaranteed for tenant in tenants) + draw(st.integers(0, 20))
    return tenants, demand, capacity


@given(cohorts())
def test_rights(case: tuple[list[Tenant], dict[str, int], int]) -> None:
    tenants, demand, capacity = case
    allowed = allowances(tenants, demand, capacity)
    # capacity is never exceeded, not even by what exclusive owners leave idle
    reserved = {t.id: max(allowed[t.id], t.exclusive) for t in tenants}
    assert sum(reserved.values()) <= capacity
    for tenant in tenants:
        allowance = allowed[tenant.id]
        # what is guaranteed is there on demand, whatever others borrow
        assert allowance >= min(demand[tenant.id], tenant.guaranteed)
        assert allowance <= max(demand[tenant.id], 0)
        assert tenant.limit is None or allowance <= max(tenant.limit, 0)
    # lending stays within the cohort: what a cohort holds beyond its own comes from what nobody
    # owns
    unowned = capacity - sum(t.guaranteed for t in tenants)
    beyond = 0
    for cohort in ("x", "y"):
        members = [t for t in tenants if t.cohort == cohort]
        beyond += max(0, sum(reserved[t.id] for t in members) - sum(t.guaranteed for t in members))
    assert beyond <= unowned


@given(cohorts(), st.randoms())
def test_the_order_of_tenants_does_not_matter(
    case: tuple[list[Tenant], dict[str, int], int], random: object
) -> None:
    tenants, demand, capacity = case
    shuffled = list(tenants)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert allowances(shuffled, demand, capacity) == allowances(tenants, demand, capacity)


def test_nothing_idles_that_somebody_may_use() -> None:
    a, b = Tenant(id="a", guaranteed=4), Tenant(id="b", guaranteed=4)
    assert allowances([a, b], {"a": 100}, 10) == {"a": 10, "b": 0}


def test_surplus_goes_by_weight() -> None:
    a, b = Tenant(id="a", weight=3.0), Tenant(id="b", weight=1.0)
    assert allowances([a, b], {"a": 100, "b": 100}, 40) == {"a": 30, "b": 10}


def test_more_guaranteed_than_there_is_is_refused() -> None:
    with pytest.raises(SpecError, match="12 devices guaranteed"):
        check_quota([Tenant(id="a", guaranteed=12)], 8)
