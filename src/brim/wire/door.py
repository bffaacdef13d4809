"""The way into an HTTP API, with little room and time for unauthenticated callers.

A connection is a stranger's until a request on it is admitted, and again once that was answered.
Strangers may be few, and the oldest of the host that has the most of them makes way for the next: so
however many connections others hold, one who comes with a token is heard. A caller that does not
read what it asked for is sent away, too.

Where connections are encrypted, who has not done its part of that yet is such a stranger as well:
asyncio makes a protocol known only once the handshake is over, so connections are accepted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from brim.host.clock import monotonic
from brim.wire.strangers import first_of_crowd

BACKLOG = 128  # connections that are taken at once, so that no burst uses up all descriptors
LARGEST_HEADERS = 16 << 10  # bytes
_STRANGERS = 256
_TO_SHOW_TOKEN = 10.0  # seconds until the headers of a request must be complete
_TO_READ = 10.0  # seconds in which a client's host takes in, of an answer that waits, at least
_LEAST_READ = 64 << 10  # bytes
_KEPT_BACK = 256  # descriptors for what is no connection: jobs, nodes, the database
_MIN_GUESTS = 64  # who may be served at least
_MOST_OF_CALLER = 1024  # requests of a tenant at once: each may hold what was sent with it
_SELDOM = 60.0  # seconds between two lines of a log that say the same
_RETRY_INTERVAL = 1.0  # seconds until somebody is accepted again where descriptors were used up
_TO_SAY_GOODBYE = 1.0  # seconds that an idle connection has for its end, when the server ends
_FOR_EVER = 365 * 86400.0  # seconds
_ACKNOWLEDGED = struct.Struct("120xQ")  # the place of tcpi_bytes_acked in struct tcp_info
_PIECE = 16 << 10  # bytes of an answer that are encrypted at once

Application = Callable[[Any, Any, Any], Awaitable[None]]  # of ASGI

_log = logging.getLogger(__name__)


class Door:
    """The connections of one listener.

    Args:
        strangers: how many may be there without a token.
        guests: requests that are served at once; None: as many as descriptors allow.
        to_show_token: seconds until a stranger is sent away.
        to_read: seconds in which a client has to read some of its answer.
    """

    def __init__(
        self,
        *,
        strangers: int = _STRANGERS,
        guests: int | None = None,
        to_show_token: float = _TO_SHOW_TOKEN,
        to_read: float = _TO_READ,
    ) -> None:
        self._most_strangers = strangers
        self._most_guests = _room(strangers) if guests is None else guests
        self._to_show_token, self._to_read = to_show_token, to_read
        self._strangers: dict[H11Protocol, asyncio.TimerHandle] = {}  # the oldest first
        self._lines: dict[H11Protocol, socket.socket] = {}
        self._handshakes = set[H11Protocol]()  # of the strangers; not over yet
        self._guests: dict[H11Protocol, str] = {}
        self._readers: dict[
            H11Protocol, asyncio.TimerHandle
        ] = {}  # of an answer of which some waits here
        self._of_caller = Counter[str]()
        self._by_address: dict[tuple[str, int] | None, H11Protocol] = {}

    def knocks(self, connection: H11Protocol, line: socket.socket, client: tuple[str, int]) -> None:
        """Note that a caller has connected, and a handshake comes first.

        Args:
            connection: that it will be: `opened` or `closed` comes later.
            line: is shut down where the connection is to end; asyncio closes it.
            client: the address at the other end.
        """
        connection.client = client
        self._make_room()
        self._lines[connection] = line
        self._handshakes.add(connection)
        self._let_wait(connection)

    def opened(self, connection: H11Protocol) -> None:
        """Note that a handshake is over, after which the caller has shown nothing yet."""
        self._handshakes.discard(connection)
        self._forget_stranger(connection)
        self._make_room()
        self._by_address[connection.client] = connection
        self._let_wait(connection)

    def admit(self, client: tuple[str, int] | None, caller: str, *, all_room: bool) -> bool:
        """Serve a request of an authenticated caller; False where there is no room for another.

        Args:
            client: the address at the other end of the connection.
            caller: whose token it is.
            all_room: the caller may have all of it; of a tenant's requests, half of what is served
                may be, and no more than a thousand.
        """
        limit = self._most_guests
        if not all_room:
            limit = max(1, min(limit // 2, _MOST_OF_CALLER))
        if len(self._guests) >= self._most_guests or self._of_caller[caller] >= limit:
            return False
        connection = self._by_address.get(client)
        if connection is not None and connection in self._strangers:
            self._forget_stranger(connection)
            self._guests[connection] = caller
            self._of_caller[caller] += 1
        return True

    def answered(self, connection: H11Protocol) -> None:
        """A request was answered; the next one on this connection has to show a token again."""
        if self._leaves(connection):
            self._let_wait(connection)

    def lags(self, connection: H11Protocol) -> None:
        """More of an answer waits to be read than is kept for anyone."""
        loop = asyncio.get_running_loop()
        self._readers[connection] = loop.call_later(
            self._to_read, self._look_at_reader, connection, self._acknowledged(connection)
        )

    def has_read(self, connection: H11Protocol) -> None:
        """Note that a connection's data was read, but for a little."""
        if connection in self._readers:
            self._readers.pop(connection).cancel()

    def parts(self, connection: H11Protocol) -> None:
        """Note that the server ends: whose requests were answered does its part of that soon."""
        if connection in self._strangers and not _has_asked(connection):
            self._forget_stranger(connection)
            self._let_wait(connection, timeout=_TO_SAY_GOODBYE)

    def closed(self, connection: H11Protocol) -> None:
        """A connection is no more."""
        self._leaves(connection)
        self.has_read(connection)
        self._handshakes.discard(connection)
        self._lines.pop(connection, None)
        self._forget_stranger(connection)
        if self._by_address.get(connection.client) is connection:
            del self._by_address[connection.client]

    def close(self) -> None:
        """Send away all connections before the end of their handshake."""
        for connection in list(self._handshakes):
            self._send_away(connection)

    def _make_room(self) -> None:
        while len(self._strangers) >= self._most_strangers:
            self._send_away(self._next_to_go())

    def _leaves(self, connection: H11Protocol) -> bool:
        caller = self._guests.pop(connection, None)
        if caller is None:
            return False
        self._of_caller[caller] -= 1
        if not self._of_caller[caller]:
            del self._of_caller[caller]
        return True

    def _let_wait(
        self, connection: H11Protocol, *, repeats: bool = True, timeout: float | None = None
    ) -> None:
        loop, requests_taken = asyncio.get_running_loop(), self._acknowledged(connection)
        self._strangers[connection] = loop.call_later(
            self._to_show_token if timeout is None else timeout,
            self._late,
            connection,
            repeats,
            requests_taken,
        )

    def _forget_stranger(self, connection: H11Protocol) -> None:
        if connection in self._strangers:
            self._strangers.pop(connection).cancel()

    def _late(self, connection: H11Protocol, repeats: bool, bytes_before: int) -> None:
        """Close a connection whose time is over, unless it reads earlier answers.

        Where this process was late itself, first look at the arrivals since.
        """
        if connection in self._readers:  # it has another deadline
            self._let_wait(connection)
        elif repeats and _has_asked(connection):
            self._let_wait(connection, repeats=False)
        elif self._acknowledged(connection) >= bytes_before + _LEAST_READ:
            self._let_wait(connection)
        else:
            self._send_away(connection)

    def _look_at_reader(self, connection: H11Protocol, bytes_before: int) -> None:
        if self._acknowledged(connection) >= bytes_before + _LEAST_READ:
            self.lags(connection)
        else:
            self._send_away(connection)

    def _acknowledged(self, connection: H11Protocol) -> int:
        """Return how many bytes the other host has acknowledged, however few the kernel holds."""
        with contextlib.suppress(OSError, KeyError):  # it is gone
            line = self._lines[connection]
            info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.size)
            return int(_ACKNOWLEDGED.unpack(info)[0])
        return 0

    def _next_to_go(self) -> H11Protocol:
        """Return the oldest of the host with the most, of silent ones if there are any."""
        waiting = [stranger for stranger in self._strangers if not _has_asked(stranger)] or [
            *self._strangers
        ]
        return first_of_crowd({stranger: _host_of(stranger) for stranger in waiting})

    def _send_away(self, connection: H11Protocol) -> None:
        line, is_open = self._lines.get(connection), connection not in self._handshakes
        self.closed(connection)
        if is_open:
            connection.transport.abort()
        # A transport that is about to be made cannot be aborted, and one of TLS that was closed
        # twice does not do it: both see this.
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


