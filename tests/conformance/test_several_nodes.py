"""The promises of a cluster of several nodes: a place for every worker, and that the loss of a
node is only that.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brim.coordination.cluster.sightings import NodeSeen
from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.domain.lifecycle import Phase
from brim.domain.resizing import BELIEVED
from brim.domain.schedule import Decision, Snapshot
from brim.policies.placement import on_nodes
from brim.scheduler.loop import decide
from brim.user_code.policies import POLICIES
from conformance.worlds import LiveWorld, run

CLUSTER = Cluster(nodes=(Node(id="n1", devices=4), Node(id="n2", devices=4)))
LOST = NodeSeen(up=False, gone=True, lost=True, again=2.0, problem="its agent died")
GONE = NodeSeen(up=False, gone=True, again=1.0, problem="its agent died")


@pytest.fixture
def world(tmp_path: Path) -> LiveWorld:
    return LiveWorld(CLUSTER, 2, tmp_path, grace=10.0)


def by_brim(snapshot: Snapshot) -> Decision:
    return decide(snapshot, "brim", left_by="brim")


def settle(world: LiveWorld) -> Decision:
    """Decide, and let it come to be."""
    decision = world.cycle(by_brim)[1]
    for _ in range(3):
        world.settle()
    return decision


def held(world: LiveWorld, job: str) -> dict[str, int]:
    return {node: count for node, count in world.processes.of(job).held.items() if count}


def nobody_shares(world: LiveWorld) -> None:
    alive = [job for job in world.processes.jobs.values() if job.alive]
    for node in CLUSTER.nodes:
        assert sum(job.held.get(node.id, 0) for job in alive) <= node.devices


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_worker_has_a_device_on_a_node(world: LiveWorld, policy: str) -> None:
    decision = world.cycle(lambda snapshot: decide(snapshot, policy, left_by=policy))[1]
    assert {job: sum(nodes.values()) for job, nodes in decision.nodes.items()} == {
        job: count for job, count in decision.workers.items() if count
    }
    for _ in range(3):
        world.settle()
        nobody_shares(world)
    assert {job: held(world, job) for job in decision.nodes} == dict(decision.nodes)


def test_two_node_jobs_have_agents_only_where_needed(
    tmp_path: Path,
) -> None:
    world = LiveWorld(CLUSTER, 1, tmp_path)
    settle(world)
    job, record = world.processes.of("job-1"), world.book.jobs["job-1"]
    assert (held(world, "job-1"), job.agents, record.allocation.home) == (
        {"n1": 4, "n2": 4},
        {"n1", "n2"},
        "n1",
    )
    assert job.asked == ["start 4 on n1, 4 on n2"]
    world.submit("4")
    settle(world)
    settle(world)
    assert (held(world, "job-1"), held(world, "job-2")) == ({"n1": 4}, {"n2": 4})
    assert job.asked[1:] == ["resize 4 on n1", "leave n2"]
    details = [change.detail for change in world.book.story(record) if change.event == "placed"]
    assert details == ["4 on n1, 4 on n2", "4 on n1"]


def test_a_lost_node_has_no_devices_until_return(tmp_path: Path) -> None:
    world = LiveWorld(CLUSTER, 1, tmp_path)
    settle(world)
    job = world.processes.of("job-1")
    run(world.backend.wait(None))  # that the job had arrived
    world.processes.others["n2"] = LOST
    job.held, job.agents = {"n1": 4}, {"n1"}

    async def wait() -> bool:
        return await asyncio.wait_for(world.backend.wait(None), 5.0)

    assert run(wait())
    assert world.backend.problem == "node n2: its agent died; it is started again in 2 s"
    assert run(world.backend.observe()).capacity == 4
    settle(world)
    assert (held(world, "job-1"), world.book.jobs["job-1"].starts.launches) == ({"n1": 4}, 1)
    assert job.asked == ["start 4 on n1, 4 on n2", "resize 4 on n1"]
    world.clock.advance(60.0)
    world.processes.others.clear()
    run(world.backend.look())
    assert run(world.backend.observe()).capacity == 8
    settle(world)
    assert held(world, "job-1") == {"n1": 4, "n2": 4}
    assert job.asked[2:] == ["resize 4 on n1, 4 on n2"]


def test_a_short_node_outage_resizes_nothing(world: LiveWorld) -> None:
    settle(world)
    survivor, victim = world.book.jobs["job-1"], world.book.jobs["job-2"]
    assert (survivor.allocation.home, victim.allocation.home) == ("n1", "n2")
    world.processes.others["n2"] = GONE
    world.processes.end("job-2", "")
    settle(world)
    assert world.backend.problem == "node n2: its agent died; it is started again in 1 s"
    assert (victim.life.phase, victim.starts.launches) == (Phase.SUSPENDED, 1)
    assert held(world, "job-1") == {"n1": 4}
    world.processes.others.clear()
    settle(world)
    assert (victim.starts.launches, held(world, "job-2"), held(world, "job-1")) == (
        2,
        {"n2": 4},
        {"n1": 4},
    )
    assert world.processes.of("job-1").asked == ["start 4 on n1"]


def test_a_job_continues_over_a_short_node_outage(
    tmp_path: Path,
) -> None:
    world = LiveWorld(CLUSTER, 1, tmp_path)
    settle(world)
    job = world.processes.of("job-1")
    world.processes.others["n2"] = GONE
    job.held, job.agents = {"n1": 4}, {"n1"}
    for _ in range(2):
        world.cycle(by_brim)  # its workers there do not come again by themselves
    assert job.asked == ["start 4 on n1, 4 on n2"]
    world.processes.others.clear()
    settle(world)
    assert job.asked[1:] == ["resize 4 on n1, 4 on n2"]
    assert (held(world, "job-1"), world.book.jobs["job-1"].starts.launches) == (
        {"n1": 4, "n2": 4},
        1,
    )


def test_losing_the_master_node_restarts_the_job_elsewhere(
    world: LiveWorld,
) -> None:
    def give(**workers: int) -> None:
        snapshot = run(world.backend.observe())
        named = {job.replace("_", "-"): count for job, count in workers.items()}
        run(world.backend.apply(on_nodes(snapshot, Decision(workers=named))))
        for _ in range(3):
            world.settle()
            nobody_shares(world)

    give(job_1=3, job_2=4)
    survivor, victim = world.book.jobs["job-1"], world.book.jobs["job-2"]
    if victim.allocation.home == "n1":
        survivor, victim = victim, survivor
    world.processes.others["n2"] = LOST
    world.processes.end(victim.id, "")
    run(world.backend.look())
    assert victim.life.phase is Phase.SUSPENDED
    give(job_1=2, job_2=2)
    assert (victim.allocation.home, victim.starts.launches, held(world, victim.id)) == (
        "n1",
        2,
        {"n1": 2},
    )
    assert (survivor.starts.launches, held(world, survivor.id)) == (1, {"n1": 2})


@pytest.mark.parametrize(
    ("lost_node", "target", "launches"), [("n2", "resize 4 on n1", 1), ("n1", "suspend", 2)]
)
def test_a_job_moves_off_a_removed_node(
    tmp_path: Path, lost_node: str, target: str, launches: int
) -> None:
    world = LiveWorld(CLUSTER, 1, tmp_path)
    settle(world)
    world.processes.say("job-1", step=5)  # there is something to keep
    run(world.backend.look())
    smaller = Cluster(nodes=tuple(node for node in CLUSTER.nodes if node.id != lost_node))
    world.backend.reconfigure(ClusterSpec(cluster=smaller, grace=10.0))
    settle(world)
    settle(world)
    record = world.book.jobs["job-1"]
    assert world.processes.of("job-1").asked[1] == target
    assert (held(world, "job-1"), record.starts.launches) == ({smaller.nodes[0].id: 4}, launches)
    world.clock.advance(60.0)
    world.backend.reconfigure(ClusterSpec(cluster=CLUSTER, grace=10.0))
    settle(world)
    assert (held(world, "job-1"), record.starts.launches) == ({"n1": 4, "n2": 4}, launches)


def test_moves_cost_like_resizes_without_new_starts(world: LiveWorld) -> None:
    def place(node: str) -> None:
        run(world.backend.observe())
        decision = Decision(workers={"job-1": 2}, nodes={"job-1": {node: 2}})
        run(world.backend.apply(decision))
        world.settle()

    place("n1")
    record = world.book.jobs["job-1"]
    world.clock.advance(60.0)
    assert record.allocation.ready < world.clock.wall()
    place("n2")
    assert (held(world, "job-1"), record.starts.launches) == ({"n2": 2}, 1)
    assert record.allocation.ready == world.clock.wall() + BELIEVED.cost(2, 4)
    world.clock.advance(60.0)
    place("n2")
    assert record.allocation.ready < world.clock.wall()


def test_an_agent_that_died_alone_is_started_again(tmp_path: Path) -> None:
    world = LiveWorld(CLUSTER, 1, tmp_path)
    settle(world)
    job = world.processes.of("job-1")
    job.held, job.agents = {"n1": 4}, {"n1"}
    run(world.backend.look())
    assert job.asked == ["start 4 on n1, 4 on n2", "resize 4 on n1, 4 on n2"]
    run(world.backend.look())
    assert len(job.asked) == 2


def test_losing_all_nodes_changes_no_plan(world: LiveWorld) -> None:
    settle(world)
    plans_before = {record.id: record.allocation.plan for record in world.book.unfinished()}
    world.processes.others = dict.fromkeys(("n1", "n2"), LOST)
    for job in world.processes.jobs.values():
        job.alive = False
    run(world.backend.look())
    assert run(world.backend.observe()).capacity == 8
    settle(world)
    assert {record.id: record.allocation.plan for record in world.book.unfinished()} == plans_before
    assert not any(record.running for record in world.book.unfinished())


def test_the_next_scheduler_knows_where_everybody_is(world: LiveWorld) -> None:
    first_state = settle(world)
    world.revive()
    second_state = settle(world)
    assert second_state.nodes == first_state.nodes
    assert not second_state.moved
    assert all(record.starts.launches == 1 for record in world.book.unfinished() if record.running)
