"""Nodes that join: who is let in, who is given up, and that what a node ran is gone before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.coordination.joined_nodes import (
    DRIFT,
    RENEWAL,
    SILENCE,
    TO_END,
    Acknowledge,
    Admit,
    HangUp,
    JoinedNodes,
    Lease,
    LineClosed,
    NodeCalled,
    NodeLeft,
    NodeRenewed,
    TurnAway,
)
from brim.coordination.sightings import AgentSeen, NodeSeen, NodesSeen
from brim.domain.cluster import Cluster, Node

N1 = Node(id="n1", devices=2)
UP = NodeSeen(up=True)


def called(line: int, *, identity: str = "a", life: int = 1, node: Node = N1) -> NodeCalled:
    return NodeCalled(line=line, node=node, identity=identity, life=life, address="10.0.0.1")


def joined(seen: NodeSeen = UP) -> JoinedNodes:
    nodes = JoinedNodes()
    assert nodes.handle(called(1), 0.0) == [Admit(1)]
    assert nodes.handle(NodeRenewed(line=1, number=1, seen=seen), 0.0) == [Acknowledge(1, 1)]
    return nodes


def test_a_node_brings_its_devices_and_is_up_as_long_as_it_renews() -> None:
    nodes = joined()
    for k in range(20):
        now = k * RENEWAL
        nodes.handle(NodeRenewed(line=1, number=k, seen=UP), now)
        seen = nodes.seen(now)["n1"]
        assert (seen.up, seen.brings, seen.address) == (True, N1, "10.0.0.1")
    described = Cluster(nodes=(Node(id="home", devices=0),))
    assert NodesSeen(nodes.seen(10.0)).cluster(described).devices == 2


def test_silence_and_a_lost_connection_are_borne_until_the_lease_is_over() -> None:
    nodes = joined()
    assert nodes.seen(2.9)["n1"].up
    nodes.handle(LineClosed(line=1), 2.9)
    seen = nodes.seen(2.95)["n1"]
    assert (seen.up, seen.lost, seen.gone) == (False, False, False)
    seen = nodes.seen(3.0)["n1"]
    assert (seen.up, seen.lost, seen.gone) == (False, True, True)
    assert "has not been heard for 3 s" in seen.problem


ROWS: list[tuple[str, NodeCalled, float, list[Any]]] = [
    ("the same again", called(2), 1.0, [HangUp(1), Admit(2)]),
    ("its next life", called(2, life=2), 1.0, [HangUp(1), Admit(2)]),
    (
        "an earlier life",
        called(2, life=0),
        1.0,
        [TurnAway(2, "a later life of n1 has joined")],
    ),
    (
        "another of that name",
        called(2, identity="b"),
        2.9,
        [TurnAway(2, "another node is called n1: --name gives another name")],
    ),
    ("another once it is given up", called(2, identity="b"), 3.0, [HangUp(1), Admit(2)]),
    ("another name", called(2, identity="b", node=Node(id="n2", devices=1)), 1.0, [Admit(2)]),
    (
        "a name of the scheduler's host",
        called(2, node=Node(id="home", devices=1)),
        1.0,
        [TurnAway(2, "home is a node of the scheduler's own host: --name gives another name")],
    ),
]


@pytest.mark.parametrize(
    ("event", "now", "commands"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS]
)
def test_who_is_let_in(event: NodeCalled, now: float, commands: list[Any]) -> None:
    nodes = joined()
    nodes.reserved = {"home"}
    assert nodes.handle(event, now) == commands


def test_what_ran_is_known_where_the_same_life_calls_again_and_gone_with_the_next() -> None:
    agent = AgentSeen("job-1", launch=1, workers=2)
    nodes = joined(NodeSeen(up=True, agents=(agent,)))
    nodes.handle(called(2), 1.0)
    assert nodes.agents("job-1") == {"n1": agent}
    nodes.handle(called(3, life=2), 1.0)
    assert nodes.agents("job-1") == {}


def test_words_on_a_connection_that_was_replaced_renew_nothing() -> None:
    nodes = joined()
    nodes.handle(called(2), 0.0)
    assert nodes.handle(NodeRenewed(line=1, number=7, seen=UP), 2.0) == []
    assert nodes.seen(3.0)["n1"].lost
    assert nodes.handle(LineClosed(line=1), 3.0) == []
    assert nodes.line_of("n1") == 2


def test_a_node_that_was_given_up_has_to_join_again() -> None:
    nodes = joined()
    assert nodes.handle(NodeRenewed(line=1, number=2, seen=UP), 3.5) == [HangUp(1)]
    assert nodes.seen(3.5)["n1"].lost
    assert nodes.handle(called(2), 4.0) == [Admit(2)]
    nodes.handle(NodeRenewed(line=2, number=3, seen=UP), 4.0)
    assert nodes.seen(4.0)["n1"].up


def test_who_leaves_is_no_node_any_more() -> None:
    nodes = joined()
    assert nodes.handle(NodeLeft(line=1), 1.0) == [HangUp(1)]
    assert nodes.seen(1.0) == {}
    assert not nodes.knows("n1")


def test_the_next_scheduler_waits_a_whole_lease_for_nodes_that_it_knows_of() -> None:
    nodes = JoinedNodes()
    nodes.expect([N1], 100.0)
    assert not nodes.seen(100.0 + SILENCE - 0.01)["n1"].lost
    assert nodes.handle(called(1, identity="whose", life=7), 101.0) == [Admit(1)]
    nodes.expect([N1], 102.0)  # it is there
    assert nodes.line_of("n1") == 1


def test_workers_of_no_present_start_have_their_devices_until_they_have_ended() -> None:
    agents = (AgentSeen("job-1", 1, 2), AgentSeen("job-2", 4, 1), AgentSeen("job-3", 1, 1))
    seen = NodesSeen({"n1": NodeSeen(up=True, brings=N1, agents=agents)})
    assert seen.left_over({"job-1": 2, "job-2": 4}) == {"n1": 3}


rates = st.floats(1.0 - DRIFT, 1.0 + DRIFT)
delays = st.floats(0.0, 5.0)


@given(st.lists(st.tuples(delays, delays, st.booleans()), max_size=30), rates, rates, delays)
def test_what_a_node_ran_has_ended_before_it_is_given_up(
    renewals: list[tuple[float, float, bool]], here: float, there: float, offset: float
) -> None:
    """Clocks drift, and renewals and answers take any time or are lost: `here` and `there` are the
    rates of the two clocks against a common one.
    """
    nodes, lease = JoinedNodes(), Lease()
    nodes.handle(called(1), offset * here)
    common = offset
    lease.renewed(sent=common * there)  # sent no later than it was heard
    heard, last_sent = common, common
    for number, (pause, takes, answered) in enumerate(renewals):
        sent = max(last_sent, common) + pause * 0.2
        arrives = max(heard, sent + takes * 0.2)
        nodes.handle(NodeRenewed(line=1, number=number, seen=UP), arrives * here)
        heard, last_sent, common = arrives, sent, max(common, sent)
        if answered:  # only what was heard can be answered
            lease.renewed(sent=sent * there)
    ended = (lease._until / there) + TO_END
    given_up = heard + SILENCE / here
    assert ended <= given_up + 1e-9
    assert nodes.seen(given_up * here + 1e-6)["n1"].lost


@given(delays, rates, rates)
def test_a_refused_connection_outlasts_no_scheduler_that_comes_up_behind_it(
    pause: float, here: float, there: float
) -> None:
    lease, nodes = Lease(), JoinedNodes()
    lease.renewed(sent=10.0 * there)  # refused: nobody listened then
    up = 10.0 + pause
    nodes.expect([N1], up * here)
    first_given_up = up + SILENCE / here
    assert lease._until / there + TO_END <= first_given_up
    assert not nodes.seen((first_given_up - 1e-6) * here)["n1"].lost