def _room(strangers: int) -> int:
    """Return how many requests the limit of descriptors allows at once."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(_MIN_GUESTS, limit - strangers - BACKLOG - _KEPT_BACK)


def _host_of(connection: H11Protocol) -> str:
    return connection.client[0] if connection.client else ""


def _has_asked(connection: H11Protocol) -> bool:
    """Return whether a request has come that was not answered yet."""
    return connection.cycle is not None and not connection.cycle.response_complete


def protocol_behind(door: Door) -> type[H11Protocol]:
    """Return uvicorn's protocol, whose connections come through this door."""

    class Connection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if self.scheme == "https":  # beside what the connection below it holds
                transport.set_write_buffer_limits(_PIECE)
            door.opened(self)

        def connection_lost(self, exc: Exception | None) -> None:
            door.closed(self)
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            door.lags(self)

        def resume_writing(self) -> None:
            super().resume_writing()
            door.has_read(self)

        def on_response_complete(self) -> None:
            door.answered(self)
            super().on_response_complete()

        def handle_websocket_upgrade(self, event: Any) -> None:
            super().handle_websocket_upgrade(event)
            door.closed(self)  # another protocol has the connection now

        def shutdown(self) -> None:
            super().shutdown()
            door.parts(self)

    return Connection


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours."""
        yield


@contextlib.asynccontextmanager
async def answering(
    application: Application,
    listener: socket.socket,
    door: Door,
    *,
    context: ssl.SSLContext | None = None,
    largest_frame: int | None = None,
    to_end: int,
) -> AsyncIterator[asyncio.Task[None]]:
    """Answer the callers of a listener, until the end of the block.

    Args:
        application: of ASGI.
        listener: is closed in the end.
        door: that callers come through.
        context: of TLS; None: nothing is encrypted.
        largest_frame: bytes that a caller may send at once by a WebSocket; None: there are none.
        to_end: seconds for requests that are under way in the end.

    Yields:
        A task that ends by itself only where no caller can be let in any more.
    """
    tell_seldom(asyncio.get_running_loop())
    protocol = protocol_behind(door)
    config = uvicorn.Config(
        in_pieces(application),
        http=protocol,
        ws="none" if largest_frame is None else "websockets-sansio",
        ws_max_size=largest_frame or 0,
        # A header does not say whose connection it is: the door could not count it.
        proxy_headers=False,
        h11_max_incomplete_event_size=LARGEST_HEADERS,
        log_level="warning",
        access_log=False,
        lifespan="off",
        interface="asgi3",
        timeout_graceful_shutdown=to_end,
    )
    server = _Server(config)

    def make() -> H11Protocol:
        return protocol(config=config, server_state=server.server_state, app_state={})

    serving = asyncio.create_task(server.serve(sockets=[]))
    letting_in = asyncio.create_task(_let_in(listener, door, make, context))
    try:
        yield letting_in
    finally:
        letting_in.cancel()
        server.should_exit = True
        await serving


async def _let_in(
    listener: socket.socket,
    door: Door,
    make: Callable[[], H11Protocol],
    context: ssl.SSLContext | None,
) -> None:
    """Accept connections until this is cancelled; each gets a protocol that is made for it."""
    loop, welcomes = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    listener.setblocking(False)
    try:
        while True:
            try:
                line, client = await loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                _log.warning("no connection can be accepted: %s", error)
                await asyncio.sleep(_RETRY_INTERVAL)
                continue
            connection = make()
            door.knocks(connection, line, client[:2])
            welcome = asyncio.create_task(_welcome(connection, line, door, context))
            welcomes.add(welcome)
            welcome.add_done_callback(welcomes.discard)
            await asyncio.sleep(0)  # a crowd that calls leaves the others their turns
    finally:
        listener.close()
        door.close()


async def _welcome(
    connection: H11Protocol, line: socket.socket, door: Door, context: ssl.SSLContext | None
) -> None:
    # asyncio would count all the time since an answer was written, however much of it is read.
    tls_options = {} if context is None else {"ssl_shutdown_timeout": _FOR_EVER}
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection, line, ssl=context, **tls_options
        )
    except OSError:  # it does not speak TLS, has gone, or was sent away
        door.closed(connection)


def in_pieces(application: Application) -> Application:
    """Return an application whose answers are written in pieces.

    An encrypted connection lets an answer wait only once what is encrypted already waits to be
    read: one that is written at once, however large, counts as read.
    """

    async def answer(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        async def send_in_pieces(message: Any) -> None:
            body = message.get("body", b"")
            last = max(0, len(body) - 1) // _PIECE * _PIECE
            for start in range(0, last, _PIECE):
                piece = body[start : start + _PIECE]
                await send({**message, "body": piece, "more_body": True})
            await send({**message, "body": body[last:]} if last else message)

        await application(scope, receive, send_in_pieces)

    return answer


class _Seldom(logging.Filter):
    """Lets a line pass once a minute, however often strangers cause it."""

    def __init__(self) -> None:
        super().__init__()
        self._said_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = monotonic()
        if now - self._said_at.get(str(record.msg), -_SELDOM) < _SELDOM:
            return False
        self._said_at[str(record.msg)] = now
        return True


def tell_seldom(loop: asyncio.AbstractEventLoop) -> None:
    """Keep logs small despite strangers: their messages are told at most once a minute."""
    seldom = _Seldom()
    for log in (_log, logging.getLogger("uvicorn.error")):
        log.addFilter(seldom)

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if str(context.get("message", "")).startswith("socket.accept()"):
            _log.warning("no connection can be accepted: %s", context.get("exception"))
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
