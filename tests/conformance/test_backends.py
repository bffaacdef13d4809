"""What every backend promises the cluster loop."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from brim.domain.cluster import Cluster
from brim.domain.schedule import Admitted, Decision, Policy, Reason, Snapshot
from brim.policies.brim import brim
from brim.policies.cycle import cycle
from brim.policies.named import POLICIES
from brim.policies.placement import on_nodes
from conformance.worlds import LiveWorld, SimulatedWorld, World, run

CLUSTER = Cluster.parse("1x8")


@pytest.fixture(params=["simulated", "live"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return (
        SimulatedWorld(CLUSTER, 3)
        if request.param == "simulated"
        else LiveWorld(CLUSTER, 3, tmp_path)
    )


def observed(world: World) -> Snapshot:
    return run(world.backend.observe())


def holds(world: World) -> dict[str, int]:
    return {state.job.id: state.workers for state in observed(world).jobs if state.workers}


def give(workers: dict[str, int], snapshot: Snapshot) -> Decision:
    verdicts = tuple(
        Admitted(job=job, reason=Reason.NO_DEADLINE, promises=False) for job in snapshot.arrived
    )
    return on_nodes(snapshot, Decision(workers=workers, verdicts=verdicts))


def decided(snapshot: Snapshot, policy: Policy = brim) -> Decision:
    return on_nodes(snapshot, cycle(snapshot, policy, placed=False))


def test_there_is_something_to_decide_once_a_job_has_arrived(world: World) -> None:
    assert run(world.backend.wait(None))
    snapshot = observed(world)
    assert snapshot.arrived == ("job-1", "job-2", "job-3")
    assert snapshot.capacity == 8
    assert [state.workers for state in snapshot.jobs] == [0, 0, 0]


def test_what_was_decided_comes_to_be(world: World) -> None:
    run(world.backend.wait(None))
    run(world.backend.apply(give({"job-1": 5, "job-3": 3}, observed(world))))
    world.settle()
    assert holds(world) == {"job-1": 5, "job-3": 3}
    run(world.backend.apply(give({"job-1": 2, "job-2": 6}, observed(world))))
    world.settle()
    assert holds(world) == {"job-1": 2, "job-2": 6}


def test_a_decision_applied_again_changes_nothing(world: World) -> None:
    run(world.backend.wait(None))
    decision = give({"job-1": 4, "job-2": 2}, observed(world))
    run(world.backend.apply(decision))
    world.settle()
    before = observed(world)
    again = Decision(workers=decision.workers, nodes=decision.nodes)
    run(world.backend.apply(again))
    world.settle()
    assert [s[2:6] for s in observed(world).jobs] == [s[2:6] for s in before.jobs]
    if isinstance(world, LiveWorld):
        assert world.processes.of("job-1").asked == ["start 4"]
        assert world.processes.of("job-2").asked == ["start 2"]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_same_snapshot_gives_the_same_plan(world: World, name: str) -> None:
    run(world.backend.wait(None))
    decide = partial(decided, policy=POLICIES[name])
    snapshot = observed(world)
    assert decide(snapshot) == decide(snapshot)
    decision = decide(snapshot)
    run(world.backend.apply(decision))
    world.settle()
    assert holds(world) == {job: count for job, count in decision.workers.items() if count}
    assert not observed(world).arrived


def test_a_cycle_of_nothing_new_is_calm(world: World) -> None:
    run(world.backend.wait(None))
    run(world.backend.apply(decided(observed(world))))
    world.settle()
    assert decided(observed(world)).workers == holds(world)
