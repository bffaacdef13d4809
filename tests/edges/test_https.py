"""The scheduler's API for other hosts: its callers, its tokens, and its room for connections; by
real sockets and real certificates.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from attempts import check_page
from brim.backends.authority import AUTHORITY, authority_of
from brim.cli.__main__ import cli
from brim.client import Client
from brim.errors import BrimError, EnvironmentFault, SpecError
from brim.scheduler.audit import AUDIT
from brim.scheduler.keys import Keys
from brim.scheduler.server import certificate_for
from brim.storage.contact import keep_token, read_scheduler_contact, token_of
from brim.wire import https
from brim.wire.authority import Authority
from brim.wire.door import Door
from brim.wire.https import INSECURE, scheduler_url
from brim.wire.identity import (
    SCHEDULER,
    Identity,
    client_context,
    open_context,
    server_name,
    split_token,
    token_with,
)
from brim.wire.renewed import RenewedCertificate
from e2e.running import until
from edges.test_identity import TlsServer
from edges.test_scheduler import Served

HOST = "127.0.0.1"
CROWD = 500
ASK = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"


class Encrypted(Served):
    """A scheduler that shows a certificate on loopback, too."""

    def certificate(self) -> RenewedCertificate:
        return RenewedCertificate(self.authority, SCHEDULER, addresses=(HOST, "localhost"))

    @property
    def port(self) -> int:
        contact = read_scheduler_contact(self.folder)
        assert contact is not None
        return contact.port

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    @property
    def token(self) -> str:
        return token_of(self.folder)

    def call(self, source: str = HOST) -> socket.socket:
        return socket.create_connection((HOST, self.port), 30.0, source_address=(source, 0))

    def shake_hands(self) -> ssl.SSLSocket:
        context = client_context(self.authority.certificate)
        return context.wrap_socket(self.call(), server_hostname=server_name(SCHEDULER))


@pytest.fixture
def served(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Encrypted]:
    monkeypatch.setattr(https, "_authorities", {})
    served = Encrypted(tmp_path_factory.mktemp("state"))
    yield served
    served.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next scheduler give strangers more time than any of this takes."""
    monkeypatch.setattr("brim.scheduler.server.Door", partial(Door, to_show_token=60.0))


