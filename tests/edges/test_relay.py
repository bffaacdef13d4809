"""A relay carries connections from end to end, and keeps none that has come to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from brim.wire import relay as relays
from brim.wire.authority import Authority
from brim.wire.identity import Identity, client_context, server_name
from brim.wire.relay import Relay
from brim.wire.run_identity import AGENT, MASTER, RunIdentity

SECRET = b"of this run"
ALERT = b"\x15\x03\x01\x00\x02\x02\x46"  # of TLS: this is no version of it
MUCH = 16 << 20  # bytes: more than all buffers between two ends hold


@contextlib.asynccontextmanager
async def relayed(
    path: Path, serve: Callable[[asyncio.StreamWriter], None]
) -> AsyncIterator[Relay]:
    """A relay to a server that does one thing for each caller."""

    writers: list[asyncio.StreamWriter] = []

    def called(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        serve(writer)

    server = await asyncio.start_unix_server(called, path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        identity = RunIdentity(SECRET, MASTER)
        relay = Relay(listener, str(path), other_paths={}, limit=5, identity=identity)
        await relay.start()
        try:
            yield relay
        finally:
            for caller in list(relay._callers):
                caller.transport.abort()
            for writer in writers:
                if not writer.is_closing():
                    writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            await until(lambda: not relay._callers, "the end of all connections")
            relay.stop()
            server.close()
            await server.wait_closed()


async def caller(relay: Relay) -> ssl.SSLSocket:
    """A caller outside of any loop: it reads on demand."""
    called = await greeted(relay)
    await asyncio.to_thread(called.sendall, b"PRI * HTTP/2.0")
    return called


async def greeted(relay: Relay, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    """A caller that has shown a certificate, or its substitute, and said nothing yet."""
    context = context or RunIdentity(SECRET, AGENT).client
    return await asyncio.to_thread(
        context.wrap_socket, stranger(relay), server_hostname=server_name(MASTER)
    )


def stranger(relay: Relay) -> socket.socket:
    """A caller that has not said anything yet."""
    return socket.create_connection(relay._listener.getsockname(), timeout=60.0)


async def until(condition: Callable[[], bool], subject: str) -> None:
    async with asyncio.timeout(60.0):
        while not condition():
            await asyncio.sleep(0.01)


def say_and_leave(writer: asyncio.StreamWriter) -> None:
    writer.write(bytes(MUCH))
    writer.close()


def say_and_stay(writer: asyncio.StreamWriter) -> None:
    writer.write(bytes(MUCH))


@pytest.mark.parametrize("serve", [say_and_leave, say_and_stay])
def test_a_caller_that_reads_nothing_is_let_go(
    serve: Callable[[asyncio.StreamWriter], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with relayed(tmp_path / "s", serve) as relay:
            with await greeted(relay) as peer:
                await until(lambda: len(relay._callers) == 1, "its call")
                monkeypatch.setattr(relays, "_STUCK", 1.0)
                await asyncio.to_thread(peer.sendall, b"PRI * HTTP/2.0")
                await until(lambda: not relay._callers, "its end")

    asyncio.run(work())


def test_pending_bytes_are_dropped_when_servers_vanish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fits below the limit at which the relay pauses, and so it is read to its end."""

    async def work() -> None:
        async with relayed(tmp_path / "s", say_and_leave) as relay:
            admit = relay.admit

            def roomy(caller: relays._CallerEnd) -> bool:
                caller.transport.set_write_buffer_limits(high=2 * MUCH)
                return admit(caller)

            monkeypatch.setattr(relay, "admit", roomy)
            with await greeted(relay) as peer:
                await until(lambda: len(relay._callers) == 1, "its call")
                monkeypatch.setattr(relays, "_STUCK", 1.0)
                await asyncio.to_thread(peer.sendall, b"PRI * HTTP/2.0")
                await until(lambda: not relay._callers, "its end")

    asyncio.run(work())


def test_a_caller_that_reads_slowly_gets_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> int:
        async with relayed(tmp_path / "s", say_and_stay) as relay:
            with await greeted(relay) as peer:
                monkeypatch.setattr(relays, "_STUCK", 4.0)
                await asyncio.to_thread(peer.sendall, b"PRI * HTTP/2.0")
                came = 0
                while came < MUCH:
                    came += await asyncio.to_thread(bytes_taken, peer, 1 << 20)
                    await asyncio.sleep(0.3)  # 4.8 s together
                assert len(relay._callers) == 1
                return came

    assert asyncio.run(work()) == MUCH


