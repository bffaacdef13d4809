"""Strangers without a token can fill neither the scheduler's connections, nor its memory, nor its
log; by real sockets.
"""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from brim.client import Client
from brim.domain.cluster import Cluster, ClusterSpec
from brim.scheduler.loop import CLUSTER
from brim.storage.contact import SchedulerContact, read_scheduler_contact
from brim.storage.database import Database
from e2e.running import until

MANY = 1500
DESCRIPTORS = 1024
_SMALL = 64 << 10  # bytes that a log may grow by


class LoneServer(NamedTuple):
    """A scheduler in a process of its own, without jobs."""

    state: Path
    process: subprocess.Popen[bytes]
    contact: SchedulerContact

    @property
    def log(self) -> Path:
        return self.state / "scheduler.log"

    def call(self) -> socket.socket:
        return socket.create_connection((self.contact.host, self.contact.port), timeout=30.0)

    @property
    def resident_bytes(self) -> int:
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * resource.getpagesize()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneServer]:
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    database = Database(state / "scheduler.db")
    database.put(CLUSTER, msgspec.json.encode(ClusterSpec(cluster=Cluster.parse("1x1"))))
    database.close()
    with (state / "scheduler.log").open("wb") as log:
        process = subprocess.Popen(
            f'ulimit -n {DESCRIPTORS}; exec "{sys.executable}" -m brim.backends.up "{state}"',
            shell=True,
            stdout=log,
            stderr=log,
        )
    until(lambda: read_scheduler_contact(state) is not None, "the scheduler")
    contact = read_scheduler_contact(state)
    assert contact is not None
    yield LoneServer(state, process, contact)
    with contextlib.suppress(Exception):
        Client(state).down()
    try:
        process.wait(timeout=300.0)
    finally:
        process.kill()


@pytest.fixture
def room() -> Iterator[None]:
    """Descriptors for the crowd."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * MANY), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_lock_nobody_out(server: LoneServer, room: None) -> None:
    size_before = server.log.stat().st_size
    with contextlib.ExitStack() as crowd:
        for _ in range(MANY):
            crowd.enter_context(server.call())
        for _ in range(20):
            started = time.monotonic()
            assert Client(server.state).cluster().devices == 1
            assert time.monotonic() - started < 10.0, "sooner than the silent are sent away"
        descriptors = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        assert descriptors < DESCRIPTORS / 2
    assert server.log.stat().st_size - size_before < _SMALL


@pytest.mark.parametrize(
    "words", [b"", b"GET /v1/jobs HTTP/1.1\r\nHost: h\r\nX: "], ids=["silent", "headers"]
)
def test_endless_request_is_cut_off(server: LoneServer, words: bytes) -> None:
    """Also one that sends a byte of a header from time to time."""
    started = time.monotonic()
    with server.call() as slow:
        slow.settimeout(1.0)
        while time.monotonic() - started < 60.0:
            try:
                if words:
                    slow.sendall(words)
                    words = b"x"
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert 5.0 < time.monotonic() - started < 30.0


def test_a_body_is_not_read_before_the_token(server: LoneServer) -> None:
    bytes_before = server.resident_bytes
    with contextlib.ExitStack() as calls:
        for _ in range(6):
            caller = calls.enter_context(server.call())
            head = "POST /v1/jobs HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer wrong\r\n"
            caller.sendall(f"{head}Content-Length: {500 << 20}\r\n\r\n".encode())
            with contextlib.suppress(ConnectionError):
                for _ in range(50):
                    caller.sendall(bytes(1 << 20))
            with contextlib.suppress(ConnectionError):
                assert b" 401 " in caller.recv(1000)
        assert server.resident_bytes - bytes_before < 16 << 20


def test_body_of_an_authorized_request_is_bounded(server: LoneServer) -> None:
    connection = http.client.HTTPConnection(server.contact.host, server.contact.port, timeout=30.0)
    connection.putrequest("POST", "/v1/jobs")
    connection.putheader("Authorization", f"Bearer {server.contact.token}")
    connection.putheader("Content-Length", str(13 << 20))
    connection.endheaders()
    with contextlib.suppress(ConnectionError):
        for _ in range(13):
            connection.send(bytes(1 << 20))
    answer = connection.getresponse()
    assert answer.status == http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert b"larger than" in answer.read()
    connection.close()


def test_headers_without_end_are_refused(server: LoneServer) -> None:
    with server.call() as caller:
        with contextlib.suppress(ConnectionError):  # it may be refused before its end
            caller.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: h\r\nX: " + b"x" * (64 << 10))
        assert b" 400 " in caller.recv(1000)


def test_nonsense_is_told_once_a_minute(server: LoneServer) -> None:
    size_before = server.log.stat().st_size
    for _ in range(300):
        with server.call() as caller:
            caller.sendall(b"\x16\x03\x01 no http\r\n\r\n")
            assert b" 400 " in caller.recv(1000)
    assert server.log.stat().st_size - size_before < _SMALL / 16


def test_callers_leaving_within_a_body_are_harmless(server: LoneServer) -> None:
    size_before = server.log.stat().st_size
    with server.call() as caller:
        head = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {server.contact.token}\r\n"
        )
        caller.sendall(f"{head}Content-Length: 100\r\n\r\nhalf".encode())
    assert Client(server.state).cluster().devices == 1
    assert server.log.stat().st_size == size_before
