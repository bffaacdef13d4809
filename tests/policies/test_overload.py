"""Clusters that are too small: no promise breaks, and as many deadlines are met as can be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.domain.cluster import Cluster
from brim.domain.promising import PromiseAt
from brim.domain.resizing import OVERHEADS
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Admitted, JobState, Reason, Rejected, Snapshot, Standing
from brim.domain.workload import Job
from brim.policies.baselines.elasticflow import elasticflow
from brim.policies.brim import Remembered, brim
from brim.policies.joint import PlanCandidate, plan_jointly
from brim.policies.price import Arrivals
from brim.policies.promises import need_of
from brim.simulator.engine import Settings, simulate
from brim.simulator.run import Metrics, measure
from workloads import random_jobs

SMALL = Cluster.parse("1x8")
LINEAR = ScalingCurve.linear(rate=1.0, maximum=8)


def _run(seed: int, world: Settings, count: int = 40) -> Metrics:
    return measure(simulate(random_jobs(seed, count), SMALL, brim, settings=world))


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 100_000),
    st.sampled_from(("none", "brim", "published", "restart")),
    st.sampled_from((0.0, 60.0)),
    st.sampled_from(PromiseAt),
    st.booleans(),
)
def test_promises_hold_on_overloaded_clusters(
    seed: int, overheads: str, slot: float, promise: PromiseAt, placed: bool
) -> None:
    world = Settings(slot=slot, overheads=OVERHEADS[overheads], promise=promise, placed=placed)
    assert _run(seed, world).admitted_missed == 0


@pytest.mark.exhaustive
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 100_000),
    st.sampled_from(("none", "published")),
    st.sampled_from((5.0, 60.0, 1e9)),
)
def test_promises_hold_when_plans_continue(seed: int, overheads: str, age: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brim.policies.brim._JOBS_PER_CYCLE", 0)
        patch.setattr("brim.policies.brim._AGE", age)
        found = _run(seed, Settings(overheads=OVERHEADS[overheads]))
    assert found.admitted_missed == 0


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000), st.sampled_from((0.1, 0.2, 0.5)))
def test_measured_promises_survive_wrong_profiles(seed: int, error: float) -> None:
    world = Settings(profile_error=error, seed=seed, promise=PromiseAt.MEASURED)
    assert _run(seed, world).admitted_missed == 0


@pytest.mark.exhaustive
def test_seen_errors_protect_later_promises() -> None:
    promised = broken = 0
    for seed in range(6):
        jobs = random_jobs(seed, 150, spread=25_000.0)
        found = measure(
            simulate(jobs, SMALL, brim, settings=Settings(profile_error=0.2, seed=seed))
        )
        promised += found.admitted
        broken += found.admitted_missed
    assert promised > 500
    assert broken < 0.005 * promised  # 1 % where profiles are trusted all the same


@pytest.mark.exhaustive
def test_more_deadlines_than_elasticflow_under_overload() -> None:
    own_met = peer_met = 0.0
    for seed in range(8):
        jobs, tiny = random_jobs(seed, 40), Cluster.parse("1x4")
        own_met += measure(simulate(jobs, tiny, brim)).deadline_satisfactory_ratio or 0.0
        peer_met += measure(simulate(jobs, tiny, elasticflow)).deadline_satisfactory_ratio or 0.0
    assert own_met > 1.1 * peer_met


def _job(name: str, work: float, deadline: float) -> Job:
    return Job(id=name, submitted=0.0, work=work, curve=LINEAR, deadline=deadline)


def _snapshot(*states: JobState, now: float = 0.0, fresh: tuple[str, ...] = ()) -> Snapshot:
    return Snapshot(
        now=now, cluster=SMALL, capacity=8, jobs=states, arrived=fresh, overheads=OVERHEADS["none"]
    )


def _wanted(name: str, work: float, deadline: float, *, promised: bool = False) -> PlanCandidate:
    state = JobState(_job(name, work, deadline), work)
    return PlanCandidate(
        name, need_of(state, now=0.0, overheads=OVERHEADS["none"]), 0.0, None if promised else work
    )


def _planned(*candidates: PlanCandidate) -> set[str] | None:
    plans = plan_jointly(candidates, now=0.0, devices=8, last={})
    return None if plans is None else set(plans)


def test_the_most_expensive_job_yields_to_two() -> None:
    dear, first, two = (
        _wanted("a", 700.0, 100.0),
        _wanted("b", 400.0, 101.0),
        _wanted("c", 400.0, 102.0),
    )
    assert _planned(dear, first) == {"b"}
    assert _planned(dear, first, two) == {"b", "c"}


def test_promised_jobs_are_never_given_up() -> None:
    dear, cheap = _wanted("a", 700.0, 100.0, promised=True), _wanted("b", 400.0, 101.0)
    assert _planned(dear, cheap) == {"a"}
    assert _planned(_wanted("b", 400.0, 99.0), dear) == {"a"}
    assert _planned(dear, _wanted("b", 400.0, 101.0, promised=True)) is None


def test_expensive_jobs_are_promised_when_cheap() -> None:
    seen = Arrivals(
        tuple(float(t) for t in range(0, 36000, 100)), (1000.0,) * 360
    )  # more than there is
    dear = _job("a", 8000.0, 46000.0)
    first = replace(
        _snapshot(JobState(dear, 8000.0), now=36000.0, fresh=("a",)),
        memory=Remembered(arrivals=seen),
    )
    decision = brim(first)
    (verdict,) = decision.verdicts
    assert isinstance(verdict, Rejected)
    assert verdict.reason is Reason.LEAVES_ROOM
    assert "once it needs 1000 device-seconds, not 8000" in verdict.detail
    assert decision.workers["a"] == 8
    late = JobState(dear, 900.0, workers=1, standing=Standing.BEST_EFFORT)
    decision = brim(replace(_snapshot(late, now=36900.0), memory=decision.memory))
    assert [type(verdict) for verdict in decision.verdicts] == [Admitted]


def test_promises_may_wait_for_measurement() -> None:
    job = _job("a", 80.0, 100.0)
    fresh = replace(_snapshot(JobState(job, 80.0), fresh=("a",)), promise=PromiseAt.MEASURED)
    decision = brim(fresh)
    assert [verdict.reason for verdict in decision.verdicts] == [Reason.TO_MEASURE]
    assert decision.workers["a"] == 8
    runs = JobState(job, 70.0, workers=8, standing=Standing.BEST_EFFORT)
    later_snapshot = replace(
        _snapshot(runs, now=2.0), promise=PromiseAt.MEASURED, memory=decision.memory
    )
    assert [verdict.reason for verdict in brim(later_snapshot).verdicts] == [Reason.FITS]


def test_promises_assume_the_slowest_pace() -> None:
    free = replace(_job("slow", 500.0, 1e6), deadline=None)
    slow = JobState(free, 400.0, workers=1, standing=Standing.BEST_EFFORT, pace=0.8)
    short, sufficient = (
        JobState(_job("a", 700.0, 95.0), 700.0),
        JobState(_job("b", 100.0, 95.0), 100.0),
    )
    trusting = brim(_snapshot(short, fresh=("a",)))
    assert [verdict.reason for verdict in trusting.verdicts] == [Reason.FITS]
    decision = brim(_snapshot(slow, short, fresh=("a",)))
    (verdict,) = decision.verdicts
    assert isinstance(verdict, Rejected)
    assert verdict.reason is Reason.TO_MEASURE
    assert "up to 25% slower" in verdict.detail
    assert decision.workers["a"] == 8  # it is planned all the same
    ample = brim(_snapshot(slow, sufficient, fresh=("b",)))
    assert [verdict.reason for verdict in ample.verdicts] == [Reason.FITS]
    assert [(piece.workers, piece.stop) for piece in ample.memory.plans["b"].pieces] == [
        (2, 62.5)
    ]  # not 50
    assert brim(replace(_snapshot(short, fresh=("a",)), memory=decision.memory)).verdicts == (
        verdict,
    )
    measured = short._replace(remaining=600.0, workers=8, standing=Standing.BEST_EFFORT)
    later_decision = brim(replace(_snapshot(measured, now=13.0), memory=decision.memory))
    assert [verdict.reason for verdict in later_decision.verdicts] == [Reason.FITS]


def test_continued_plans_admit_newcomers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("brim.policies.brim._JOBS_PER_CYCLE", -10_000)
    seen = Arrivals(tuple(float(t) for t in range(0, 36000, 100)), (1.0,) * 180 + (10_000.0,) * 180)
    dear = JobState(_job("a", 700.0, 36100.0), 700.0)
    first = replace(_snapshot(dear, now=36000.0, fresh=("a",)), memory=Remembered(arrivals=seen))
    first_decision = brim(first)
    assert first_decision.workers == {"a": 8}
    hoped = dear._replace(workers=8, standing=Standing.BEST_EFFORT)
    cheap = JobState(_job("b", 400.0, 36100.0), 400.0)
    second_decision = brim(
        replace(_snapshot(hoped, cheap, now=36000.0, fresh=("b",)), memory=first_decision.memory)
    )
    assert second_decision.memory.planned == first_decision.memory.planned
    assert set(second_decision.memory.plans) == {"b"}
    assert second_decision.workers["b"] >= 4


def test_lost_devices_end_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.policies.brim._JOBS_PER_CYCLE", -10_000)
    jobs = [JobState(_job(name, 300.0, 100.0), 300.0) for name in "ab"]
    first_decision = brim(_snapshot(*jobs, fresh=("a", "b")))
    promised = [job._replace(workers=4, standing=Standing.ADMITTED) for job in jobs]
    smaller_cluster = replace(
        _snapshot(*promised, now=1.0), capacity=5, memory=first_decision.memory
    )
    next_decision = brim(smaller_cluster)
    assert next_decision.memory.planned == 1.0
    assert sum(next_decision.workers.values()) <= 5
