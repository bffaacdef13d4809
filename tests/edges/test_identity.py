"""Admission by a certificate, and how a host that has a token gets one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import grpc
import pytest

from brim.errors import EnvironmentFault, ProtocolError
from brim.wire import enrolment
from brim.wire.authority import Authority, requested
from brim.wire.enrolment import EnrolmentServer, enrol
from brim.wire.identity import (
    RENEW_AFTER,
    Identity,
    NotTheAuthority,
    Subject,
    authority_at,
    client_context,
    grpc_credentials,
    grpc_options,
    server_context,
    server_name,
    subject_of,
    token_with,
)
from brim.wire.run_identity import MASTER, WORKER, RunIdentity, stranger_of

SECRET = "8c1f"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def say_who(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Tell a caller its identity."""
    subject = subject_of(writer.get_extra_info("ssl_object"))
    writer.write(b"a stranger" if subject is None else subject.uri.encode())
    await writer.drain()
    writer.close()


class TlsServer:
    """A plain server of asyncio in a thread."""

    def __init__(self, context: ssl.SSLContext, answer: Answer) -> None:
        self._context, self._answer = context, answer
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._transports: list[asyncio.WriteTransport] = []
        self._up, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        self._loop.set_exception_handler(lambda *_: None)  # strangers end connections as they like
        server = await asyncio.start_server(self._serve, sock=self._listener, ssl=self._context)
        self._up.set()
        await self._over.wait()
        server.close()
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0.02)  # so that they have ended before the loop does

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.append(writer.transport)
        await self._answer(reader, writer)

    def __enter__(self) -> TlsServer:
        self._thread.start()
        assert self._up.wait(60.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10.0)
        self._loop.close()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make("run/flights-1")


@pytest.fixture
def enrolling(authority: Authority) -> Iterator[TlsServer]:
    server = EnrolmentServer(authority, secret=SECRET, role="agent")
    context = server_context(authority.issue("master"), with_strangers=True)
    with TlsServer(context, server.answer) as up:
        yield up


