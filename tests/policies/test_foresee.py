"""What is foreseen is what the simulator, which runs the same cycle, says will happen."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from brim.domain.cluster import Cluster
from brim.domain.resizing import BELIEVED, OVERHEADS, Overheads
from brim.domain.schedule import JobState, Snapshot, Standing
from brim.policies.cycle import cycle
from brim.policies.foresee import foresee
from brim.policies.named import POLICIES
from brim.simulator.engine import Settings, simulate
from workloads import CONCAVE, random_jobs

CLUSTER = Cluster.parse("1x8")


@pytest.mark.parametrize("name", ["brim", "elasticflow", "fifo-gang", "edf"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "overheads", [OVERHEADS["brim"], BELIEVED], ids=lambda each: str(each.name)
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
    happened = {each.job.id: each.finished for each in run.outcomes if each.finished is not None}
    assert foreseen == pytest.approx(happened, rel=1e-6)


def test_who_will_not_run_has_no_end() -> None:
    one = JobState(random_jobs(0, 1)[0], 10.0, standing=Standing.BEST_EFFORT)
    gang = one._replace(job=replace(one.job, id="gang", minimum=9, curve=CONCAVE, deadline=None))
    snapshot = Snapshot(
        now=0.0, cluster=CLUSTER, capacity=8, jobs=(one, gang), overheads=OVERHEADS["none"]
    )
    decide = partial(cycle, policy=POLICIES["brim"], placed=False)
    assert list(foresee(snapshot, decide(snapshot), decide)) == [one.job.id]
