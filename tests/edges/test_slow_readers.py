"""Who does not read what they asked for is sent away, and who reads slowly gets it all; by real
sockets.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import uvicorn

from brim.wire.door import Door, protocol_behind
from brim.wire.listening import listen_on
from e2e.running import until

SIZE = 16 << 20  # bytes of an answer: more than the kernel keeps
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
DEADLINE = 60.0


class _Server:
    """Answers every request by SIZE bytes."""

    def __init__(self, door: Door) -> None:
        self.under_way = 0
        self._listener = listen_on("127.0.0.1", 0, backlog=8, hint="")
        self.port: int = self._listener.getsockname()[1]
        config = uvicorn.Config(
            self._answer,
            http=protocol_behind(door),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_level="error",
        )
        self.server, self._door = uvicorn.Server(config), door

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
        self.server.run(sockets=[self._listener])

    def connect(self) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.settimeout(DEADLINE)
        client.connect(("127.0.0.1", self.port))
        return client


@pytest.fixture
def server() -> Iterator[_Server]:
    found = _Server(Door(to_show_token=1.0, to_read=0.5))
    thread = threading.Thread(target=found.run)
    thread.start()
    try:
        yield found
    finally:
        found.server.should_exit = True
        thread.join(DEADLINE)


def test_who_asks_again_and_again_and_reads_nothing_is_sent_away(server: _Server) -> None:
    with server.connect() as client, pytest.raises(ConnectionError):
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
            pause.wait(0.01)  # some 6 MB a second: 2.5 s
