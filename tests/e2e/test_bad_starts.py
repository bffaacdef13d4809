"""A scheduler that comes up on a bad day: it holds, says why, can be ended, and goes on once that
can be.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from brim_lab.chaos.disk import can_mount, small_disk
from e2e.running import PACED, has_ended, leftovers, until
from e2e.test_bad_days import database, foreground, hurry, pid, problem, steps
from e2e.test_scheduler import Home, calm, home
from tiers import long_after

__all__ = ["calm", "home"]
pytestmark = pytest.mark.e2e
SUFFIXES = ("", "-wal", "-shm")


def files(home: Home) -> list[Path]:
    found = [home.state / f"scheduler.db{suffix}" for suffix in SUFFIXES]
    return [path for path in found if path.exists()]


def put_aside(home: Home, folder: Path) -> None:
    """Put nonsense in the place of the database."""
    folder.mkdir()
    for path in files(home):
        path.rename(folder / path.name)
    (home.state / "scheduler.db").write_bytes(b"no database\n" * 10_000)


def put_back(home: Home, folder: Path) -> None:
    for path in files(home):
        path.unlink()
    for path in sorted(folder.iterdir(), reverse=True):  # the file itself last
        shutil.move(path, home.state / path.name)


@pytest.mark.long
def test_a_damaged_database_holds_a_starting_scheduler(
    home: Home, calm: str, tmp_path: Path
) -> None:
    job = home.submit("--workers", "2", "--checkpoint-every", "20", *PACED)
    home.wait_for_step(job, 25)
    home.kill_scheduler()
    put_aside(home, tmp_path / "aside")
    home.brim("up", "--cluster", str(home.file))
    assert "file is not a database; jobs train on, and it tries again" in home.err
    home.brim("jobs", code=1)
    assert "file is not a database" in home.err
    home.brim("status", job)  # from the records of its run
    assert "file is not a database" in home.err
    # An administrator can end it, and its job trains on.
    home.brim("down")
    assert "its jobs keep training, and the next brim up takes them over" in home.err
    assert (home.state / "scheduler.db").read_bytes() == b"no database\n" * 10_000
    steps_before = steps(home, job)
    until(lambda: steps(home, job) > steps_before + 3, "steps without a scheduler")
    # Or with all that it started, also what one before it has started.
    home.brim("up")
    home.brim("down", "--kill")
    assert "its jobs were killed, and the next brim up takes them over" in home.err
    until(lambda: not leftovers(home.state), "the end of all processes")
    home.brim("up")
    put_back(home, tmp_path / "aside")
    until(lambda: not problem(home), "the end of the hold")
    hurry(home, job)
    end = home.finished(job)
    assert (end["exit"], end["weights_sha256"]) == ("done", calm)
    assert end["launches"] == 2


@pytest.mark.long
def test_damaged_memory_and_costs_are_done_without(home: Home, calm: str) -> None:
    job = home.submit("--workers", "2", *PACED)
    home.wait_for_step(job, 5)
    home.kill_scheduler()
    with database(home) as sql:
        last = "select max(number) from cycles"
        assert (
            sql.execute(f"update cycles set memory = x'c1' where number = ({last})").rowcount == 1
        )
        sql.execute("insert or replace into settings values ('costs', x'c1')")
    home.brim("up")
    assert "promises stand, and plans are made again" in problem(home)
    assert "and is learned again" in problem(home)
    home.brim("status", job)
    assert "promises stand, and plans are made again" in home.err
    hurry(home, job)
    end = home.finished(job)
    assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 1, calm)
    home.brim("report", "--cluster")


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="mounting needs root")
@pytest.mark.parametrize("fault", long_after(1, ["in the foreground", "in the background"]))
def test_a_full_disk_holds_a_starting_scheduler(tmp_path: Path, calm: str, fault: str) -> None:
    with small_disk(tmp_path / "disk") as disk:
        home = Home(tmp_path)
        home.state = disk.path / "state"
        home.brim("up", "--cluster", str(home.file))
        job = home.submit("--workers", "2", "--checkpoint-every", "20", *PACED)
        home.wait_for_step(job, 25)
        home.kill_scheduler()
        disk.fill()
        with contextlib.ExitStack() as stack:
            if fault == "in the background":
                home.brim("up", "--cluster", str(home.file))
                assert "is full" in home.err
            else:
                stack.enter_context(foreground(home, "--cluster", str(home.file)))
            until(lambda: "is full" in problem(home), "the hold")
            scheduler = psutil.Process(pid(home))
            home.brim("submit", *home.words("web"), code=1)
            assert "the scheduler decides nothing for now" in home.err
            if fault == "in the foreground":
                scheduler.send_signal(signal.SIGTERM)
                until(lambda: has_ended(scheduler.pid), "its end")
                disk.free()
                home.brim("up")
            else:
                disk.free()
            until(lambda: not problem(home), "the end of the hold")
            hurry(home, job)
            end = home.finished(job)
            assert (end["state"], end["exit"], end["weights_sha256"]) == ("done", "done", calm)
            home.brim("down")
        until(lambda: not leftovers(home.state), "the end of all")
