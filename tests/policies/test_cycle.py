from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.domain.cluster import Cluster
from brim.domain.measuring import curve_of, curve_of_service
from brim.domain.resizing import OVERHEADS
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Admitted, JobState, Reason, Snapshot, Standing
from brim.domain.tenancy import Tenant
from brim.domain.usage import RecentUse
from brim.domain.workload import Job, Priority
from brim.errors import InternalError
from brim.policies.brim import brim
from brim.policies.cycle import cycle
from brim.simulator.engine import Settings, simulate
from brim.simulator.run import SimulatedRun, measure
from brim.user_code.policies import POLICIES
from workloads import CONCAVE, random_jobs

CLUSTER = Cluster.parse("2x8")
OWNERS = (Tenant(id="a", guaranteed=8), Tenant(id="b", guaranteed=8, exclusive=2))


def _job(
    name: str, tenant: str = "a", *, minimum: int = 1, priority: Priority = Priority.PREEMPTIBLE
) -> Job:
    return Job(
        id=name,
        submitted=0.0,
        work=1e5,
        curve=CONCAVE,
        tenant=tenant,
        minimum=minimum,
        priority=priority,
    )


def _state(job: Job, workers: int = 0) -> JobState:
    return JobState(job=job, remaining=job.work, workers=workers, standing=Standing.BEST_EFFORT)


def _snapshot(
    *states: JobState, tenants: tuple[Tenant, ...] = OWNERS, now: float = 1000.0
) -> Snapshot:
    arrived = tuple(state.job.id for state in states if state.workers == 0)
    return Snapshot(
        now=now,
        cluster=CLUSTER,
        capacity=16,
        jobs=states,
        arrived=arrived,
        tenants=tenants,
        overheads=OVERHEADS["none"],
    )


def _used(decision_workers: dict[str, int], *names: str) -> int:
    return sum(decision_workers.get(name, 0) for name in names)


def test_only_idle_nonexclusive_devices_are_lent() -> None:
    decision = cycle(_snapshot(_state(_job("a1")), _state(_job("a2"))), brim)
    assert _used(dict(decision.workers), "a1", "a2") == 14


def test_owners_get_guarantees_by_shrinking_borrowers() -> None:
    running = [_state(_job(f"a{k}"), workers=w) for k, w in enumerate((10, 2, 1, 1))]
    decision = cycle(_snapshot(*running, _state(_job("b1", "b"))), brim)
    assert decision.workers["b1"] == 8
    workers_of_ads = [decision.workers.get(f"a{k}", 0) for k in range(4)]
    assert sum(workers_of_ads) == 8
    assert min(workers_of_ads) >= 1, "a job is shrunk, not suspended"
    shrunk = next(k for k in range(4) if workers_of_ads[k] < running[k].workers)
    reason, detail = decision.reasons[f"a{shrunk}"]
    assert reason is Reason.RECLAIMED
    assert "tenant a held 14 devices and may use 8 now" in detail


def test_a_gang_is_all_or_nothing() -> None:
    states = [_state(_job("a1", minimum=6), workers=6), _state(_job("a2", minimum=6))]
    decision = cycle(_snapshot(*states, _state(_job("b1", "b"))), brim)
    assert decision.workers.get("a2", 0) == 0
    assert decision.workers["a1"] >= 6


def test_priority_wins_but_preserved_gangs_stay() -> None:
    low = _state(_job("a1"), workers=8)
    preserved = _state(_job("a2", priority=Priority.PRESERVED, minimum=3), workers=3)
    online = _state(_job("a0", priority=Priority.ONLINE, minimum=4))
    tenants = (Tenant(id="a", guaranteed=16),)
    decision = cycle(_snapshot(low, preserved, online, tenants=tenants), brim)
    assert decision.workers["a2"] >= 3
    assert decision.workers["a0"] == 12
    assert decision.workers["a1"] == 1, "shrunk, not suspended, for a surplus"
    assert decision.reasons["a1"] == (
        Reason.PREEMPTED,
        "priority online takes 12; this job gives 7 of 8",
    )


def test_higher_priorities_suspend_lower_ones() -> None:
    low = _state(_job("a1", minimum=4), workers=8)
    online = _state(_job("a0", priority=Priority.ONLINE, minimum=13))
    tenants = (Tenant(id="a", guaranteed=16),)
    decision = cycle(_snapshot(low, online, tenants=tenants), brim)
    assert decision.workers.get("a1", 0) == 0
    assert decision.workers["a0"] >= 13
    assert decision.reasons["a1"][0] is Reason.PREEMPTED


