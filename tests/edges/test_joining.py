"""The port of a scheduler for nodes of other hosts: they are heard, and no others."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from brim.backends.joined import TOKEN, FarNodes
from brim.coordination.cluster import joined_nodes
from brim.coordination.cluster.sightings import AgentSeen
from brim.domain.cluster import Cluster, Node
from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock
from brim.wire import joining
from brim.wire.authority import Authority
from brim.wire.frames import frame
from brim.wire.identity import client_context, server_name
from brim.wire.joining import (
    BeginGuest,
    EndGuest,
    Enrolled,
    JoinCluster,
    NobodyListens,
    NotWelcome,
    Renew,
    Renewed,
    SchedulerLine,
    ToNode,
    Welcome,
)
from brim.wire.listening import split_address
from e2e.running import free_port

HOST = "127.0.0.1"


@asynccontextmanager
async def far_nodes(folder: Path, port: int = 0) -> AsyncIterator[tuple[FarNodes, int, str]]:
    far = FarNodes(folder, HOST, SystemClock())
    await far.start(port)
    try:
        yield far, int(far.address.rpartition(":")[2]), (folder / TOKEN).read_text().strip()
    finally:
        far.stop()


async def called(port: int, token: str, name: str = "n1", *, life: int = 1) -> SchedulerLine:
    line = await Enrolled(HOST, port, token=token, name=name, now=SystemClock().now).call()
    line.send(JoinCluster(identity=f"of {name}", life=life, devices=2))
    return line


async def next_message(line: SchedulerLine) -> ToNode:
    async with asyncio.timeout(60.0):
        return await anext(line.messages())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_node_joins_renews_and_is_told(tmp_path: Path) -> None:
    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            line = await called(port, token)
            assert await next_message(line) == Welcome()
            line.send(Renew(number=7, up=True, agents=(AgentSeen(job="j", launch=1, workers=2),)))
            assert await next_message(line) == Renewed(number=7)
            (seen,) = far.seen(["home"]).values()
            assert (seen.up, seen.brings) == (True, Node(id="n1", devices=2))
            assert far.agents("j") == {"n1": AgentSeen("j", 1, 2)}
            begin = BeginGuest(job="k", launch=1, master="h:1", token="t")
            far.begin("n1", begin)
            assert await next_message(line) == begin
            far.end_left_over({"j": 2})
            assert await next_message(line) == EndGuest(job="j")
            line.close()
            await until(lambda: not far.seen([])["n1"].up)
            with pytest.raises(EnvironmentFault, match="node n1 has no connection"):
                far.begin("n1", begin)

    asyncio.run(live())


def test_the_next_scheduler_keeps_authority_and_token(tmp_path: Path) -> None:
    async def live() -> None:
        async with far_nodes(tmp_path, free_port()) as (_, port, token):
            node = Enrolled(HOST, port, token=token, name="n1", now=SystemClock().now)
            (await node.call()).close()
        with pytest.raises(NobodyListens):
            await node.call()
        async with far_nodes(tmp_path, port) as (_, _, next_nodes):
            assert next_nodes == token
            line = await node.call()  # with the certificate that it has
            line.send(JoinCluster(identity="a", life=1, devices=1))
            assert await next_message(line) == Welcome()
            line.close()

    asyncio.run(live())
    assert (tmp_path / TOKEN).stat().st_mode & 0o077 == 0
    assert (tmp_path / "authority.pem").stat().st_mode & 0o077 == 0


def test_ipv6_addresses_are_printed_as_nodes_take_them(tmp_path: Path) -> None:
    async def started() -> str:
        far = FarNodes(tmp_path, "::1", SystemClock())
        try:
            await far.start(0)
            return far.address
        finally:
            far.stop()

    host, port = split_address(address := asyncio.run(started()))
    assert address == f"[{host}]:{port}"
    assert host == "::1"


def test_a_name_of_the_schedulers_host_is_refused(tmp_path: Path) -> None:
    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            far.seen(["home"])
            line = await called(port, token, "home")
            answer = await next_message(line)
            assert isinstance(answer, NotWelcome)
            assert "a node of the scheduler's own host" in answer.why
            assert far.seen(["home"]) == {}

    asyncio.run(live())


def test_a_stranger_is_told_nothing(tmp_path: Path) -> None:
    """Without a certificate, with the token of another cluster, with another's certificate."""

    async def say(port: int, context: ssl.SSLContext, words: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(
            HOST, port, ssl=context, server_hostname=server_name("scheduler")
        )
        writer.write(words)
        try:
            return await asyncio.wait_for(reader.read(), 10.0)
        except OSError:
            return b""
        finally:
            writer.close()

    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            own_authority = Authority.from_pem((tmp_path / "authority.pem").read_bytes())
            assert await say(port, client_context(own_authority.certificate), b"x" * 64) == b""
            master = own_authority.issue("master")  # of this cluster, but no node
            assert (
                await say(port, client_context(own_authority.certificate, master), b"x" * 64) == b""
            )
            other_identity = Authority.make("cluster").issue("node", "n1")
            assert (
                await say(
                    port, client_context(own_authority.certificate, other_identity), b"x" * 64
                )
                == b""
            )
            secret, fingerprint = token.split(".")
            for wrong in (f"{'0' * len(secret)}.{fingerprint}", f"{secret}.{'a' * 32}"):
                with pytest.raises(EnvironmentFault):
                    await called(port, wrong)
            assert far.seen([]) == {}

    asyncio.run(live())


@pytest.mark.parametrize("words", [b"\x03\0\0\0abc", b"\xff\xff\xff\x7f" + b"x" * 100])
def test_what_makes_no_sense_ends_the_connection(tmp_path: Path, words: bytes) -> None:
    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            line = await called(port, token)
            assert await next_message(line) == Welcome()
            line._writer.write(words)
            if len(words) > 50:  # a frame that is larger than any message: it never comes whole
                line._writer.write(b"x" * (2 << 20))
            assert isinstance(await next_message(line), NotWelcome)
            with pytest.raises(StopAsyncIteration):
                await next_message(line)
            assert not far.seen([])["n1"].up

    asyncio.run(live())


def test_silence_is_the_end_of_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_nodes, "SILENCE", 1.0)

    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            started = SystemClock().now()
            line = await called(port, token)
            assert await next_message(line) == Welcome()
            await until(lambda: far.seen([])["n1"].lost)
            assert SystemClock().now() - started > 0.9
            line.close()

    asyncio.run(live())


