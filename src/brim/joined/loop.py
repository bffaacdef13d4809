"""A node that has joined a cluster: it renews its lease, and obeys the scheduler.

What it runs are children of a process of its own host, as on the scheduler's. It ends them before
the scheduler may count on that: see `brim.coordination.cluster.joined_nodes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from brim.backends.nodes import Nodes
from brim.coordination.cluster.joined_nodes import RENEWAL, Lease
from brim.coordination.cluster.sightings import NodeSeen
from brim.decoding import UNDECODABLE
from brim.domain.cluster import Node
from brim.domain.printable import printable
from brim.errors import EnvironmentFault, ProtocolError
from brim.host.clock import SystemClock
from brim.host.own_kind import kind_of_this_host
from brim.host.process import be_called
from brim.joined.guests import Guests
from brim.storage.files import is_locked, lock, write_whole
from brim.wire.joining import (
    BeginGuest,
    EndGuest,
    Enrolled,
    Farewell,
    JoinCluster,
    NobodyListens,
    NotWelcome,
    Renew,
    Renewed,
    SchedulerLine,
    ToNode,
    Welcome,
)
from brim.wire.nodes import EndAt

_POLL_INTERVAL = 0.1
_CALL_INTERVAL = 0.5  # seconds between two calls
_TO_JOIN = 20.0  # seconds until it must have been let in for the first time
_TO_GIVE_WAY = 30.0  # seconds until its workers have left: what platforms give before SIGKILL
_TO_END = 10.0  # seconds until an earlier life of this node must have ended


class _NodeLife(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a node keeps in its folder: its identity, and how many lives it has had."""

    identity: str
    life: int


class JoinedNode:
    """A host as a node of another host's cluster.

    Args:
        folder: is its own.
        node: what it brings.
        schedulers: call it, each at one of the addresses where it may be.
        stored_life: see `brim.coordination.cluster.joined_nodes`.
        say: tells the user.
    """

    def __init__(
        self,
        folder: Path,
        node: Node,
        schedulers: Sequence[Enrolled],
        stored_life: _NodeLife,
        *,
        say: Callable[[str], None],
    ) -> None:
        self._clock = SystemClock()
        self._nodes = Nodes(folder / "nodes", self._clock, mortal=True)
        self._guests = Guests(folder / "jobs", self._nodes, node.id)
        self._node, self._schedulers, self._stored_life, self._say = (
            node,
            schedulers,
            stored_life,
            say,
        )
        self._kind = kind_of_this_host(os.environ)
        self._lease = Lease(len(schedulers))
        self._sent: dict[int, float] = {}
        self._number = 0
        self._line: SchedulerLine | None = None
        self._admitted = self._was_admitted = False
        self._leaving = False
        self._seen = NodeSeen(up=False)
        self._refusal = ""
        self._passed_on = (0, 0.0)  # which agent of this node was told when the lease is over

    async def run(self) -> None:
        """Serve until it has given way.

        Raises:
            EnvironmentFault: it was not let in.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._give_way)
        calling = asyncio.create_task(self._call())
        looking = asyncio.create_task(self._look())
        try:
            await asyncio.wait([calling, looking], return_when=asyncio.FIRST_COMPLETED)
            for task in (calling, looking):
                if task.done():
                    task.result()
        finally:
            for task in (calling, looking):
                task.cancel()
            await asyncio.gather(calling, looking, return_exceptions=True)
            if self._line is not None:
                self._line.close()
            self._nodes.kill()
            await self._nodes.end()
            self._guests.agents(0)

    def _give_way(self) -> None:
        """Leave: the scheduler has the workers of this node leave at a step boundary."""
        if self._leaving:
            self._lease = Lease(len(self._schedulers))  # a second signal: now
            self._nodes.kill()
        self._leaving = True
        asyncio.get_running_loop().call_later(_TO_GIVE_WAY, self._nodes.kill)

    # What is here ---------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Keep the node in order; return once it has given way."""
        renewed = float("-inf")
        while True:
            now = self._clock.now()
            self._seen = self._nodes.keep([self._node.id])[self._node.id]
            self._pass_on_lease()
            agents = self._guests.agents(self._seen.pid)
            if self._lease.is_over(now):
                if agents:
                    self._say("the scheduler was not heard: what ran here has been ended")
                    self._nodes.kill()
                if self._admitted and self._line is not None and not self._leaving:
                    self._line.drop()  # a host that is off would not end it
            if self._leaving and not agents:
                await self._part()
                return
            if self._admitted and now - renewed >= RENEWAL:
                renewed = now
                self._renew(now)
            await asyncio.sleep(min(_POLL_INTERVAL, self._lease.time_left(now)) or _POLL_INTERVAL)

    def _pass_on_lease(self) -> None:
        """Have the node's agent end all agents when the lease is over: this process may stop."""
        lease = self._seen.pid, self._lease.deadline
        if self._seen.up and lease != self._passed_on:
            with contextlib.suppress(EnvironmentFault):  # it is told at the next look
                self._nodes.ask(self._node.id, EndAt(at=self._lease.deadline))
                self._passed_on = lease

    def _renew(self, now: float) -> None:
        assert self._line is not None
        self._number += 1
        self._sent[self._number] = now
        seen = self._seen
        self._line.send(
            Renew(
                number=self._number,
                up=seen.up,
                gone=seen.gone,
                lost=seen.lost,
                again=seen.again,
                problem=seen.problem,
                leaving=self._leaving,
                agents=self._guests.agents(seen.pid),
            )
        )

    async def _part(self) -> None:
        if self._line is not None and self._admitted:
            self._line.send(Farewell())
            await self._line.drain()

    # What is said ---------------------------------------------------------------------------------

    async def _call(self) -> None:
        """Call the scheduler whenever there is no connection to it.

        The address at which it was is called first, then the others in turn.
        """
        end, number = self._clock.now() + _TO_JOIN, 0
        while True:
            if not await self._try(number):
                number = (number + 1) % len(self._schedulers)
            if not self._was_admitted and self._clock.now() > end:
                raise EnvironmentFault(f"this host was not let in: {self._refusal}")
            await asyncio.sleep(_CALL_INTERVAL / len(self._schedulers))

    async def _try(self, number: int) -> bool:
        """Call one of the addresses; return, once that is over, whether it let this node in."""
        started, scheduler = self._clock.now(), self._schedulers[number]
        try:
            self._line = await scheduler.call()
        except NobodyListens:
            self._lease.refused(number, sent=started)
            self._refusal = "nothing listens there"
        except (OSError, EnvironmentFault, ProtocolError, TimeoutError) as error:
            self._refusal = str(error) or type(error).__name__
        else:
            return await self._converse(scheduler, self._line, started)
        return False

    async def _converse(self, scheduler: Enrolled, line: SchedulerLine, started: float) -> bool:
        """Hear a scheduler until the connection ends; whether it let this node in."""
        line.send(
            JoinCluster(
                identity=self._stored_life.identity,
                life=self._stored_life.life,
                devices=self._node.devices,
                switch=self._node.switch,
                address=line.address,
                kind=self._kind,
            )
        )
        try:
            with contextlib.suppress(ProtocolError):
                async for message in line.messages():
                    self._on_message(message, started)
        finally:
            admitted, self._admitted = self._admitted, False
            if not admitted:
                scheduler.forget()  # it may be the certificate that is not taken
            self._sent.clear()
            line.close()
        return admitted

    def _on_message(self, message: ToNode, started: float) -> None:
        match message:
            case Welcome(notice=notice):
                self._lease.renewed(sent=started)
                if not self._was_admitted:
                    self._say(f"node {self._node.id} has joined")
                    if notice:
                        self._say(notice)
                self._admitted = self._was_admitted = True
            case NotWelcome(why=reason):
                self._refusal = reason
            case Renewed(number=number):
                sent = self._sent.get(number)
                self._sent = {
                    number_sent: sent_at
                    for number_sent, sent_at in self._sent.items()
                    if number_sent > number
                }
                if sent is not None:
                    self._lease.renewed(sent=sent)
            case BeginGuest():
                if self._leaving or self._lease.is_over(self._clock.now()):
                    return
                self._pass_on_lease()
                try:
                    self._guests.begin(message)
                except EnvironmentFault as fault:
                    self._say(str(fault))
            case EndGuest(job=job):
                self._guests.end(job)


