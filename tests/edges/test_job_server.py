"""The master's door: strangers get nothing, cost little, and a stranger that stands in its place
learns nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from brim.errors import EnvironmentFault
from brim.wire.control import JobServer, NotTheMaster, Reply, ask, ask_later, open_stream
from brim.wire.identity import Identity, grpc_credentials, grpc_options
from brim.wire.listening import listen_on
from brim.wire.messages import Answer, Ask, Beat, FromAgent, FromMaster, LoseWorker
from brim.wire.private import PrivateFolder, make_private
from brim.wire.proofs import workers_secret
from brim.wire.run_identity import MASTER, WORKER, RunIdentity, run_identity

TOKEN = "of this run"


class Door:
    """A master's server with nothing behind it.

    Args:
        remote: whether it has a port.
        listener: that of an earlier one, which was left open.
    """

    def __init__(
        self, folder: Path, *, remote: bool, listener: socket.socket | None = None
    ) -> None:
        self.heard: list[Any] = []
        self.local = f"unix:{make_private(folder / 'control')}/master"
        if remote and listener is None:
            listener = listen_on("127.0.0.1", 0, backlog=128, hint="")
        self.address = f"127.0.0.1:{listener.getsockname()[1]}" if listener else self.local
        self._server = JobServer(
            self.local,
            listener,
            token=TOKEN,
            converse=self._converse,
            answer=self._answer,
        )

    async def _converse(self, requests: AsyncIterator[FromAgent], reply: Reply) -> None:
        async for request in requests:
            self.heard.append(request)
            await reply(FromMaster(0, 0, Beat()))

    async def _answer(self, question: Ask) -> Answer:
        self.heard.append(question)
        return Answer(ok=True, detail="", status={})

    async def __aenter__(self) -> Door:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()


def answer_of(address: str, token: str = TOKEN, *, timeout: float = 60.0) -> Answer:
    return ask(address, token=token, question=Ask(verb="status"), timeout=timeout)


def test_both_doors_open_for_who_has_the_token(tmp_path: Path) -> None:
    async def work() -> None:
        async with Door(tmp_path, remote=True) as door:
            for address in (door.local, door.address):
                assert (await asyncio.to_thread(answer_of, address)).ok
                stream = open_stream(address, token=TOKEN)
                await stream.send(FromAgent(1, 0, Beat()))
                async with asyncio.timeout(60.0):
                    assert (await anext(stream.messages())).message == Beat()
                await stream.close()
            assert len(door.heard) == 4

    asyncio.run(work())


def test_another_token_opens_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with Door(tmp_path, remote=True) as door:
            for address in (door.local, door.address):
                with pytest.raises(NotTheMaster, match="token is wrong"):
                    await asyncio.to_thread(answer_of, address, "of another run")
                stream = open_stream(address, token="of another run")
                with pytest.raises(NotTheMaster, match="token is wrong"):
                    await anext(stream.messages())
                await stream.close()
            assert door.heard == []

    asyncio.run(work())


class Stranger:
    """Calls with the certificate of a worker and without the token, with metadata of its own."""

    def __init__(self, address: str) -> None:
        identity = RunIdentity(workers_secret(TOKEN), WORKER).identity
        self.channel = grpc.aio.secure_channel(
            address, grpc_credentials(identity), options=grpc_options(MASTER)
        )

    async def call(self, verb: str, *messages: bytes, **metadata: bytes) -> bytes:
        call = self.channel.stream_unary(f"/brim.Master/{verb}")
        pairs = tuple((f"brim-{name}-bin", value) for name, value in metadata.items())
        answer: bytes = await call(iter(messages), metadata=pairs, timeout=60.0)
        return answer


def test_many_masters_are_asked_in_one_loop(tmp_path: Path) -> None:
    """With an address and a token alone, also by a name; and not for longer than is said."""
    question = Ask(verb="suspend")

    async def work() -> None:
        async with Door(tmp_path, remote=True) as door:
            port = door.address.rpartition(":")[2]
            places = (door.local, door.address, f"localhost:{port}")
            asking = [ask_later(place, token=TOKEN, question=question) for place in places]
            assert all(answer.ok for answer in await asyncio.gather(*asking))
            assert door.heard == [question] * 3
            with pytest.raises(NotTheMaster, match="token is wrong"):
                await ask_later(door.address, token="of another run", question=question)
        started = time.monotonic()
        with pytest.raises(EnvironmentFault, match="did not answer in 0 s") as caught:
            await ask_later(door.address, token=TOKEN, question=question, timeout=0.3)
        assert time.monotonic() - started < 30.0
        assert caught.value.retryable

    asyncio.run(work())


def test_a_stranger_is_not_heard(tmp_path: Path) -> None:
    async def work() -> None:
        async with Door(tmp_path, remote=True) as door:
            stranger = Stranger(door.address)
            challenge = (await stranger.call("Greet", nonce=bytes(16)))[32:]
            for verb, metadata, code in (
                ("Greet", {}, "PERMISSION_DENIED"),
                ("Greet", {"nonce": bytes(4000)}, "PERMISSION_DENIED"),
                ("Ask", {}, "UNAVAILABLE"),
                ("Ask", {"challenge": bytes(16), "proof": bytes(32)}, "UNAVAILABLE"),
                ("Ask", {"challenge": challenge, "proof": bytes(32)}, "PERMISSION_DENIED"),
                (
                    "Ask",
                    {"challenge": challenge, "proof": bytes(32)},
                    "UNAVAILABLE",
                ),  # it had one answer
                ("Join", {"challenge": challenge}, "UNAVAILABLE"),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stranger.call(verb, b"x", **metadata)
                assert refused.value.code().name == code
            await stranger.channel.close()
            assert door.heard == []

    asyncio.run(work())


def test_who_calls_without_a_certificate_is_not_heard(tmp_path: Path) -> None:
    async def work() -> None:
        async with Door(tmp_path, remote=True) as door:
            of_another = RunIdentity(workers_secret("of another run"), WORKER).identity
            own_identity = RunIdentity(workers_secret(TOKEN), WORKER).identity
            trusting = Identity(of_another.key, of_another.certificate, own_identity.authority)
            options = grpc_options(MASTER)
            for channel in (
                grpc.aio.insecure_channel(door.address),
                grpc.aio.secure_channel(
                    door.address,
                    grpc.ssl_channel_credentials(root_certificates=own_identity.authority),
                    options=options,
                ),
                grpc.aio.secure_channel(door.address, grpc_credentials(trusting), options=options),
            ):
                greet = channel.stream_unary("/brim.Master/Greet")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await greet(metadata=(("brim-nonce-bin", bytes(16)),), timeout=60.0)
                assert refused.value.code().name == "UNAVAILABLE"
                await channel.close()
            assert door.heard == []
            assert (await asyncio.to_thread(answer_of, door.address)).ok

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["plain", "another run's", "a worker's"])
def test_caller_of_an_impostor_master_fails_at_once(kind: str) -> None:
    """gRPC by itself would keep calling."""
    identities = {
        "another run's": RunIdentity(b"of another run", MASTER),
        "a worker's": RunIdentity(workers_secret(TOKEN), WORKER),
    }

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def work() -> None:
        context = identities[kind].server if kind in identities else None
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            started = time.monotonic()
            with pytest.raises(NotTheMaster, match="not the master of this run, or the token"):
                await asyncio.to_thread(answer_of, address)
            stream = open_stream(address, token=TOKEN)
            with pytest.raises(NotTheMaster, match="not the master of this run, or the token"):
                await anext(stream.messages())
            await stream.close()
            assert time.monotonic() - started < 30.0

    asyncio.run(work())


def test_a_master_with_wrong_clock_is_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        run_identity.cache_clear()
        monkeypatch.setattr("brim.wire.authority.wall", lambda: time.time() - 90_000.0)
        async with Door(tmp_path, remote=True) as door:
            with pytest.raises(NotTheMaster, match="are the clocks of both right"):
                await asyncio.to_thread(answer_of, door.address)

    try:
        asyncio.run(work())
    finally:
        run_identity.cache_clear()


@pytest.mark.parametrize("listen", ["::1", "::"])
def test_a_port_may_be_of_ipv6(listen: str, tmp_path: Path) -> None:
    async def work() -> None:
        listener = listen_on(listen, 0, backlog=128, hint="")
        async with Door(tmp_path, remote=True, listener=listener):
            address = f"[::1]:{listener.getsockname()[1]}"
            assert (await asyncio.to_thread(answer_of, address)).ok
            stream = open_stream(address, token=TOKEN)
            await stream.send(FromAgent(1, 0, Beat()))
            async with asyncio.timeout(60.0):
                assert (await anext(stream.messages())).message == Beat()
            await stream.close()

    asyncio.run(work())


def test_impostor_of_the_master_learns_nothing(tmp_path: Path) -> None:
    """Also one that has a certificate of a master, as code of the run may, and not the token."""
    received: list[tuple[str, bytes]] = []

    async def greet(_: AsyncIterator[bytes], context: Any) -> bytes:
        received.extend(context.invocation_metadata())
        return bytes(48)

    async def work() -> None:
        impostor = grpc.aio.server()
        handlers = {"Greet": grpc.stream_unary_rpc_method_handler(greet)}
        impostor.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("brim.Master", handlers),)
        )
        certificate = RunIdentity(workers_secret(TOKEN), MASTER).identity
        credentials = grpc.ssl_server_credentials([(certificate.key, certificate.certificate)])
        address = f"127.0.0.1:{impostor.add_secure_port('127.0.0.1:0', credentials)}"
        await impostor.start()
        with pytest.raises(NotTheMaster):
            await asyncio.to_thread(answer_of, address)
        stream = open_stream(address, token=TOKEN)
        with pytest.raises(NotTheMaster):
            await anext(stream.messages())
        await stream.close()
        await impostor.stop(None)

    asyncio.run(work())
    assert [key for key, _ in received].count("brim-nonce-bin") == 2
    assert not any(TOKEN in str(value) for _, value in received)


MUCH = """
import sys, grpc
from brim.wire.proofs import workers_secret
from brim.wire.identity import grpc_credentials, grpc_options
from brim.wire.run_identity import MASTER, WORKER, RunIdentity
credentials = grpc_credentials(RunIdentity(workers_secret(sys.argv[2]), WORKER).identity)
options = [("grpc.max_send_message_length", -1), *grpc_options(MASTER)]
for _ in range(6):
    with grpc.secure_channel(sys.argv[1], credentials, options=options) as channel:
        try:
            channel.stream_unary("/brim.Master/Ask")(iter([bytes(500_000_000)]), timeout=60)
        except grpc.RpcError as error:
            print(error.code().name)
