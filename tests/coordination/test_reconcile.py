from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.coordination.cluster.reconcile import (
    Action,
    ByNode,
    Force,
    Leave,
    ObservedJob,
    Resize,
    Start,
    Suspend,
    as_placed,
    fits_in,
    larger_of,
    reconcile,
    still_coming,
)

NODES = {"n1": 6, "n2": 4, "n3": 3}
CAPACITY, GRACE = 12, 30.0  # one device is left alone


def actions(
    rows: list[ObservedJob],
    desired: Mapping[str, ByNode],
    now: float = 1.0,
    *,
    nodes: ByNode = NODES,
    grace: float = GRACE,
) -> list[Action]:
    return reconcile(rows, desired, nodes=nodes, capacity=CAPACITY, now=now, grace=grace)


def runs(job: str, workers: ByNode, target: ByNode | None = None, **fields: Any) -> ObservedJob:
    """A job with its master on the first of its nodes."""
    agents = frozenset(workers)
    return ObservedJob(
        job, True, workers, target or workers, home=min(agents), agents=agents
    )._replace(**fields)


def perform(steps: list[Action], rows: dict[str, ObservedJob], now: float) -> None:
    for action in steps:
        row = rows[action.job]
        match action:
            case Start(workers=workers):
                assert not row.alive
                home = max(workers, key=lambda node: workers[node])
                rows[action.job] = ObservedJob(
                    row.job, True, {}, workers, None, home, frozenset(workers)
                )
            case Resize(workers=workers):
                request_time = row.since if fits_in(row.target, workers) else now
                agents = row.agents | set(workers)
                rows[action.job] = row._replace(target=workers, since=request_time, agents=agents)
            case Leave(node=node):
                assert node != row.home
                assert not row.workers.get(node)
                rows[action.job] = row._replace(agents=row.agents - {node})
            case Suspend():
                rows[action.job] = row._replace(target={}, since=now)
            case Force(workers=workers):
                remaining = {
                    node: min(count, workers.get(node, 0)) for node, count in row.workers.items()
                }
                rows[action.job] = row._replace(workers=remaining, alive=bool(workers), since=None)


def move(rows: dict[str, ObservedJob], rng: random.Random, stubborn: str) -> None:
    """Some of the workers obey."""
    for name, row in rows.items():
        if not row.alive or name == stubborn:
            continue
        workers = {}
        for node in larger_of(row.workers, row.target):
            running, wants, step = (
                row.workers.get(node, 0),
                row.target.get(node, 0),
                rng.randint(0, 3),
            )
            workers[node] = (
                min(wants, running + step) if running < wants else max(wants, running - step)
            )
        workers = {node: count for node, count in workers.items() if count}
        row = row._replace(workers=workers)
        if workers == row.target:
            row = row._replace(since=None, alive=bool(row.target))
        rows[name] = row


@pytest.mark.exhaustive
@given(st.integers(0, 10_000))
def test_devices_are_never_shared_and_plans_converge(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"job-{k}" for k in range(4)]
    rows = {name: ObservedJob(name, False, {}, {}) for name in names}
    now = 0.0
    for _ in range(3):
        free = [node for node, devices in NODES.items() for _ in range(devices)]
        free = rng.sample(free, rng.randint(0, CAPACITY))
        desired: dict[str, ByNode] = {name: {} for name in rng.sample(names, len(names))}
        for node in free:
            plan = dict(desired[name := rng.choice(names)])
            desired[name] = {**plan, node: plan.get(node, 0) + 1}
        stubborn = rng.choice([*names, ""])  # gives nothing but by force
        for look in range(160):
            now += 2.0
            perform(actions(list(rows.values()), desired, now), rows, now)
            occupied = [larger_of(row.workers, row.target) for row in rows.values() if row.alive]
            for node, devices in NODES.items():
                assert sum(workers.get(node, 0) for workers in occupied) <= devices
            assert sum(sum(workers.values()) for workers in occupied) <= CAPACITY
            move(rows, rng, stubborn if look < 100 else "")
        targets = {name: row.target if row.alive else {} for name, row in rows.items()}
        assert targets == desired
        assert actions(list(rows.values()), desired, now) == []
        for row in rows.values():
            assert not row.alive or row.agents == {*row.target, row.home}


def test_an_ending_job_is_restarted_without_new_requests() -> None:
    leaving = runs("a", {"n1": 3})._replace(target={}, since=0.0)
    plan = {"a": {"n1": 4}}
    assert actions([leaving], plan) == []
    assert actions([leaving], plan, 27.9) == []
    assert actions([leaving], plan, 28.0) == [Force("a", {})]
    ended = leaving._replace(alive=False, workers={})
    assert actions([ended], plan, 31.0) == [Start("a", {"n1": 4})]


def test_devices_are_free_after_the_grace_period() -> None:
    slow, plan = runs("a", {"n1": 4}, {"n1": 1}, since=0.0), {"a": {"n1": 1}}
    assert actions([slow], plan, 25.9) == []
    assert actions([slow], plan, 26.0) == [Force("a", {"n1": 1})]
    assert actions([slow], plan, 28.0) == [Force("a", {})]
    assert actions([slow], plan, 0.59, grace=1.0) == []
    assert actions([slow], plan, 0.61, grace=1.0) == [Force("a", {"n1": 1})]
    assert actions([slow], plan, 0.81, grace=1.0) == [Force("a", {})]


