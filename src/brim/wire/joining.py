"""Messages between a scheduler and nodes of other hosts, and the connections that carry them.

The scheduler listens on one port. Who shows no certificate there can get one, for the cluster's
token; who shows one of a node is heard. All is encrypted, and both ends show who they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from brim.coordination.cluster.sightings import AgentSeen
from brim.domain.cluster import MOST_DEVICES
from brim.domain.host_kind import HostKind
from brim.errors import EnvironmentFault, ProtocolError
from brim.host.process import close_in_children
from brim.wire.authority import Authority
from brim.wire.enrolment import EnrolmentServer, enrol
from brim.wire.frames import FrameBuffer, frame
from brim.wire.identity import (
    RENEW_AFTER,
    SCHEDULER,
    Identity,
    Subject,
    client_context,
    server_context,
    server_name,
    subject_of,
)
from brim.wire.listening import joined_address, listen_on
from brim.wire.messages.codec import Codec
from brim.wire.strangers import Strangers

NODE = "node"  # the role
_CLUSTER = "cluster"  # whose authority signs
_MAX_MESSAGE_BYTES = 1 << 20  # bytes of a message: an environment may be long
_TO_SHAKE_HANDS = 5.0
_TO_CALL = (
    2.0  # seconds, less than a lease, so that a host that is silent is called again within one
)
_TO_PART = 5.0  # seconds that the other end may take to take in what was said, and to close
_READ = 1 << 16
_STRANGERS = 64  # connections whose callers are not known yet

# What comes from a node is bounded: who has the token for nodes may say anything.
_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_DEVICES)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Words = Annotated[str, msgspec.Meta(max_length=1000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=24 * 3600.0)]


class JoinCluster(msgspec.Struct, frozen=True, tag="Join", kw_only=True):
    """Join a cluster with a node; the name is in its certificate.

    Args:
        identity, life: see `brim.coordination.cluster.joined_nodes`.
        devices: how many it has.
        switch: the one that it is below.
        address: of its host.
        kind: of its host; None: it does not say.
    """

    identity: _Name
    life: _Number
    devices: _Count
    switch: _Count = 0
    address: _Words = ""
    kind: HostKind | None = None


class Renew(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Renew the lease of a node, and say how it is: see `brim.coordination.cluster.sightings.NodeSeen`."""

    number: _Number
    up: bool = False
    gone: bool = False
    lost: bool = False
    again: _Seconds = 0.0
    problem: _Words = ""
    leaving: bool = False
    agents: tuple[AgentSeen, ...] = ()


