from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from brim.backends.simulator.engine import Settings, simulate
from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS
from brim.domain.schedule import JobState, Reason, Snapshot, Standing
from brim.domain.tenancy import Tenant
from brim.domain.workload import Job, Priority
from brim.policies.brim import brim
from brim.policies.cycle import cycle
from brim.policies.named import POLICIES
from workloads import CONCAVE, random_jobs

CLUSTER = Cluster.parse("2x8")
OWNERS = (Tenant(id="a", guaranteed=8), Tenant(id="b", guaranteed=8, exclusive=2))


def _job(name: str, tenant: str = "a", *, minimum: int = 1, priority: Priority = Priority.PREEMPTIBLE) -> Job:
    return Job(
        id=name, submitted=0.0, work=1e5, curve=CONCAVE, tenant=tenant, minimum=minimum, priority=priority
    )


def _state(job: Job, workers: int = 0) -> JobState:
    return JobState(job=job, remaining=job.work, workers=workers, standing=Standing.BEST_EFFORT)


def _snapshot(*states: JobState, tenants: tuple[Tenant, ...] = OWNERS, now: float = 1000.0) -> Snapshot:
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


def test_what_idles_is_lent_but_never_what_is_exclusive() -> None:
    decision = cycle(_snapshot(_state(_job("a1")), _state(_job("a2"))), brim)
    assert _used(dict(decision.workers), "a1", "a2") == 14


def test_an_owner_that_asks_gets_its_guarantee_and_borrowers_shrink_before_anyone_stops() -> None:
    running = [_state(_job(f"a{k}"), workers=w) for k, w in enumerate((10, 2, 1, 1))]
    decision = cycle(_snapshot(*running, _state(_job("b1", "b"))), brim)
    assert decision.workers["b1"] == 8
    left = [decision.workers.get(f"a{k}", 0) for k in range(4)]
    assert sum(left) == 8
    assert min(left) >= 1, "a job is shrunk, not suspended"
    shrunk = next(k for k in range(4) if left[k] < running[k].workers)
    reason, detail = decision.reasons[f"a{shrunk}"]
    assert reason is Reason.RECLAIMED
    assert "tenant a held 14 devices and may use 8 now" in detail


def test_a_gang_is_all_or_nothing() -> None:
    states = [_state(_job("a1", minimum=6), workers=6), _state(_job("a2", minimum=6))]
    decision = cycle(_snapshot(*states, _state(_job("b1", "b"))), brim)
    assert decision.workers.get("a2", 0) == 0
    assert decision.workers["a1"] >= 6


def test_a_higher_priority_comes_first_and_a_preserved_job_keeps_its_gang() -> None:
    low = _state(_job("a1"), workers=8)
    kept = _state(_job("a2", priority=Priority.PRESERVED, minimum=3), workers=3)
    online = _state(_job("a0", priority=Priority.ONLINE, minimum=4))
    only = (Tenant(id="a", guaranteed=16),)
    decision = cycle(_snapshot(low, kept, online, tenants=only), brim)
    assert decision.workers["a2"] >= 3
    assert decision.workers["a0"] == 13
    assert decision.workers.get("a1", 0) == 0
    assert decision.reasons["a1"][0] in (Reason.PREEMPTED, Reason.CLUSTER_FULL)


def test_every_job_has_a_reason() -> None:
    states = [_state(_job(f"a{k}")) for k in range(30)]
    decision = cycle(_snapshot(*states), brim)
    assert set(decision.reasons) == {state.job.id for state in states}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(sorted(POLICIES)))
def test_no_policy_exceeds_capacity_or_starves_anyone_for_ever(seed: int, name: str) -> None:
    jobs = random_jobs(seed, 12)
    run = simulate(jobs, CLUSTER, POLICIES[name], settings=Settings(placed=True))  # the engine checks
    assert all(outcome.finished is not None for outcome in run.outcomes)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000))
def test_guaranteed_quota_is_always_reclaimable(seed: int) -> None:
    jobs = random_jobs(seed, 16)
    split = tuple(
        Job(id=j.id, submitted=j.submitted, work=j.work, curve=j.curve, tenant="ab"[k % 2])
        for k, j in enumerate(jobs)
    )
    run = simulate(split, CLUSTER, brim, settings=Settings(tenants=OWNERS, record=True, placed=True))
    used = {"a": 0, "b": 0}
    waits: dict[str, set[str]] = {"a": set(), "b": set()}
    tenant = {job.id: job.tenant for job in split}
    ceiling = {job.id: job.ceiling for job in split}
    arrivals = sorted((job.submitted, job.id) for job in split)
    moments = sorted({change.time for change in run.changes})
    live: dict[str, int] = {}
    for moment in moments:
        while arrivals and arrivals[0][0] <= moment:
            live[arrivals.pop(0)[1]] = 0
        for change in run.changes:
            if change.time == moment:
                live[change.job] = change.after
                if change.reason == "finished":
                    del live[change.job]
        for name in used:
            mine = [job for job in live if tenant[job] == name]
            held = sum(live[job] for job in mine)
            assert held >= min(8, sum(min(ceiling[job], 1) for job in mine)), (moment, waits)
    assert sum(used.values()) == 0