def test_surplus_goes_before_low_priority_jobs() -> None:
    high = _state(_job("a1", priority=Priority.PRESERVED), workers=12)
    low = _state(_job("a2", minimum=2), workers=2)
    decision = cycle(_snapshot(high, low, _state(_job("b1", "b"))), brim)
    assert dict(decision.workers) == {"a1": 6, "a2": 2, "b1": 8}


def test_reclaims_touch_few_jobs_and_explain() -> None:
    running = [_state(_job(f"a{k}"), workers=w) for k, w in enumerate((9, 2, 2, 1))]
    decision = cycle(_snapshot(*running, _state(_job("b1", "b"))), brim)
    assert [decision.workers[f"a{k}"] for k in range(4)] == [3, 2, 2, 1]
    assert decision.reasons["a0"] == (
        Reason.RECLAIMED,
        "tenant a held 14 devices and may use 8 now (guaranteed: 8); "
        "tenant b takes 8 (held 0, guaranteed 8); this job gives 6 of 9",
    )


@pytest.mark.parametrize("tenants", [OWNERS[:1], ()], ids=["tenants", "no tenants"])
@pytest.mark.parametrize("state", ["drained", "leaving", "lost"])
def test_a_nodes_end_is_the_reason_to_give(tenants: tuple[Tenant, ...], state: str) -> None:
    on_both = _state(_job("a1"), workers=16)._replace(nodes={"node0": 8, "node1": 8})
    snapshot = replace(
        _snapshot(on_both, tenants=tenants),
        capacity=8,
        cluster=CLUSTER.with_lost({"node1"}),
        unavailable={"node1": state},
    )
    decision = cycle(snapshot, brim)
    assert decision.workers["a1"] == 8
    assert decision.reasons["a1"] == (
        Reason(f"node-{state}"),
        f"node1 is {state}, which leaves 8 devices where 16 were in use; this job gives 8 of 16",
    )


def test_a_drained_empty_node_takes_nothing() -> None:
    low = _state(_job("a1"), workers=8)._replace(nodes={"node0": 8})
    snapshot = replace(
        _snapshot(low, _state(_job("b1", "b", minimum=8))),
        capacity=8,
        cluster=CLUSTER.with_lost({"node1"}),
        unavailable={"node1": "drained"},
        tenants=(Tenant(id="a"), Tenant(id="b", guaranteed=8)),
    )
    assert cycle(snapshot, brim).reasons["a1"][0] is Reason.RECLAIMED


def test_the_cheapest_gang_is_suspended_first() -> None:
    old = _state(_job("a1", minimum=7), workers=7)._replace(unsaved=300.0)
    new = _state(_job("a2", minimum=7), workers=7)._replace(unsaved=20.0)
    decision = cycle(_snapshot(old, new, _state(_job("b1", "b"))), brim)
    assert decision.workers["a1"] >= 7
    assert decision.workers.get("a2", 0) == 0
    reason, detail = decision.reasons["a2"]
    assert reason is Reason.RECLAIMED
    assert detail.endswith("this job gives 7 of 7, 20 s since its last checkpoint")


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 4), st.sampled_from(Priority)), max_size=6
    ),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=4),
)
def test_nobody_within_quota_gives_and_gangs_hold(
    borrowers: list[tuple[int, int, Priority]], owners: list[tuple[int, int]]
) -> None:
    states, free = [], 14
    for k, (minimum, extra, priority) in enumerate(borrowers):
        count = minimum + extra if minimum + extra <= free else 0
        free -= count
        states.append(_state(_job(f"a{k}", minimum=minimum, priority=priority), workers=count))
    free = min(free + 2, 8)
    for k, (minimum, extra) in enumerate(owners):
        count = minimum + extra if minimum + extra <= free else 0
        free -= count
        states.append(_state(_job(f"b{k}", "b", minimum=minimum), workers=count))
    decision = cycle(_snapshot(*states), brim)
    assert sum(decision.workers.values()) <= 16
    for state in states:
        count = decision.workers.get(state.job.id, 0)
        assert count == 0 or count >= state.job.minimum
        if state.job.tenant == "b":
            assert decision.reasons[state.job.id][0] is not Reason.RECLAIMED
            assert count > 0 or state.workers == 0


