"""Nodes that have joined a scheduler from other hosts: their lives, and their leases. Pure.

A node renews its lease every `RENEWAL` seconds, and each renewal is answered. Two clocks count:

- The node counts from the moment at which it *sent* the last renewal that was answered, and may run
  its orders for `TERM` seconds (`Lease`). Then it ends everything, which takes `TO_END` at most.
- The scheduler counts from the moment at which it *heard* the last renewal, and gives the node up
  after `SILENCE` seconds (`JoinedNodes`).

A renewal is heard after it was sent. Both clocks are monotonic and run at most `DRIFT` too fast or
too slow, so on a common clock the node's time is over within `TERM * (1 + DRIFT)` after that sending,
everything there has ended `TO_END` later, and the scheduler gives the node up no sooner than
`SILENCE * (1 - DRIFT)` after it. `TERM` is chosen so that the first is always before the second: what
a node ran is gone before anybody counts on that.

A scheduler that comes up has heard from no node yet. It waits for `SILENCE` from its own start for
the nodes that it knows of. So a node whose connection is *refused*, since its host answers and
nobody listens there, knows that no scheduler can give it up sooner than `SILENCE` from then on: a
refusal counts as a renewal. Where the scheduler may be at several addresses, it may be at any that
has not refused: the earliest of their last refusals counts, and none does before all have refused.
But others can refuse in the place of a scheduler that lives (a firewall, a service of Kubernetes
without a pod that is ready), and the node cannot tell them apart. So refusals count for `REFUSALS`
seconds since the last answer, and no longer. Within that time, a node that is given up may still
run something. That is why its devices are nobody's until it has joined again, and has said what
runs there (`NodesSeen.left_over`): the lease is not all that keeps them from being given twice.

A node has an identity, kept in its folder, and numbers its lives from 1. A later life of the same
identity is let in at once, for it has seen to it that nothing of an earlier one is left. Another
identity with the name of a node has to wait until that one is given up or has left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from brim.coordination.cluster.sightings import AgentSeen, NodeSeen
from brim.domain.cluster import Node
from brim.domain.host_kind import HostKind

RENEWAL = 0.5  # seconds between two renewals
# Seconds without one after which a scheduler gives a node up. A scheduler, or its host, that stands
# still for nearly as long costs no work: a busy disk or a machine that is moved takes seconds.
SILENCE = 10.0
DRIFT = 1e-3  # how much faster or slower a clock runs at most: twice what NTP corrects
TO_END = 0.5  # seconds until everything that is killed has ended
TERM = (SILENCE * (1.0 - DRIFT) - TO_END) / (1.0 + DRIFT)
# Seconds since the last answer for which refusals count: enough to call somebody who starts the
# scheduler again. What runs on after it was given up has ended when the scheduler forgets the node.
REFUSALS = 3600.0
_REMEMBERED = REFUSALS + 100.0  # seconds for which a node that was given up is told of


class Lease:
    """A node's side: how long it may go on.

    Args:
        addresses: at so many the scheduler may be.

    >>> lease = Lease()
    >>> lease.is_over(5.0), lease.renewed(sent=5.0), lease.is_over(14.4), lease.is_over(14.6)
    (True, None, False, True)
    >>> lease.refused(sent=15.0), lease.is_over(24.4)
    (None, False)
    >>> lease.refused(sent=5.0 + REFUSALS), lease.is_over(5.0 + REFUSALS)
    (None, True)
    """

    def __init__(self, addresses: int = 1) -> None:
        self._deadline = self._answered = float("-inf")
        self._refused = [float("-inf")] * addresses

    @property
    def deadline(self) -> float:
        """The time at which it is over."""
        return self._deadline

    def renewed(self, *, sent: float) -> None:
        """Note that a renewal was answered that was sent then."""
        self._answered = max(self._answered, sent)
        self._deadline = max(self._deadline, sent + TERM)

    def refused(self, address: int = 0, *, sent: float) -> None:
        """Note that a connection to one of the addresses was refused that was asked for then.

        >>> lease = Lease(addresses=2)
        >>> lease.renewed(sent=0.0), lease.refused(0, sent=5.0), lease.is_over(9.5)
        (None, None, True)
        >>> lease.refused(1, sent=6.0), lease.is_over(14.4), lease.is_over(14.6)
        (None, False, True)
        """
        self._refused[address] = sent
        if sent < self._answered + REFUSALS:
            self._deadline = max(self._deadline, min(self._refused) + TERM)

    def is_over(self, now: float) -> bool:
        """Return whether everything is to end now."""
        return now >= self._deadline

    def time_left(self, now: float) -> float:
        """Seconds until it is over; 0 where it is."""
        return max(0.0, self._deadline - now)


# Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCalled:
    """A node calls to join, on a new connection.

    Args:
        line: names the connection.
        node: its offer.
        identity: that its folder has.
        life: its number.
        address: of its host.
        kind: of its host, where it says.
    """

    line: int
    node: Node
    identity: str
    life: int
    address: str = ""
    kind: HostKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRenewed:
    """A node renews its lease, and says how it is.

    Args:
        line: see `NodeCalled`.
        number: of the renewal.
        seen: the view of its own process of the host; devices and address are not in it.
    """

    line: int
    number: int
    seen: NodeSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft:
    """A node says that all it ran has ended, and that it will not be back."""

    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineClosed:
    """A connection has ended."""

    line: int


NodeEvent = NodeCalled | NodeRenewed | NodeLeft | LineClosed


# Commands -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admit:
    """Let the node on this connection in."""

    line: int


@dataclass(frozen=True, slots=True)
class TurnAway:
    """Do not let it in, and say why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Answer a renewal."""

    line: int
    number: int


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close a connection that another has replaced, or whose node has left."""

    line: int


