"""Who does not read what they asked for is sent away, and who reads slowly gets it all; by real
sockets.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from brim.wire.authority import Authority
from brim.wire.door import Door, in_pieces, let_in, protocol_behind
from brim.wire.identity import SCHEDULER, client_context, open_context, server_name
from brim.wire.listening import listen_on
from e2e.running import until

SIZE = 16 << 20  # bytes of an answer: more than the kernel keeps
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
DEADLINE = 60.0


class _Server:
    """Answers every request by SIZE bytes."""

    def __init__(self, door: Door, *, encrypted: bool) -> None:
        self.under_way = 0
        self._listener = listen_on("127.0.0.1", 0, backlog=8, hint="")
        self.port: int = self._listener.getsockname()[1]
        self._authority = Authority.make("cluster") if encrypted else None
        self._protocol = protocol_behind(door)
        self._config = uvicorn.Config(
            in_pieces(self._answer),
            http=self._protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_level="error",
        )
        self.server, self._door = uvicorn.Server(self._config), door

    def _make(self) -> H11Protocol:
        state = self.server.server_state
        return self._protocol(config=self._config, server_state=state, app_state={})

    async def _serve(self) -> None:
        shown = open_context(self._authority.issue(SCHEDULER)) if self._authority else None
        letting_in = asyncio.create_task(let_in(self._listener, self._door, self._make, shown))
        await self.server.serve(sockets=[])
        letting_in.cancel()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self._door.admit(scope["client"], "", all_room=True)
        self.under_way += 1
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-length", b"%d" % SIZE)],
                }
            )
            await send({"type": "http.response.body", "body": bytes(SIZE)})
        finally:
            self.under_way -= 1

    def run(self) -> None:
        asyncio.run(self._serve())

    def connect(self) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.settimeout(DEADLINE)
        client.connect(("127.0.0.1", self.port))
        if self._authority is None:
            return client
        trusts = client_context(self._authority.certificate)
        return trusts.wrap_socket(client, server_hostname=server_name(SCHEDULER))


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def server(request: pytest.FixtureRequest) -> Iterator[_Server]:
    found = _Server(Door(to_show_token=1.0, to_read=0.5), encrypted=request.param)
    thread = threading.Thread(target=found.run)
    thread.start()
    try:
        yield found
    finally:
        found.server.should_exit = True
        thread.join(DEADLINE)


def test_who_asks_again_and_again_and_reads_nothing_is_sent_away(server: _Server) -> None:
    with server.connect() as client, pytest.raises((ConnectionError, ssl.SSLEOFError)):
        _ask_without_end(client)
    until(lambda: server.under_way == 0, "the end of its requests")


def _ask_without_end(client: socket.socket) -> NoReturn:
    while True:
        client.sendall(ASK * 100)


def test_who_reads_slowly_gets_all_of_it(server: _Server) -> None:
    """Longer than a stranger may stay: it is one, for its request has been answered."""
    with server.connect() as client:
        client.sendall(ASK)
        total, pause = 0, threading.Event()
        while total < SIZE:
            piece = client.recv(1 << 16)
            assert piece, f"the connection ended after {total:,} bytes"
            total += len(piece)
            pause.wait(len(piece) / 6e6)  # 6 MB a second: 2.8 s
