from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from brim.domain.cluster import Cluster, Node
from brim.domain.resizing import BELIEVED
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Decision, JobState, Snapshot
from brim.domain.workload import Job
from brim.policies.placement import DeviceBlock, Placement, on_nodes, place

steps = st.lists(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 16), max_size=8), max_size=8
)


def _check(placement: Placement, demand: dict[str, int], devices: int) -> None:
    used: set[int] = set()
    for job, blocks in placement.blocks.items():
        assert sum(block.size for block in blocks) == demand[job]
        for block in blocks:
            assert block.size & (block.size - 1) == 0
            assert block.start % block.size == 0, "aligned"
            span = set(range(block.start, block.start + block.size))
            assert not span & used, "disjoint"
            assert max(span) < devices
            used |= span
    assert set(placement.blocks) == {job for job, count in demand.items() if count}


@given(steps, st.sampled_from((16, 24, 32, 40)))
def test_what_fits_by_count_always_fits(changes: list[dict[str, int]], devices: int) -> None:
    placement = Placement(blocks={})
    for change in changes:
        demand, free = {}, devices
        for job, count in sorted(change.items()):
            demand[job] = min(count, free)
            free -= demand[job]
        previous = placement.blocks
        placement = place(previous, demand, devices=devices)
        _check(placement, demand, devices)
        assert not placement.scattered
        for job in placement.moved:
            assert sum(block.size for block in previous[job]) == demand[job]


@given(steps)
def test_a_power_of_two_is_one_block(changes: list[dict[str, int]]) -> None:
    blocks: dict[str, tuple[DeviceBlock, ...]] = {}
    for change in changes:
        demand, free = {}, 32
        for job, count in sorted(change.items()):
            size = 1 << (count.bit_length() - 1) if count else 0
            demand[job] = size if size <= free else 0
            free -= demand[job]
        found = place(blocks, demand, devices=32).blocks
        assert all(len(found[job]) == 1 for job in found)
        blocks = dict(found)


def test_migrations_move_the_fewest_devices() -> None:
    previous = {"a": (DeviceBlock(0, 1),), "b": (DeviceBlock(4, 2),), "c": (DeviceBlock(8, 4),)}
    placement = place(previous, {"a": 1, "b": 2, "c": 4, "d": 8}, devices=16)
    assert placement.moved == {"c"} or placement.moved == {"a", "b"}
    moved = sum(sum(block.size for block in previous[job]) for job in placement.moved)
    assert moved == 3


def test_nobody_moves_where_a_block_is_free() -> None:
    previous = {"a": (DeviceBlock(0, 1),)}
    placement = place(previous, {"a": 1, "d": 8}, devices=16)
    assert placement.moved == frozenset()
    assert placement.blocks["d"] == (DeviceBlock(8, 8),)


def test_pinned_jobs_are_not_moved() -> None:
    previous = {"a": (DeviceBlock(0, 1),), "b": (DeviceBlock(8, 1),)}
    placement = place(previous, {"a": 1, "b": 1, "d": 8}, devices=16, pinned=frozenset("ab"))
    assert placement.moved == frozenset()
    assert placement.scattered == {"d"}


def test_growing_takes_the_block_around() -> None:
    placement = place({"a": (DeviceBlock(4, 4),)}, {"a": 8}, devices=16)
    assert placement.blocks["a"] == (DeviceBlock(0, 8),)


def test_nodes_are_named() -> None:
    cluster = Cluster.parse("2x8")
    placement = place({}, {"a": 8, "b": 2, "c": 6}, devices=16)
    assert placement.nodes(cluster) == {"a": {"node0": 8}, "b": {"node1": 2}, "c": {"node1": 6}}


# Nodes of a live cluster --------------------------------------------------------------------------

NODES = Cluster(
    nodes=(Node(id="n1", devices=5), Node(id="n2", devices=3), Node(id="n3", devices=4))
)


