"""Nodes that join: their admission, their loss, and that their processes are gone before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.coordination.cluster.joined_nodes import (
    _REMEMBERED,
    DRIFT,
    REFUSALS,
    RENEWAL,
    SILENCE,
    TERM,
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
from brim.coordination.cluster.sightings import AgentSeen, NodeSeen, NodesSeen
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


def test_a_joined_node_is_up_while_it_renews() -> None:
    nodes = joined()
    for k in range(20):
        now = k * RENEWAL
        nodes.handle(NodeRenewed(line=1, number=k, seen=UP), now)
        seen = nodes.seen(now)["n1"]
        assert (seen.up, seen.brings, seen.address) == (True, N1, "10.0.0.1")
    described = Cluster(nodes=(Node(id="home", devices=0),))
    assert NodesSeen(nodes.seen(10.0)).cluster(described).devices == 2


def test_silence_is_tolerated_until_the_lease_ends() -> None:
    nodes = joined()
    assert nodes.seen(SILENCE - 0.1)["n1"].up
    nodes.handle(LineClosed(line=1), SILENCE - 0.1)
    seen = nodes.seen(SILENCE - 0.05)["n1"]
    assert (seen.up, seen.lost, seen.gone) == (False, False, False)
    seen = nodes.seen(SILENCE)["n1"]
    assert (seen.up, seen.lost, seen.gone) == (False, True, True)
    assert "has not been heard for 10 s" in seen.problem


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
        SILENCE - 0.1,
        [TurnAway(2, "another node is called n1: --name gives another name")],
    ),
    ("another once it is given up", called(2, identity="b"), SILENCE, [HangUp(1), Admit(2)]),
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


def test_running_agents_survive_reconnection_of_the_same_life() -> None:
    agent = AgentSeen("job-1", launch=1, workers=2)
    nodes = joined(NodeSeen(up=True, agents=(agent,)))
    nodes.handle(called(2), 1.0)
    assert nodes.agents("job-1") == {"n1": agent}
    nodes.handle(called(3, life=2), 1.0)
    assert nodes.agents("job-1") == {}


def test_messages_of_replaced_connections_renew_nothing() -> None:
    nodes = joined()
    nodes.handle(called(2), 0.0)
    assert nodes.handle(NodeRenewed(line=1, number=7, seen=UP), 2.0) == []
    assert nodes.seen(SILENCE)["n1"].lost
    assert nodes.handle(LineClosed(line=1), SILENCE) == []
    assert nodes.line_of("n1") == 2


def test_a_node_given_up_must_rejoin() -> None:
    nodes = joined()
    late = SILENCE + 0.5
    assert nodes.handle(NodeRenewed(line=1, number=2, seen=UP), late) == [HangUp(1)]
    assert nodes.seen(late)["n1"].lost
    assert nodes.handle(called(2), late + 0.5) == [Admit(2)]
    nodes.handle(NodeRenewed(line=2, number=3, seen=UP), late + 0.5)
    assert nodes.seen(late + 0.5)["n1"].up


def test_who_leaves_is_no_node_any_more() -> None:
    nodes = joined()
    assert nodes.handle(NodeLeft(line=1), 1.0) == [HangUp(1)]
    assert nodes.seen(1.0) == {}
    assert not nodes.knows("n1")


def test_the_next_scheduler_waits_a_lease_for_nodes() -> None:
    nodes = JoinedNodes()
    nodes.expect([N1], 100.0)
    assert not nodes.seen(100.0 + SILENCE - 0.01)["n1"].lost
    assert nodes.handle(called(1, identity="whose", life=7), 101.0) == [Admit(1)]
    nodes.expect([N1], 102.0)  # it is there
    assert nodes.line_of("n1") == 1


def test_stale_workers_occupy_devices_until_they_end() -> None:
    agents = (AgentSeen("job-1", 1, 2), AgentSeen("job-2", 4, 1), AgentSeen("job-3", 1, 1))
    seen = NodesSeen({"n1": NodeSeen(up=True, brings=N1, agents=agents)})
    assert seen.left_over({"job-1": 2, "job-2": 4}) == {"n1": 3}


rates = st.floats(1.0 - DRIFT, 1.0 + DRIFT)
delays = st.floats(0.0, 1.6 * SILENCE)


@given(st.lists(st.tuples(delays, delays, st.booleans()), max_size=30), rates, rates, delays)
def test_processes_end_before_their_node_is_given_up(
    renewals: list[tuple[float, float, bool]],
    local_clock: float,
    remote_clock: float,
    offset: float,
) -> None:
    """Clocks drift, and renewals and answers take any time or are lost: `here` and `there` are the
    rates of the two clocks against a common one.
    """
    nodes, lease = JoinedNodes(), Lease()
    nodes.handle(called(1), offset * local_clock)
    common = offset
    lease.renewed(sent=common * remote_clock)  # sent no later than it was heard
    last_answer, last_sent = common, common
    for number, (pause, takes, answered) in enumerate(renewals):
        sent = max(last_sent, common) + pause * 0.2
        arrives = max(last_answer, sent + takes * 0.2)
        nodes.handle(NodeRenewed(line=1, number=number, seen=UP), arrives * local_clock)
        last_answer, last_sent, common = arrives, sent, max(common, sent)
        if answered:  # only what was heard can be answered
            lease.renewed(sent=sent * remote_clock)
    ended = (lease._deadline / remote_clock) + TO_END
    given_up = last_answer + SILENCE / local_clock
    assert ended <= given_up + 1e-9
    assert nodes.seen(given_up * local_clock + 1e-6)["n1"].lost


@given(st.lists(st.tuples(st.integers(0, 2), delays)), st.integers(0, 2), delays, rates, rates)
def test_refused_connections_never_outlast_a_new_scheduler(
    refusals: list[tuple[int, float]],
    place: int,
    pause: float,
    local_clock: float,
    remote_clock: float,
) -> None:
    """The scheduler comes up at one of three addresses, any time after that one refused last."""
    lease, nodes = Lease(addresses=3), JoinedNodes()
    lease.renewed(sent=0.0)
    refusal_time, last = 10.0, 0.0
    for address, delay in refusals:
        refusal_time += delay
        lease.refused(address, sent=refusal_time * remote_clock)
        last = refusal_time if address == place else last
    if {address for address, _ in refusals} != {0, 1, 2}:
        assert lease.is_over(TERM), "it may be at one that has not been asked"
        return
    up = last + pause
    nodes.expect([N1], up * local_clock)
    first_given_up = up + SILENCE / local_clock
    assert lease._deadline / remote_clock + TO_END <= first_given_up
    assert not nodes.seen((first_given_up - 1e-6) * local_clock)["n1"].lost


@given(rates, rates, delays)
def test_refusals_renew_no_lease_for_ever(
    local_clock: float, remote_clock: float, heard_later: float
) -> None:
    """A firewall may refuse in the place of a scheduler that lives: processes have ended before
    that forgets the node, for any clocks.
    """
    lease, sent = Lease(), 100.0
    lease.renewed(sent=sent * remote_clock)
    ended = sent
    while not lease.is_over(ended * remote_clock):
        lease.refused(sent=ended * remote_clock)  # at the last moment, each time
        ended += (TERM - 0.01) / remote_clock
        assert ended < sent + 2 * REFUSALS
        if lease.is_over((ended - 0.02) * remote_clock):
            break
    assert ended - sent > REFUSALS / 2  # a scheduler may be away for that long
    nodes = JoinedNodes()
    nodes.handle(called(1), (sent + heard_later) * local_clock)
    assert nodes.seen((ended + TO_END) * local_clock)["n1"].lost  # and not forgotten
    assert ended + TO_END < sent + heard_later + _REMEMBERED / local_clock


def test_refusals_alone_are_no_lease() -> None:
    lease = Lease()
    lease.refused(sent=5.0)
    assert lease.is_over(5.0)


class _World:
    """A scheduler with one job after another on one node, and a network that may lie.

    The network is up, is silent, or refuses in the place of the scheduler. Starts are told over a
    connection and arrive at once or never; a worker that is ended may take `TO_END`.
    """

    DEVICES = 2

    def __init__(self) -> None:
        self.now = 0.0
        self.nodes, self.lease = JoinedNodes(), Lease()
        self.network = "up"
        self.line = self.number = self.launches = 0
        self.there: dict[int, int] = {}  # at the node: launch -> workers
        self.ending: dict[int, float] = {}  # launches that are being ended, and until when
        self.present: dict[int, int] = {}  # at the scheduler: launch -> workers that it counts

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            self._node()
            self._scheduler()
            assert sum(self.there.values()) <= self.DEVICES, "a device was given twice"

    def _node(self) -> None:
        for launch, end_time in list(self.ending.items()):
            if end_time <= self.now:
                del self.ending[launch], self.there[launch]
        if self.lease.is_over(self.now):
            self._end(self.there)
        if self.network == "refuses":
            self.line = 0
            self.lease.refused(sent=self.now)
        elif self.network == "silent":
            self.line = 0
        elif not self.line:
            self.number += 1
            if Admit(self.number) in self.nodes.handle(called(self.number), self.now):
                self.line = self.number
                self.lease.renewed(sent=self.now)
        if self.line:
            self.number += 1
            agents = tuple(AgentSeen(f"job-{k}", k, n) for k, n in self.there.items())
            renewal = NodeRenewed(
                line=self.line, number=self.number, seen=UP._replace(agents=agents)
            )
            if Acknowledge(self.line, self.number) in self.nodes.handle(renewal, self.now):
                self.lease.renewed(sent=self.now)
            else:
                self.line = 0

    def _end(self, launches: Iterable[int]) -> None:
        for launch in launches:
            self.ending.setdefault(launch, self.now + TO_END)

    def _scheduler(self) -> None:
        seen = NodesSeen(self.nodes.seen(self.now))
        node = seen.seen.get("n1")
        if node is None or node.lost:
            self.present.clear()  # these jobs go on elsewhere, in another start
            return
        agents_running = {agent.launch for agent in node.agents}
        if self.line:  # masters see that agents are gone
            self.present = {k: n for k, n in self.present.items() if k in agents_running}
        running = {f"job-{k}": k for k in self.present}
        if self.line:
            self._end({k for k in agents_running if k not in self.present} & self.there.keys())
        if self.nodes.line_of("n1") is None or not self.line or self.lease.is_over(self.now):
            return
        described = Cluster(nodes=(Node(id="home", devices=0),))
        free = seen.devices(seen.cluster(described))["n1"]
        free -= seen.left_over(running).get("n1", 0) + sum(self.present.values())
        if free > 0:
            self.launches += 1
            self.present[self.launches] = self.there[self.launches] = free

    def take(self, count: int) -> None:
        """Jobs end: the scheduler has their devices once the node says that they are gone."""
        for launch in list(self.present)[:count]:
            del self.present[launch]


moves = st.tuples(
    st.sampled_from(["up", "silent", "refuses"]),
    st.sampled_from([0.25, 1.0, SILENCE - 0.25, SILENCE + 0.5, 3 * SILENCE]),
    st.integers(0, 1),
)


@given(st.lists(moves, max_size=25))
def test_no_device_is_given_twice_whoever_refuses(schedule: list[tuple[str, float, int]]) -> None:
    world = _World()
    world.advance(1.0)
    assert sum(world.there.values()) == world.DEVICES
    for network, seconds, ended in schedule:
        world.network = network
        world.take(ended)
        world.advance(seconds)
    world.network = "up"
    world.advance(5.0)
    assert sum(world.there.values()) == world.DEVICES  # and all are used again
