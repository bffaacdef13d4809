from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.cluster import Cluster, Node
from brim.domain.resizing import BELIEVED
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Decision, JobState, Reason, Snapshot
from brim.domain.workload import Job
from brim.policies.placement import DeviceBlock, Placement, on_nodes, place

steps = st.lists(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 16), max_size=8), max_size=8
)


def _check(placement: Placement, wanted: dict[str, int], devices: int) -> None:
    taken: set[int] = set()
    for job, blocks in placement.blocks.items():
        assert sum(block.size for block in blocks) == wanted[job]
        for block in blocks:
            assert block.size & (block.size - 1) == 0
            assert block.start % block.size == 0, "aligned"
            span = set(range(block.start, block.start + block.size))
            assert not span & taken, "disjoint"
            assert max(span) < devices
            taken |= span
    assert set(placement.blocks) == {job for job, count in wanted.items() if count}


@given(steps, st.sampled_from((16, 24, 32, 40)))
def test_what_fits_by_count_always_fits(changes: list[dict[str, int]], devices: int) -> None:
    placement = Placement(blocks={})
    for change in changes:
        wanted, left = {}, devices
        for job, count in sorted(change.items()):
            wanted[job] = min(count, left)
            left -= wanted[job]
        before = placement.blocks
        placement = place(before, wanted, devices=devices)
        _check(placement, wanted, devices)
        assert not placement.scattered
        for job in placement.moved:
            assert sum(block.size for block in before[job]) == wanted[job]


@given(steps)
def test_a_power_of_two_is_one_block(changes: list[dict[str, int]]) -> None:
    blocks: dict[str, tuple[DeviceBlock, ...]] = {}
    for change in changes:
        wanted, left = {}, 32
        for job, count in sorted(change.items()):
            size = 1 << (count.bit_length() - 1) if count else 0
            wanted[job] = size if size <= left else 0
            left -= wanted[job]
        found = place(blocks, wanted, devices=32).blocks
        assert all(len(found[job]) == 1 for job in found)
        blocks = dict(found)


def test_unchanged_jobs_stay_and_a_migration_moves_the_fewest_devices() -> None:
    before = {"a": (DeviceBlock(0, 1),), "b": (DeviceBlock(4, 2),), "c": (DeviceBlock(8, 4),)}
    placement = place(before, {"a": 1, "b": 2, "c": 4, "d": 8}, devices=16)
    assert placement.moved == {"c"} or placement.moved == {"a", "b"}
    moved = sum(sum(block.size for block in before[job]) for job in placement.moved)
    assert moved == 3


def test_nobody_moves_where_a_block_is_free() -> None:
    before = {"a": (DeviceBlock(0, 1),)}
    placement = place(before, {"a": 1, "d": 8}, devices=16)
    assert placement.moved == frozenset()
    assert placement.blocks["d"] == (DeviceBlock(8, 8),)


def test_a_pinned_job_is_not_moved_and_the_other_sits_apart() -> None:
    before = {"a": (DeviceBlock(0, 1),), "b": (DeviceBlock(8, 1),)}
    placement = place(before, {"a": 1, "b": 1, "d": 8}, devices=16, pinned=frozenset("ab"))
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


def _snapshot(held: dict[str, dict[str, int]], cluster: Cluster) -> Snapshot:
    curve = ScalingCurve(points=((1, 1.0),))
    states = [
        JobState(
            Job(id=name, submitted=0.0, work=1.0, curve=curve),
            1.0,
            sum(nodes.values()),
            nodes=nodes,
        )
        for name, nodes in held.items()
    ]
    return Snapshot(
        now=0.0,
        cluster=cluster,
        capacity=cluster.devices,
        jobs=tuple(states),
        overheads=BELIEVED,
    )


@given(steps, st.sampled_from(("", "n1", "n3")), st.sampled_from(("", "n1", "n2")), st.booleans())
def test_nodes_of_any_size_hold_what_fits_by_count(
    changes: list[dict[str, int]], lost: str, then: str, all_pinned: bool
) -> None:
    held: dict[str, dict[str, int]] = {}
    for index, change in enumerate(changes):
        cluster = NODES.without({lost if index % 2 else then})
        wanted, left = {}, cluster.devices
        for job, count in sorted(change.items()):
            wanted[job] = min(count, left)
            left -= wanted[job]
        pinned = frozenset(held) if all_pinned else frozenset[str]()
        decision = on_nodes(_snapshot(held, cluster), Decision(workers=wanted, pinned=pinned))
        found = {job: dict(nodes) for job, nodes in decision.nodes.items()}
        assert {job: sum(nodes.values()) for job, nodes in found.items()} == {
            job: count for job, count in wanted.items() if count
        }
        for node in cluster.nodes:
            assert sum(nodes.get(node.id, 0) for nodes in found.values()) <= node.devices
        assert on_nodes(_snapshot(found, cluster), Decision(workers=wanted)).nodes == found, (
            "it is at rest"
        )
        held = found


