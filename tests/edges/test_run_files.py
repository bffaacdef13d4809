"""Only workers of the run on other hosts keep files where its records are."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.domain.frozen_parts import FrozenPart
from brim.errors import EnvironmentFault
from brim.storage.checkpoints import Checkpoint, Store
from brim.storage.file_stores import Remote
from brim.storage.received import ReceivedFile, ReceivedFiles
from brim.wire import run_files
from brim.wire.frames import frame
from brim.wire.identity import server_name
from brim.wire.relay import Relay
from brim.wire.run_files import GREETING, FileRequest, RunFiles, RunFileServer
from brim.wire.run_identity import MASTER, WORKER, RunIdentity

SECRET = b"s" * 32
LARGE = bytes(range(256)) * (20 << 10)  # 5 MiB: several chunks


class Keeper:
    """A host that keeps the files of a run, behind its port."""

    def __init__(self, folder: Path, socket_path: Path) -> None:
        self.folder = folder
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._path = str(socket_path)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._up = threading.Event()
        self._over: asyncio.Event | None = None

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        server = RunFileServer(ReceivedFiles(self.folder), self._path, SECRET)
        other_paths = {GREETING[:4]: self._path}
        identity = RunIdentity(SECRET, MASTER)
        relay = Relay(
            self._listener, "/nowhere", other_paths=other_paths, limit=8, identity=identity
        )
        await server.start()
        await relay.start()
        self._up.set()
        await self._over.wait()
        relay.stop()
        server.stop()
        while relay._callers or server._calls:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # so that what ends has ended before the loop does

    def __enter__(self) -> Keeper:
        self._thread.start()
        assert self._up.wait(60.0)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60.0)
        self._listener.close()


def calling(address: str) -> socket.socket:
    """A call with the certificate of a worker, which says nothing of the run's secret."""
    host, _, port = address.partition(":")
    line = socket.create_connection((host, int(port)), timeout=10.0)
    context = RunIdentity(SECRET, WORKER).client
    return context.wrap_socket(line, server_hostname=server_name(MASTER))


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    with Keeper(tmp_path / "checkpoints", tmp_path / "socket") as running:
        yield running


@pytest.fixture
def files(keeper: Keeper) -> Iterator[RunFiles]:
    called = RunFiles(keeper.address, SECRET)
    with contextlib.closing(called):
        yield called


def test_what_is_written_is_there_and_is_read(keeper: Keeper, files: RunFiles) -> None:
    assert files.find("", detail=True) == {}
    files.pipe_file("/step-1/data", LARGE)
    files.pipe_file("/step-1/empty", b"")
    assert (keeper.folder / "step-1" / "data").read_bytes() == LARGE
    assert files.cat_file("/step-1/data") == LARGE
    assert files.cat_file("/step-1/empty") == b""
    files.pipe_file("/step-1/data", b"another")
    assert files.find("", detail=True) == {
        "/step-1/data": {"size": 7},
        "/step-1/empty": {"size": 0},
    }
    for name in ("data", "empty", "empty"):
        files.rm_file(f"/step-1/{name}")
    assert not list(keeper.folder.iterdir())
    with pytest.raises(FileNotFoundError):
        files.cat_file("/step-1/data")


def test_calls_are_renewed_before_keys_run_out(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "MOST_OF_A_CONNECTION", 1500)
    lines = []
    for number in range(4):
        files.pipe_file(f"/checkpoints/{number}", bytes(1000))
        lines.append(files._line)
    assert lines[0] is lines[1] is not lines[2] is lines[3]
    assert bytes(files.cat_file("/checkpoints/3")) == bytes(1000)


def test_checkpoints_are_kept_as_in_a_directory(keeper: Keeper, files: RunFiles) -> None:
    store = Store(Remote(files, "", str(keeper.folder), patience=0.0))
    draft = store.draft(Checkpoint(step=3, tree={"a": 1}, versions={}, data=LARGE), writer="w1")
    assert store.steps() == []
    store.publish(draft)
    assert store.steps() == [3]
    assert store.load(3).data == LARGE
    assert store.location(3) == f"{keeper.folder}/step-00000003"


def test_frozen_files_are_kept_as_in_a_directory(keeper: Keeper, files: RunFiles) -> None:
    store = Store(Remote(files, "", str(keeper.folder), patience=0.0))
    part = FrozenPart(file=store.write_frozen(LARGE, writer="w1"), tensors=((0, "digest"),))
    checkpoint = Checkpoint(step=3, tree={"a": 1}, versions={}, data=b"x", frozen=(part,))
    store.publish(store.draft(checkpoint, writer="w1"))
    store.prune(keep=1, best=None)
    found = store.load(3)
    assert found.frozen == (part,)
    assert found.frozen_data == (LARGE,)
    assert store.frozen_files() == {"digest": part.file}


@pytest.mark.parametrize(
    "name", ["", "..", "../outside", "a/../../outside", "/etc/passwd", "a//b", "./a", "a\0b"]
)
@pytest.mark.parametrize("verb", ["read", "write", "remove"])
def test_a_name_that_leads_elsewhere_is_refused(
    verb: str, name: str, keeper: Keeper, files: RunFiles, tmp_path: Path
) -> None:
    target = tmp_path / "outside"
    target.write_text("mine")
    requests: dict[str, Callable[[], Any]] = {
        "read": lambda: files._ask(FileRequest(verb="read", name=name)),
        "write": lambda: files._ask(FileRequest(verb="write", name=name, size=5), b"yours"),
        "remove": lambda: files._ask(FileRequest(verb="remove", name=name)),
    }
    with pytest.raises(OSError, match="not the name of a file of this run"):
        requests[verb]()
    assert target.read_text() == "mine"
    files.pipe_file("/still", b"there")  # the call goes on
    assert files.cat_file("/still") == b"there"


