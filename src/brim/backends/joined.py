"""The nodes of other hosts, as a scheduler has them: heard, asked, and given up."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, assert_never

import msgspec

from brim.backends.authority import authority_of
from brim.coordination.cluster.joined_nodes import (
    Acknowledge,
    Admit,
    HangUp,
    JoinedNodes,
    LineClosed,
    NodeCalled,
    NodeCommand,
    NodeEvent,
    NodeLeft,
    NodeRenewed,
    TurnAway,
)
from brim.coordination.cluster.sightings import AgentSeen, NodeSeen, NodesSeen
from brim.domain.cluster import Cluster, Node
from brim.domain.host_kind import HostKind
from brim.domain.names import check_name
from brim.errors import EnvironmentFault, SpecError
from brim.host.own_kind import kind_of_this_host
from brim.host.untrusted import read_regular
from brim.interfaces import Clock
from brim.storage.files import write_whole
from brim.wire.identity import split_token, token_with
from brim.wire.joining import (
    BeginGuest,
    EndGuest,
    Farewell,
    FromNode,
    JoinCluster,
    NodeLine,
    NodeServer,
    NotWelcome,
    Renew,
    Renewed,
    Welcome,
)

TOKEN = "nodes.token"  # in the state directory: what a host shows to join
_MAX_FILE_BYTES = 1 << 16  # bytes of these files
_LARGEST_KIND = 1 << 13  # bytes of what a node says of its host
_MAX_NOTE_CHARACTERS = 200  # characters of what a node says of itself
_log = logging.getLogger(__name__)


class FarNodes:
    """The nodes that have joined.

    Args:
        state_dir: has the cluster's authority and the token, which are made where they are missing.
        host: the address by which other hosts reach this one.
        clock: its monotonic time counts leases.

    Attributes:
        address: `HOST:PORT` at which it listens, once it does.

    Raises:
        OSError: the disk takes no authority.
        EnvironmentFault: the one that is there cannot be read.
    """

    def __init__(self, state_dir: Path, host: str, clock: Clock) -> None:
        self.host, self._clock = host, clock
        self.address = ""
        self.kind = kind_of_this_host()
        self._home = Cluster(nodes=())
        self._core = JoinedNodes()
        self._lines: dict[int, NodeLine] = {}
        authority = authority_of(state_dir)
        self._server = NodeServer(
            authority,
            secret=_secret(state_dir / TOKEN, authority.fingerprint),
            hear=self._hear,
            closed=self._closed,
        )

    async def start(self, port: int) -> None:
        """Listen. Raises EnvironmentFault where that port cannot be had."""
        self.address = await self._server.start(self.host, port)

    def stop(self) -> None:
        """Listen to no further messages."""
        self._server.stop()
        for line in self._lines.values():
            line.close()

    # What is seen ---------------------------------------------------------------------------------

    def expect(self, nodes: Iterable[Node], home: Cluster) -> None:
        """Wait for nodes that an earlier scheduler knew.

        Args:
            home: the nodes of this host.
        """
        self._home = home
        self._core.expect(nodes, self._clock.now())

    def seen(self, near: Iterable[str]) -> dict[str, NodeSeen]:
        """All of them; the names of the scheduler's own nodes are reserved."""
        self._core.reserved = frozenset(near)
        return self._core.seen(self._clock.now())

    def knows(self, name: str) -> bool:
        """Return whether this is a node that has joined."""
        return self._core.knows(name)

    def agents(self, job: str) -> Mapping[str, AgentSeen]:
        """The agents of a job, by node."""
        return self._core.agents(job)

    # What is asked --------------------------------------------------------------------------------

    def begin(self, name: str, request: BeginGuest) -> None:
        """Start an agent there. Raises EnvironmentFault where the node cannot be told now."""
        line = self._core.line_of(name)
        if line is None:
            raise EnvironmentFault(f"node {name} has no connection now")
        self._lines[line].send(request)

    def end_job(self, job: str, names: Iterable[str] | None = None) -> None:
        """End the agents of a job on these nodes; None: on all."""
        for name in self._core.agents(job) if names is None else names:
            line = self._core.line_of(name)
            if line is not None:
                self._lines[line].send(EndGuest(job=job))

    def end_left_over(self, running: Mapping[str, int]) -> None:
        """End the agents that are of no job's present start."""
        for name, node in self._core.seen(self._clock.now()).items():
            for agent in node.agents:
                if running.get(agent.job) != agent.launch:
                    self.end_job(agent.job, [name])

    def kill(self) -> None:
        """End all agents of all jobs."""
        self.end_left_over({})

    # What nodes say -------------------------------------------------------------------------------

    def _hear(self, line: NodeLine, message: FromNode) -> None:
        try:
            check_name(line.name, field="the name of a node", hint="brim node --name gives another")
        except SpecError as error:
            line.send(NotWelcome(why=str(error)))
            line.close()
            return
        if isinstance(message, JoinCluster) and len(_encoded(message.kind)) > _LARGEST_KIND:
            line.send(NotWelcome(why="what it says of the kind of its host is too long"))
            line.close()
            return
        self._lines[line.number] = line
        self._handle(_event(line, message, self.kind))

    def _closed(self, line: NodeLine) -> None:
        self._handle(LineClosed(line=line.number))
        self._lines.pop(line.number, None)

    def _handle(self, event: NodeEvent) -> None:
        for command in self._core.handle(event, self._clock.now()):
            self._perform(command)

    def _perform(self, command: NodeCommand) -> None:
        line = self._lines.get(command.line)
        if line is None:
            return
        match command:
            case Admit():
                line.send(Welcome(notice=self._notice(line.name)))
            case TurnAway(why=reason):
                line.send(NotWelcome(why=reason))
                line.close()
            case Acknowledge(number=number):
                line.send(Renewed(number=number))
            case HangUp():
                line.close()
            case _:
                assert_never(command)

    def _notice(self, name: str) -> str:
        """Say how a node differs from most, and so computes other bits; empty where it does not."""
        near_nodes = {node.id: NodeSeen(up=True, kind=self.kind) for node in self._home.nodes}
        seen = NodesSeen({**self._core.seen(self._clock.now()), **near_nodes})
        unlike = seen.unlike(seen.cluster(self._home)).get(name, "")
        return f"{name} is {unlike}" if unlike else ""