@pytest.fixture
def room() -> Iterator[None]:
    """Descriptors for both ends of a crowd."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * CROWD), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Clients that may come in ------------------------------------------------------------------------


def test_https_answers_directory_and_token_holders(served: Encrypted) -> None:
    assert served.client.address == served.url
    assert served.client.cluster().devices == 8
    for address in (served.url, f"https://localhost:{served.port}"):
        assert Client(address=address, token=served.token).cluster().devices == 8
    ads = Client(address=served.url, token=served.client.give_token("ads"))
    assert ads.jobs() == []
    with pytest.raises(SpecError, match="may not"):
        ads.give_token("web")
    with pytest.raises(EnvironmentFault, match="wrong or missing token"):
        Client(address=served.url, token=token_with("0" * 32, split_token(served.token)[1])).jobs()


def test_plain_http_clients_are_told_of_https(served: Encrypted) -> None:
    with pytest.raises(EnvironmentFault, match=f"or is it {served.url}[?]"):
        Client(address=f"http://{HOST}:{served.port}", token=served.token).cluster()


def test_verbs_ask_it(served: Encrypted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_SERVER", "")
    monkeypatch.setenv("BRIM_HOME", str(tmp_path))
    issued = CliRunner().invoke(
        cli, ["token", "ads", "--state", str(served.folder), "--output", str(tmp_path / "ads")]
    )
    assert issued.exit_code == 0, issued.output
    assert f"BRIM_SERVER={served.url}" in issued.stderr
    monkeypatch.setenv("BRIM_TOKEN_FILE", str(tmp_path / "ads"))
    done = CliRunner().invoke(cli, ["--server", served.url, "nodes", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["nodes"]


def test_the_authority_verifies_calls_by_address(served: Encrypted) -> None:
    """As curl --cacert does; the name in the certificate is then that of the host."""
    context = ssl.create_default_context(cadata=served.authority.certificate.decode())
    for name in (HOST, "localhost"):
        with contextlib.closing(
            http.client.HTTPSConnection(name, served.port, timeout=30.0, context=context)
        ) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"


def test_proxies_are_verified_by_host_certificates(
    served: Encrypted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = split_token(served.token)[0]
    with pytest.raises(
        EnvironmentFault, match=r"has no fingerprint.*\n.*brim token TENANT"
    ) as caught:
        Client(address=served.url, token=secret).cluster()
    assert not caught.value.retryable
    (tmp_path / "roots.pem").write_bytes(served.authority.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
    assert Client(address=served.url, token=secret).cluster().devices == 8


def test_a_moved_scheduler_is_found_by_directory(
    served: Encrypted,
) -> None:
    contact = read_scheduler_contact(served.folder)
    assert contact is not None
    assert contact.authority.encode() == served.authority.certificate
    assert b"PRIVATE" not in (served.folder / "scheduler.json").read_bytes()


# Servers that are not the one --------------------------------------------------------------------


def false_identity(authority: Authority, kind: str) -> Identity:
    own_identity = authority.issue(SCHEDULER)
    if kind == "another authority":
        return Authority.make("cluster").issue(SCHEDULER)
    if kind == "its authority, and no key of it":
        false = Authority.make("cluster").issue(SCHEDULER)
        return Identity(false.key, false.certificate, own_identity.authority)
    if kind == "an expired certificate":
        return authority.issue(SCHEDULER, for_s=-1.0)
    assert kind == "a node's certificate"
    return authority.issue("node", "n1")


FALSE = (
    "another authority",
    "its authority, and no key of it",
    "an expired certificate",
    "a node's certificate",
)


@contextlib.contextmanager
def false_server(authority: Authority, kind: str) -> Iterator[tuple[int, bytearray]]:
    """One in the place of a scheduler, and all that it hears."""
    received = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1000):
                received.extend(data)
        writer.close()

    with TlsServer(open_context(false_identity(authority, kind)), listen) as server:
        yield server.port, received


def fault_of(port: int, token: str) -> EnvironmentFault:
    with pytest.raises(EnvironmentFault) as fault:
        Client(address=f"https://{HOST}:{port}", token=token).cluster()
    return fault.value


@pytest.mark.parametrize("kind", FALSE)
def test_impostor_of_the_scheduler_gets_no_token(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https, "_authorities", {})
    authority = Authority.make("cluster")
    with false_server(authority, kind) as (port, received):
        fault = fault_of(port, token_with("5ec7e7", authority.fingerprint))
        assert "is not" in str(fault)
        assert ("are the clocks of both hosts right?" in str(fault)) == ("expired" in kind)
        assert not fault.retryable
        fault = fault_of(port, "5ec7e7")
        assert "nothing tells" in str(fault)
    assert not received


def test_no_token_goes_to_a_server_without_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(https, "_authorities", {})
    received = bytearray()
    listener = socket.create_server((HOST, 0))

    def listen() -> None:
        for _ in range(2):
            line, _ = listener.accept()
            with line:
                received.extend(line.recv(4000))
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=listen)
    thread.start()
    with listener:
        port = listener.getsockname()[1]
        for token in (token_with("5ec7e7", "a" * 32), "5ec7e7"):
            fault = fault_of(port, token)
            assert "does not speak HTTPS" in str(fault)
            assert not fault.retryable
        thread.join(10.0)
    assert b"5ec7e7" not in received


# What an address says ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://10.0.0.7:4000/", "https://10.0.0.7:4000"),
        ("HTTPS://host:1", "https://host:1"),
        ("host:1", "https://host:1"),
        ("[fd00::1]:8080", "https://[fd00::1]:8080"),
        ("https://[fd00::1]:8080", "https://[fd00::1]:8080"),
        ("127.0.0.1:4000", "http://127.0.0.1:4000"),
        ("https://127.0.0.1:4000", "https://127.0.0.1:4000"),
        ("http://localhost:4000", "http://localhost:4000"),
        ("[::1]:4000", "http://[::1]:4000"),
    ],
)
def test_servers_are_named_by_url_or_address(text: str, url: str) -> None:
    assert scheduler_url(text, field="--server") == url
    assert scheduler_url(url, field="--server") == url


@pytest.mark.parametrize(
    "text", ["host", "ftp://host:1", "https://host:1/x", "host:99999", "a@b:1", "a b:1"]
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--server"):
        scheduler_url(text, field="--server")


@pytest.mark.parametrize("host", ["10.0.0.7", "host", "[fd00::1]", "127.0.0.1.nip.io"])
def test_plain_http_to_other_hosts_needs_explicit_consent(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://{host}:4000"
    with pytest.raises(SpecError, match=rf"need an https:// address\n.*{INSECURE}=1"):
        Client(address=url, token="t")
    monkeypatch.setenv("BRIM_SERVER", url)
    with pytest.raises(SpecError, match="BRIM_SERVER"):
        Client()
    monkeypatch.setenv(INSECURE, "1")
    assert scheduler_url(url, field="--server") == url


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
def test_insecure_is_for_other_hosts(listen: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli, ["up", "--listen", listen, "--insecure", "--state", str(tmp_path)]
    )
    assert done.exit_code == 2
    assert "--insecure: got --listen" in done.stderr
    assert not (tmp_path / "scheduler.db").exists()


def test_only_what_other_hosts_reach_is_encrypted() -> None:
    authority = Authority.make("cluster")
    with socket.create_server((HOST, 0)) as listener:
        assert certificate_for(listener, authority, named=HOST) is None


# Tokens of before --------------------------------------------------------------------------------


def test_an_older_token_gains_the_fingerprint(tmp_path: Path) -> None:
    authority = Authority.make("cluster")
    keep_token(tmp_path, "0ld")
    keys = Keys(tmp_path, authority.fingerprint, tenants=lambda: ["ads"])
    assert keys.administrator == token_of(tmp_path) == token_with("0ld", authority.fingerprint)
    other_fingerprint = Authority.make("cluster").fingerprint
    for token in ("0ld", keys.administrator, token_with("0ld", other_fingerprint)):
        caller = keys.caller(f"Bearer {token}", origin="here")
        assert caller is not None
        assert caller.tenant is None
    for wrong in ("", f".{authority.fingerprint}", authority.fingerprint, "0ld.x", "0l", "0ld."):
        assert keys.caller(f"Bearer {wrong}", origin="here") is None
    next_keys = Keys(tmp_path, other_fingerprint, tenants=lambda: ["ads"])
    assert next_keys.administrator == token_with("0ld", other_fingerprint)
    next_token = next_keys.give("ads")
    assert next_token.endswith(f".{other_fingerprint}")
    assert next_keys.caller(f"Bearer {split_token(next_token)[0]}", origin="here") is not None
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0


def test_a_secret_with_dots_is_compared_whole(tmp_path: Path) -> None:
    keep_token(tmp_path, "my.own.secret")
    fingerprint = Authority.make("cluster").fingerprint
    keys = Keys(tmp_path, fingerprint, tenants=list)
    for token in ("my.own.secret", f"my.own.secret.{fingerprint}"):
        assert keys.caller(f"Bearer {token}", origin="here") is not None
    for token in ("my", "my.own", "my.own.other", f"my.own.{fingerprint}"):
        assert keys.caller(f"Bearer {token}", origin="here") is None


def test_a_state_directory_has_one_authority(tmp_path: Path) -> None:
    first = authority_of(tmp_path)
    assert authority_of(tmp_path).pem == first.pem
    assert (tmp_path / AUTHORITY).stat().st_mode & 0o077 == 0
    (tmp_path / AUTHORITY).write_bytes(first.certificate)
    with pytest.raises(EnvironmentFault, match="hint: restore"):
        authority_of(tmp_path)


# Strangers ---------------------------------------------------------------------------------------


def is_over(line: socket.socket) -> bool:
    """Whether the other end has closed a silent connection."""
    line.settimeout(0.0)
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except ssl.SSLWantReadError:
        return False
    except OSError:
        return True


def test_silent_crowd_locks_out_no_client(patient: None, served: Encrypted, room: None) -> None:
    with contextlib.ExitStack() as crowd:
        lines = [crowd.enter_context(served.call()) for _ in range(CROWD)]
        for _ in range(5):
            started = time.monotonic()
            assert Client(address=served.url, token=served.token).cluster().devices == 8
            assert time.monotonic() - started < 30.0
        until(lambda: sum(map(is_over, lines)) >= CROWD - 256, "the end of the oldest")
        assert not is_over(lines[-1]), "the youngest has time"


def test_silent_handshakes_lock_nobody_out(served: Encrypted, room: None) -> None:
    with contextlib.ExitStack() as crowd:
        lines = [crowd.enter_context(served.shake_hands()) for _ in range(300)]
        crowd.enter_context(served.call())
        assert Client(address=served.url, token=served.token).cluster().devices == 8
        for line in lines[:40]:
            line.settimeout(30.0)
            with contextlib.suppress(OSError):
                assert line.recv(1) == b""


def test_crowd_of_one_host_spares_callers_of_another(
    patient: None, served: Encrypted, room: None
) -> None:
    with contextlib.ExitStack() as crowd:
        callers_of_host = [
            crowd.enter_context(served.call()),
            crowd.enter_context(served.shake_hands()),
        ]
        lines = [crowd.enter_context(served.call("127.0.0.2")) for _ in range(300)]
        until(lambda: sum(map(is_over, lines)) >= 300 - 254, "the end of the oldest")
        assert not any(map(is_over, callers_of_host))


def test_headers_do_not_determine_the_origin(served: Encrypted) -> None:
    """A connection of which it did would be counted as without an owner."""
    with served.shake_hands() as line:
        line.sendall(
            f"POST /v1/jobs/none/cancel HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 10.9.8.7\r\n"
            f"Authorization: Bearer {served.token}\r\n\r\n".encode()
        )
        assert line.recv(100).split()[1] == b"404"
    audited = (served.folder / AUDIT).read_text()
    assert HOST in audited
    assert "10.9.8.7" not in audited


def hello() -> bytes:
    """The first words of a handshake."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="h").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("words", [b"", hello()], ids=["silent", "slow"])