@pytest.mark.parametrize("name", ["../../x y", "a/b", "..", "tab\tname", "x" * 199 + "éé"])
def test_node_name_unfit_for_a_directory_is_refused(tmp_path: Path, name: str) -> None:
    """The enrolment server takes any printable name, which the certificate has then."""

    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            own_authority = Authority.from_pem((tmp_path / "authority.pem").read_bytes())
            enrolled = Enrolled(HOST, port, token=token, name=name, now=SystemClock().now)
            enrolled._identity, enrolled._valid_since = (
                own_authority.issue("node", name),
                SystemClock().now(),
            )
            line = await enrolled.call()
            line.send(JoinCluster(identity="a", life=1, devices=2))
            answer = await next_message(line)
            assert isinstance(answer, NotWelcome)
            assert "the name of a node: got" in answer.why
            assert answer.why.replace("\n", "").isprintable()
            with pytest.raises(StopAsyncIteration):
                await next_message(line)
            assert far.seen([]) == {}

    asyncio.run(live())


@pytest.mark.parametrize(
    ("stated", "accepted"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8:0::7", "2001:db8::7"),
        ("", HOST),
        ("n1.example", HOST),
        ("10.0.0.7\x1b[2J", HOST),
        ("fe80::1%\x1b]0;title\x07", HOST),
    ],
)
def test_the_address_of_a_node_is_an_address(tmp_path: Path, stated: str, accepted: str) -> None:
    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            node = Enrolled(HOST, port, token=token, name="n1", now=SystemClock().now)
            line = await node.call()
            line.send(JoinCluster(identity="a", life=1, devices=2, address=stated))
            assert await next_message(line) == Welcome()
            assert far.seen([])["n1"].address == accepted
            line.send(Renew(number=1, problem="it \x1b[2J\u202e\n" + "x" * 900))
            await next_message(line)
            problem = far.seen([])["n1"].problem
            assert problem.startswith("it [2J xxx")
            assert len(problem) <= 200
            line.close()

    asyncio.run(live())


