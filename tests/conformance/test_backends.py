"""The promises of every backend to the cluster loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from brim.domain.cluster import Cluster
from brim.domain.resizing import BELIEVED
from brim.domain.schedule import (
    Admitted,
    Decision,
    Policy,
    Reason,
    Rejected,
    Snapshot,
    Standing,
    Verdict,
)
from brim.policies.brim import brim
from brim.policies.cycle import cycle
from brim.policies.placement import on_nodes
from brim.user_code.policies import POLICIES
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


def test_an_arrival_calls_for_a_decision(world: World) -> None:
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
    first_observation = observed(world)
    repeated = Decision(workers=decision.workers, nodes=decision.nodes)
    run(world.backend.apply(repeated))
    world.settle()
    assert [s[2:6] for s in observed(world).jobs] == [s[2:6] for s in first_observation.jobs]
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


@dataclass(frozen=True)
class Row:
    """A decision some time after the one before, and the jobs as policies see them then.

    Args:
        then: workers, standing, whether its deadline is promised, seconds until its change is over
            and since its workers changed, and worker-seconds.
    """

    after: int
    workers: dict[str, int]
    then: dict[str, tuple[int, Standing, bool, float, float, float]]
    verdicts: tuple[Verdict, ...] = ()


def yes(job: str, *, promises: bool = True) -> Admitted:
    return Admitted(job=job, reason=Reason.FITS, promises=promises)


def no(job: str, *, runs: bool) -> Rejected:
    return Rejected(job=job, reason=Reason.TOO_LATE, detail="late", runs=runs)


WAITING, ADMITTED, BEST_EFFORT = Standing.WAITING, Standing.ADMITTED, Standing.BEST_EFFORT
START, CHANGE, END = BELIEVED.cost(0, 1), BELIEVED.cost(1, 2), BELIEVED.end
DEADLINE = 1e5

TABLE: dict[str, list[Row]] = {
    "what a verdict makes of a job": [
        Row(
            0,
            {"job-1": 2},
            {
                "job-1": (2, ADMITTED, True, START + END, 0.0, 0.0),
                "job-2": (0, BEST_EFFORT, False, 0.0, 0.0, 0.0),
                "job-3": (0, BEST_EFFORT, False, 0.0, 0.0, 0.0),
            },
            (yes("job-1"), no("job-2", runs=True), yes("job-3")),
        ),
    ],
    "who is refused is gone": [
        Row(
            0,
            {"job-1": 4},
            {
                "job-1": (4, ADMITTED, False, START + END, 0.0, 0.0),
                "job-3": (0, BEST_EFFORT, False, 0.0, 0.0, 0.0),
            },
            (yes("job-1", promises=False), no("job-2", runs=False), yes("job-3")),
        ),
    ],
    "a start, a resize, a stop and a start again, and what each costs": [
        Row(0, {"job-1": 2}, {"job-1": (2, WAITING, False, START + END, 0.0, 0.0)}),
        Row(10, {"job-1": 2}, {"job-1": (2, WAITING, False, END, 10.0, 20.0)}),
        Row(5, {"job-1": 5}, {"job-1": (5, WAITING, False, CHANGE + END, 0.0, 30.0)}),
        Row(4, {"job-1": 1}, {"job-1": (1, WAITING, False, CHANGE + END, 0.0, 50.0)}),
        Row(3, {}, {"job-1": (0, WAITING, False, 0.0, 0.0, 53.0)}),
        Row(7, {"job-1": 8}, {"job-1": (8, WAITING, False, START + END, 0.0, 53.0)}),
        Row(2, {"job-1": 8}, {"job-1": (8, WAITING, False, START + END - 2.0, 2.0, 69.0)}),
    ],
    "devices change hands": [
        Row(
            0,
            {"job-1": 5, "job-2": 3},
            {
                "job-1": (5, WAITING, False, START + END, 0.0, 0.0),
                "job-2": (3, WAITING, False, START + END, 0.0, 0.0),
            },
        ),
        Row(
            6,
            {"job-1": 2, "job-2": 3, "job-3": 3},
            {
                "job-1": (2, WAITING, False, CHANGE + END, 0.0, 30.0),
                "job-2": (3, WAITING, False, END, 6.0, 18.0),
                "job-3": (3, WAITING, False, START + END, 0.0, 0.0),
            },
        ),
    ],
}


@pytest.mark.parametrize("rows", TABLE.values(), ids=TABLE.keys())
@pytest.mark.parametrize("kind", ["simulated", "live"])
def test_one_table_holds_for_every_cluster(tmp_path: Path, kind: str, rows: list[Row]) -> None:
    deadlines = (DEADLINE, DEADLINE)
    world: World = (
        SimulatedWorld(CLUSTER, 3, deadlines)
        if kind == "simulated"
        else LiveWorld(CLUSTER, 3, tmp_path, deadlines)
    )
    run(world.backend.wait(None))
    for row in rows:
        if row.after:
            world.go_on(row.after)
        decision = Decision(workers=row.workers, verdicts=row.verdicts)
        run(world.backend.apply(on_nodes(observed(world), decision)))
        world.settle()
        snapshot = observed(world)
        states = {state.job.id: state for state in snapshot.jobs}
        assert states.keys() == (row.then.keys() if row.verdicts else {"job-1", "job-2", "job-3"})
        for job, expected in row.then.items():
            state = states[job]
            ready = max(state.ready - snapshot.now, 0.0)
            running_since = (
                snapshot.now - max(state.changed, world.origin) if state.attained else 0.0
            )
            promised = world.judgement(job).promised
            row_seen = (
                state.workers,
                state.standing,
                promised,
                ready,
                running_since,
                state.attained,
            )
            assert row_seen == pytest.approx(expected, abs=1e-5)