def _snapshot(placement: dict[str, dict[str, int]], cluster: Cluster) -> Snapshot:
    curve = ScalingCurve(points=((1, 1.0),))
    states = [
        JobState(
            Job(id=name, submitted=0.0, work=1.0, curve=curve),
            1.0,
            sum(nodes.values()),
            nodes=nodes,
        )
        for name, nodes in placement.items()
    ]
    return Snapshot(
        now=0.0,
        cluster=cluster,
        capacity=cluster.devices,
        jobs=tuple(states),
        overheads=BELIEVED,
    )


@given(steps, st.sampled_from(("", "n1", "n3")), st.sampled_from(("", "n1", "n2")), st.booleans())
def test_nodes_hold_jobs_by_count(
    changes: list[dict[str, int]], lost: str, then: str, all_pinned: bool
) -> None:
    placement: dict[str, dict[str, int]] = {}
    for index, change in enumerate(changes):
        cluster = NODES.with_lost({lost if index % 2 else then})
        demand, free = {}, cluster.devices
        for job, count in sorted(change.items()):
            demand[job] = min(count, free)
            free -= demand[job]
        pinned = frozenset(placement) if all_pinned else frozenset[str]()
        decision = on_nodes(_snapshot(placement, cluster), Decision(workers=demand, pinned=pinned))
        found = {job: dict(nodes) for job, nodes in decision.nodes.items()}
        assert {job: sum(nodes.values()) for job, nodes in found.items()} == {
            job: count for job, count in demand.items() if count
        }
        for node in cluster.nodes:
            assert sum(nodes.get(node.id, 0) for nodes in found.values()) <= node.devices
        assert on_nodes(_snapshot(found, cluster), Decision(workers=demand)).nodes == found, (
            "it is at rest"
        )
        placement = found


def test_jobs_fitting_a_node_stay_there() -> None:
    workers = {"a": 4, "b": 3}
    first = on_nodes(_snapshot({}, NODES), Decision(workers=workers))
    assert all(len(nodes) == 1 for job, nodes in first.nodes.items() if job == "a")
    placement = {"a": {"n3": 4}, "b": {"n1": 2}}
    grown = on_nodes(_snapshot(placement, NODES), Decision(workers={"a": 4, "b": 4}))
    assert grown.nodes == {"a": {"n3": 4}, "b": {"n1": 4}}
    assert not grown.moved


def test_migrations_are_reported_and_spare_pinned_jobs() -> None:
    cluster = Cluster.uniform(nodes=2, devices=4)
    placement = {"a": {"node0": 2}, "b": {"node1": 2}}
    workers = {"a": 2, "b": 2, "c": 4}
    moved = on_nodes(_snapshot(placement, cluster), Decision(workers=workers))
    assert len(moved.moved) == 1
    assert len(moved.nodes["c"]) == 1
    separate = on_nodes(
        _snapshot(placement, cluster), Decision(workers=workers, pinned=frozenset("ab"))
    )
    assert not separate.moved
    assert separate.nodes["c"] == {"node0": 2, "node1": 2}


def test_placement_scales_linearly() -> None:
    def seconds(size: int) -> float:
        """Of the processor: to place as many jobs, of 9 workers each, as there are nodes."""
        nodes = tuple(Node(id=f"n{k:04}", devices=64) for k in range(size))
        curve = ScalingCurve(points=((1, 1.0),))
        names = [f"j{k:04}" for k in range(size)]
        jobs = [Job(id=name, submitted=0.0, work=1.0, curve=curve) for name in names]
        snapshot = Snapshot(
            now=0.0,
            cluster=Cluster(nodes=nodes),
            capacity=64 * size,
            jobs=tuple(
                JobState(job, 1.0, workers=9, nodes={nodes[k // 7].id: 9})
                for k, job in enumerate(jobs)
            ),
            overheads=BELIEVED,
        )
        decision = Decision(workers=dict.fromkeys(names, 9))
        started = time.thread_time()
        on_nodes(snapshot, decision)
        return time.thread_time() - started

    small, large = (min(seconds(size) for _ in range(3)) for size in (150, 600))
    assert large < 9 * small, "it takes as long as there are nodes, times as there are jobs"
