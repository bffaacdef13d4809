from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS, Overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Admitted, JobState, Reason, Rejected, Snapshot, Standing
from brim.domain.workload import Job
from brim.policies.baselines.ceiling import ceiling_per_job
from brim.policies.baselines.edf import edf
from brim.policies.brim import Remembered, brim
from brim.policies.promises import Promise
from brim.policies.timeline import Piece
from brim.simulator.engine import Settings, simulate
from brim.simulator.run import measure
from workloads import CONCAVE, random_jobs

SMALL = Cluster.parse("2x8")
# A job holds its devices until its processes have ended.
COSTS = {**OVERHEADS, "ends": Overheads(name="ends", start=20.0, fixed=5.0, end=15.0)}


@given(
    st.integers(0, 10_000),
    st.sampled_from(("none", "brim", "published", "restart", "ends")),
    st.sampled_from((0.0, 60.0)),
    st.booleans(),
)
def test_an_admitted_deadline_is_kept(seed: int, overheads: str, slot: float, placed: bool) -> None:
    jobs = random_jobs(seed, 14)
    world = Settings(slot=slot, overheads=COSTS[overheads], placed=placed)
    run = simulate(jobs, SMALL, brim, settings=world)
    found = measure(run)
    assert found.admitted_missed == 0
    assert found.deadline_satisfactory_ratio is None or found.deadline_satisfactory_ratio <= (
        ceiling_per_job(jobs, devices=16) or 0.0
    )
    assert all(outcome.finished is not None for outcome in run.outcomes)


@given(st.integers(0, 10_000))
def test_no_two_jobs_preempt_each_other(seed: int) -> None:
    jobs = tuple(
        Job(id=job.id, submitted=0.0, work=job.work, curve=job.curve)
        for job in random_jobs(seed, 12)
    )
    run = simulate(jobs, Cluster.parse("1x8"), brim, settings=Settings(record=True))
    taken_from: set[tuple[str, str]] = set()
    for moment in sorted({change.at for change in run.changes}):
        now = [
            change for change in run.changes if change.at == moment and change.reason != "finished"
        ]
        losers = [change.job for change in now if change.after < change.before]
        winners = [change.job for change in now if change.after > change.before]
        pairs = {(winner, loser) for winner in winners for loser in losers}
        assert not {(loser, winner) for winner, loser in pairs} & taken_from
        taken_from |= pairs


def _snapshot(*jobs: Job, now: float = 0.0, capacity: int = 16) -> Snapshot:
    return Snapshot(
        now=now,
        cluster=SMALL,
        capacity=capacity,
        jobs=tuple(JobState(job=job, remaining=job.work) for job in jobs),
        arrived=tuple(job.id for job in jobs),
        overheads=OVERHEADS["none"],
    )


def test_refusals_name_the_earliest_deadline() -> None:
    job = Job(id="a", submitted=0.0, work=750.0, curve=CONCAVE, deadline=60.0)
    (verdict,) = brim(_snapshot(job)).verdicts
    assert isinstance(verdict, Rejected)
    assert verdict.reason is Reason.TOO_LATE
    assert verdict.earliest == pytest.approx(100.0)
    assert "40 s after the deadline" in verdict.detail
    assert verdict.runs


def test_the_second_conflicting_job_is_refused() -> None:
    first = Job(id="a", submitted=0.0, work=700.0, curve=CONCAVE, deadline=100.0)
    two = Job(id="b", submitted=0.0, work=700.0, curve=CONCAVE, deadline=100.0)
    yes, refusal = brim(_snapshot(first, two)).verdicts
    assert yes.reason is Reason.FITS
    assert refusal.reason is Reason.BREAKS_PROMISE
    assert "with 1 promised job on" in refusal.detail


def test_surplus_has_a_reason_with_numbers() -> None:
    job = Job(id="a", submitted=0.0, work=100.0, curve=CONCAVE, deadline=1000.0)
    decision = brim(_snapshot(job))
    assert decision.workers == {"a": 16}
    assert decision.reasons["a"] == (
        Reason.SURPLUS,
        "1 needed, 15 from the surplus, expected to be 7.50 times as fast",
    )


