"""Forecasts agree with the simulator, which runs the same cycle."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from brim.domain.cluster import Cluster
from brim.domain.resizing import BELIEVED, OVERHEADS, Overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Decision, JobState, Reason, Rejected, Snapshot, Standing
from brim.domain.tenancy import Tenant
from brim.domain.usage import RecentUse
from brim.domain.workload import Job
from brim.policies.cycle import cycle
from brim.simulator.engine import Settings, foresee, foresee_changes, simulate
from brim.user_code.policies import POLICIES
from workloads import CONCAVE, random_jobs

CLUSTER = Cluster.parse("1x8")


@pytest.mark.parametrize("name", ["brim", "elasticflow", "fifo-gang", "edf"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "overheads", [OVERHEADS["brim"], BELIEVED], ids=lambda case: str(case.name)
)
def test_the_ends_foreseen_are_those_of_the_simulator(
    name: str, seed: int, overheads: Overheads
) -> None:
    jobs = sorted(
        (replace(job, submitted=0.0) for job in random_jobs(seed, 8)), key=lambda job: job.id
    )
    decide = partial(cycle, policy=POLICIES[name], placed=False)
    snapshot = Snapshot(
        now=0.0,
        cluster=CLUSTER,
        capacity=8,
        jobs=tuple(JobState(job, job.work) for job in jobs),
        arrived=tuple(job.id for job in jobs),
        overheads=overheads.paid_ahead,
    )
    foreseen = foresee(snapshot, decide(snapshot), decide)
    run = simulate(jobs, CLUSTER, POLICIES[name], settings=Settings(overheads=overheads))
    happened = {
        outcome.job.id: outcome.finished for outcome in run.outcomes if outcome.finished is not None
    }
    assert foreseen == pytest.approx(happened, rel=1e-6)


@pytest.mark.parametrize("half_life", [600.0, 86_400.0])
def test_ends_are_foreseen_through_hundreds_of_turns(half_life: float) -> None:
    """Three tenants take turns on two devices, for up to a hundred half-lives."""
    curve = ScalingCurve.linear(rate=1.0, maximum=2)
    jobs = [
        Job(id=name, submitted=0.0, work=work, curve=curve, tenant=name)
        for name, work in (("a", 30_000.0), ("b", 30_000.0), ("c", 60_000.0))
    ]
    tenants = (Tenant(id="a"), Tenant(id="b"), Tenant(id="c", weight=2.0))
    recent, cluster = RecentUse(half_life=half_life, borrowed={"a": 2.0}), Cluster.parse("1x2")
    decide = partial(cycle, policy=POLICIES["brim"], placed=False)
    snapshot = Snapshot(
        now=0.0,
        cluster=cluster,
        capacity=2,
        jobs=tuple(JobState(job, job.work) for job in jobs),
        arrived=tuple(job.id for job in jobs),
        overheads=OVERHEADS["none"],
        tenants=tenants,
        recent=recent,
    )
    decisions = 0

    def counted(snapshot: Snapshot) -> Decision:
        nonlocal decisions
        decisions += 1
        return decide(snapshot)

    foreseen = foresee(snapshot, decide(snapshot), counted)
    world = Settings(tenants=tenants, recent=recent, overheads=OVERHEADS["none"])
    run = simulate(jobs, cluster, POLICIES["brim"], settings=world)
    happened = {outcome.job.id: outcome.finished for outcome in run.outcomes}
    assert foreseen == pytest.approx(happened, rel=0.2)
    assert decisions <= 240, "it is cheap"


def test_who_will_not_run_has_no_end() -> None:
    state = JobState(random_jobs(0, 1)[0], 10.0, standing=Standing.BEST_EFFORT)
    gang = state._replace(
        job=replace(state.job, id="gang", minimum=9, curve=CONCAVE, deadline=None)
    )
    snapshot = Snapshot(
        now=0.0, cluster=CLUSTER, capacity=8, jobs=(state, gang), overheads=OVERHEADS["none"]
    )
    decide = partial(cycle, policy=POLICIES["brim"], placed=False)
    assert list(foresee(snapshot, decide(snapshot), decide)) == [state.job.id]


def all_at_once(snapshot: Snapshot) -> Decision:
    return Decision(workers={state.job.id: 2 for state in snapshot.jobs})


def two_of(overheads: Overheads) -> Snapshot:
    first_state = JobState(replace(random_jobs(0, 1)[0], curve=CONCAVE), 100.0, workers=2)
    second_state = first_state._replace(job=replace(first_state.job, id="other"))
    return Snapshot(
        now=0.0, cluster=CLUSTER, capacity=8, jobs=(first_state, second_state), overheads=overheads
    )


def test_who_is_refused_has_no_end() -> None:
    snapshot = two_of(OVERHEADS["none"])
    refusal = Rejected(job="other", reason=Reason.TOO_LATE, detail="alone 9 s late")
    admitted_id = snapshot.jobs[0].job.id
    decision = Decision(workers={admitted_id: 2}, verdicts=(refusal,), wake=1.0)
    assert list(foresee(snapshot, decision, all_at_once)) == [admitted_id]
    runs = replace(decision, verdicts=(replace(refusal, runs=True),))
    assert list(foresee(snapshot, runs, all_at_once)) == [admitted_id, "other"]


def test_who_goes_to_other_devices_pays_for_it() -> None:
    snapshot = two_of(OVERHEADS["published"])
    decision = replace(all_at_once(snapshot), moved=frozenset({"other"}))
    stays, moves = foresee(snapshot, decision, all_at_once).values()
    assert moves - stays == OVERHEADS["published"].cost(2, 2, moved=True)


def test_job_behind_a_service_has_no_end() -> None:
    service, job = two_of(OVERHEADS["none"]).jobs
    snapshot = replace(two_of(OVERHEADS["none"]), jobs=(service._replace(remaining=1e12), job))

    def one_at_a_time(snapshot: Snapshot) -> Decision:
        return Decision(workers={snapshot.jobs[0].job.id: 2})

    foreseen = foresee_changes(snapshot, one_at_a_time(snapshot), one_at_a_time)
    assert foreseen.ends == {}
    assert {change.at for change in foreseen.changes} == {0.0}