def test_a_stranger_gets_nothing(keeper: Keeper) -> None:
    keeper.folder.mkdir()
    (keeper.folder / "weights").write_bytes(b"secret")
    with (
        contextlib.closing(RunFiles(keeper.address, b"wrong" * 6)) as stranger,
        pytest.raises(PermissionError, match="not of this run"),
    ):
        stranger.cat_file("/weights")
    ask = frame(run_files.requests.encode(FileRequest(verb="read", name="weights")))
    for words in (
        GREETING + bytes(16) + bytes(32) + ask,
        GREETING + ask * 3,
        GREETING[:4] + ask * 9,
    ):
        with calling(keeper.address) as line:
            line.sendall(words)
            received = b""
            with contextlib.suppress(ConnectionError):
                while data := line.recv(1 << 16):
                    received += data
        assert b"secret" not in received
        assert len(received) in (0, 48)  # the keeper's own proof, and a challenge


def test_who_says_nothing_is_sent_away(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "_TO_PROVE", 0.2)
    with calling(keeper.address) as line:
        line.sendall(GREETING)
        with contextlib.suppress(ConnectionError):
            assert line.recv(1) == b""


@pytest.mark.parametrize("kind", ["plain", "another run's", "a worker's", "the master's"])
def test_impostor_of_the_keeper_learns_and_gives_nothing(kind: str) -> None:
    """Also one that has a certificate, as code of the run may, and not the secret."""
    contexts = {
        "another run's": RunIdentity(b"of another run", MASTER).server,
        "a worker's": RunIdentity(SECRET, WORKER).server,
        "the master's": RunIdentity(SECRET, MASTER).server,
    }
    received: list[bytes] = []

    def serve() -> None:
        line, _ = listener.accept()
        with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
            if kind in contexts:
                line = contexts[kind].wrap_socket(line, server_side=True)
            closing.enter_context(line)
            received.append(line.recv(1000))
            line.sendall(bytes(48))
            received.append(line.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(PermissionError, match="not of this run"):
            RunFiles(address, SECRET).pipe_file("/weights", b"secret")
        thread.join(10.0)
    assert b"secret" not in b"".join(received)
    assert b"".join(received[1:]) == b""


def test_a_full_disk_is_reported_without_leftovers(
    keeper: Keeper, files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(self: object, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("brim.storage.received.ReceivedFile.write", write)
    place = Remote(files, "", "the other host", patience=0.0)
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        place.write("step-1/data", LARGE)
    assert not [path for path in keeper.folder.rglob("*") if path.is_file()]


def test_a_call_that_breaks_is_made_again(tmp_path: Path) -> None:
    with Keeper(tmp_path / "a", tmp_path / "s") as keeper:
        files = RunFiles(keeper.address, SECRET)
        files.pipe_file("/one", b"1")
        assert files._line is not None
        files._line.shutdown(socket.SHUT_RDWR)
        warned: list[str] = []
        place = Remote(files, "", "the other host", warn=warned.append)
        place.write("two", b"2")
        assert place.names() == {"one": 1, "two": 1}
        assert len(warned) == 1
        files.close()


def test_half_a_file_is_not_there(keeper: Keeper, files: RunFiles) -> None:
    files.pipe_file("/one", b"whole")
    assert files._line is not None
    files._line.sendall(
        frame(run_files.requests.encode(FileRequest(verb="write", name="one", size=9)))
    )
    files._line.sendall(b"half")
    files.close()
    second_files = RunFiles(keeper.address, SECRET)
    assert second_files.cat_file("/one") == b"whole"
    assert second_files.find("", detail=True) == {"/one": {"size": 5}}
    second_files.close()


def test_files_may_exceed_the_answer_time(
    keeper: Keeper, files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow network that carries something is waited for."""
    monkeypatch.setattr(run_files, "_TO_ANSWER", 7.0)  # of 9 s together
    usual = ReceivedFile.write

    def slowly(self: ReceivedFile, data: bytes) -> None:
        time.sleep(0.3)
        usual(self, data)

    monkeypatch.setattr(ReceivedFile, "write", slowly)
    files.pipe_file("/large", LARGE * 6)
    assert files.cat_file("/large") == LARGE * 6


def test_interrupted_files_are_not_answered(
    keeper: Keeper, files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert files.find("", detail=True) == {}
    monkeypatch.setattr(run_files, "_TO_ANSWER", 0.3)
    line = files._line
    assert line is not None
    line.sendall(frame(run_files.requests.encode(FileRequest(verb="write", name="a", size=9))))
    line.sendall(b"half")
    line.settimeout(10.0)
    assert line.recv(100) == b""  # the call is over
    assert not [path for path in keeper.folder.rglob("*") if path.is_file()]


def test_an_error_without_text_is_reported() -> None:
    assert run_files._reply_of(TimeoutError()).problem == "TimeoutError"


def test_impossible_sizes_end_only_their_call(keeper: Keeper, files: RunFiles) -> None:
    files.pipe_file("/one", b"1")
    line = files._line
    assert line is not None
    words = frame(msgspec.msgpack.encode({"verb": "write", "name": "one", "size": -1}))
    line.sendall(words)
    with contextlib.suppress(ConnectionError):
        assert line.recv(1) == b""
    files.close()
    assert files.cat_file("/one") == b"1"


def test_what_an_earlier_life_was_receiving_is_removed(tmp_path: Path) -> None:
    files = ReceivedFiles(tmp_path / "checkpoints")
    old_draft = files.draft("step-1/data")
    old_draft.write(LARGE)
    assert files.names() == {}
    ReceivedFiles(tmp_path / "checkpoints")
    assert not list(tmp_path.rglob("*.receiving"))
    old_draft.drop()
