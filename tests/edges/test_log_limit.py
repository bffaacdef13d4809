"""Logs that are written without end: their size is bounded, and readers are told of all lines that
they miss.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brim.agent import prints as agents
from brim.coordination.job.membership import Member, World
from brim.host import holes as files_with_holes
from brim.telemetry import log_limit
from brim.telemetry.log_limit import LogLimit
from brim.telemetry.logs import Tail, last_line
from brim_lab.chaos.disk import can_mount, small_disk

LIMIT = 1 << 20
DEADLINE = 300.0

# Numbered lines of 100 bytes, through a descriptor that it inherited, as workers' are.
WRITER = """
import os, sys
filler = b"x" * 87 + b"\\n"
for number in range(int(sys.argv[1])):
    os.write(1, b"%012d" % number + filler)
"""
LINE = 100

# Enforces a limit as fast as it can, until it is killed.
ENFORCER = """
import sys
from pathlib import Path
from brim.telemetry import log_limit
limit = log_limit.LogLimit(Path(sys.argv[1]), "*.log", limit=int(sys.argv[2]))
print("ready", flush=True)
while True:
    limit.enforce()
"""


@pytest.fixture(params=["holes", "no holes"])
def holes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the disk can make holes in files."""
    if request.param == "no holes":
        monkeypatch.setattr(files_with_holes, "_punch", _no_holes)
        monkeypatch.setattr(files_with_holes, "_ANEW", 256 << 10)
    return bool(request.param == "holes")


def _no_holes(_: int, __: int) -> None:
    raise OSError(errno.EOPNOTSUPP, "not supported")


def make(run: Path, worker: str, content: bytes) -> Path:
    (run / "logs").mkdir(exist_ok=True)
    path = run / "logs" / f"{worker}.log"
    with path.open("ab") as log:
        log.write(content)
    return path


def numbered(first: int, end: int) -> bytes:
    return b"".join(b"%012d" % number + b"x" * 87 + b"\n" for number in range(first, end))


def disk_use(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


@contextlib.contextmanager
def writing(log: Path, lines: int) -> Iterator[subprocess.Popen[bytes]]:
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(lines)], stdout=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Reader:
    """Takes note of which lines came, and of how many bytes it was told that are gone."""

    def __init__(self, run: Path) -> None:
        self._tail = Tail(run)
        self.last = -1
        self.came = self.lost = 0

    def read(self) -> None:
        """Read to the end; every line must be whole, and behind the ones before it."""
        while lines := self._tail.fresh():
            for _, line in lines:
                if lost := re.fullmatch(
                    r"\[([\d,]+) bytes are left out: more than --log-limit keeps\]", line
                ):
                    self.lost += int(lost[1].replace(",", ""))
                    continue
                assert re.fullmatch(r"\d{12}x{87}", line), line
                assert int(line[:12]) > self.last, "a line came twice"
                self.last = int(line[:12])
                self.came += LINE


