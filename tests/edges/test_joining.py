"""The port of a scheduler for nodes of other hosts: who is heard, and that nobody else is."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brim.backends.joined import TOKEN, FarNodes
from brim.clock import SystemClock
from brim.coordination.joined_nodes import SILENCE
from brim.coordination.sightings import AgentSeen
from brim.domain.cluster import Node
from brim.errors import EnvironmentFault
from brim.wire.authority import Authority
from brim.wire.identity import client_context, server_name
from brim.wire.joining import (
    AgentThere,
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

HOST = "127.0.0.1"


@asynccontextmanager
async def far_nodes(folder: Path, port: int = 0) -> AsyncIterator[tuple[FarNodes, int, str]]:
    far = FarNodes(folder, HOST, SystemClock())
    address = await far.start(port)
    try:
        yield far, int(address.rpartition(":")[2]), (folder / TOKEN).read_text().strip()
    finally:
        far.stop()


async def called(port: int, token: str, name: str = "n1", *, life: int = 1) -> SchedulerLine:
    line = await Enrolled(HOST, port, token=token, name=name, now=SystemClock().now).call()
    line.send(JoinCluster(identity=f"of {name}", life=life, devices=2))
    return line


async def heard(line: SchedulerLine) -> ToNode:
    async with asyncio.timeout(10.0):
        return await anext(line.messages())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_node_joins_renews_and_is_told(tmp_path: Path) -> None:
    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            line = await called(port, token)
            assert await heard(line) == Welcome()
            line.send(Renew(number=7, up=True, agents=(AgentThere(job="j", launch=1, workers=2),)))
            assert await heard(line) == Renewed(number=7)
            (seen,) = far.seen(["home"]).values()
            assert (seen.up, seen.brings) == (True, Node(id="n1", devices=2))
            assert far.agents("j") == {"n1": AgentSeen("j", 1, 2)}
            begin = BeginGuest(job="k", launch=1, master="h:1", token="t")
            far.begin("n1", begin)
            assert await heard(line) == begin
            far.end_left_over({"j": 2})
            assert await heard(line) == EndGuest(job="j")
            line.close()
            await until(lambda: not far.seen([])["n1"].up)
            with pytest.raises(EnvironmentFault, match="node n1 has no connection"):
                far.begin("n1", begin)

    asyncio.run(live())


def test_the_next_scheduler_has_the_same_authority_and_token(tmp_path: Path) -> None:
    async def live() -> None:
        async with far_nodes(tmp_path) as (_, port, token):
            node = Enrolled(HOST, port, token=token, name="n1", now=SystemClock().now)
            (await node.call()).close()
        with pytest.raises(NobodyListens):
            await node.call()
        async with far_nodes(tmp_path, port) as (_, _, again):
            assert again == token
            line = await node.call()  # with the certificate that it has
            line.send(JoinCluster(identity="a", life=1, devices=1))
            assert await heard(line) == Welcome()
            line.close()

    asyncio.run(live())
    assert (tmp_path / TOKEN).stat().st_mode & 0o077 == 0
    assert (tmp_path / "authority.pem").stat().st_mode & 0o077 == 0


def test_a_name_of_the_schedulers_host_is_refused(tmp_path: Path) -> None:
    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            far.seen(["home"])
            line = await called(port, token, "home")
            answer = await heard(line)
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
            own = Authority.from_pem((tmp_path / "authority.pem").read_bytes())
            assert await say(port, client_context(own.certificate), b"x" * 64) == b""
            master = own.issue("master")  # of this cluster, but no node
            assert await say(port, client_context(own.certificate, master), b"x" * 64) == b""
            other = Authority.make("cluster").issue("node", "n1")
            assert await say(port, client_context(own.certificate, other), b"x" * 64) == b""
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
            assert await heard(line) == Welcome()
            line._writer.write(words)
            if len(words) > 50:  # a frame that is larger than any message: it never comes whole
                line._writer.write(b"x" * (2 << 20))
            with pytest.raises(StopAsyncIteration):
                await heard(line)
            assert not far.seen([])["n1"].up

    asyncio.run(live())


def test_silence_is_the_end_of_a_lease(tmp_path: Path) -> None:
    async def live() -> None:
        async with far_nodes(tmp_path) as (far, port, token):
            line = await called(port, token)
            assert await heard(line) == Welcome()
            began = SystemClock().now()
            await until(lambda: far.seen([])["n1"].lost)
            assert SystemClock().now() - began > SILENCE - 0.5
            line.close()

    asyncio.run(live())
