"""A fork reads the files that it inherits by a position of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from brim.data.feed import Feed
from brim.errors import SpecError
from brim.host.inherited import inherited_by_forks
from brim.tensors.chance import own_generators
from train.test_loaders import ask

RECORD, RECORDS = 4096, 40


class Opened(NamedTuple):
    """An open file.

    Attributes:
        descriptor: of it.
        read: gives the first byte of a record.
    """

    descriptor: int
    read: Callable[[int], int]


def record(number: int) -> bytes:
    return bytes([number]) * RECORD


def plain(folder: Path, keep: ExitStack) -> Opened:
    (folder / "rows").write_bytes(b"".join(map(record, range(RECORDS))))
    file = keep.enter_context((folder / "rows").open("rb"))

    def read(number: int) -> int:
        file.seek(number * RECORD)
        return file.read(RECORD)[0]

    return Opened(file.fileno(), read)


def deleted(folder: Path, keep: ExitStack) -> Opened:
    opened = plain(folder, keep)
    (folder / "rows").unlink()
    return opened


def nameless(folder: Path, keep: ExitStack) -> Opened:
    file = TemporaryFile(dir=folder)  # noqa: SIM115 - as a dataset does
    keep.enter_context(file)
    file.write(b"".join(map(record, range(RECORDS))))
    file.flush()

    def read(number: int) -> int:
        file.seek(number * RECORD)
        return file.read(RECORD)[0]

    return Opened(file.fileno(), read)


def zipped(folder: Path, keep: ExitStack) -> Opened:
    with zipfile.ZipFile(folder / "rows.zip", "w") as archive:
        for number in range(RECORDS):
            archive.writestr(str(number), record(number))
    opened = keep.enter_context(zipfile.ZipFile(folder / "rows.zip"))
    file: Any = opened.fp
    return Opened(file.fileno(), lambda number: opened.read(str(number))[0])


def tarred(folder: Path, keep: ExitStack) -> Opened:
    plain(folder, keep)
    with tarfile.open(folder / "rows.tar", "w") as archive:
        archive.add(folder / "rows", "rows")
    opened = tarfile.open(folder / "rows.tar")  # noqa: SIM115 - as a dataset does
    keep.enter_context(opened)
    member: Any = keep.enter_context(opened.extractfile("rows"))  # type: ignore[arg-type]
    file: Any = opened.fileobj

    def read(number: int) -> int:
        member.seek(number * RECORD)
        return int(member.read(RECORD)[0])

    return Opened(file.fileno(), read)


def archive_of_numpy(folder: Path, keep: ExitStack) -> Opened:
    arrays: dict[str, Any] = {str(n): np.frombuffer(record(n), np.uint8) for n in range(RECORDS)}
    np.savez(folder / "rows.npz", **arrays)
    opened: Any = keep.enter_context(np.load(folder / "rows.npz"))
    return Opened(opened.zip.fp.fileno(), lambda number: int(opened[str(number)][0]))


def database(folder: Path, keep: ExitStack) -> Opened:
    rows = keep.enter_context(contextlib.closing(sqlite3.connect(folder / "rows.db")))
    rows.execute("create table rows (number integer primary key, bytes blob)")
    all_records = [(number, record(number)) for number in range(RECORDS)]
    rows.executemany("insert into rows values (?, ?)", all_records)
    rows.commit()

    def read(number: int) -> int:
        query = rows.execute("select bytes from rows where number = ?", (number,))
        return int(query.fetchone()[0][0])

    return Opened(_descriptor_of(folder / "rows.db"), read)


def _descriptor_of(path: Path) -> int:
    places = {f"/proc/self/fd/{name}": int(name) for name in os.listdir("/proc/self/fd")}
    return next(n for place, n in places.items() if os.path.realpath(place) == str(path.resolve()))


def in_fork(act: Callable[[], bytes], *, action: Callable[[], None] = lambda: None) -> bytes:
    """The result of a fork that has made its descriptors its own.

    Args:
        action: called between the listing of descriptors and the fork.
    """
    inherited = inherited_by_forks()
    action()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            inherited.make_own()
            os.write(writer, act())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        answer_bytes = answer.read()
    os.waitpid(child, 0)
    return answer_bytes


@pytest.fixture
def keep() -> Iterator[ExitStack]:
    """Things to close when the test ends."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    "kind", [plain, deleted, nameless, zipped, tarred, archive_of_numpy, database]
)
def test_fork_moves_no_position_but_its_own(
    kind: Callable[[Path, ExitStack], Opened], tmp_path: Path, keep: ExitStack
) -> None:
    opened = kind(tmp_path, keep)
    opened.read(3)
    position_before = os.lseek(opened.descriptor, 0, os.SEEK_CUR)
    assert in_fork(lambda: bytes(map(opened.read, range(RECORDS)))) == bytes(range(RECORDS))
    assert os.lseek(opened.descriptor, 0, os.SEEK_CUR) == position_before
    assert opened.read(5) == 5