@pytest.mark.parametrize(
    ("guaranteed", "needs", "first"),
    [
        pytest.param((12, 8), (16, 8), {"a0": 16}, id="more is guaranteed than there is"),
        pytest.param((0, 0), (12, 12), {"a0": 12}, id="nothing is guaranteed"),
        pytest.param((8, 8), (12, 12), {"a0": 12}, id="both need more than is theirs"),
        pytest.param((8, 8), (2, 2, 12, 12), {"a0": 2, "b1": 2, "a2": 12}, id="beside others"),
    ],
)
def test_gangs_do_not_wait_for_each_other(
    guaranteed: tuple[int, int], needs: tuple[int, ...], first: dict[str, int]
) -> None:
    tenants = tuple(
        Tenant(id=id, guaranteed=count) for id, count in zip("ab", guaranteed, strict=True)
    )
    jobs = [
        replace(
            _job(f"{'ab'[k % 2]}{k}", "ab"[k % 2], minimum=count), maximum=count, submitted=float(k)
        )
        for k, count in enumerate(needs)
    ]
    decision = cycle(_snapshot(*map(_state, jobs), tenants=tenants), brim)
    assert dict(decision.workers) == first
    # It goes on with them: neither takes from the other what that cannot use.
    states = [_state(job, first.get(job.id, 0)) for job in jobs]
    next_decision = cycle(_snapshot(*states, tenants=tenants), brim)
    assert dict(next_decision.workers) == first
    unfinished = [
        _state(job, first.get(job.id, 0)) for job in jobs if first.get(job.id, 0) < max(needs)
    ]
    final = cycle(_snapshot(*unfinished, tenants=tenants), brim)
    assert final.workers[jobs[-1].id] == needs[-1], "the other one is next"


def test_unusable_shares_are_lent_to_whole_jobs() -> None:
    large = replace(_job("a1", minimum=12), maximum=12)
    waits = _state(_job("b1", "b", minimum=12))
    decision = cycle(_snapshot(_state(large, 12), waits), brim)
    assert dict(decision.workers) == {"a1": 12}
    decision = cycle(_snapshot(_state(large, 12), waits, _state(_job("b2", "b"))), brim)
    assert dict(decision.workers) == {"b2": 8}
    exclusive = tuple(msgspec.structs.replace(owner, exclusive=8) for owner in OWNERS)
    decision = cycle(_snapshot(_state(large), waits, tenants=exclusive), brim)
    assert dict(decision.workers) == {}, "what is exclusive is never lent"


def test_unusable_shares_are_lent_to_higher_priorities() -> None:
    """A job is not worse off for those of lower priority that its own tenant has."""
    tenants = (Tenant(id="a"), Tenant(id="b"))
    waits = _state(_job("b1", "b", minimum=20))  # takes nothing, and never can
    high = replace(_job("a1", minimum=12, priority=Priority.PRESERVED), maximum=12)
    alone = cycle(_snapshot(_state(high), waits, tenants=tenants), brim)
    assert dict(alone.workers) == {"a1": 12}
    low = _state(_job("a2"), 8)
    for workers in (0, 12):
        snapshot = _snapshot(_state(high, workers), low, waits, tenants=tenants)
        assert cycle(snapshot, brim).workers["a1"] == 12
        low = _state(_job("a2"))


def test_jobs_keep_what_others_cannot_use() -> None:
    gang = replace(_job("a1", minimum=4, priority=Priority.PRESERVED), maximum=4)
    late = replace(
        _job("a2", priority=Priority.PRESERVED), minimum=2, maximum=6, submitted=0.0, deadline=500.0
    )
    online = replace(_job("b1", "b", minimum=4, priority=Priority.ONLINE), maximum=4)
    waits = _state(_job("b2", "b", minimum=6))
    tenants = (Tenant(id="a"), Tenant(id="b"))
    for held in (6, 4):  # with its gang and 6 a tenant has more than its share, which is 8
        states = [
            _state(gang, 4),
            _state(late, held)._replace(standing=Standing.ADMITTED),
            _state(online, 4),
            waits,
        ]
        decision = cycle(_snapshot(*states, tenants=tenants), brim)
        assert dict(decision.workers) == {"a1": 4, "a2": 6, "b1": 4}