@pytest.mark.parametrize("is_known", [False, True], ids=["stranger", "of the run"])
@pytest.mark.parametrize("greeting", [b"", b"\x16\x03"])  # as a greeting of TLS begins
def test_callers_not_naming_a_target_are_dropped(
    is_known: bool, greeting: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_STUCK", 1.0, raising=False)

    async def work() -> None:
        async with relayed(tmp_path / "s", say_and_stay) as relay:
            with await greeted(relay) if is_known else stranger(relay) as peer:
                await asyncio.to_thread(peer.sendall, greeting)
                await until(lambda: len(relay._callers) == 1, "its call")
                await until(lambda: not relay._callers, "its end")

    asyncio.run(work())


def test_silent_callers_make_way_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are allowed to be silent for longer than this test takes."""
    monkeypatch.setattr(relays, "_STUCK", 60.0)
    reached: list[asyncio.StreamWriter] = []

    async def work() -> None:
        async with relayed(tmp_path / "s", reached.append) as relay:
            with contextlib.ExitStack() as undo:
                first = undo.enter_context(await caller(relay))
                await until(lambda: len(reached) == 1, "the first call")
                for _ in range(100):
                    undo.enter_context(await asyncio.to_thread(stranger, relay))
                await until(lambda: len(relay._callers) <= 65, "their way out")
                undo.enter_context(await caller(relay))
                await until(lambda: len(reached) == 2, "a call among them")
                reached[0].write(b"still there")
                assert await asyncio.to_thread(first.recv, 100) == b"still there"

    asyncio.run(work())


def bytes_taken(peer: ssl.SSLSocket, size: int) -> int:
    """Read so much, a record at a time."""
    remaining = size
    while remaining:
        received = len(peer.recv(remaining))
        assert received, "it was let go"
        remaining -= received
    return size


def speak(caller: ssl.SSLSocket) -> None:
    with caller:
        caller.sendall(b"PRI * HTTP/2.0")
        caller.recv(1)


def without_certificate() -> ssl.SSLContext:
    return client_context(Authority.derived_from(SECRET).certificate)


def of_another_run() -> ssl.SSLContext:
    return showing(Authority.derived_from(b"of another run").issue(AGENT))


def expired() -> ssl.SSLContext:
    return showing(Authority.derived_from(SECRET).issue(AGENT, for_s=-3600.0))


def showing(identity: Identity) -> ssl.SSLContext:
    return client_context(Authority.derived_from(SECRET).certificate, identity)


@pytest.mark.parametrize("make_context", [without_certificate, of_another_run, expired])
def test_who_shows_no_good_certificate_reaches_no_server(
    make_context: Callable[[], ssl.SSLContext], tmp_path: Path
) -> None:
    reached: list[asyncio.StreamWriter] = []

    async def work() -> None:
        async with relayed(tmp_path / "s", reached.append) as relay:
            with pytest.raises(ssl.SSLError, match=r"certificate|unknown ca"):
                await asyncio.to_thread(speak, await greeted(relay, make_context()))
            await until(lambda: not relay._callers, "its end")
            with await caller(relay):
                await until(lambda: len(reached) == 1, "the call of one of the run")

    asyncio.run(work())


def test_who_speaks_no_tls_reaches_no_server(tmp_path: Path) -> None:
    reached: list[asyncio.StreamWriter] = []

    async def work() -> None:
        async with relayed(tmp_path / "s", reached.append) as relay:
            with stranger(relay) as peer:
                peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                assert await asyncio.to_thread(peer.recv, 100) in (b"", ALERT)
            await until(lambda: not relay._callers, "its end")

    asyncio.run(work())
    assert not reached


def test_only_agents_calls_are_reported(tmp_path: Path) -> None:
    async def story() -> None:
        async with relayed(tmp_path / "server", asyncio.StreamWriter.close) as relay:
            with stranger(relay):
                await until(lambda: len(relay._callers) == 1, "a call")
                assert relay.called_at == -math.inf
                time_before = time.monotonic()
                with await caller(relay):
                    await until(lambda: relay.called_at >= time_before, "the call of an agent")

    asyncio.run(story())
