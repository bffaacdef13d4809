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
    Holding,
    Leave,
    Resize,
    Start,
    Suspend,
    as_placed,
    most,
    reconcile,
    still_coming,
    within,
)

NODES = {"n1": 6, "n2": 4, "n3": 3}
CAPACITY, GRACE = 12, 30.0  # one device is left alone


def actions(
    rows: list[Holding],
    desired: Mapping[str, ByNode],
    now: float = 1.0,
    *,
    nodes: ByNode = NODES,
    grace: float = GRACE,
) -> list[Action]:
    return reconcile(rows, desired, nodes=nodes, capacity=CAPACITY, now=now, grace=grace)


def runs(job: str, workers: ByNode, target: ByNode | None = None, **more: Any) -> Holding:
    """A job with its master on the first of its nodes."""
    where = frozenset(workers)
    return Holding(job, True, workers, target or workers, home=min(where), agents=where)._replace(
        **more
    )


def perform(steps: list[Action], rows: dict[str, Holding], now: float) -> None:
    for action in steps:
        row = rows[action.job]
        match action:
            case Start(workers=workers):
                assert not row.alive
                home = max(workers, key=lambda node: workers[node])
                rows[action.job] = Holding(
                    row.job, True, {}, workers, None, home, frozenset(workers)
                )
            case Resize(workers=workers):
                asked = row.since if within(row.target, workers) else now
                agents = row.agents | set(workers)
                rows[action.job] = row._replace(target=workers, since=asked, agents=agents)
            case Leave(node=node):
                assert node != row.home
                assert not row.workers.get(node)
                rows[action.job] = row._replace(agents=row.agents - {node})
            case Suspend():
                rows[action.job] = row._replace(target={}, since=now)
            case Force(workers=workers):
                left = {
                    node: min(count, workers.get(node, 0)) for node, count in row.workers.items()
                }
                rows[action.job] = row._replace(workers=left, alive=bool(workers), since=None)


def move(rows: dict[str, Holding], rng: random.Random, stubborn: str) -> None:
    """Some of the workers do what was asked of them."""
    for name, row in rows.items():
        if not row.alive or name == stubborn:
            continue
        workers = {}
        for node in most(row.workers, row.target):
            has, wants, step = row.workers.get(node, 0), row.target.get(node, 0), rng.randint(0, 3)
            workers[node] = min(wants, has + step) if has < wants else max(wants, has - step)
        workers = {node: count for node, count in workers.items() if count}
        row = row._replace(workers=workers)
        if workers == row.target:
            row = row._replace(since=None, alive=bool(row.target))
        rows[name] = row


@pytest.mark.exhaustive
@given(st.integers(0, 10_000))
def test_no_device_is_held_twice_and_every_plan_comes_to_be(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"job-{k}" for k in range(4)]
    rows = {name: Holding(name, False, {}, {}) for name in names}
    now = 0.0
    for _ in range(3):
        free = [node for node, devices in NODES.items() for _ in range(devices)]
        free = rng.sample(free, rng.randint(0, CAPACITY))
        desired: dict[str, ByNode] = {name: {} for name in rng.sample(names, len(names))}
        for node in free:
            mine = dict(desired[name := rng.choice(names)])
            desired[name] = {**mine, node: mine.get(node, 0) + 1}
        stubborn = rng.choice([*names, ""])  # gives nothing but by force
        for look in range(160):
            now += 2.0
            perform(actions(list(rows.values()), desired, now), rows, now)
            held = [most(row.workers, row.target) for row in rows.values() if row.alive]
            for node, devices in NODES.items():
                assert sum(one.get(node, 0) for one in held) <= devices
            assert sum(sum(one.values()) for one in held) <= CAPACITY
            move(rows, rng, stubborn if look < 100 else "")
        got = {name: row.target if row.alive else {} for name, row in rows.items()}
        assert got == desired
        assert actions(list(rows.values()), desired, now) == []
        for row in rows.values():
            assert not row.alive or row.agents == {*row.target, row.home}


def test_a_job_on_its_way_to_its_end_is_not_asked_again_but_started_from_there() -> None:
    leaving = runs("a", {"n1": 3})._replace(target={}, since=0.0)
    wanted = {"a": {"n1": 4}}
    assert actions([leaving], wanted) == []
    assert actions([leaving], wanted, 27.9) == []
    assert actions([leaving], wanted, 28.0) == [Force("a", {})]
    gone = leaving._replace(alive=False, workers={})
    assert actions([gone], wanted, 31.0) == [Start("a", {"n1": 4})]


