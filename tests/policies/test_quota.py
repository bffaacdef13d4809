from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.domain.tenancy import Tenant
from brim.domain.usage import RecentUse
from brim.errors import SpecError
from brim.policies.quota import allowances, check_quota, unowned_parts

DAY = 86_400.0


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


def test_promises_have_what_they_count_on() -> None:
    """Also where others of smaller weights are so many that each gets its first device before."""
    tenants = [Tenant(id="z", weight=10.0), *(Tenant(id=name) for name in "abcdefghij")]
    demand = {tenant.id: 9 for tenant in tenants}
    assert allowances(tenants, demand, 10)["z"] == 0
    assert allowances(tenants, demand, 10, promised={"z": 9})["z"] == 5


@st.composite
def histories(draw: st.DrawFn) -> dict[str, dict[str, float]]:
    """Devices that five tenants hold, have borrowed lately, and have promised jobs for."""
    averages = st.floats(0.0, 40.0)
    counts = st.integers(0, 40)
    return {
        "recent": {name: draw(averages) for name in "abcde"},
        "held": {name: draw(counts) for name in "abcde"},
        "promised": {name: draw(counts) for name in "abcde"},
    }


def allowed_after(
    case: tuple[list[Tenant], dict[str, int], int], history: dict[str, dict[str, float]]
) -> dict[str, int]:
    return allowances(
        *case,
        recent=RecentUse(half_life=DAY, borrowed=history["recent"]),
        held={name: int(count) for name, count in history["held"].items()},
        promised={name: int(count) for name, count in history["promised"].items()},
    )


@given(cohorts(), histories(), st.floats(0.0, 40.0))
def test_more_recent_use_never_gives_more(
    case: tuple[list[Tenant], dict[str, int], int],
    history: dict[str, dict[str, float]],
    more: float,
) -> None:
    used_more = {**history, "recent": {**history["recent"], "a": history["recent"]["a"] + more}}
    first, second = allowed_after(case, history), allowed_after(case, used_more)
    assert second["a"] <= first["a"]
    assert sum(second.values()) == sum(first.values()), "nothing idles for it"


@given(cohorts(), histories())
def test_recent_use_touches_no_right(
    case: tuple[list[Tenant], dict[str, int], int], history: dict[str, dict[str, float]]
) -> None:
    tenants, demand, capacity = case
    allowed = allowed_after(case, history)
    assert sum(allowed.values()) == sum(allowances(*case).values())
    parts = unowned_parts(tenants, capacity)
    for tenant in tenants:
        assert allowed[tenant.id] >= min(demand[tenant.id], tenant.guaranteed)
        assert tenant.limit is None or allowed[tenant.id] <= tenant.limit
        # What promises count on is there, whatever was borrowed lately.
        assured = min(history["promised"][tenant.id], tenant.guaranteed + parts[tenant.id])
        limit = capacity if tenant.limit is None else tenant.limit
        assert allowed[tenant.id] >= min(assured, demand[tenant.id], limit)


def shares_over_time(
    tenants: list[Tenant],
    capacity: int,
    recent: RecentUse,
    *,
    half_lives: int,
    held: dict[str, int],
) -> tuple[list[dict[str, float]], int]:
    """The devices of tenants that all want more: averages of each half-life, and all changes."""
    looks, changes = 32, 0
    averages = []
    for _ in range(half_lives):
        total = dict.fromkeys((tenant.id for tenant in tenants), 0.0)
        for _ in range(looks):
            demand = dict.fromkeys(total, capacity)
            allowed = allowances(tenants, demand, capacity, recent=recent, held=held)
            changes += allowed != held
            held = allowed
            recent = recent.advanced(recent.half_life / looks, held, tenants)
            for name, count in held.items():
                total[name] += count / looks
        averages.append(total)
    return averages, changes


@settings(max_examples=10)
@given(st.lists(st.sampled_from((1.0, 2.0, 5.0)), min_size=2, max_size=4), st.integers(1, 12))
def test_weights_hold_in_the_long_run(weights: list[float], capacity: int) -> None:
    """Also where there are fewer devices than tenants, which take turns then."""
    tenants = [Tenant(id=f"t{k}", weight=weight) for k, weight in enumerate(weights)]
    start = RecentUse(half_life=DAY, borrowed={"t0": float(capacity)})
    averages, changes = shares_over_time(tenants, capacity, start, half_lives=24, held={})
    for tenant in tenants:
        share = capacity * tenant.weight / sum(weights)
        average = sum(shares[tenant.id] for shares in averages[8:]) / 16
        assert average == pytest.approx(share, abs=0.5)
        assert average > 0.0
    assert changes < 24 * 8 * len(tenants), "devices change hands at nearly each look"


def test_idle_tenant_comes_first_and_both_become_equal() -> None:
    a, b = Tenant(id="a"), Tenant(id="b")
    recent = RecentUse(half_life=DAY).advanced(DAY, {"a": 8}, [a, b])
    averages, _ = shares_over_time([a, b], 8, recent, half_lives=4, held={"a": 8})
    of_b = [round(shares["b"], 1) for shares in averages]
    assert of_b == [6.3, 4.0, 4.0, 4.0]
    assert allowances([a, b], {"a": 8, "b": 8}, 8) == {"a": 4, "b": 4}


def test_own_guarantee_is_no_recent_use() -> None:
    a, b = Tenant(id="a", guaranteed=8), Tenant(id="b")
    assert not RecentUse(half_life=DAY).advanced(9 * DAY, {"a": 8}, [a, b]).borrowed