def test_endless_handshake_is_cut_off(served: Encrypted, words: bytes) -> None:
    started = time.monotonic()
    with served.call() as slow:
        slow.settimeout(1.0)
        while time.monotonic() - started < 60.0:
            try:
                slow.sendall(words[:1])
                words = words[1:]
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
    assert 5.0 < time.monotonic() - started < 30.0


def test_an_end_waits_for_no_stranger(patient: None, tmp_path: Path) -> None:
    served = Encrypted(tmp_path)
    with served.call(), served.call() as half, served.shake_hands() as silent:
        half.sendall(hello()[:20])
        with served.shake_hands() as connection:
            connection.sendall(ASK)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            started = time.monotonic()
            served.close()
            assert time.monotonic() - started < 30.0
        assert silent.fileno() >= 0


# Renewal -----------------------------------------------------------------------------------------


class Answering:
    """A server of asyncio that shows a certificate as long as it runs."""

    def __init__(self, certificate: RenewedCertificate) -> None:
        self._certificate = certificate

    @contextlib.contextmanager
    def up(self) -> Iterator[TlsServer]:
        keeping: list[asyncio.Task[None]] = []

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not keeping:
                keeping.append(asyncio.create_task(self._certificate.keep()))
            with contextlib.suppress(OSError):
                while data := await reader.read(100):
                    writer.write(data)
            writer.close()

        with TlsServer(self._certificate.context, echo) as server:
            try:
                yield server
            finally:
                for task in keeping:
                    server._loop.call_soon_threadsafe(task.cancel)


