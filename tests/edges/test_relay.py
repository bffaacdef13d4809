"""A relay carries connections from end to end, and keeps none that has come to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from brim.wire import relay as relays
from brim.wire.relay import Relay

MUCH = 16 << 20  # bytes: more than all buffers between two ends hold


@contextlib.asynccontextmanager
async def relayed(
    path: Path, serve: Callable[[asyncio.StreamWriter], None]
) -> AsyncIterator[Relay]:
    """A relay to a server that does one thing for each who calls."""

    writers: list[asyncio.StreamWriter] = []

    def called(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        serve(writer)

    server = await asyncio.start_unix_server(called, path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = Relay(listener, str(path), others={}, most=5)
        await relay.start()
        try:
            yield relay
        finally:
            for each in list(relay._callers):
                each.transport.abort()
            for writer in writers:
                if not writer.is_closing():
                    writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            await until(lambda: not relay._callers, "the end of all connections")
            relay.stop()
            server.close()
            await server.wait_closed()


def caller(relay: Relay) -> socket.socket:
    """Who is heard by nobody's loop: it reads when it is told to."""
    called = stranger(relay)
    called.sendall(b"PRI * HTTP/2.0")
    return called


def stranger(relay: Relay) -> socket.socket:
    """Who has not said yet which server it wants."""
    return socket.create_connection(relay._listener.getsockname(), timeout=10.0)


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(10.0):
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
    monkeypatch.setattr(relays, "_STUCK", 0.2, raising=False)

    async def work() -> None:
        async with relayed(tmp_path / "s", serve) as relay:
            with caller(relay):
                await until(lambda: len(relay._callers) == 1, "its call")
                await until(lambda: not relay._callers, "its end")

    asyncio.run(work())


def test_what_is_left_to_be_said_is_not_waited_for_when_the_server_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fits below what makes the relay pause, and so it is read to its end."""
    monkeypatch.setattr(relays, "_STUCK", 0.2, raising=False)

    async def work() -> None:
        async with relayed(tmp_path / "s", say_and_leave) as relay:
            admit = relay.admit

            def roomy(caller: relays._CallerEnd) -> bool:
                caller.transport.set_write_buffer_limits(high=2 * MUCH)
                return admit(caller)

            monkeypatch.setattr(relay, "admit", roomy)
            with caller(relay):
                await until(lambda: len(relay._callers) == 1, "its call")
                await until(lambda: not relay._callers, "its end")

    asyncio.run(work())


def test_a_caller_that_reads_slowly_gets_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_STUCK", 0.3, raising=False)

    async def work() -> int:
        async with relayed(tmp_path / "s", say_and_stay) as relay:
            with caller(relay) as peer:
                came = 0
                while came < MUCH:
                    came += len(await asyncio.to_thread(peer.recv, 1 << 20))
                    await asyncio.sleep(0.05)  # that is slow
                assert len(relay._callers) == 1
                return came

    assert asyncio.run(work()) == MUCH


@pytest.mark.parametrize("said", [b"", b"PR"])
def test_a_caller_that_does_not_say_whom_it_wants_is_let_go(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_STUCK", 0.2, raising=False)

    async def work() -> None:
        async with relayed(tmp_path / "s", say_and_stay) as relay:
            with stranger(relay) as peer:
                peer.sendall(said)
                await until(lambda: len(relay._callers) == 1, "its call")
                await until(lambda: not relay._callers, "its end")

    asyncio.run(work())


def test_it_tells_when_an_agent_called_and_not_of_who_says_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with relayed(tmp_path / "server", lambda _: None) as relay:
            with stranger(relay):
                await until(lambda: len(relay._callers) == 1, "a call")
                assert relay.called_at == -math.inf
                before = time.monotonic()
                with caller(relay):
                    await until(lambda: relay.called_at >= before, "the call of an agent")

    asyncio.run(story())
