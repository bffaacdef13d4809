"""The nodes of other hosts, as a scheduler has them: heard, asked, and given up."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import assert_never

from brim.coordination.joined_nodes import (
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
from brim.coordination.sightings import AgentSeen, NodeSeen
from brim.domain.cluster import Node
from brim.domain.names import check_name
from brim.errors import EnvironmentFault, SpecError
from brim.interfaces import Clock
from brim.storage.files import write_whole
from brim.wire.authority import Authority
from brim.wire.identity import token_with
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
_AUTHORITY = "authority.pem"
_MOST_DEVICES = 1 << 16
_log = logging.getLogger(__name__)


class FarNodes:
    """The nodes that have joined.

    Args:
        state_dir: has the cluster's authority and the token, which are made where they are missing.
        host: the address by which other hosts reach this one.
        clock: its monotonic time counts leases.

    Raises:
        OSError: the disk takes no authority.
        EnvironmentFault: the one that is there cannot be read.
    """

    def __init__(self, state_dir: Path, host: str, clock: Clock) -> None:
        self.host, self._clock = host, clock
        self._core = JoinedNodes()
        self._lines: dict[int, NodeLine] = {}
        authority = _authority(state_dir / _AUTHORITY)
        self._server = NodeServer(
            authority,
            secret=_secret(state_dir / TOKEN, authority.fingerprint),
            hear=self._hear,
            closed=self._closed,
        )

    async def start(self, port: int) -> str:
        """Listen; return the address. Raises EnvironmentFault where that port cannot be had."""
        return await self._server.start(self.host, port)

    def stop(self) -> None:
        """Hear nobody any more."""
        self._server.stop()
        for line in self._lines.values():
            line.close()

    # What is seen ---------------------------------------------------------------------------------

    def expect(self, nodes: Iterable[Node]) -> None:
        """Wait for nodes that an earlier scheduler knew."""
        self._core.expect(nodes, self._clock.now())

    def seen(self, near: Iterable[str]) -> dict[str, NodeSeen]:
        """All of them; names of the scheduler's own nodes are nobody else's."""
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
        self._lines[line.number] = line
        self._handle(_event(line, message))

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
                line.send(Welcome())
            case TurnAway(why=why):
                line.send(NotWelcome(why=why))
                line.close()
            case Acknowledge(number=number):
                line.send(Renewed(number=number))
            case HangUp():
                line.close()
            case _:
                assert_never(command)


def _event(line: NodeLine, message: FromNode) -> NodeEvent:
    match message:
        case JoinCluster():
            devices = min(max(0, message.devices), _MOST_DEVICES)
            return NodeCalled(
                line=line.number,
                node=Node(id=line.name, devices=devices, switch=message.switch),
                identity=message.identity,
                life=message.life,
                address=message.address or line.host,
            )
        case Renew():
            agents = tuple(AgentSeen(a.job, a.launch, a.workers) for a in message.agents)
            seen = NodeSeen(
                up=message.up,
                gone=message.gone,
                lost=message.lost,
                again=message.again,
                problem=message.problem[:200],
                leaving=message.leaving,
                agents=agents,
            )
            return NodeRenewed(line=line.number, number=message.number, seen=seen)
        case Farewell():
            return NodeLeft(line=line.number)
        case _:
            assert_never(message)


def is_node_name(name: str) -> bool:
    """Return whether a node may have this name."""
    try:
        check_name(name, field="--name")
    except SpecError:
        return False
    return True


def _authority(path: Path) -> Authority:
    try:
        return Authority.from_pem(path.read_bytes())
    except FileNotFoundError:
        authority = Authority.make("cluster")
        write_whole(path, authority.pem, mode=0o600, alone=True)
        return authority
    except ValueError as error:
        hint = "remove it, and let the nodes join again with the new token"
        raise EnvironmentFault(f"cannot read {path}: {error}\n  hint: {hint}") from error


def _secret(path: Path, fingerprint: str) -> str:
    """Return the secret of the token, which is kept where it is of this authority."""
    try:
        secret, _, of = path.read_text().strip().partition(".")
    except FileNotFoundError:
        secret, of = "", ""
    if not secret or of != fingerprint:
        secret = secrets.token_hex(16)
        write_whole(path, f"{token_with(secret, fingerprint)}\n".encode(), mode=0o600)
    os.chmod(path, 0o600)
    return secret