def secured(port: int, authority: Authority) -> ssl.SSLSocket:
    line = socket.create_connection((HOST, port), timeout=30.0)
    return client_context(authority.certificate).wrap_socket(
        line, server_hostname=server_name(SCHEDULER)
    )


def test_certificate_renewal_keeps_connections() -> None:
    authority, passed = Authority.make("cluster"), 0.0
    certificate = RenewedCertificate(
        authority, SCHEDULER, lifetime=20.0, now=lambda: time.time() + passed
    )
    with Answering(certificate).up() as server, secured(server.port, authority) as first:
        seen = set[bytes | None]()

        def is_another() -> bool:
            before = len(seen)
            with secured(server.port, authority) as second_connection:
                seen.add(second_connection.getpeercert(binary_form=True))
            return len(seen) > before

        assert is_another()
        for _ in range(2):  # each is replaced after half of its life
            passed += 10.0
            until(is_another, "the next one")
        first.sendall(b"still here")
        assert first.recv(100) == b"still here"


LIFETIME = 12.0  # seconds: a busy machine is late with a renewal by less than half of them


class ShortLived(Encrypted):
    def certificate(self) -> RenewedCertificate:
        return RenewedCertificate(self.authority, SCHEDULER, lifetime=LIFETIME)


def test_a_scheduler_outlives_its_certificate(tmp_path: Path) -> None:
    served = ShortLived(tmp_path)
    try:
        with served.shake_hands() as first:
            shown_first = first.getpeercert(binary_form=True)
        end = time.monotonic() + LIFETIME

        def is_later() -> bool:
            return time.monotonic() > end and served.client.cluster().devices == 8

        until(is_later, "a call after the first certificate's end")
        with served.shake_hands() as second:
            assert second.getpeercert(binary_form=True) != shown_first
    finally:
        served.close()