def test_no_job_gives_useless_workers() -> None:
    steps = curve_of({8: 10.0, 16: 20.0}, parts=16, minimum=8, maximum=16)
    coarse = replace(
        _job("a1", minimum=8, priority=Priority.PRESERVED), curve=steps, maximum=16, work=1e4
    )
    fine = _job("a2", minimum=4, priority=Priority.PRESERVED)
    waits = _state(_job("a3", minimum=16))
    states = _state(coarse, 8), _state(fine, 8), waits
    decision = cycle(_snapshot(*states, tenants=()), brim)
    assert dict(decision.workers) == {"a1": 8, "a2": 8}


def test_every_job_has_a_reason() -> None:
    states = [_state(_job(f"a{k}")) for k in range(30)]
    decision = cycle(_snapshot(*states), brim)
    assert set(decision.reasons) == {state.job.id for state in states}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(sorted(POLICIES)))
def test_policies_respect_capacity_and_starve_nobody(seed: int, name: str) -> None:
    jobs = random_jobs(seed, 12)
    run = simulate(
        jobs, CLUSTER, POLICIES[name], settings=Settings(placed=True)
    )  # the engine checks
    assert all(outcome.finished is not None for outcome in run.outcomes)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000))
def test_guaranteed_quota_is_always_reclaimable(seed: int) -> None:
    jobs = random_jobs(seed, 16)
    split = tuple(
        Job(id=j.id, submitted=j.submitted, work=j.work, curve=j.curve, tenant="ab"[k % 2])
        for k, j in enumerate(jobs)
    )
    run = simulate(
        split, CLUSTER, brim, settings=Settings(tenants=OWNERS, record=True, placed=True)
    )
    used = {"a": 0, "b": 0}
    waits: dict[str, set[str]] = {"a": set(), "b": set()}
    tenant = {job.id: job.tenant for job in split}
    ceiling = {job.id: job.ceiling for job in split}
    arrivals = sorted((job.submitted, job.id) for job in split)
    moments = sorted({change.at for change in run.changes})
    live: dict[str, int] = {}
    for moment in moments:
        while arrivals and arrivals[0][0] <= moment:
            live[arrivals.pop(0)[1]] = 0
        for change in run.changes:
            if change.at == moment:
                live[change.job] = change.after
                if change.reason == "finished":
                    del live[change.job]
        for name in used:
            own_jobs = [job for job in live if tenant[job] == name]
            own_workers = sum(live[job] for job in own_jobs)
            assert own_workers >= min(8, sum(min(ceiling[job], 1) for job in own_jobs)), (
                moment,
                waits,
            )
    assert sum(used.values()) == 0


def _service(maximum: int, *, workers: int = 0, name: str = "s", changed: float = 0.0) -> JobState:
    job = Job(
        id=name,
        submitted=0.0,
        work=1e9,
        curve=curve_of_service(1, maximum),
        maximum=maximum,
        tenant="a",
        priority=Priority.ONLINE,
    )
    return _state(job, workers)._replace(changed=changed)


@pytest.mark.parametrize("policy", ["brim", "edf"])
def test_service_has_all_that_it_asks_for(policy: str) -> None:
    training = _state(_job("t"), workers=7)
    decision = cycle(
        _snapshot(_service(4, workers=1), training, tenants=OWNERS[:1]), POLICIES[policy]
    )
    assert decision.workers["s"] == 4
    assert sum(decision.workers.values()) <= 16


def test_service_grows_at_once_and_takes_from_training() -> None:
    """Whatever a change costs, and however lately the last one was."""
    snapshot = replace(
        _snapshot(
            _service(6, workers=2, changed=999.9), _state(_job("t"), workers=14), tenants=OWNERS[:1]
        ),
        overheads=OVERHEADS["published"],
    )
    decision = cycle(snapshot, brim)
    assert decision.workers == {"s": 6, "t": 10}
    assert decision.reasons["s"][0] is Reason.ONLINE
    fewer = replace(snapshot, jobs=(_service(3, workers=6), _state(_job("t"), workers=10)))
    assert cycle(fewer, brim).workers["s"] == 3