def until(condition: Callable[[], bool], subject: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, subject
        time.sleep(0.005)


def test_bounded_logs_tell_readers_of_omissions(
    tmp_path: Path,
) -> None:
    count = 300_000
    limit, reader = LogLimit(tmp_path / "logs", "*.log", limit=LIMIT), Reader(tmp_path)
    log = tmp_path / "logs" / "w1.log"
    with writing(log, count) as writer:
        was_read = 0
        while writer.poll() is None:
            size_before = log.stat().st_size
            limit.enforce()
            used = disk_use(tmp_path / "logs")
            assert used <= LIMIT + (log.stat().st_size - size_before) + (
                64 << 10
            )  # what was written meanwhile
            if log.stat().st_size > was_read + 3 * LIMIT:
                reader.read()
                was_read = log.stat().st_size
    limit.enforce()
    assert disk_use(tmp_path / "logs") <= LIMIT
    reader.read()
    assert reader.last == count - 1
    assert reader.lost > 0
    assert reader.came + reader.lost == count * LINE


def test_logs_without_holes_keep_reader_positions(tmp_path: Path, holes: bool) -> None:
    limit, reader = LogLimit(tmp_path / "logs", "*.log", limit=LIMIT), Reader(tmp_path)
    for part in range(40):
        make(tmp_path, "w1", numbered(4_000 * part, 4_000 * (part + 1)))
        limit.enforce()
        assert disk_use(tmp_path / "logs") <= LIMIT
        if part % 7 == 0:
            reader.read()
    reader.read()
    assert reader.lost > 0
    assert (reader.last, reader.came + reader.lost) == (159_999, 160_000 * LINE)


def test_older_lines_never_come_behind_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no holes can be made, and somebody writes between two calls."""
    monkeypatch.setattr(files_with_holes, "_punch", _no_holes)
    log = make(tmp_path, "w1", numbered(0, 20_000))
    truncate, newer = os.ftruncate, [numbered(20_000, 20_010)]

    def interrupted(file: int, length: int) -> None:
        truncate(file, length)
        if newer:
            make(tmp_path, "w1", newer.pop())

    monkeypatch.setattr(os, "ftruncate", interrupted)
    LogLimit(tmp_path / "logs", "*.log", limit=LIMIT).enforce()
    make(tmp_path, "w1", numbered(20_010, 20_020))
    assert log.read_bytes() == numbered(20_010, 20_020)


def test_log_limiting_survives_kills_and_rivals(
    tmp_path: Path,
) -> None:
    count = 400_000
    reader = Reader(tmp_path)
    deaths = 0
    with writing(tmp_path / "logs" / "w1.log", count) as writer:
        while writer.poll() is None or not deaths:
            keepers = [
                subprocess.Popen(
                    [sys.executable, "-c", ENFORCER, str(tmp_path / "logs"), str(LIMIT)],
                    stdout=subprocess.PIPE,
                )
                for _ in range(2)
            ]
            for keeper in keepers:
                assert keeper.stdout is not None
                assert keeper.stdout.readline() == b"ready\n"
            reader.read()
            for keeper in keepers:
                keeper.send_signal(signal.SIGKILL)
                keeper.communicate()
                deaths += 1
    LogLimit(tmp_path / "logs", "*.log", limit=LIMIT).enforce()
    reader.read()
    assert deaths >= 2
    assert reader.last == count - 1
    assert reader.lost > 0
    assert reader.came + reader.lost == count * LINE


def test_who_prints_little_loses_nothing(tmp_path: Path, holes: bool) -> None:
    """The longest logs share the room left by the others."""
    quiet = make(tmp_path, "agent", b"all of this\n")
    loud = [make(tmp_path, f"w{number}", numbered(0, 40_000)) for number in range(3)]
    LogLimit(tmp_path / "logs", "*.log", limit=2 * LIMIT).enforce()
    assert quiet.read_bytes() == b"all of this\n"
    for log in loud:
        assert log.stat().st_size == 40_000 * LINE
        used = log.stat().st_blocks * 512
        assert (LIMIT // 2 if holes else 128 << 10) < used <= 2 * LIMIT // 3
    lines = [line for worker, line in Tail(tmp_path, "w2").fresh(100) if worker == "w2"]
    assert lines[-1] == numbered(39_999, 40_000).decode().strip()
    assert lines[0].endswith("bytes are left out: more than --log-limit keeps]")


def test_a_failing_hole_is_retried_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int, __: int) -> None:
        raise OSError(errno.EIO, "the disk does not answer")

    log, punch = make(tmp_path, "w1", numbered(0, 20_000)), files_with_holes._punch
    limit = LogLimit(tmp_path / "logs", "*.log", limit=LIMIT)
    monkeypatch.setattr(files_with_holes, "_ANEW", 256 << 10)
    monkeypatch.setattr(files_with_holes, "_punch", fails)
    limit.enforce()
    assert log.read_bytes() == numbered(0, 20_000)
    monkeypatch.setattr(files_with_holes, "_punch", punch)
    limit.enforce()
    assert LIMIT // 2 < disk_use(tmp_path / "logs") <= LIMIT


def test_a_log_within_the_limit_is_not_touched(tmp_path: Path) -> None:
    log = make(tmp_path, "w1", numbered(0, 5_000))
    status_before = log.stat()
    LogLimit(tmp_path / "logs", "*.log", limit=LIMIT).enforce()
    assert log.stat() == status_before


def test_what_is_no_log_is_left_alone(tmp_path: Path, holes: bool) -> None:
    """A run's user may put anything into its directory: a link leads out of it, and a pipe would be
    waited for.
    """
    precious = tmp_path / "precious"
    precious.write_bytes(numbered(0, 20_000))
    make(tmp_path, "w1", numbered(0, 20_000))
    folder = tmp_path / "logs"
    (folder / "w2.log").symlink_to(precious)
    os.mkfifo(folder / "w3.log")
    (folder / "w4.log").mkdir()
    (folder / "trace.json").write_bytes(numbered(0, 20_000))
    limit = LogLimit(folder, "*.log", limit=LIMIT)
    limit.enforce()
    assert precious.read_bytes() == (folder / "trace.json").read_bytes() == numbered(0, 20_000)
    assert (folder / "w1.log").stat().st_blocks * 512 <= LIMIT
    LogLimit(tmp_path / "nowhere", "*.log", limit=LIMIT).enforce()


@pytest.mark.skipif(not can_mount(), reason="needs root, to mount")
def test_on_a_full_disk_room_is_made(tmp_path: Path, holes: bool) -> None:
    with small_disk(tmp_path / "disk") as disk:
        log = make(disk.path, "w1", numbered(0, 20_000))
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            make(disk.path, "w2", numbered(0, 10_000))
        LogLimit(disk.path / "logs", "*.log", limit=LIMIT).enforce()
        with log.open("ab") as file:
            file.write(numbered(20_000, 20_100))
        lines = [line for worker, line in Tail(disk.path, "w1").fresh(100)]
    assert int(lines[-1][:12]) == 20_099


def test_a_log_cut_while_read_is_reread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make(tmp_path, "w1", numbered(0, 20_000))
    pread = os.pread
    cuts: list[int] = []

    def cutting(file: int, length: int, place: int) -> bytes:
        content = pread(file, length, place)
        if length > 4096 and not cuts:
            cuts.append(place)
            LogLimit(tmp_path / "logs", "*.log", limit=LIMIT).enforce()
            content = content[:5050] + bytes(60_000) + content[65_050:]  # the cut overtook the read
        return content

    monkeypatch.setattr(os, "pread", cutting)
    reader = Reader(tmp_path)
    reader.read()
    assert cuts == [0]
    assert (reader.last, reader.came + reader.lost) == (19_999, log.stat().st_size)


def test_incomplete_lines_wait_after_a_cut(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    make(tmp_path, "w1", b"x" * (4 * LIMIT))
    LogLimit(tmp_path / "logs", "*.log", limit=64 << 10).enforce()
    assert tail.fresh() == []
    make(tmp_path, "w1", b"x\nwhole\nnot")
    omission, whole = tail.fresh()
    assert omission == (
        "w1",
        f"[{4 * LIMIT + 2:,} bytes are left out: more than --log-limit keeps]",
    )
    assert whole == ("w1", "whole")
    assert tail.fresh() == []
    make(tmp_path, "w1", b" yet\n")
    assert tail.fresh() == [("w1", "not yet")]


def test_printed_zero_bytes_are_no_cut(tmp_path: Path) -> None:
    make(tmp_path, "w1", b"\0\0a\n" + b"\0" * 5000 + b"b\n")
    assert [line for _, line in Tail(tmp_path).fresh()] == ["\0\0a", "\0" * 5000 + "b"]


def test_an_emptied_log_is_read_from_its_start(tmp_path: Path) -> None:
    log = make(tmp_path, "w1", b"a\nb\n")
    tail = Tail(tmp_path)
    assert len(tail.fresh()) == 2
    log.write_text("c\n")
    assert [line for _, line in tail.fresh(3)] == ["[this log was emptied, and begins again]", "c"]


def test_logs_stay_within_file_size_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_limit, "_FARTHEST", 1 << 20)
    log = make(tmp_path, "w1", numbered(0, 40_000))
    limit = LogLimit(tmp_path / "logs", "*.log", limit=LIMIT)
    limit.enforce()
    assert log.stat().st_size == 0


def test_the_last_line_of_a_cut_log(tmp_path: Path) -> None:
    log = make(tmp_path, "w1", numbered(0, 40_000) + b"the end\n\n")
    LogLimit(tmp_path / "logs", "*.log", limit=LIMIT).enforce()
    assert last_line(log) == "the end"
    assert last_line(tmp_path / "none.log") == ""


def test_an_agent_is_not_held_by_endless_prints(
    tmp_path: Path,
) -> None:
    members = (Member(worker="w1", agent="a2", address="10.0.0.2:1"),)
    log = make(tmp_path, "w1", b"")
    prints = agents.PrintForwarder(tmp_path)
    prints.begin(World(round=1, members=members, donors={}, restore=False, shares=(1,)))
    is_over = threading.Event()

    def write() -> None:
        with log.open("ab") as file:
            while not is_over.is_set():
                file.write(numbered(0, 5_000))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: log.stat().st_size > 20 << 20, "a long log")
        started = time.monotonic()
        passed = prints.fresh()
        assert time.monotonic() - started < 10
    finally:
        is_over.set()
        writer.join()
    assert "lines left out: more than brim passes on to another host]" in passed
    assert len(passed) < 20_000
    assert prints.rest().endswith(numbered(4_999, 5_000).decode())