def serve(
    node: Node,
    addresses: Sequence[tuple[str, int]],
    *,
    token: str,
    folder: Path,
    say: Callable[[str], None],
) -> None:
    """Offer this host to a scheduler until SIGTERM; all its agents have left, or ended, then.

    Args:
        node: what it brings.
        addresses: hosts and ports at which the scheduler may be.
        token: `SECRET.FINGERPRINT`, of the file `nodes.token` in the scheduler's state directory.
        folder: the node's own, which is made.
        say: tells the user.

    Raises:
        EnvironmentFault: the folder is another process's, or the scheduler does not let it in.
    """
    try:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        lock_file = lock(folder / ".lock")
        if lock_file is None:
            raise EnvironmentFault(f"another process serves {folder}: --folder names another one")
        be_called("brim-joined")
        stored_life = _begin_life(folder)
    except OSError as error:
        raise EnvironmentFault(f"cannot use {folder}: {error}") from error
    clock = SystemClock()
    schedulers = [
        Enrolled(host, port, token=token, name=node.id, now=clock.now) for host, port in addresses
    ]
    asyncio.run(_serve(folder, node, schedulers, stored_life, say))


async def _serve(
    folder: Path,
    node: Node,
    schedulers: Sequence[Enrolled],
    stored_life: _NodeLife,
    say: Callable[[str], None],
) -> None:
    await _see_earlier_life_off(folder, SystemClock())
    await JoinedNode(folder, node, schedulers, stored_life, say=say).run()


async def _see_earlier_life_off(folder: Path, clock: SystemClock) -> None:
    """Wait until an earlier life has left nothing: its processes die with it.

    Raises EnvironmentFault where that takes too long.
    """
    places = folder / "nodes"
    if not places.exists():
        return
    nodes = Nodes(places, clock)
    nodes.kill()
    end = clock.now() + _TO_END
    while any(is_locked(path) for path in places.glob("*/.lock")):
        if clock.now() > end:
            raise EnvironmentFault(f"an earlier life of this node, in {folder}, does not end")
        await asyncio.sleep(_POLL_INTERVAL)


def _begin_life(folder: Path) -> _NodeLife:
    """Number this life, before anything else is done in it. Raises OSError."""
    path = folder / "node.json"
    try:
        previous = msgspec.json.decode(path.read_bytes(), type=_NodeLife)
    except (FileNotFoundError, *UNDECODABLE):
        previous = _NodeLife(identity=uuid.uuid4().hex, life=0)
    next_life = _NodeLife(identity=previous.identity, life=previous.life + 1)
    write_whole(path, msgspec.json.encode(next_life), mode=0o600, is_sole_writer=True)
    return next_life


def say_on_stderr(text: str) -> None:
    """Tell the user of a node."""
    print(f"brim: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201