def _event(line: NodeLine, message: FromNode, own_kind: HostKind) -> NodeEvent:
    match message:
        case JoinCluster():
            kind = None if message.kind is None else _cleaned(message.kind)
            label = "" if kind is None or kind == own_kind else _label_of(kind)
            return NodeCalled(
                line=line.number,
                node=Node(id=line.name, devices=message.devices, switch=message.switch, kind=label),
                kind=kind,
                identity=message.identity,
                life=message.life,
                address=_address(message.address) or line.host,
            )
        case Renew():
            seen = NodeSeen(
                up=message.up,
                gone=message.gone,
                lost=message.lost,
                again=message.again,
                problem=_in_one_line(message.problem),
                leaving=message.leaving,
                agents=message.agents,
            )
            return NodeRenewed(line=line.number, number=message.number, seen=seen)
        case Farewell():
            return NodeLeft(line=line.number)
        case _:
            assert_never(message)


def _encoded(kind: HostKind | None) -> bytes:
    return msgspec.json.encode(kind)


def _label_of(kind: HostKind) -> str:
    """Return the label that hosts of one kind share, and no others."""
    return hashlib.sha256(_encoded(kind)).hexdigest()[:12]


def _cleaned(kind: HostKind) -> HostKind:
    """Return a kind in which each text is one line that a terminal may have."""

    def clean(part: Any) -> Any:
        if isinstance(part, dict):
            return {_in_one_line(key): clean(part[key]) for key in sorted(part)}
        if isinstance(part, list | tuple):
            return [clean(item) for item in part]
        return _in_one_line(part)

    return msgspec.convert(clean(msgspec.to_builtins(kind)), HostKind)


def _address(stated: str) -> str:
    """Return the address that a node states for its host; empty where it is none.

    >>> _address("10.0.0.7"), _address("fe80::1%\x1b[2J"), _address("n1.example")
    ('10.0.0.7', '', '')
    """
    try:
        return "" if "%" in stated else str(ip_address(stated))  # any text may be behind it
    except ValueError:
        return ""


def _in_one_line(text: str) -> str:
    """Return a text from a node in one line, safe for a terminal."""
    printable = "".join(
        character if character.isprintable() else " " for character in text[:_MAX_NOTE_CHARACTERS]
    )
    return " ".join(printable.split())


def _secret(path: Path, fingerprint: str) -> str:
    """Return the secret of the token, which is kept where it is of this authority."""
    try:
        text = read_regular(path, at_most=_MAX_FILE_BYTES).decode()
        secret, authority = split_token(text.strip())
    except FileNotFoundError:
        secret, authority = "", ""
    except (OSError, ValueError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else "it is no text"
        raise EnvironmentFault(
            f"cannot read the token in {path}: {reason}\n  hint: move it away: another one is made"
        ) from error
    if not secret or authority != fingerprint:
        secret = secrets.token_hex(16)
        write_whole(path, f"{token_with(secret, fingerprint)}\n".encode(), mode=0o600)
    os.chmod(path, 0o600)
    return secret
