"""The front of a service: its file, its commands, and what a real haproxy makes of them."""

from __future__ import annotations

import asyncio
import datetime
import http.client
import http.server
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from brim.domain.services import HANGS_AFTER, Service, ServiceReplica, ServiceRules
from brim.errors import SpecError
from brim.host.process import birth_of
from brim.scheduler.front_certificate import FrontCertificate, check_certificate
from brim.scheduler.front_text import Slot, commands_for, counts_in, front_file, slots_in
from brim.scheduler.fronts import Front, check_free, end_front, haproxy_path
from brim.wire.listening import take_port
from brim.wire.probe import Probe
from e2e.running import free_port, until
from tiers import NEEDS_HAPROXY

A, B = ("127.0.0.1", 4000), ("127.0.0.1", 4001)
FREE = Slot("replica9", "127.0.0.1", 1, "maint")


def replica(place: tuple[str, int], state: str = "ready") -> ServiceReplica:
    return ServiceReplica(f"w-{place[1]}", *place, state)


def slot(place: tuple[str, int], state: str = "ready") -> Slot:
    return Slot(f"replica{place[1] - 3999}", *place, state)


# by name: (slots, replicas, addresses that were missed, commands)
CHANGES: dict[str, tuple[list[Slot], list[ServiceReplica], list[tuple[str, int]], list[str]]] = {
    "nothing": ([slot(A), FREE], [replica(A)], [], []),
    "one more": ([slot(A), FREE], [replica(A), replica(B)], [],
                 ["replica9 addr 127.0.0.1 port 4001", "replica9 state ready"]),
    "one leaves": ([slot(A)], [replica(A, "leaving")], [], ["replica1 state drain"]),
    "one has left": ([slot(A, "drain"), slot(B)], [replica(B)], [], ["replica1 state maint"]),
    "one has died": ([slot(A), slot(B)], [replica(B)], [], ["replica1 state maint"]),
    "one may come back": ([slot(A), slot(B)], [replica(B)], [A], []),
    "one that was to leave does not": ([slot(A, "drain")], [], [A], ["replica1 state maint"]),
    "one has come back": ([slot(A, "drain")], [replica(A)], [], ["replica1 state ready"]),
    "a stranger leaves": ([FREE], [replica(A, "leaving")], [], []),
    "no room": ([slot(A)], [replica(A), replica(B)], [], []),
    "one twice": ([slot(A), Slot("replica5", *A, "ready")], [replica(A)], [], ["replica5 state maint"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_front_is_told_of_each_change(name: str) -> None:
    slots, replicas, missed, expected = CHANGES[name]
    commands = commands_for(slots, replicas, missed=missed)
    told = [each.removeprefix("set server replicas/") for each in commands if "health" not in each]
    assert told == expected
    checked = {each for each in commands if "health" in each}
    assert {each.split()[0] for each in checked} <= {"enable", "disable"}
    for each in expected:
        name, _, state = each.partition(" state ")
        verb = "disable" if state == "drain" else "enable"
        assert not state or f"{verb} health replicas/{name}" in checked


@pytest.mark.parametrize(
    "answer", ["", "\n", "1\n# be_name\n", "# pxname,svname\n", "Unknown command"]
)
def test_no_answer_says_nothing(answer: str) -> None:
    assert slots_in(answer) == []
    assert counts_in(answer) is None


@NEEDS_HAPROXY
@pytest.mark.parametrize("health", ["", "/healthz", "/a?b=c&d=%20,~;@x"])
def test_haproxy_takes_the_file(health: str, tmp_path: Path) -> None:
    service = Service(port=8000, maximum=40, per_replica=1.0, health=health)
    text = front_file(service, user="nobody" if os.geteuid() == 0 else "", group="nogroup").replace(
        "group nobody", "group nogroup"
    )
    (tmp_path / "front.cfg").write_text(text)
    with take_port("127.0.0.1") as listener:
        done = subprocess.run(
            [haproxy_path(), "-c", "-f", "front.cfg"],
            cwd=tmp_path,
            env={**os.environ, "BRIM_FRONT": str(listener.fileno())},
            pass_fds=(listener.fileno(),),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert "server-template replica 1-80 " in text
    assert ("uri " in text) is bool(health)


def test_missing_haproxy_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.scheduler.fronts._FOLDERS", "")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SpecError, match="apt-get install haproxy"):
        haproxy_path()


def test_port_in_use_is_refused() -> None:
    with take_port("127.0.0.1", free_port()) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SpecError, match="port: got") as caught:
            check_free("127.0.0.1", port, names_holder=True)
        assert f"process {os.getpid()}" in caught.value.got
        with pytest.raises(SpecError, match="port: got") as caught:
            check_free("127.0.0.1", port, names_holder=False)
        assert "process" not in caught.value.got, "of whom, tenants are not told"
    check_free("127.0.0.1", port, names_holder=False)
    with pytest.raises(SpecError, match=r"services: address: got .* an address of this"):
        check_free("192.0.2.1", port, names_holder=False)


def test_pause_of_its_scheduler_ends_no_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question fails as a scheduler wakes up; only one that fails for seconds on end tells something."""
    now = 1000.0
    monkeypatch.setattr("brim.scheduler.fronts.monotonic", lambda: now)
    front = Front(tmp_path, Service(port=8000), address="127.0.0.1")
    monkeypatch.setattr(front, "_start", lambda: None)
    with subprocess.Popen(["sleep", "600"]) as process:
        contact = {"pid": process.pid, "birth": birth_of(process.pid), "listener": 3}
        (tmp_path / "front.json").write_text(json.dumps(contact))
        now = 2000.0
        assert asyncio.run(front.keep([])) is None
        now = 2004.0
        assert asyncio.run(front.keep([])) is None
        assert process.poll() is None
        now = 2006.0
        asyncio.run(front.keep([]))
        assert process.wait(60) == -signal.SIGKILL


class _Answering(http.server.BaseHTTPRequestHandler):
    pause: ClassVar[Callable[[http.server.BaseHTTPRequestHandler], None]] = staticmethod(
        lambda _: None
    )

    def do_GET(self) -> None:
        type(self).pause(self)
        body = str(self.connection.getsockname()[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[Callable[[], ServiceReplica]]:
    """Begin another server, as a replica that is ready."""
    servers = []

    def begin() -> ServiceReplica:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return replica(("127.0.0.1", server.server_address[1]))

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/")
        return int(connection.getresponse().read())
    finally:
        connection.close()


@NEEDS_HAPROXY
def test_busy_replica_keeps_its_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers one request at a time: no check meanwhile."""
    arrival = threading.Event()

    def pause(handler: http.server.BaseHTTPRequestHandler) -> None:
        if handler.path == "/":
            arrival.set()
            time.sleep(6.0)

    monkeypatch.setattr(_Answering, "pause", pause)
    service = Service(port=free_port(), maximum=1, per_replica=1.0, health="/healthz")
    front = Front(tmp_path / "front", service, address="127.0.0.1")
    with (
        http.server.HTTPServer(("127.0.0.1", 0), _Answering) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = ("127.0.0.1", server.server_address[1])

        async def keep() -> None:
            while await front.keep([replica(place)]) is None:
                await asyncio.sleep(0.02)

        try:
            asyncio.run(asyncio.wait_for(keep(), 60.0))
            answer = pool.submit(ask, service.port)
            assert arrival.wait(60.0)
            probe = Probe(*place, "/healthz", timeout=HANGS_AFTER)
            assert answer.result(60.0) == place[1]
            until(lambda: probe.look() is not None, "an answer to the check")
            assert probe.outcome
        finally:
            asyncio.run(front.end())
            server.shutdown()


def write_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a certificate of this host, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    places = folder / f"{name}.crt", folder / f"{name}.key"
    places[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    places[1].write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
    places[1].chmod(0o600)
    return places


def rules_of(certificate: Path, key: Path | None) -> ServiceRules:
    return ServiceRules(certificate=str(certificate), key=str(key or ""))


def test_unfit_certificates_are_refused(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, "first")
    _, other_key = write_certificate(tmp_path, "other")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    check_certificate(rules_of(certificate, key))
    with pytest.raises(SpecError, match=r"services: certificate: .* which cannot be read: No such"):
        check_certificate(rules_of(tmp_path / "none.crt", key))
    with pytest.raises(SpecError, match=r"services: key: .* which cannot be read: No such file"):
        check_certificate(rules_of(certificate, tmp_path / "none.key"))
    with pytest.raises(SpecError, match=r"services: certificate: got files that do not fit"):
        check_certificate(rules_of(certificate, other_key))
    with pytest.raises(SpecError, match=r"services: key: .*need a file in PEM"):
        check_certificate(rules_of(certificate, pipe))
    with pytest.raises(
        SpecError, match=r"services: certificate: .* of mode 644.*no other can read"
    ):
        check_certificate(rules_of(certificate, None))  # its key would be in it
    key.chmod(0o644)
    with pytest.raises(SpecError, match=r"services: key: .* of mode 644.*\n.*chmod 600"):
        check_certificate(rules_of(certificate, key))
    with pytest.raises(SpecError, match=r"got .front\.pem., need a full path"):
        ServiceRules(certificate="front.pem")
    with pytest.raises(SpecError, match="services: key: got no certificate"):
        ServiceRules(key="/front.key")


class Renewed:
    """A front whose certificate changes, with a replica that keeps requests of `/slow` waiting."""

    def __init__(self, folder: Path, server: ServiceReplica, pem: Callable[[], bytes]) -> None:
        self.port = free_port()
        self._server = server
        self.arrival, self.release = threading.Event(), threading.Event()
        service = Service(port=self.port, maximum=1, per_replica=1.0)
        self.front = Front(folder, service, address="127.0.0.1", pem=pem, grace=60.0)

    def pause(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        if handler.path == "/slow":
            self.arrival.set()
            self.release.wait(120.0)

    def keep(self) -> None:
        """Keep it until it is well."""

        async def work() -> None:
            async with asyncio.timeout(60.0):
                while await self.front.keep([self._server]) is None:
                    await asyncio.sleep(0.02)

        asyncio.run(work())

    def is_known_by(self, certificate: Path) -> bool:
        """Whether a call gets this certificate: the process before may take some at its end."""
        try:
            return self.ask("/", certificate) == self._server.port
        except ssl.SSLError:
            return False

    def ask(self, path: str = "/", certificate: Path | None = None) -> int:
        connection = http.client.HTTPConnection("localhost", self.port, timeout=120)
        if certificate is not None:
            context = ssl.create_default_context(cafile=str(certificate))
            connection = http.client.HTTPSConnection(
                "localhost", self.port, timeout=120, context=context
            )
        try:
            connection.request("GET", path)
            return int(connection.getresponse().read())
        finally:
            connection.close()

    @property
    def processes(self) -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if child.name() == "haproxy"]


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, and perhaps waits for its parent to notice."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@NEEDS_HAPROXY
def test_front_takes_a_renewed_certificate(
    tmp_path: Path, answering: Callable[[], ServiceReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = write_certificate(tmp_path, "front")
    reader = FrontCertificate(lambda: rules_of(certificate, key))
    server = answering()
    renewed = Renewed(tmp_path / "front", server, reader.pem)
    monkeypatch.setattr(_Answering, "pause", renewed.pause)
    monkeypatch.setattr("brim.scheduler.fronts._TO_ANSWER", 60.0)
    try:
        renewed.keep()
        assert renewed.ask("/", certificate) == server.port
        assert (tmp_path / "front" / "front.pem").stat().st_mode & 0o777 == 0o600
        with ThreadPoolExecutor(1) as people:
            slow = people.submit(renewed.ask, "/slow", certificate)
            assert renewed.arrival.wait(60.0)
            write_certificate(tmp_path, "front")
            with pytest.raises(ssl.SSLCertVerificationError):
                renewed.ask("/", certificate)
            (old,) = renewed.processes
            renewed.keep()  # it sees the new one
            until(lambda: renewed.is_known_by(certificate), "a call with the new one")
            assert len(renewed.processes) == 2
            renewed.release.set()
            assert slow.result(60.0) == server.port, "it was under way, and is answered"
        until(lambda: has_ended(old), "the end of the old one")
        renewed.keep()
        assert [process.pid for process in renewed.processes] != [old.pid]
        assert len(renewed.processes) == 1
        key.chmod(0o644)
        renewed.keep()
        assert "of mode 644" in renewed.front.problem
        assert renewed.ask("/", certificate) == server.port, "it goes on with the one that it has"
    finally:
        renewed.release.set()
        asyncio.run(renewed.front.end())
    assert not renewed.processes


@NEEDS_HAPROXY
def test_front_without_a_successor_goes_on(
    tmp_path: Path, answering: Callable[[], ServiceReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """haproxy does not take a certificate; then it does, and a request outlives its grace."""
    certificate, key = write_certificate(tmp_path, "front")
    server, pem = answering(), b""
    renewed = Renewed(tmp_path / "front", server, lambda: pem)
    monkeypatch.setattr(_Answering, "pause", renewed.pause)
    monkeypatch.setattr("brim.scheduler.fronts._TO_ANSWER", 60.0)
    monkeypatch.setattr(renewed.front, "_grace", 0.3)
    monkeypatch.setattr("brim.scheduler.fronts._TO_RETRY", 3600.0)
    try:
        renewed.keep()
        (old,) = renewed.processes
        pem = b"nonsense"
        for _ in range(2):
            renewed.keep()
            assert renewed.front.problem
            assert renewed.processes == [old], "one attempt is enough"
        assert (tmp_path / "front" / "front.pem").read_bytes() == b""
        with ThreadPoolExecutor(1) as people:
            slow = people.submit(renewed.ask, "/slow")
            assert renewed.arrival.wait(60.0)
            pem = certificate.read_bytes() + key.read_bytes()
            renewed.keep()
            assert not renewed.front.problem
            until(lambda: renewed.is_known_by(certificate), "a call with the certificate")
            with pytest.raises(ConnectionError):
                slow.result(60.0)
        until(lambda: has_ended(old), "the end of the old one")
    finally:
        renewed.release.set()
        asyncio.run(renewed.front.end())


@NEEDS_HAPROXY
def test_next_scheduler_goes_on_with_the_front(
    tmp_path: Path, answering: Callable[[], ServiceReplica]
) -> None:
    """Its process and its replicas stay; where it is killed, requests wait for the next one."""
    # A path that is longer than the kernel takes for a socket.
    folder = tmp_path / ("a" * 60) / ("b" * 60)
    port = free_port()
    service = Service(port=port, maximum=2, per_replica=1.0)

    def keep(front: Front, *replicas: ServiceReplica) -> int:
        async def until_it_answers() -> int:
            while True:
                counts = await front.keep(replicas)
                if counts is not None:
                    return counts.requests
                await asyncio.sleep(0.02)

        return asyncio.run(until_it_answers())

    front, later = (Front(folder, service, address=f"127.0.0.{host}") for host in (1, 2))
    first, second = answering(), answering()
    try:
        keep(front, first)
        assert ask(port) == first.port
        assert (folder / "front.sock").stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        (pid,) = [
            process.pid for process in psutil.Process().children() if process.name() == "haproxy"
        ]
        front.close()
        count = keep(later, second)
        assert count >= 1, "it goes on counting"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger:
            stranger.sendall(b"nonsense\r\n\r\n")
            assert stranger.recv(100).startswith(b"HTTP/1.1 400")
        assert keep(later, second) == count, "what is no request is no load"
        assert later.address == "127.0.0.1", "it listens where it did"
        ports = set[int]()  # each call goes to either of them, by chance

        def has_asked_both() -> bool:
            ports.add(ask(port))
            return ports == {first.port, second.port}

        until(has_asked_both, "calls to both: the first may come back")
        keep(later, second, first._replace(state="leaving"))
        assert {ask(port) for _ in range(8)} == {second.port}
        os.kill(pid, signal.SIGKILL)
        until(lambda: not front.is_alive, "its end")
        waiting = threading.Thread(target=ask, args=(port,))
        waiting.start()
        keep(later, second)
        waiting.join(60)
        assert not waiting.is_alive()
    finally:
        asyncio.run(later.end())
        asyncio.run(front.end())
        asyncio.run(end_front(folder, forget=True))
    assert not folder.exists()