"""


def test_what_strangers_say_takes_no_memory(tmp_path: Path) -> None:
    async def work() -> None:
        async with Door(tmp_path, remote=True) as door:
            memory_before = memory_peak = psutil.Process().memory_info().rss
            stranger = await asyncio.create_subprocess_exec(
                sys.executable, "-c", MUCH, door.address, TOKEN, stdout=subprocess.PIPE
            )
            ended = asyncio.create_task(stranger.communicate())
            while not ended.done():
                await asyncio.sleep(0.01)
                memory_peak = max(memory_peak, psutil.Process().memory_info().rss)
            assert (await ended)[0].split() == [b"UNAVAILABLE"] * 6
            assert memory_peak - memory_before < 64 << 20

    asyncio.run(work())


def test_a_crowd_of_strangers_locks_out_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4096:
        pytest.skip("this process may not open enough files to play the crowd")
    monkeypatch.setattr("brim.wire.relay._STUCK", 100.0)
    descriptors_before = len(os.listdir("/proc/self/fd"))

    async def work() -> None:
        async with Door(tmp_path, remote=True) as door:
            host, _, port = door.address.rpartition(":")
            with contextlib.ExitStack() as crowd:
                for _ in range(1_000):
                    call = partial(socket.create_connection, (host, int(port)), timeout=5.0)
                    crowd.enter_context(await asyncio.to_thread(call))
                assert (await asyncio.to_thread(answer_of, door.local)).ok
                # Of each: what called, what it is led to, and the end of that.
                assert len(os.listdir("/proc/self/fd")) - descriptors_before < 1_000 + 3 * 256 + 100
                # Those who say nothing make way at once, and not when their time is over.
                assert (await asyncio.to_thread(answer_of, door.address, timeout=30.0)).ok

    asyncio.run(work())


def test_caller_between_masters_waits_for_the_next(tmp_path: Path) -> None:
    async def work() -> None:
        with listen_on("127.0.0.1", 0, backlog=128, hint="") as listener:
            async with Door(tmp_path, remote=True, listener=listener.dup()) as door:
                assert (await asyncio.to_thread(answer_of, door.address)).ok
            calling = asyncio.create_task(asyncio.to_thread(answer_of, door.address))
            with pytest.raises(OSError, match="in use"):
                socket.create_server(listener.getsockname()).close()
            async with Door(tmp_path, remote=True, listener=listener.dup()):
                assert (await calling).ok

    asyncio.run(work())


def test_a_port_carries_messages_beyond_buffer_size(tmp_path: Path) -> None:
    async def work() -> None:
        async with Door(tmp_path, remote=True) as door:
            stream, message = open_stream(door.address, token=TOKEN), "x" * (32 << 20)
            await stream.send(FromAgent(1, 0, LoseWorker(worker="w1", reason=message)))
            async with asyncio.timeout(30.0):
                assert (await anext(stream.messages())).message == Beat()
            await stream.close()
            assert door.heard[0].message.reason == message

    asyncio.run(work())


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o770])
def test_socket_in_a_shared_folder_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "control"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(EnvironmentFault, match="another user may listen in it"):
        make_private(folder)
    with pytest.raises(EnvironmentFault, match="another user may listen in it"):
        answer_of(f"unix:{folder}/master")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_root_listens_only_in_its_own_folder(tmp_path: Path) -> None:
    folder = tmp_path / "control"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    PrivateFolder(folder, called=True).close()
    with pytest.raises(EnvironmentFault, match="must belong to the user of this process"):
        make_private(folder)


def test_a_folder_is_not_followed_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "control").symlink_to(tmp_path / "theirs")
    with pytest.raises(EnvironmentFault, match="cannot open"):
        make_private(tmp_path / "control")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_can_neither_call_nor_listen_there() -> None:
    tries = (
        "import os, socket, sys\n"
        "call = socket.socket(socket.AF_UNIX)\n"
        "for attempt in (call.connect, call.bind, os.unlink, os.stat):\n"
        "    try:\n"
        "        attempt(sys.argv[1])\n"
        "    except OSError as error:\n"
        "        print(type(error).__name__)\n"
    )

    async def work(run_dir: Path) -> bytes:
        run_dir.chmod(0o755)
        async with Door(run_dir, remote=False) as door:
            path = door.local.removeprefix("unix:")
            stranger = await asyncio.create_subprocess_exec(
                "/usr/bin/env",
                "python3",
                "-c",
                tries,
                path,
                stdout=subprocess.PIPE,
                user=65534,
                cwd="/",
            )
            return (await stranger.communicate())[0]

    with tempfile.TemporaryDirectory() as run_dir:
        assert asyncio.run(work(Path(run_dir))).split() == [b"PermissionError"] * 4