def test_a_certificate_that_is_not_renewed_is_refused() -> None:
    authority, lifetime = Authority.make("cluster"), 1.0

    def long_ago() -> float:
        return 0.0  # so it never looks old

    certificate = RenewedCertificate(authority, SCHEDULER, lifetime=lifetime, now=long_ago)
    with Answering(certificate).up() as server:

        def is_refused() -> bool:
            try:
                secured(server.port, authority).close()
            except ssl.SSLCertVerificationError as error:
                return "expired" in error.verify_message
            return False

        until(is_refused, "its end")


def test_a_clock_that_was_set_renews_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [1e9], [0]

    def tell() -> float:
        looks[0] += 1
        return now[0]

    authority = Authority.make("cluster")
    certificate = RenewedCertificate(authority, SCHEDULER, lifetime=20.0, now=tell)
    issued: list[float] = []
    renew = certificate._renew

    def noted() -> None:
        issued.append(now[0])
        renew()

    monkeypatch.setattr(certificate, "_renew", noted)

    async def live() -> None:
        keeping = asyncio.create_task(certificate.keep())
        for moment, times in ((1e9 + 9.0, 0), (1e9 + 11.0, 1), (1e9 - 1e6, 2)):
            now[0], until_looks = moment, looks[0] + 5
            async with asyncio.timeout(10.0):
                while len(issued) < times or looks[0] < until_looks:
                    await asyncio.sleep(0.01)
            assert len(issued) == times
        keeping.cancel()

    asyncio.run(live())