GOOD = {"type": "Join", "identity": "a", "life": 1, "devices": 2}
RENEWAL = {"type": "Renew", "number": 1}


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({**GOOD, "devices": -1}, "devices"),
        ({**GOOD, "devices": 1 << 40}, "devices"),
        ({**GOOD, "devices": "two"}, "devices"),
        ({**GOOD, "life": -1}, "life"),
        ({**GOOD, "life": 1 << 60}, "life"),
        ({**GOOD, "switch": 1 << 40}, "switch"),
        ({**GOOD, "identity": ""}, "identity"),
        ({**GOOD, "identity": "x" * 201}, "identity"),
        ({**GOOD, "address": "x" * 2000}, "address"),
        ({**RENEWAL, "number": -1}, "number"),
        ({**RENEWAL, "again": float("nan")}, "again"),
        ({**RENEWAL, "again": float("inf")}, "again"),
        ({**RENEWAL, "problem": "x" * 2000}, "problem"),
        ({**RENEWAL, "agents": [{"job": "j", "launch": 1, "workers": 1 << 40}]}, "workers"),
        ({**RENEWAL, "agents": [{"job": "", "launch": 1}]}, "job"),
        ({**RENEWAL, "agents": [{"job": "j", "launch": -1}]}, "launch"),
    ],
    ids=str,
)
def test_oversized_field_of_a_node_is_named(
    tmp_path: Path, message: dict[str, object], path: str
) -> None:
    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            line = await called(port, token)
            assert await next_message(line) == Welcome()
            line._writer.write(frame(msgspec.msgpack.encode(message)))
            answer = await next_message(line)
            assert isinstance(answer, NotWelcome)
            assert path in answer.why
            with pytest.raises(StopAsyncIteration):
                await next_message(line)
            assert far.seen([])["n1"].brings == Node(id="n1", devices=2)

    asyncio.run(live())


def test_silent_strangers_make_way_and_lock_out_nobody(tmp_path: Path) -> None:
    """300 of them that say nothing at all: 64 are held at most, and nodes are heard meanwhile."""

    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            welcomed = await called(port, token, "n1")
            assert await next_message(welcomed) == Welcome()
            crowd = [await silent(port) for _ in range(300)]
            try:
                await until(lambda: _open(crowd) <= 64)
                assert len(far._server._strangers) <= 64
                late = await called(port, token, "n2")
                assert await next_message(late) == Welcome()
                welcomed.send(Renew(number=1))
                assert await next_message(welcomed) == Renewed(number=1)
                welcomed.close()
                late.close()
            finally:
                for connection in crowd:
                    connection.close()
            await until(lambda: not len(far._server._strangers))

    asyncio.run(live())


async def silent(port: int, host: str = HOST) -> socket.socket:
    """A connection from this address, on which nothing is said."""
    line = socket.socket()
    line.setblocking(False)
    line.bind((host, 0))
    await asyncio.get_running_loop().sock_connect(line, (HOST, port))
    return line


def _open(connections: list[socket.socket]) -> int:
    """How many of these the other end has not closed."""
    count = 0
    for connection in connections:
        try:
            count += connection.recv(1) != b""
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