@pytest.mark.parametrize(
    ("maximum", "text"),
    [(2, "as many as it may have"), (4, "its fewest: others make better use of more")],
)
def test_a_share_is_all_or_the_fewest(maximum: int, text: str) -> None:
    job = Job(id="a", submitted=0.0, work=1e5, curve=CONCAVE, minimum=2, maximum=maximum)
    snapshot = replace(_snapshot(job, now=1.0, capacity=2), overheads=OVERHEADS["published"])
    states = tuple(state._replace(workers=2) for state in snapshot.jobs)
    decision = brim(replace(snapshot, jobs=states))
    assert decision.reasons["a"] == (Reason.MINIMUM_SHARE, text)


def test_workers_to_measure_promise_no_speed() -> None:
    job = Job(id="a", submitted=0.0, work=100.0, curve=CONCAVE, maximum=2)
    snapshot = _snapshot(job)
    states = tuple(state._replace(profiled=True) for state in snapshot.jobs)
    assert brim(replace(snapshot, jobs=states)).reasons["a"] == (
        Reason.SURPLUS,
        "0 needed, 2 from the surplus, on which its speed is measured",
    )


def test_job_without_a_deadline_is_told_of_none() -> None:
    jobs = tuple(replace(job, deadline=None) for job in random_jobs(0, 12))
    world = Settings(record=True, overheads=OVERHEADS["restart"])
    changes = simulate(jobs, Cluster.parse("1x8"), brim, settings=world).changes
    assert any(change.reason == Reason.MINIMUM_SHARE.value for change in changes)
    assert not any("deadline" in change.detail for change in changes)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.randoms())
def test_the_same_plan_for_any_order_of_input(seed: int, random: object) -> None:
    jobs = list(random_jobs(seed, 10, spread=0.0))
    first = brim(_snapshot(*jobs))
    states = list(_snapshot(*jobs).jobs)
    random.shuffle(states)  # type: ignore[attr-defined]
    shuffled = Snapshot(
        now=0.0,
        cluster=SMALL,
        capacity=16,
        jobs=tuple(states),
        arrived=tuple(job.id for job in jobs),
        overheads=OVERHEADS["none"],
    )
    assert brim(shuffled).workers == first.workers


def test_a_raised_minimum_is_granted() -> None:
    job = Job(id="a", submitted=0.0, work=1000.0, curve=ScalingCurve(points=((4, 3.0),)), minimum=4)
    snapshot = _snapshot(job, now=1000.0)
    snapshot_held = replace(snapshot, jobs=(JobState(job, 1000.0, workers=2),))
    assert brim(snapshot_held).workers == {"a": 4}
    assert brim(replace(snapshot_held, capacity=3)).workers.get("a", 0) == 0


def test_plans_with_more_workers_than_allowed_end() -> None:
    """The owner allows fewer workers, and the cluster has lost a node, so that the last plan goes on."""
    curve = ScalingCurve.linear(rate=1.0, maximum=4)
    job = Job(id="a", submitted=0.0, work=900.0, curve=curve, deadline=100.0, maximum=4)
    promise = {"a": Promise(pieces=(Piece(0.0, 90.0, 10),), spare=1.0)}
    jobs = (JobState(job, 900.0, workers=4, standing=Standing.ADMITTED),)
    for work in (900.0, 300.0):
        snapshot = replace(
            _snapshot(job),
            jobs=(jobs[0]._replace(remaining=work),),
            arrived=(),
            capacity=4,
            overheads=Overheads(name="doubtful", doubt=1000.0),
            memory=Remembered(plans=promise, devices=16),
        )
        assert brim(snapshot).workers == {"a": 4}