def test_silent_masters_get_the_same_grace_period() -> None:
    silent, plan = runs("a", {"n1": 4}, unanswered=0.0), {"a": {"n1": 1}}
    assert actions([silent], plan, 27.9) == [Resize("a", {"n1": 1})]
    assert actions([silent], plan, 28.0) == [Force("a", {})]
    assert actions([silent], {}, 27.9) == [Suspend("a")]
    assert actions([silent], {}, 28.0) == [Force("a", {})]


def test_growth_counts_workers_still_leaving() -> None:
    rows = [runs("a", {"n1": 4}, {"n1": 2}, since=0.0), runs("b", {"n1": 2})]
    assert actions(rows, {"a": {"n1": 2}, "b": {"n1": 4}}) == []
    assert actions(rows, {"a": {"n1": 4}, "b": {"n1": 2}}) == [Resize("a", {"n1": 4})]


def test_a_partial_move_swaps_workers_at_once() -> None:
    plan = {"a": {"n1": 2, "n2": 2}}
    row = runs("a", {"n1": 4})
    assert actions([row], plan) == [Resize("a", {"n1": 2, "n2": 2})]
    full = [row, runs("b", {"n2": 3})]
    plan_of_both = {**plan, "b": {"n2": 3}}
    assert actions(full, plan_of_both) == [Resize("a", {"n1": 2})]
    assert actions([row._replace(target={"n1": 2})], plan) == [Resize("a", {"n1": 2, "n2": 2})]


def test_a_whole_move_restarts_only_without_room() -> None:
    first, second = runs("a", {"n1": 6}), runs("b", {"n2": 4})
    assert actions([first._replace(workers={"n1": 4}, target={"n1": 4})], {"a": {"n2": 4}}) == [
        Resize("a", {"n2": 4})
    ]
    swap = {"a": {"n2": 4}, "b": {"n1": 6}}
    assert actions([first, second], swap) == [Suspend("a"), Suspend("b")]


def test_missing_agents_are_requested_and_idle_ones_leave() -> None:
    row = runs("a", {"n1": 2, "n2": 2})
    plan = {"a": {"n1": 2, "n2": 2}}
    assert actions([row], plan) == []
    lone = row._replace(workers={"n1": 2}, agents=frozenset({"n1"}))
    assert actions([lone], plan) == [Resize("a", plan["a"])]
    assert actions([lone], plan, nodes=NODES | {"n2": 0}) == []  # the node itself is lost
    second_node_only = {"a": {"n2": 2}}
    rest = row._replace(workers={"n1": 1, "n2": 2}, target={"n2": 2})
    assert actions([rest], second_node_only) == []  # its home keeps its master
    moved = row._replace(home="n2", target={"n2": 2})
    assert actions([moved], second_node_only) == []
    for no_workers in ({}, {"n1": 0}):  # as nodes of other hosts say it
        assert actions([moved._replace(workers={**no_workers, "n2": 2})], second_node_only) == [
            Leave("a", "n1")
        ]


def test_a_job_without_its_home_node_restarts_elsewhere() -> None:
    row = runs("a", {"n1": 2, "n2": 2})
    assert actions([row], {"a": {"n2": 2}}, nodes={"n2": 4}) == [Suspend("a")]


@pytest.mark.parametrize(
    ("coming", "seen", "gone_nodes", "waited", "remaining"),
    [
        ({"n1": 4}, {}, set(), 1.0, {"n1": 4}),
        ({"n1": 4}, {"n1": 3}, set(), 1.0, {"n1": 4}),
        ({"n1": 4}, {"n1": 4}, set(), 1.0, {}),
        ({"n1": 4, "n2": 2}, {"n1": 4}, set(), 1.0, {"n1": 4, "n2": 2}),
        ({"n1": 4, "n2": 2}, {"n1": 4}, {"n2"}, 1.0, {}),
        ({"n1": 4}, {"n1": 3}, set(), 27.9, {"n1": 4}),
        ({"n1": 4}, {"n1": 3}, set(), 28.0, {}),  # told to have fewer, it has heard it by now
        ({"n1": 4}, {}, set(), 100.0, {"n1": 4}),  # nobody was forked yet: all of them may be
    ],
)
def test_devices_are_reserved_for_workers_being_forked(
    coming: ByNode, seen: ByNode, gone_nodes: set[str], waited: float, remaining: ByNode
) -> None:
    assert (
        still_coming(coming, seen, gone_nodes=gone_nodes, waited=waited, grace=GRACE) == remaining
    )


BY_NODE = st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 4))


@given(workers=BY_NODE, placed=BY_NODE, rest=BY_NODE)
def test_externally_placed_workers_count_where_they_are(
    workers: dict[str, int], placed: dict[str, int], rest: dict[str, int]
) -> None:
    found = as_placed(workers, placed, rest)
    assert sum(found.values()) == sum(workers.values())
    assert all(found.values())
    if sum(placed.values()) <= sum(workers.values()):
        assert fits_in(placed, found)
    else:
        assert fits_in(found, placed)
    assert as_placed(found, placed, rest) == found