def test_crowd_of_one_host_spares_nodes_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest makes way: of the host that has the most."""
    monkeypatch.setattr(joining, "_TO_SHAKE_HANDS", 60.0)

    async def live() -> None:
        async with far_nodes(tmp_path) as (_, port, _):
            other_connection = await silent(port, "127.0.0.2")
            crowd = [await silent(port) for _ in range(100)]
            try:
                await until(lambda: _open(crowd) <= 63)
                assert _open([other_connection]) == 1
            finally:
                for connection in [other_connection, *crowd]:
                    connection.close()

    asyncio.run(live())


def test_strangers_keeping_connections_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shakes hands, is told that it is none of ours, and answers nothing any more."""
    monkeypatch.setattr(joining, "_TO_PART", 0.2)

    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, _):
            own_authority = Authority.from_pem((tmp_path / "authority.pem").read_bytes())
            context = client_context(own_authority.certificate)
            raw = socket.create_connection((HOST, port))
            raw.setblocking(False)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            call = context.wrap_bio(incoming, outgoing, server_hostname=server_name("scheduler"))
            loop = asyncio.get_running_loop()
            while True:
                try:
                    call.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await loop.sock_sendall(raw, outgoing.read())
                    incoming.write(await loop.sock_recv(raw, 1 << 16))
            call.write(b"x" * 64)  # no greeting
            await loop.sock_sendall(raw, outgoing.read())
            assert len(far._server._strangers) == 1
            async with asyncio.timeout(20.0):  # asyncio waits for 30 s if it is not told otherwise
                while await loop.sock_recv(raw, 1 << 16):
                    pass
            await until(lambda: not len(far._server._strangers))
            raw.close()

    asyncio.run(live())


def _encrypted(authority: Authority) -> bytes:
    key = load_pem_private_key(authority.pem, None)
    locked = BestAvailableEncryption(b"secret")
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked) + authority.certificate


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (_encrypted(Authority.make("cluster")), "its key is encrypted"),
        (b"", "cannot use the authority"),
        (b"\xff" * 100, "cannot use the authority"),
        (Authority.make("run/r-1").pem, "it is the authority of 'run/r-1'"),
        (Authority.make("cluster").issue("node", "n1").pem, "not that of an authority"),
        (b"x" * (1 << 20), "more than 65,536 bytes|too large"),
    ],
    ids=["encrypted", "empty", "no text", "of a run", "of a node", "huge"],
)
def test_an_invalid_authority_file_is_reported(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "authority.pem").write_bytes(content)
    with pytest.raises(EnvironmentFault, match=reason) as caught:
        FarNodes(tmp_path, HOST, SystemClock())
    assert "hint: restore" in str(caught.value)
    assert (tmp_path / "authority.pem").read_bytes() == content


def test_an_authority_that_is_no_file_is_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "authority.pem")
    with pytest.raises(EnvironmentFault, match="it is no regular file"):
        FarNodes(tmp_path, HOST, SystemClock())


def test_a_binary_token_is_reported(tmp_path: Path) -> None:
    (tmp_path / TOKEN).write_bytes(b"\xff\xfe")
    with pytest.raises(EnvironmentFault, match=r"cannot read the token .* no text"):
        FarNodes(tmp_path, HOST, SystemClock())


def test_nodes_of_other_kinds_learn_the_difference(tmp_path: Path) -> None:
    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            far.expect([], Cluster(nodes=(Node(id="home", devices=4),)))
            alike, other_kind = far.kind, replace(far.kind, torch="1.0\x1b[2J", cpu="x" * 999)
            for name, kind in {"n1": alike, "n2": other_kind, "n3": None}.items():
                node = Enrolled(HOST, port, token=token, name=name, now=SystemClock().now)
                line = await node.call()
                line.send(JoinCluster(identity=name, life=1, devices=2, kind=kind))
                answer = await next_message(line)
                assert isinstance(answer, Welcome)
                assert bool(answer.notice) == (kind is other_kind)
                if answer.notice:
                    assert answer.notice.isprintable()
                    assert "n2 is not like " in answer.notice
                    assert "no exact job is on both: torch 1.0 [2J on n2 and" in answer.notice
                line.close()
            labels = {name: node.brings.kind for name, node in far.seen([]).items() if node.brings}
            assert labels.pop("n2")
            assert labels == {"n1": "", "n3": ""}
            huge = replace(far.kind, settings={f"V{k}": "x" * 100 for k in range(200)})
            line = await Enrolled(HOST, port, token=token, name="n4", now=SystemClock().now).call()
            line.send(JoinCluster(identity="n4", life=1, devices=2, kind=huge))
            assert isinstance(await next_message(line), NotWelcome)
            line.close()

    asyncio.run(live())