def test_two_services_share_too_few_devices() -> None:
    first, second = (_service(12, name=name) for name in ("s1", "s2"))
    workers = cycle(_snapshot(first, second, tenants=OWNERS[:1]), brim).workers
    assert sum(workers.values()) == 16
    assert min(workers.values()) >= 7


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 100_000), st.sampled_from((120.0, 1200.0)))
def test_recent_use_breaks_no_promise(seed: int, half_life: float) -> None:
    """Promises count on a part of the devices that nobody owns, also of who has borrowed most."""
    tenants = (Tenant(id="a", guaranteed=4), Tenant(id="b", weight=2.0), Tenant(id="c", weight=9.0))
    jobs = tuple(replace(job, tenant="abc"[k % 3]) for k, job in enumerate(random_jobs(seed, 40)))
    borrowed = {"b": 8.0, "c": 12.0}
    world = Settings(tenants=tenants, recent=RecentUse(half_life=half_life, borrowed=borrowed))
    assert measure(simulate(jobs, CLUSTER, brim, settings=world)).admitted_missed == 0


@pytest.mark.parametrize("priority", Priority)
def test_promise_below_another_priority_is_kept(priority: Priority) -> None:
    """The guarantee goes to the other job, so the promise counts on unowned devices."""
    hour, curve = 3600.0, partial(ScalingCurve.linear, rate=1.0)
    urgent = Job(
        id="urgent", submitted=0.0, work=160 * hour, curve=curve(maximum=4), tenant="a",
        priority=priority,
    )  # fmt: skip
    dated = Job(
        id="dated", submitted=1.0, work=40 * hour, curve=curve(maximum=4), tenant="a",
        deadline=13 * hour,
    )  # fmt: skip
    rival = Job(id="rival", submitted=2 * hour, work=800 * hour, curve=curve(maximum=8), tenant="b")
    world = Settings(
        tenants=(Tenant(id="a", guaranteed=4), Tenant(id="b")),
        recent=RecentUse(half_life=86_400.0, borrowed={"a": 4.0}),
        overheads=OVERHEADS["none"],
    )
    run = simulate([urgent, dated, rival], Cluster.parse("1x12"), brim, settings=world)
    assert measure(run).admitted_missed == 0
    assert all(isinstance(verdict, Admitted) for _, verdict in run.verdicts)


def test_recent_use_hides_no_endless_wait() -> None:
    curve = ScalingCurve.linear(rate=1.0, maximum=8)
    jobs = [
        Job(id=name, submitted=0.0, work=1.0, curve=curve, tenant=name, minimum=8) for name in "ab"
    ]
    world = Settings(
        tenants=(Tenant(id="a", limit=4), Tenant(id="b", limit=4)),
        recent=RecentUse(half_life=3600.0, borrowed={"a": 4.0}),
    )
    with pytest.raises(InternalError, match="2 jobs waiting for ever"):
        simulate(jobs, Cluster.parse("1x8"), brim, settings=world)


def _alone_and_beside(recent: RecentUse | None) -> SimulatedRun:
    """Two tenants of one weight on 8 devices: for a day one of them is alone."""
    day, curve = 86_400.0, ScalingCurve.linear(rate=1.0, maximum=8)
    first = Job(id="first", submitted=0.0, work=16 * day, curve=curve, tenant="ads")
    second = Job(id="second", submitted=day, work=8 * day, curve=curve, tenant="web")
    world = Settings(
        tenants=(Tenant(id="ads"), Tenant(id="web")),
        recent=recent,
        overheads=OVERHEADS["none"],
        record=True,
    )
    return simulate([first, second], Cluster.parse("1x8"), brim, settings=world)


def test_tenant_that_was_alone_comes_later() -> None:
    ends = {}
    for name, recent in (("without", None), ("with", RecentUse(half_life=86_400.0))):
        run = _alone_and_beside(recent)
        (second,) = (outcome for outcome in run.outcomes if outcome.job.id == "second")
        ends[name] = (second.finished or 0.0) / 86_400.0 - 1.0
        if recent:
            change = next(change for change in run.changes if change.reason == Reason.RECLAIMED)
    assert ends["without"] == pytest.approx(2.0)
    assert ends["with"] == pytest.approx(1.4, abs=0.05)
    assert change.detail == (
        "tenant ads held 8 devices and may use 0 now (guaranteed: 0, borrowed lately 4.0 on average); "
        "tenant web takes 8 (held 0, guaranteed 0, borrowed lately 0.0 on average); "
        "this job gives 8 of 8"
    )