class Farewell(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Say that nothing runs on a node any more, which will not be back."""


class Welcome(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Let a node in.

    Args:
        notice: for its user; may be empty.
    """

    notice: str = ""


class NotWelcome(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Do not let it in, and say why."""

    why: str


class Renewed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Answer a renewal."""

    number: int


class BeginGuest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Start an agent of a job, which joins the job's master.

    Args:
        job: names it in `EndGuest`.
        launch: of which start of the job it is.
        master: its `HOST:PORT`.
        token: of the run.
        environment: of the job beyond that of the node.
        directory: where it works, if that is there.
        user: the account that it is to be of; empty: that of the node.
    """

    job: str
    launch: int
    master: str
    token: str
    environment: dict[str, str] = {}
    directory: str = ""
    user: str = ""


class EndGuest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """End the agent of a job at once."""

    job: str


FromNode = JoinCluster | Renew | Farewell
ToNode = Welcome | NotWelcome | Renewed | BeginGuest | EndGuest
_from_node: Codec[FromNode] = Codec(FromNode)
_to_node: Codec[ToNode] = Codec(ToNode)


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield messages until the other end is gone. Raises ProtocolError for nonsense."""
    buffer = FrameBuffer()
    held_bytes = 0
    while True:
        try:
            data = await reader.read(_READ)
        except OSError:
            return
        if not data:
            return
        held_bytes += len(data)
        for payload in buffer.feed(data):
            held_bytes = 0
            yield payload
        if held_bytes > _MAX_MESSAGE_BYTES:
            raise ProtocolError("a message that is larger than any")


@dataclass(slots=True)
class NodeLine:
    """A connection of a node, at the scheduler's end.

    Args:
        number: names it.
        name: of the node, by its certificate.
        host: the address from which it calls.
    """

    number: int
    name: str
    host: str
    _writer: asyncio.StreamWriter
    _max_bytes: int = field(default=_MAX_MESSAGE_BYTES, repr=False)

    def send(self, message: ToNode) -> None:
        """Say something, without waiting. An end that does not read is cut off."""
        transport = self._writer.transport
        if transport.get_write_buffer_size() > self._max_bytes:
            transport.abort()
        elif not transport.is_closing():
            self._writer.write(frame(_to_node.encode(message)))

    def close(self) -> None:
        """End it, behind the messages."""
        self._writer.close()


class _NodeCall(asyncio.Protocol):
    """A call as the kernel hands it over: nothing of it is read before it is encrypted."""

    def __init__(self, accept: Callable[[asyncio.Transport], None]) -> None:
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._accept(transport)


class NodeServer:
    """The port of a scheduler for nodes.

    Args:
        authority: of the cluster.
        secret: of the token for nodes.
        hear: is called with what a node says.
        closed: is called with a connection that has ended.
    """

    def __init__(
        self,
        authority: Authority,
        *,
        secret: str,
        hear: Callable[[NodeLine, FromNode], None],
        closed: Callable[[NodeLine], None],
    ) -> None:
        self._authority, self._hear, self._closed = authority, hear, closed
        self._enrolment = EnrolmentServer(authority, secret=secret, role=NODE)
        self._numbers = itertools.count(1)
        self._calls: set[asyncio.Task[None]] = set()
        self._strangers = Strangers(_STRANGERS)
        self._context: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; return the address with the port that was chosen in place of 0.

        Raises:
            EnvironmentFault: the port is taken, or is none of this host.
        """
        hint = "brim up --nodes HOST:0 lets the system choose a port"
        listener = listen_on(host, port, backlog=_STRANGERS, hint=hint)
        identity = self._authority.issue(SCHEDULER, for_s=10 * 365 * 24 * 3600.0)
        self._context = server_context(identity, with_strangers=True)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _NodeCall(self._accept), sock=listener, backlog=_STRANGERS
        )
        return joined_address(host, listener.getsockname()[1])

    def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        for call in self._calls:
            call.cancel()

    def _accept(self, transport: asyncio.Transport) -> None:
        self._strangers.admit(transport)
        call = asyncio.create_task(self._serve(transport))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _serve(self, transport: asyncio.Transport) -> None:
        try:
            with contextlib.suppress(OSError):  # no TLS, or another authority's certificate
                streams = await self._encrypt(transport)
                if streams is not None:
                    await self._answer(transport, *streams)
        finally:
            transport.close()
            self._strangers.forget(transport)

    async def _encrypt(
        self, transport: asyncio.Transport
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Shake hands, and read nothing before; None where the caller is cut off meanwhile."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        assert self._context is not None
        encrypted = await loop.start_tls(
            transport,
            protocol,
            self._context,
            server_side=True,
            ssl_handshake_timeout=_TO_SHAKE_HANDS,
            ssl_shutdown_timeout=_TO_PART,
        )
        if encrypted is None:
            return None
        protocol.connection_made(encrypted)
        return reader, asyncio.StreamWriter(encrypted, protocol, reader, loop)

    async def _answer(
        self,
        transport: asyncio.Transport,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        subject = subject_of(writer.get_extra_info("ssl_object"))
        if subject is None:
            await self._enrolment.answer(reader, writer)
        elif subject == Subject(_CLUSTER, NODE, subject.name):
            self._strangers.forget(transport)
            await self._converse(subject.name, reader, writer)
        writer.close()
        await writer.wait_closed()

    async def _converse(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        host = str(writer.get_extra_info("peername")[0])
        line = NodeLine(next(self._numbers), name, host, writer)
        try:
            async for payload in _frames(reader):
                self._hear(line, _from_node.decode(payload))
        except ProtocolError as error:
            line.send(NotWelcome(why=str(error)))
        finally:
            self._closed(line)


class NobodyListens(Exception):
    """The scheduler's host answers, without a listener there."""


class SchedulerLine:
    """A connection of a node to its scheduler, at the node's end; `call_scheduler` makes one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.address = str(writer.get_extra_info("sockname")[0])  # of this host, towards it

    def send(self, message: FromNode) -> None:
        """Say something, without waiting."""
        if not self._writer.transport.is_closing():
            self._writer.write(frame(_from_node.encode(message)))

    async def messages(self) -> AsyncIterator[ToNode]:
        """Yield the scheduler's messages until the connection ends."""
        async for payload in _frames(self._reader):
            yield _to_node.decode(payload)

    def drop(self) -> None:
        """End it at once, with all messages: the other end does not answer."""
        self._writer.transport.abort()

    async def drain(self) -> None:
        """Wait until the messages are on their way."""
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


class Enrolled:
    """The certificate of a node, which it gets for its token, and again before it expires.

    Args:
        host, port: of the scheduler.
        token: for nodes.
        name: of the node.
        now: reads a monotonic clock.
    """

    def __init__(
        self, host: str, port: int, *, token: str, name: str, now: Callable[[], float]
    ) -> None:
        self._host, self._port, self._token, self._name = host, port, token, name
        self._now, self._valid_since = now, 0.0
        self._identity: Identity | None = None

    async def identity(self) -> Identity:
        """Raises OSError or EnvironmentFault where there is none to be had."""
        if self._identity is None or self._now() - self._valid_since > RENEW_AFTER:
            self._valid_since = self._now()
            self._identity = await asyncio.to_thread(
                enrol,
                self._host,
                self._port,
                self._token,
                server=SCHEDULER,
                name=self._name,
                timeout=_TO_SHAKE_HANDS,
            )
        return self._identity

    def forget(self) -> None:
        """Get another one next time: the scheduler does not take this one."""
        self._identity = None

    async def call(self) -> SchedulerLine:
        """Call the scheduler.

        Raises:
            NobodyListens: its host answers, without a listener.
            OSError, EnvironmentFault: it does not answer, or not as the scheduler of this cluster.
        """
        try:
            identity = await self.identity()
            async with asyncio.timeout(_TO_CALL):
                reader, writer = await asyncio.open_connection(
                    self._host,
                    self._port,
                    ssl=client_context(identity.authority, identity),
                    server_hostname=server_name(SCHEDULER),
                    ssl_handshake_timeout=_TO_CALL,
                )
        except ConnectionRefusedError as refused:
            raise NobodyListens from refused
        except ssl.SSLError as error:
            self.forget()
            raise EnvironmentFault(f"{self._host} port {self._port}: {error}") from error
        line = writer.get_extra_info("socket")
        if isinstance(line, socket.socket):
            close_in_children(line)
        return SchedulerLine(reader, writer)