def test_promises_have_margins_for_doubt() -> None:
    job = Job(
        id="a", submitted=0.0, work=750.0, curve=CONCAVE, deadline=110.0
    )  # done in 100 s at best
    doubtful = replace(_snapshot(job), overheads=Overheads(name="doubtful", doubt=11.0))
    assert isinstance(brim(doubtful).verdicts[0], Rejected)
    decision = brim(replace(doubtful, overheads=Overheads(name="less", doubt=9.0)))
    assert isinstance(decision.verdicts[0], Admitted)
    late = JobState(job, 750.0, standing=Standing.ADMITTED)
    next_decision = brim(
        replace(doubtful, now=9.5, jobs=(late,), arrived=(), memory=decision.memory)
    )
    assert next_decision.workers == {"a": 16}


def test_tight_promises_start_on_free_devices() -> None:
    """Found on streams of fake processes: a plan began at the expected end of a job that had
    ended before.
    """
    job = Job(id="a", submitted=0.0, work=75.0, curve=CONCAVE, deadline=60.5)
    plan = {"a": Promise(pieces=(Piece(48.5, 60.5, 15),), spare=1.0)}
    other_job = Job(
        id="b",
        submitted=0.0,
        work=50.0,
        curve=ScalingCurve.linear(rate=1.0, maximum=16),
        deadline=50.0,
    )
    plan["b"] = Promise(pieces=(Piece(0.0, 50.0, 1),), spare=0.0)
    jobs = (
        JobState(job, 75.0, standing=Standing.ADMITTED),
        JobState(other_job, 50.0, workers=1, standing=Standing.ADMITTED),
    )
    costs = Overheads(
        name="doubtful", fixed=1.0, doubt=100.0
    )  # so no new plan is made, and the last one goes on
    snapshot = replace(
        _snapshot(job, other_job),
        jobs=jobs,
        arrived=(),
        overheads=costs,
        memory=Remembered(plans=plan),
    )
    decision = brim(snapshot)
    assert decision.memory.plans["a"].pieces[0].start == 48.5
    assert decision.workers == {"a": 15, "b": 1}


def test_broken_promises_rank_between_promises_and_surplus() -> None:
    late = Job(id="a", submitted=0.0, work=750.0, curve=CONCAVE, deadline=50.0)
    promised_job = Job(
        id="b",
        submitted=0.0,
        work=75.0,
        curve=ScalingCurve.linear(rate=1.0, maximum=16),
        deadline=60.0,
    )
    free = Job(id="c", submitted=0.0, work=5.0, curve=ScalingCurve.linear(rate=1.0, maximum=16))
    jobs = (
        JobState(late, 750.0, standing=Standing.ADMITTED),
        JobState(promised_job, 75.0, workers=2, standing=Standing.ADMITTED),
        JobState(free, 5.0, standing=Standing.BEST_EFFORT),
    )
    decision = brim(replace(_snapshot(late, promised_job, free), jobs=jobs, arrived=()))
    assert decision.workers["b"] == 2
    assert decision.workers["a"] == 14
    assert decision.workers.get("c", 0) == 0


def test_measurements_rank_between_promises_and_surplus() -> None:
    curve = ScalingCurve.linear(rate=1.0, maximum=16)
    new = Job(id="new", submitted=5.0, work=600.0, curve=CONCAVE, maximum=1)
    filler = Job(id="a", submitted=0.0, work=5.0, curve=curve)
    jobs = (
        JobState(filler, 5.0, workers=16, standing=Standing.BEST_EFFORT),
        JobState(new, 600.0, unmeasured=True),
    )
    snapshot = replace(_snapshot(filler, new), now=5.0, jobs=jobs, arrived=())
    for policy in (brim, edf):
        assert policy(snapshot).workers["new"] == 1
    assert brim(snapshot).reasons["new"][0] is Reason.TO_MEASURE
    promised = replace(filler, deadline=10.0, work=80.0)
    full = (JobState(promised, 80.0, workers=16, standing=Standing.ADMITTED), jobs[1])
    assert brim(replace(snapshot, jobs=full)).workers == {"a": 16, "new": 0}