NodeCommand = Admit | TurnAway | Acknowledge | HangUp


@dataclass(slots=True, kw_only=True)
class _Joined:
    """One node as it is known.

    Args:
        heard_at: when it was heard last.
        line: its connection; None where it has none.
        given_up: its lease was over.
    """

    node: Node
    identity: str = ""
    life: int = 0
    address: str = ""
    kind: HostKind | None = None
    heard_at: float
    line: int | None = None
    seen: NodeSeen = field(default_factory=lambda: NodeSeen(up=False))
    given_up: bool = False


class JoinedNodes:
    """A scheduler's side: the nodes that are there, by name; times are of its monotonic clock."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Joined] = {}
        self.reserved: Collection[str] = ()  # names of the scheduler's own nodes

    def expect(self, nodes: Iterable[Node], now: float) -> None:
        """Wait for nodes that an earlier scheduler knew, as long as for one that was just heard."""
        for node in nodes:
            if node.id not in self._nodes and node.id not in self.reserved:
                self._nodes[node.id] = _Joined(node=node, heard_at=now)

    def handle(self, event: NodeEvent, now: float) -> list[NodeCommand]:
        """Take an event in; return the commands that follow."""
        self._give_up(now)
        if isinstance(event, NodeCalled):
            return self._called(event, now)
        joined = next((node for node in self._nodes.values() if node.line == event.line), None)
        if joined is None:  # another connection is in its place
            return []
        match event:
            case NodeRenewed(line=line) if joined.given_up:  # too late: it has to join again
                joined.line = None
                return [HangUp(line)]
            case NodeRenewed(line=line, number=number, seen=seen):
                joined.heard_at, joined.seen = now, seen
                return [Acknowledge(line, number)]
            case NodeLeft(line=line):
                del self._nodes[joined.node.id]
                return [HangUp(line)]
            case LineClosed():
                joined.line = None
                return []

    def _called(self, event: NodeCalled, now: float) -> list[NodeCommand]:
        name = event.node.id
        node = self._nodes.get(name)
        if name in self.reserved:
            reason = f"{name} is a node of the scheduler's own host: --name gives another name"
            return [TurnAway(event.line, reason)]
        # Of a node that an earlier scheduler knew, the identity is not known.
        is_same_host = node is not None and node.identity in ("", event.identity)
        if node is not None and not is_same_host and not node.given_up:
            reason = f"another node is called {name}: --name gives another name"
            return [TurnAway(event.line, reason)]
        if node is not None and is_same_host and event.life < node.life:
            return [TurnAway(event.line, f"a later life of {name} has joined")]
        commands = [] if node is None or node.line is None else [HangUp(node.line)]
        is_reconnection = node is not None and is_same_host and event.life == node.life
        self._nodes[name] = _Joined(
            node=event.node,
            identity=event.identity,
            life=event.life,
            address=event.address,
            kind=event.kind,
            heard_at=now,
            line=event.line,
            # What runs there is as it was said last, until it is said again.
            seen=node.seen if is_reconnection and node is not None else NodeSeen(up=False),
        )
        return [*commands, Admit(event.line)]

    def _give_up(self, now: float) -> None:
        for name, joined in list(self._nodes.items()):
            silent = now - joined.heard_at
            if silent >= SILENCE and not joined.given_up:
                joined.given_up = True
                joined.seen = NodeSeen(up=False)
            if silent >= _REMEMBERED:
                del self._nodes[name]

    def line_of(self, name: str) -> int | None:
        """Return the connection of a node; None where it has none."""
        joined = self._nodes.get(name)
        return None if joined is None else joined.line

    def knows(self, name: str) -> bool:
        """Return whether a node with this name has joined, or may be back."""
        return name in self._nodes

    def seen(self, now: float) -> dict[str, NodeSeen]:
        """All nodes that have joined, as they are now."""
        self._give_up(now)
        return {name: _seen(joined, now) for name, joined in self._nodes.items()}

    def agents(self, job: str) -> Mapping[str, AgentSeen]:
        """The agents of a job, by node, as their nodes have said last."""
        return {
            name: agent
            for name, joined in self._nodes.items()
            for agent in joined.seen.agents
            if agent.job == job
        }


def _seen(joined: _Joined, now: float) -> NodeSeen:
    sighting = joined.seen._replace(brings=joined.node, address=joined.address, kind=joined.kind)
    if joined.given_up:
        silent = now - joined.heard_at
        problem = f"it has not been heard for {silent:.0f} s"
        return sighting._replace(up=False, gone=True, lost=True, problem=problem)
    if joined.line is None:
        return sighting._replace(up=False)
    return sighting
