"""Forecasts agree with the simulator, which runs the same cycle."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from brim.domain.cluster import Cluster
from brim.domain.resizing import BELIEVED, OVERHEADS, Overheads
from brim.domain.schedule import Decision, JobState, Reason, Rejected, Snapshot, Standing
from brim.policies.cycle import cycle
from brim.simulator.engine import Settings, foresee, simulate
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