def answer_to(port: int, context: ssl.SSLContext, *, role: str = "master") -> bytes:
    """The answer of `say_who` to a caller."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60.0) as line,
        context.wrap_socket(line, server_hostname=server_name(role)) as call,
    ):
        return b"".join(iter(lambda: call.recv(256), b""))


def is_refused(port: int, context: ssl.SSLContext) -> bool:
    """Whether a caller is told nothing: it is sent an alert, or the connection just ends."""
    try:
        return answer_to(port, context) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def joining(port: int, token: str, *, name: str = "h2", server: str = "master") -> Identity:
    return enrol("127.0.0.1", port, token, server=server, name=name, timeout=60.0)


def test_each_end_knows_the_other(authority: Authority) -> None:
    with TlsServer(server_context(authority.issue("master")), say_who) as server:
        caller = authority.issue("agent", "host 2")
        answer = answer_to(server.port, client_context(authority.certificate, caller))
    assert Subject.from_uri(answer.decode()) == Subject("run/flights-1", "agent", "host 2")


def other_authority(authority: Authority) -> Identity:
    """One that calls itself as this one does."""
    stranger = Authority.make(authority.scope).issue("agent", "h2")
    return Identity(stranger.key, stranger.certificate, authority.certificate)


CALLERS: dict[str, Callable[[Authority], Identity | None]] = {
    "none": lambda _: None,
    "another authority's": other_authority,
    "expired": lambda authority: authority.issue("agent", "h2", for_s=-1.0),
}


@pytest.mark.parametrize("kind", CALLERS)
def test_a_caller_without_a_good_certificate_is_refused(authority: Authority, kind: str) -> None:
    caller = CALLERS[kind](authority)
    with TlsServer(server_context(authority.issue("master")), say_who) as server:
        assert is_refused(server.port, client_context(authority.certificate, caller))
        good = client_context(authority.certificate, authority.issue("agent", "h2"))
        assert not is_refused(server.port, good)


def test_permitted_strangers_are_recognized(authority: Authority) -> None:
    context = server_context(authority.issue("master"), with_strangers=True)
    with TlsServer(context, say_who) as server:
        assert answer_to(server.port, client_context(authority.certificate)) == b"a stranger"
        for kind in ("another authority's", "expired"):
            caller = client_context(authority.certificate, CALLERS[kind](authority))
            assert is_refused(server.port, caller)


@pytest.mark.parametrize("kind", ["another authority's", "expired", "another role"])
def test_an_uncertified_server_is_told_nothing(authority: Authority, kind: str) -> None:
    own_identity = authority.issue("agent") if kind == "another role" else CALLERS[kind](authority)
    assert own_identity is not None
    role = "master" if kind == "another role" else "agent"
    with TlsServer(server_context(own_identity), say_who) as server:
        context = client_context(authority.certificate, authority.issue("agent", "h2"))
        with pytest.raises(ssl.SSLCertVerificationError):
            answer_to(server.port, context, role=role)


def test_older_versions_of_tls_are_refused(authority: Authority) -> None:
    context = client_context(authority.certificate, authority.issue("agent", "h2"))
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        TlsServer(server_context(authority.issue("master")), say_who) as server,
        pytest.raises(ssl.SSLError),
    ):
        answer_to(server.port, context)


def test_what_is_kept_comes_back(authority: Authority) -> None:
    restored = Authority.from_pem(authority.pem)
    assert (restored.scope, restored.fingerprint) == (authority.scope, authority.fingerprint)
    issued = restored.issue("agent", "h2")
    assert Identity.from_pem(issued.pem) == issued
    for wrong in (b"", authority.certificate, b"-----BEGIN PRIVATE KEY-----\n", issued.key):
        with pytest.raises(ValueError, match=r"\w"):
            Authority.from_pem(wrong)
        with pytest.raises(ValueError, match="not a key with two"):
            Identity.from_pem(wrong)
    with pytest.raises(ValueError, match="belong together"):
        Authority.from_pem(issued.key + authority.certificate)


def test_who_has_the_token_gets_a_certificate(authority: Authority, enrolling: TlsServer) -> None:
    token = token_with(SECRET, authority.fingerprint)
    identity = joining(enrolling.port, token, name="host 2")
    with TlsServer(server_context(authority.issue("master")), say_who) as server:
        answer = answer_to(server.port, client_context(identity.authority, identity))
    assert answer == b"brim://run/flights-1/agent/host%202"


def test_another_token_gets_nothing(authority: Authority, enrolling: TlsServer) -> None:
    with pytest.raises(EnvironmentFault, match="of another run"):
        joining(enrolling.port, token_with("wrong", authority.fingerprint))


@pytest.mark.parametrize(
    "fingerprint",
    ["", Authority.make("run/flights-1").fingerprint],
    ids=["none", "another's"],
)
def test_a_server_of_another_authority_is_told_nothing(
    enrolling: TlsServer, fingerprint: str
) -> None:
    with pytest.raises(NotTheAuthority, match="fingerprint"):
        joining(enrolling.port, token_with(SECRET, fingerprint))


def test_a_certificate_without_its_key_is_told_nothing(
    authority: Authority,
) -> None:
    received = []

    async def listen(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1))

    false = Authority.make(authority.scope).issue("master")
    false_identity_shown = Identity(false.key, false.certificate, authority.certificate)
    context = server_context(false_identity_shown, with_strangers=True)
    with (
        TlsServer(context, listen) as server,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        joining(server.port, token_with(SECRET, authority.fingerprint))
    assert received in ([], [b""])


def test_servers_of_other_roles_are_told_nothing(
    authority: Authority, enrolling: TlsServer
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        joining(enrolling.port, token_with(SECRET, authority.fingerprint), server="scheduler")


@pytest.mark.parametrize("name", ["", "h" * 201, "h\n2"])
def test_a_name_that_is_none_is_refused(
    authority: Authority, enrolling: TlsServer, name: str
) -> None:
    with pytest.raises(EnvironmentFault, match="printable"):
        joining(enrolling.port, token_with(SECRET, authority.fingerprint), name=name)


@pytest.mark.parametrize(
    "message",
    [b"GET / HTTP/1.1\r\n\r\n" * 9, enrolment.GREETING + b"n" * 16 + b"p" * 32 + b"\xff" * 4],
    ids=["another protocol", "an oversized frame"],
)
def test_what_is_no_request_gets_nothing(
    authority: Authority, enrolling: TlsServer, message: bytes
) -> None:
    with (
        socket.create_connection(("127.0.0.1", enrolling.port), timeout=60.0) as line,
        client_context(authority.certificate).wrap_socket(
            line, server_hostname=server_name("master")
        ) as call,
    ):
        call.sendall(message)
        reply = b""
        with contextlib.suppress(ConnectionError):
            reply = b"".join(iter(lambda: call.recv(256), b""))
    assert b"CERTIFICATE" not in reply


def test_a_silent_server_is_awaited_until_the_timeout() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(TimeoutError),
    ):
        authority_at("127.0.0.1", silent.getsockname()[1], fingerprint="x", timeout=0.2)


def test_invalid_requests_get_no_certificate(authority: Authority) -> None:
    subject = Subject(authority.scope, "agent", "h2")
    _, request = requested()
    lines = request.splitlines(keepends=True)
    changed = b"".join([*lines[:-2], lines[-2][:8] + b"AAAA" + lines[-2][12:], lines[-1]])
    for wrong in (b"", authority.certificate, changed):
        with pytest.raises(ProtocolError):
            authority.sign(wrong, subject)


def test_grpc_takes_these_certificates(authority: Authority) -> None:
    """Its TLS is BoringSSL, ours OpenSSL: the one must take certificates of the other."""
    addresses, seen = {}, threading.Event()

    async def http2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        addresses["alpn"] = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        addresses["who"] = subject_of(writer.get_extra_info("ssl_object"))
        addresses["said"] = await reader.readexactly(4)
        seen.set()

    with TlsServer(server_context(authority.issue("master")), http2) as server:
        credentials = grpc_credentials(authority.issue("agent", "h2"))
        options = grpc_options("master")
        with grpc.secure_channel(f"127.0.0.1:{server.port}", credentials, options) as channel:
            call = channel.unary_unary("/brim.Master/Ask").future(b"")
            assert seen.wait(60.0)
            call.cancel()
    assert addresses == {
        "alpn": "h2",
        "who": Subject("run/flights-1", "agent", "h2"),
        "said": b"PRI ",
    }


# The identities of a run --------------------------------------------------------------------------


def test_one_secret_gives_one_authority() -> None:
    authorities = [Authority.derived_from(secret) for secret in (b"a", b"a", b"b", b"")]
    keys = [authority.pem.partition(b"-----BEGIN CERTIFICATE")[0] for authority in authorities]
    assert keys[0] == keys[1]
    assert len({*keys}) == 3
    assert authorities[0].scope == authorities[1].scope != authorities[2].scope
    assert authorities[0].certificate != authorities[1].certificate  # each signs its own
    # What all versions must make of it, so that hosts of several understand each other.
    assert authorities[0].scope == "run/e04ddc024ccc8a28c2e53d0dc966bc24841b93c2"


def test_the_ends_of_a_run_know_each_other() -> None:
    called, caller = RunIdentity(b"a", MASTER), RunIdentity(b"a", WORKER)
    with TlsServer(called.server, say_who) as server:
        answer = answer_to(server.port, caller.client)
        assert Subject.from_uri(answer.decode()).role == WORKER
        other_run = RunIdentity(b"b", WORKER)
        assert is_refused(server.port, other_run.client)


@pytest.mark.parametrize("passed", [RENEW_AFTER + 60.0, -RENEW_AFTER - 60.0])
def test_identities_are_renewed_despite_clock_jumps(
    passed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_run = RunIdentity(b"a", MASTER)
    first = own_run.identity, own_run.server, own_run.client
    assert (own_run.identity, own_run.server, own_run.client) == first
    now = time.time()
    monkeypatch.setattr("brim.wire.run_identity.wall", lambda: now + passed)
    next_ones = own_run.identity, own_run.server, own_run.client
    assert not set(map(id, first)) & set(map(id, next_ones))
    assert (own_run.identity, own_run.server, own_run.client) == next_ones
    with TlsServer(first[1], say_who) as server:  # the one before is good for as long again
        assert answer_to(server.port, next_ones[2]).startswith(b"brim://run/")


def test_why_a_process_is_none_of_the_run() -> None:
    expired, unrelated = ssl.SSLCertVerificationError(), ssl.SSLCertVerificationError()
    expired.verify_code, unrelated.verify_code = 10, 20
    assert "clocks" in stranger_of(expired)
    for error in (unrelated, ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]")):
        assert "no certificate of this run" in stranger_of(error)
    for silence in (ssl.SSLEOFError(8, "EOF"), ConnectionResetError(), TimeoutError()):
        assert not stranger_of(silence)