def test_fork_begins_where_its_parent_stood(tmp_path: Path, keep: ExitStack) -> None:
    opened = plain(tmp_path, keep)
    os.lseek(opened.descriptor, 7 * RECORD, os.SEEK_SET)
    assert in_fork(lambda: os.read(opened.descriptor, 1)) == b"\x07"


def test_connection_ends_in_fork_alone() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as peer,
    ):
        peer.sendall(b"answer")
        assert in_fork(lambda: client.recv(6) or b"over") == b"over"
        assert client.recv(6) == b"answer"


def test_connections_closed_before_fork_are_ignored() -> None:
    """By another thread, between the listing of descriptors and the fork."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        with server.accept()[0]:
            assert in_fork(lambda: b"there", action=client.close) == b"there"


def test_pair_of_sockets_stays_in_fork() -> None:
    near_end, far_end = socket.socketpair()
    with near_end, far_end:
        far_end.sendall(b"word")
        assert in_fork(lambda: near_end.recv(4)) == b"word"


def test_file_written_to_stays_shared(tmp_path: Path) -> None:
    with open(tmp_path / "log", "ab", buffering=0) as log:
        in_fork(lambda: str(log.write(b"line")).encode())
        assert os.lseek(log.fileno(), 0, os.SEEK_CUR) == 4


def test_locks_of_lmdb_survive_no_fork(tmp_path: Path) -> None:
    assert not inherited_by_forks().unforkable
    with open(tmp_path / "lock.mdb", "w+b"):
        assert inherited_by_forks().unforkable == str(tmp_path / "lock.mdb")
    with open(tmp_path / "lock.mdb", "rb"):
        assert not inherited_by_forks().unforkable


def test_file_that_cannot_be_opened_again_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = str((tmp_path / "rows").resolve())
    with open(rows, "w+b"):
        monkeypatch.setattr(os, "access", lambda path, *_, **__: os.path.realpath(path) != rows)
        with pytest.raises(SpecError, match="rows: got a file that this account may not open"):
            inherited_by_forks()


class Rows(Dataset[int]):
    """Records of a file that is opened once, as many datasets do."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> int:
        return self.opened.read(index)


@pytest.fixture
def feed(tmp_path: Path, keep: ExitStack) -> Iterator[Feed]:
    feed = Feed(Rows(plain(tmp_path, keep)), seed=0, global_batch_size=8, shuffle=False, loaders=2)
    yield feed
    feed.close()


def test_processes_that_read_have_positions_of_their_own(feed: Feed) -> None:
    descriptor = feed.dataset.opened.descriptor
    read = [
        number for micro_batch in feed.read(ask(feed)) for number in micro_batch.sample.tolist()
    ]
    assert read == 2 * list(range(RECORDS))
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 0


def test_processes_that_read_refuse_locks_of_lmdb(feed: Feed, tmp_path: Path) -> None:
    with open(tmp_path / "lock.mdb", "w+b"), pytest.raises(SpecError, match="lock=False"):
        next(feed.read(ask(feed)))


def test_dataset_with_open_archive_has_no_generators(tmp_path: Path, keep: ExitStack) -> None:
    archive_of_numpy(tmp_path, keep)
    with np.load(tmp_path / "rows.npz") as opened:
        assert own_generators({"archive": opened}) == []


class Irreducible(tuple[Any, ...]):
    """A tuple that says its length to nobody, as Irreps of e3nn."""

    def __len__(self) -> int:
        raise NotImplementedError


def test_parts_of_a_tuple_without_length_are_seen() -> None:
    generator = torch.Generator()
    assert own_generators({"parts": Irreducible((1, generator))}) == [generator]
