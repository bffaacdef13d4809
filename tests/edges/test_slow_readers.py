"""Clients that do not read their answers are cut off, and slow readers get all; by real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from brim.wire.authority import Authority
from brim.wire.door import Door, answering
from brim.wire.identity import SCHEDULER, client_context, open_context, server_name
from brim.wire.listening import listen_on
from e2e.running import until

SIZE = 16 << 20  # bytes of an answer: more than the kernel keeps
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
DEADLINE = 60.0


class _Server:
    """Answers every request by as many bytes as its path says: SIZE, if it says nothing."""

    def __init__(self, door: Door, *, encrypted: bool) -> None:
        self.under_way = 0
        self._listener = listen_on("127.0.0.1", 0, backlog=8, hint="")
        self.port: int = self._listener.getsockname()[1]
        self._authority = Authority.make("cluster") if encrypted else None
        self._door, self._is_over = door, threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        context = open_context(self._authority.issue(SCHEDULER)) if self._authority else None
        async with answering(
            self._answer, self._listener, self._door, context=context, to_end=2 * int(DEADLINE)
        ):
            await asyncio.to_thread(self._is_over.wait)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self._door.admit(scope["client"], "", all_room=True)
        self.under_way += 1
        size = int(scope["path"][1:] or SIZE)
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-length", b"%d" % size)],
                }
            )
            await send({"type": "http.response.body", "body": bytes(size)})
        finally:
            self.under_way -= 1

    def end(self) -> None:
        self._is_over.set()
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()

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
    found = _Server(Door(to_show_token=4.0, to_read=4.0), encrypted=request.param)
    found.thread.start()
    try:
        yield found
    finally:
        found.end()


def test_client_that_never_reads_is_cut_off(server: _Server) -> None:
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
        assert _read(client, slowly=SIZE, rate=3e6) == SIZE  # 5.6 s


def test_slow_reader_gets_the_whole_answer(server: _Server) -> None:
    """Although the server has written all of it long before, and closed the connection."""
    with server.connect() as client:
        client.sendall(LAST % SIZE)
        assert _read(client, slowly=4 << 20, rate=0.8e6) == SIZE


def _read(client: socket.socket, *, slowly: int, rate: float) -> int:
    """Read an answer of SIZE, of the last of it so many bytes a second; return how many came."""
    head, pause, total = b"", threading.Event(), 0
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    while total < SIZE:
        piece = client.recv(1 << 16)
        if not piece:
            break
        total += len(piece)
        pause.wait(len(piece) / rate if total > SIZE - slowly else 0.0)
    return total


def test_shutdown_ignores_stalled_readers(server: _Server) -> None:
    """The server closes a closed connection then: asyncio's TLS is deaf to an abort."""
    with server.connect() as client:
        client.sendall(LAST % 300_000)
        until(lambda: client.recv(1) == b"H", "the answer")
        server.end()
