"""Bad days of a scheduler with real jobs: it outlasts them, and each job ends with the weights of a
calm run.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brim.client import Client
from brim.storage.contact import read_scheduler_contact
from brim_lab.chaos.disk import can_mount, small_disk
from e2e.running import DEADLINE, PACED, has_ended, leftovers, lines, until
from e2e.test_scheduler import Home, calm, home

__all__ = ["calm", "home"]
pytestmark = pytest.mark.e2e


def problem(home: Home) -> str:
    return Client(home.state).cluster().problem


def pid(home: Home) -> int:
    contact = read_scheduler_contact(home.state)
    assert contact is not None
    return contact.pid


def steps(home: Home, job: str) -> int:
    return len(lines(home.run_dir(job) / "steps.jsonl"))


def hurry(home: Home, job: str) -> None:
    (home.run_dir(job) / "hurry").touch()


@contextlib.contextmanager
def database(home: Home) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(
        sqlite3.connect(home.state / "scheduler.db", isolation_level=None)
    ) as sql:
        yield sql


@pytest.mark.skipif(not can_mount(), reason="mounting needs root")
def test_jobs_survive_a_full_disk(tmp_path: Path, calm: str) -> None:
    with small_disk(tmp_path / "disk") as disk:
        home = Home(tmp_path)
        home.state = disk.path / "state"
        home.brim("up", "--cluster", str(home.file))
        job = home.submit("--workers", "2", "--checkpoint-every", "20", *PACED)
        home.wait_for_step(job, 25)
        scheduler = pid(home)
        disk.fill()
        until(lambda: "is full" in problem(home), "the hold")
        home.brim("submit", *home.words("web"), code=1)
        assert "the scheduler decides nothing for now: the disk of" in home.err
        home.brim("status", job)
        assert "the scheduler decides nothing for now" in home.err
        hurry(home, job)
        disk.free()
        until(lambda: not problem(home), "its end")
        end = home.finished(job)
        assert (end["state"], end["exit"], end["weights_sha256"]) == ("done", "done", calm)
        second_job = home.submit("--workers", "2", tenant="web")
        assert home.finished(second_job)["weights_sha256"] == calm
        assert pid(home) == scheduler
        home.brim("simulate", "replay")
        home.brim("down")
        until(lambda: not leftovers(home.state), "the end of all")


@pytest.mark.long
def test_jobs_survive_a_locked_database(home: Home, calm: str) -> None:
    job = home.submit("--workers", "2", *PACED)
    home.wait_for_step(job, 5)
    scheduler = pid(home)
    with database(home) as sql:
        sql.execute("begin immediate")
        until(lambda: "database is locked" in problem(home), "the hold")
        home.brim("cancel", job, code=1)
        assert "decides nothing for now" in home.err
        steps_before = steps(home, job)
        hurry(home, job)
        until(lambda: steps(home, job) > steps_before + 20, "steps without decisions")
        sql.execute("rollback")
    until(lambda: not problem(home), "its end")
    end = home.finished(job)
    assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 1, calm)
    assert pid(home) == scheduler


@pytest.mark.long
def test_undecodable_records_hold_a_starting_scheduler(home: Home, calm: str) -> None:
    jobs = [home.submit("--workers", "1:2", *PACED, tenant=tenant) for tenant in ("ads", "web")]
    for job in jobs:
        home.wait_for_step(job, 5)
    home.kill_scheduler()
    with database(home) as sql:
        (record,) = sql.execute("select record from jobs where id = ?", (jobs[0],)).fetchone()
        sql.execute("update jobs set record = x'c1' where id = ?", (jobs[0],))
        home.brim("up")
        assert f"the record of {jobs[0]} cannot be decoded" in problem(home)
        home.brim("jobs")
        assert f"the record of {jobs[0]} cannot be decoded" in home.err
        steps_before = [steps(home, job) for job in jobs]
        for job in jobs:
            hurry(home, job)
        until(
            lambda: all(
                steps(home, job) > n + 5 for job, n in zip(jobs, steps_before, strict=True)
            ),
            "more steps",
        )
        sql.execute("update jobs set record = ? where id = ?", (record, jobs[0]))
    until(lambda: not problem(home), "the end of the hold")
    for job in jobs:
        end = home.finished(job)
        assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 1, calm)


def test_an_unstartable_node_is_shown_and_retried(tmp_path: Path, calm: str) -> None:
    home = Home(tmp_path)
    (home.state / "nodes").mkdir(parents=True)
    obstacle = home.state / "nodes" / "n1"
    obstacle.touch()
    home.brim("up", "--cluster", str(home.file))
    job = home.submit("--workers", "2")
    until(lambda: "node n1: its agent cannot be started" in problem(home), "the problem")
    home.brim("status", job)
    assert "node n1: its agent cannot be started" in home.err
    assert home.job(job).launches == 0
    obstacle.unlink()
    end = home.finished(job)
    assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 1, calm)
    home.brim("down")


@pytest.mark.long
def test_deleting_the_state_directory_ends_the_scheduler(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    home.brim("up", "--cluster", str(home.file))
    job = home.submit("--workers", "2", *PACED)
    home.wait_for_step(job, 5)
    scheduler = psutil.Process(pid(home))
    family = [scheduler, *scheduler.children(recursive=True)]
    log = (home.state / "scheduler.log").open()
    home.state.rename(tmp_path / "moved")
    until(lambda: has_ended(scheduler.pid), "its end")
    assert "the state directory was moved or deleted under its scheduler" in log.read()
    log.close()
    until(
        lambda: all(has_ended(process.pid) for process in family), "the end of all that it started"
    )
    home.brim("up", "--cluster", str(home.file))
    assert Client(home.state).jobs() == []
    home.brim("down")
    # Where it was only moved, nothing is lost: the job goes on from its last checkpoint.
    home.state = tmp_path / "moved"
    home.brim("up")
    home.wait_for_step(job, 1)
    home.brim("down", "--kill")


@pytest.mark.long
def test_one_removed_run_directory_fails_its_job_alone(home: Home, calm: str) -> None:
    jobs = [home.submit("--workers", "1:2", *PACED, tenant=tenant) for tenant in ("ads", "web")]
    for job in jobs:
        home.wait_for_step(job, 5)
    until(lambda: is_gone(home.run_dir(jobs[0])), "its removal")
    until(lambda: home.job(jobs[0]).state == "failed", "its end")
    assert "was removed while it ran" in home.job(jobs[0]).problem
    hurry(home, jobs[1])
    end = home.finished(jobs[1])
    assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 1, calm)


def is_gone(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@pytest.mark.long
def test_ctrl_c_ends_a_foreground_scheduler_not_jobs(tmp_path: Path, calm: str) -> None:
    home = Home(tmp_path)
    with foreground(home, "--cluster", str(home.file)) as first:
        job = home.submit("--workers", "2", *PACED)
        home.wait_for_step(job, 5)
        assert pid(home) == first.pid
        first.send_signal(signal.SIGINT)
        _, explanation = first.communicate(timeout=DEADLINE)
        assert first.returncode == 0
        assert "its jobs train on" in explanation
    steps_before = steps(home, job)
    until(lambda: steps(home, job) > steps_before + 5, "steps without a scheduler")
    with foreground(home) as second:
        hurry(home, job)
        end = home.finished(job)
        assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 1, calm)
        home.brim("down")
        assert second.wait(DEADLINE) == 0


@contextlib.contextmanager
def foreground(home: Home, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = home.begin("up", "--foreground", *words)
    until(lambda: read_scheduler_contact(home.state) is not None and pid(home) == process.pid, "it")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
