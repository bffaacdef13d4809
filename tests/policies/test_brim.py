from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.backends.simulator.engine import Settings, simulate
from brim.backends.simulator.run import measure
from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS, Overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import JobState, Reason, Rejected, Snapshot
from brim.domain.workload import Job
from brim.policies.brim import brim
from brim.policies.ceiling import ceiling_per_job
from workloads import CONCAVE, random_jobs

SMALL = Cluster.parse("2x8")
# A job holds its devices until its processes have ended.
COSTS = {**OVERHEADS, "ends": Overheads(name="ends", start=20.0, fixed=5.0, end=15.0)}


@settings(max_examples=40, deadline=None)
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


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_no_two_jobs_preempt_each_other_in_a_loop(seed: int) -> None:
    jobs = tuple(
        Job(id=job.id, submitted=0.0, work=job.work, curve=job.curve) for job in random_jobs(seed, 12)
    )
    run = simulate(jobs, Cluster.parse("1x8"), brim, settings=Settings(record=True))
    taken_from: set[tuple[str, str]] = set()
    for moment in sorted({change.time for change in run.changes}):
        now = [change for change in run.changes if change.time == moment and change.reason != "finished"]
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


def test_a_refusal_says_the_earliest_time_that_could_be_promised() -> None:
    job = Job(id="a", submitted=0.0, work=750.0, curve=CONCAVE, deadline=60.0)
    (verdict,) = brim(_snapshot(job)).verdicts
    assert isinstance(verdict, Rejected)
    assert verdict.reason is Reason.TOO_LATE
    assert verdict.earliest == pytest.approx(100.0)
    assert "40 s after the deadline" in verdict.detail
    assert verdict.runs


def test_the_second_of_two_that_do_not_fit_is_refused_for_the_first() -> None:
    one = Job(id="a", submitted=0.0, work=700.0, curve=CONCAVE, deadline=100.0)
    two = Job(id="b", submitted=0.0, work=700.0, curve=CONCAVE, deadline=100.0)
    yes, no = brim(_snapshot(one, two)).verdicts
    assert yes.reason is Reason.FITS
    assert no.reason is Reason.BREAKS_PROMISE
    assert "1 promised jobs" in no.detail


def test_surplus_has_a_reason_with_numbers() -> None:
    job = Job(id="a", submitted=0.0, work=100.0, curve=CONCAVE, deadline=1000.0)
    decision = brim(_snapshot(job))
    assert decision.workers == {"a": 16}
    assert decision.reasons["a"] == (Reason.SURPLUS, "1 needed, 15 from the surplus")


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


def test_a_job_whose_owner_raises_its_minimum_is_given_that() -> None:
    job = Job(id="a", submitted=0.0, work=1000.0, curve=ScalingCurve(points=((4, 3.0),)), minimum=4)
    snapshot = _snapshot(job, now=1000.0)
    held = replace(snapshot, jobs=(JobState(job, 1000.0, workers=2),))
    assert brim(held).workers == {"a": 4}
    assert brim(replace(held, capacity=3)).workers.get("a", 0) == 0