def test_devices_are_free_at_the_end_of_the_grace_period() -> None:
    slow, wanted = runs("a", {"n1": 4}, {"n1": 1}, since=0.0), {"a": {"n1": 1}}
    assert actions([slow], wanted, 25.9) == []
    assert actions([slow], wanted, 26.0) == [Force("a", {"n1": 1})]
    assert actions([slow], wanted, 28.0) == [Force("a", {})]
    assert actions([slow], wanted, 0.59, grace=1.0) == []
    assert actions([slow], wanted, 0.61, grace=1.0) == [Force("a", {"n1": 1})]
    assert actions([slow], wanted, 0.81, grace=1.0) == [Force("a", {})]


def test_a_master_that_does_not_answer_has_the_same_time() -> None:
    silent, wanted = runs("a", {"n1": 4}, unanswered=0.0), {"a": {"n1": 1}}
    assert actions([silent], wanted, 27.9) == [Resize("a", {"n1": 1})]
    assert actions([silent], wanted, 28.0) == [Force("a", {})]
    assert actions([silent], {}, 27.9) == [Suspend("a")]
    assert actions([silent], {}, 28.0) == [Force("a", {})]


def test_growing_counts_what_leavers_of_the_same_job_still_hold() -> None:
    rows = [runs("a", {"n1": 4}, {"n1": 2}, since=0.0), runs("b", {"n1": 2})]
    assert actions(rows, {"a": {"n1": 2}, "b": {"n1": 4}}) == []
    assert actions(rows, {"a": {"n1": 4}, "b": {"n1": 2}}) == [Resize("a", {"n1": 4})]


def test_a_job_that_moves_in_part_gives_and_takes_at_once_where_there_is_room() -> None:
    wanted = {"a": {"n1": 2, "n2": 2}}
    row = runs("a", {"n1": 4})
    assert actions([row], wanted) == [Resize("a", {"n1": 2, "n2": 2})]
    full = [row, runs("b", {"n2": 3})]
    there = {**wanted, "b": {"n2": 3}}
    assert actions(full, there) == [Resize("a", {"n1": 2})]
    assert actions([row._replace(target={"n1": 2})], wanted) == [Resize("a", {"n1": 2, "n2": 2})]


def test_a_job_that_moves_as_a_whole_goes_over_where_it_can_and_starts_anew_where_it_would_wait() -> (
    None
):
    one, other = runs("a", {"n1": 6}), runs("b", {"n2": 4})
    assert actions([one._replace(workers={"n1": 4}, target={"n1": 4})], {"a": {"n2": 4}}) == [
        Resize("a", {"n2": 4})
    ]
    swap = {"a": {"n2": 4}, "b": {"n1": 6}}
    assert actions([one, other], swap) == [Suspend("a"), Suspend("b")]


def test_an_agent_that_is_missed_is_asked_for_again_and_one_without_workers_goes() -> None:
    row = runs("a", {"n1": 2, "n2": 2})
    wanted = {"a": {"n1": 2, "n2": 2}}
    assert actions([row], wanted) == []
    lone = row._replace(workers={"n1": 2}, agents=frozenset({"n1"}))
    assert actions([lone], wanted) == [Resize("a", wanted["a"])]
    assert actions([lone], wanted, nodes=NODES | {"n2": 0}) == []  # the node itself is lost
    alone = {"a": {"n2": 2}}
    left = row._replace(workers={"n1": 1, "n2": 2}, target={"n2": 2})
    assert actions([left], alone) == []  # its home keeps its master
    moved = row._replace(home="n2", target={"n2": 2})
    assert actions([moved], alone) == []
    for none in ({}, {"n1": 0}):  # as nodes of other hosts say it
        assert actions([moved._replace(workers={**none, "n2": 2})], alone) == [Leave("a", "n1")]


def test_a_job_whose_home_is_no_node_any_more_starts_elsewhere() -> None:
    row = runs("a", {"n1": 2, "n2": 2})
    assert actions([row], {"a": {"n2": 2}}, nodes={"n2": 4}) == [Suspend("a")]


@pytest.mark.parametrize(
    ("coming", "seen", "gone", "waited", "left"),
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
def test_devices_are_held_for_workers_that_may_yet_be_forked(
    coming: ByNode, seen: ByNode, gone: set[str], waited: float, left: ByNode
) -> None:
    assert still_coming(coming, seen, gone_nodes=gone, waited=waited, grace=GRACE) == left


BY_NODE = st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 4))


@given(workers=BY_NODE, placed=BY_NODE, rest=BY_NODE)
def test_workers_that_others_place_are_as_many_and_where_they_are(
    workers: dict[str, int], placed: dict[str, int], rest: dict[str, int]
) -> None:
    found = as_placed(workers, placed, rest)
    assert sum(found.values()) == sum(workers.values())
    assert all(found.values())
    if sum(placed.values()) <= sum(workers.values()):
        assert within(placed, found)
    else:
        assert within(found, placed)
    assert as_placed(found, placed, rest) == found