# The page of attempts ----------------------------------------------------------------------------


def answer_to(served: Encrypted, token: str) -> str:
    with served.shake_hands() as line:
        words = f"Authorization: Bearer {token}\r\n" if token else ""
        line.sendall(f"GET /v1/jobs HTTP/1.1\r\nHost: h\r\n{words}\r\n".encode())
        return line.recv(100).split()[1].decode()


def in_plain_text(served: Encrypted) -> str:
    with served.call() as line:
        line.sendall(
            f"GET /v1/jobs HTTP/1.1\r\nAuthorization: Bearer {served.token}\r\n\r\n".encode()
        )
        with contextlib.suppress(ConnectionError):
            return "answered" if b"HTTP" in line.recv(100) else "nothing"
        return "nothing"


def of_before(served: Encrypted) -> str:
    context = client_context(served.authority.certificate)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with served.call() as line, pytest.raises(ssl.SSLError):
        context.wrap_socket(line, server_hostname=server_name(SCHEDULER))
    return "refused"


def overheard(served: Encrypted) -> str:
    """The messages that pass on the way of a client that is answered."""
    seen = bytearray()
    with socket.create_server((HOST, 0)) as relay_server:

        def carry(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    seen.extend(data)
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        def relay() -> None:
            for _ in range(2):  # one looks for the authority
                near_end, far = relay_server.accept()[0], served.call()
                ways = [
                    threading.Thread(target=carry, args=ends)
                    for ends in ((near_end, far), (far, near_end))
                ]
                for way in ways:
                    way.start()
                for way in ways:
                    way.join(10.0)
                near_end.close()
                far.close()

        relaying = threading.Thread(target=relay)
        relaying.start()
        client = Client(
            address=f"https://{HOST}:{relay_server.getsockname()[1]}", token=served.token
        )
        assert client.cluster().devices == 8
        relaying.join(10.0)
    assert len(seen) > 1000
    return (
        "token" if split_token(served.token)[0].encode() in seen or b"/v1/" in seen else "nothing"
    )


def heard_by(authority: Authority, kind: str) -> str:
    with false_server(authority, kind) as (port, received):
        fault_of(port, token_with("5ec7e7", authority.fingerprint))
    return "token" if received else "nothing"


def crowded(served: Encrypted) -> str:
    with contextlib.ExitStack() as crowd:
        for _ in range(CROWD):
            crowd.enter_context(served.call())
        try:
            Client(address=served.url, token=served.token).cluster()
        except BrimError as error:
            return str(error)
    return "clients are answered"


def test_attempts_of_a_tokenless_host_achieve_nothing(served: Encrypted, room: None) -> None:
    fingerprint = split_token(served.token)[1]
    asks: dict[str, Callable[[], str]] = {
        "ask without a token": lambda: answer_to(served, ""),
        "ask with a wrong token": lambda: answer_to(served, token_with("0" * 32, fingerprint)),
        "ask with the fingerprint alone": lambda: answer_to(served, f".{fingerprint}"),
        "ask with the right token": lambda: answer_to(served, served.token),
        "ask in plain HTTP, with the right token": lambda: in_plain_text(served),
        "ask by TLS 1.2": lambda: of_before(served),
        f"open {CROWD} connections, and say nothing": lambda: crowded(served),
        "read what passes by": lambda: overheard(served),
    }
    asks |= {
        f"be called in its place, with {kind}": lambda kind=kind: heard_by(  # type: ignore[misc]
            served.authority, kind
        )
        for kind in FALSE
    }
    found = {tried: ask() for tried, ask in asks.items()}
    rows = ["| tried by another host | it got |", "|---|---|"]
    table = "\n".join([*rows, *(f"| {tried} | {result} |" for tried, result in found.items())])
    check_page(Path(__file__).with_name("attempts_over_https.md"), table)
    assert os.environ.get(INSECURE) is None