def test_who_fits_on_a_node_is_on_one_and_stays_there() -> None:
    workers = {"a": 4, "b": 3}
    first = on_nodes(_snapshot({}, NODES), Decision(workers=workers))
    assert all(len(nodes) == 1 for job, nodes in first.nodes.items() if job == "a")
    held = {"a": {"n3": 4}, "b": {"n1": 2}}
    grown = on_nodes(_snapshot(held, NODES), Decision(workers={"a": 4, "b": 4}))
    assert grown.nodes == {"a": {"n3": 4}, "b": {"n1": 4}}
    assert not grown.moved


def test_a_migration_is_told_and_who_is_pinned_makes_none() -> None:
    cluster = Cluster.uniform(nodes=2, devices=4)
    held = {"a": {"node0": 2}, "b": {"node1": 2}}
    workers = {"a": 2, "b": 2, "c": 4}
    moved = on_nodes(_snapshot(held, cluster), Decision(workers=workers))
    assert len(moved.moved) == 1
    assert len(moved.nodes["c"]) == 1
    apart = on_nodes(_snapshot(held, cluster), Decision(workers=workers, pinned=frozenset("ab")))
    assert not apart.moved
    assert apart.nodes["c"] == {"node0": 2, "node1": 2}


# Nodes that are not alike --------------------------------------------------------------------------

MIXED = Cluster(
    nodes=(
        Node(id="n1", devices=2),
        Node(id="n2", devices=2, kind="other"),
        Node(id="n3", devices=2, kind="other"),
        Node(id="n4", devices=1),
    )
)


def _exact(held: Mapping[str, Mapping[str, int]], minima: Mapping[str, int]) -> Snapshot:
    """Exact jobs on nodes of which some are not alike."""
    snapshot = _snapshot({name: dict(held.get(name, {})) for name in minima}, MIXED)
    jobs = tuple(
        state._replace(
            job=replace(state.job, exact=True, minimum=minima[state.job.id]),
            nodes=held.get(state.job.id, {}),
        )
        for state in snapshot.jobs
    )
    return replace(snapshot, jobs=jobs)


ONE_KIND: list[tuple[str, dict[str, dict[str, int]], dict[str, int], dict[str, int], Any]] = [
    ("fits on one kind", {}, {"a": 1}, {"a": 4}, {"a": {"n2": 2, "n3": 2}}),
    ("stays where it is", {"a": {"n1": 2}}, {"a": 1}, {"a": 4}, {"a": {"n1": 2, "n4": 1}}),
    ("has less than its minimum", {}, {"a": 5}, {"a": 5}, {}),
    (
        "two of them",
        {},
        {"a": 1, "b": 1},
        {"a": 5, "b": 2},
        {"a": {"n1": 2, "n4": 1}, "b": {"n3": 2}},
    ),
]


@pytest.mark.parametrize(
    ("held", "minima", "wanted", "found"),
    [row[1:] for row in ONE_KIND],
    ids=[r[0] for r in ONE_KIND],
)
def test_an_exact_job_is_on_nodes_of_one_kind(
    held: dict[str, dict[str, int]], minima: dict[str, int], wanted: dict[str, int], found: Any
) -> None:
    decision = on_nodes(_exact(held, minima), Decision(workers=wanted))
    assert decision.nodes == found
    assert {job: n for job, n in decision.workers.items() if n} == {
        job: sum(on.values()) for job, on in found.items()
    }
    for job, count in wanted.items():
        if sum(found.get(job, {}).values()) < count:
            reason, why = decision.reasons[job]
            assert reason is Reason.ONE_KIND
            assert "are not alike" in why
    free_to_mix = on_nodes(_snapshot(dict(held), MIXED), Decision(workers={"a": 5}))
    assert sum(free_to_mix.nodes["a"].values()) == 5


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3), min_size=1),
    st.lists(st.integers(0, 7), min_size=4, max_size=4),
)
def test_no_plan_mixes_kinds_or_has_more_than_there_is(
    minima: dict[str, int], counts: list[int]
) -> None:
    left, wanted = MIXED.devices, {}
    for job, count in zip(sorted(minima), counts, strict=False):
        wanted[job] = min(count, left) if min(count, left) >= minima[job] else 0
        left -= wanted[job]
    held: dict[str, dict[str, int]] = {}
    for _ in range(2):  # and it stays as it is
        decision = on_nodes(_exact(held, minima), Decision(workers=wanted))
        kinds = {node.id: node.kind for node in MIXED.nodes}
        taken = Counter[str]()
        for job, on in decision.nodes.items():
            assert len({kinds[node] for node in on}) == 1
            assert decision.workers[job] == sum(on.values()) >= minima[job]
            taken.update(on)
        assert all(taken[node.id] <= node.devices for node in MIXED.nodes)
        assert not held or decision.nodes == held
        held = {job: dict(on) for job, on in decision.nodes.items()}
