"""Jobs that print without end: they train on to the same weights, and their logs take no more than
they may.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from brim.telemetry.logs import Tail
from brim_lab.driver import Driver
from e2e.running import (
    DEADLINE,
    DIGITS,
    FILES,
    PACED,
    Run,
    check_ledger,
    joining,
    started,
    train,
    until,
)
from e2e.test_scheduler import Home, calm, home

__all__ = ["calm", "home"]
pytestmark = pytest.mark.e2e

CHATTY = str(FILES / "chatty.py")
JOB = ("--epochs", "4", "--global-batch-size", "128", "--workers", "2")
LIMIT = 4 << 20
LIMITED = ("--log-limit", "4MiB")
LOST = re.compile(r"\[([\d,]+) bytes are left out: more than --log-limit keeps\]")
SAID = re.compile(r"(\d{8}) (\d{9}) x{80}")
MEANWHILE = 64 << 20  # bytes that may be printed between two looks of an agent on a busy machine


def disk_use(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.glob("*.log"))


def length(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


class Watch(threading.Thread):
    """Looks every few moments at the size of a run's logs, until it is over."""

    def __init__(self, logs: Path) -> None:
        super().__init__()
        self._logs, self.over = logs, threading.Event()
        self.most = 0

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, disk_use(self._logs))

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


def check(lines: list[str]) -> tuple[int, int]:
    """Lines of one process are whole, and in order; how many bytes of lines there are, and how many
    are gone.
    """
    last: dict[str, int] = {}
    came = lost = 0
    for line in lines:
        if omission := LOST.fullmatch(line):
            lost += int(omission[1].replace(",", ""))
        elif words_line := SAID.fullmatch(line):
            assert int(words_line[2]) > last.get(words_line[1], -1), f"{line} came twice"
            last[words_line[1]] = int(words_line[2])
            came += len(line) + 1
        else:
            came += len(line) + 1
    return came, lost


def agent_of(run: Run) -> psutil.Process:
    return next(
        child
        for child in psutil.Process(run.process.pid).children()
        if any("brim.agent" in word for word in child.cmdline())
    )


@pytest.mark.long
def test_heavy_printing_does_not_change_weights(
    tmp_path: Path,
) -> None:
    """`brim logs -f` beside them misses only the lines it names, and comes to the last line."""
    quiet = train(tmp_path / "quiet", CHATTY, *JOB)
    logs = tmp_path / "run" / "logs"
    out_file = tmp_path / "out"
    with (
        Watch(logs) as watch,
        started(tmp_path / "run", "train", CHATTY, *JOB, *LIMITED, "--set", "lines=6000") as run,
    ):
        until((logs / "w2.log").exists, "a worker", run)
        with out_file.open("wb") as output:
            words = ("logs", str(run.directory), "-f", "--worker", "w2")
            follower = Driver().start(*words, stdout=output, stderr=subprocess.DEVNULL)
        try:
            until(lambda: run.process.poll() is not None, "the end of the run")
            assert follower.wait(DEADLINE) == 0
        finally:
            follower.kill()
            follower.wait()
        summary = run.finish()
    assert summary["weights_sha256"] == quiet["weights_sha256"]
    check_ledger(run.directory)
    assert length(logs) > 200 << 20
    assert watch.most < LIMIT + MEANWHILE
    assert disk_use(logs) <= LIMIT
    lines = [line.removeprefix("w2 | ") for line in out_file.read_text().splitlines()]
    came, lost = check(lines)
    assert came + lost == (logs / "w2.log").stat().st_size
    newest = list(Tail(run.directory, "w2").fresh(1000))
    assert lines[-1] == newest[-1][1]
    assert "Traceback" not in (logs / "agent.log").read_text()


@pytest.mark.long
def test_no_line_repeats_after_agents_die_cutting_logs(tmp_path: Path) -> None:
    job = (CHATTY, *JOB[2:], "--epochs", "6", "--checkpoint-every", "10000")
    quiet = train(tmp_path / "quiet", *job)
    logs = tmp_path / "run" / "logs"
    with started(
        tmp_path / "run", "train", *job, *PACED, "--log-limit", "1MiB", "--set", "endless=true"
    ) as run:
        tail, lines = Tail(run.directory), dict[str, list[str]]()

        def read() -> None:
            for worker, line in tail.fresh(1000):
                lines.setdefault(worker, []).append(line)

        for death in range(2):
            restores_before = len(run.events("restored"))
            grown = length(logs)
            run.wait_for_step(2 * death + 2)
            until(lambda grown=grown: length(logs) > grown + 2 * LIMIT, "output", run)  # type: ignore[misc]
            read()
            agent_of(run).kill()
            until(lambda old=restores_before: len(run.events("restored")) > old, "a restore", run)  # type: ignore[misc]
        run.hurry()
        summary = run.finish()
    assert summary["weights_sha256"] == quiet["weights_sha256"]
    assert disk_use(logs) <= 1 << 20
    read()
    for worker, words_of_worker in lines.items():
        came, lost = check(words_of_worker)
        assert came + lost == (logs / f"{worker}.log").stat().st_size
    assert any(
        LOST.fullmatch(line) for words_of_worker in lines.values() for line in words_of_worker
    )


def test_a_killed_worker_leaves_its_last_lines(tmp_path: Path) -> None:
    words = ("--workers", "1", "--faults", "kill rank 0 at step 20")
    script = (sys.executable, str(FILES / "talking_loop.py"))
    Driver().call("run", "--run-dir", str(tmp_path / "run"), *words, "--", *script)
    printed = (tmp_path / "run" / "logs" / "w1.log").read_text().splitlines()
    assert printed[:2] == ["begun", "step 1 of rank 0"]
    assert "step 18 of rank 0" in printed  # the kill may come before the lines of the next two


@pytest.mark.long
def test_output_before_joining_is_bounded(tmp_path: Path) -> None:
    logs = tmp_path / "run" / "logs"
    job = (CHATTY, *JOB, *LIMITED, "--set", "hang=true")
    with Watch(logs) as watch, started(tmp_path / "run", "train", *job) as run:
        until(lambda: logs.exists() and length(logs) > 48 << 20, "much output", run)
        assert not run.events("round")
        run.process.kill()
        until(
            lambda: not psutil.pid_exists(run.process.pid) or run.process.poll() is not None,
            "the end",
        )
        until(lambda: disk_use(logs) <= LIMIT, "the last cut")
    assert watch.most < LIMIT + MEANWHILE


def test_each_host_limits_its_own_logs(tmp_path: Path) -> None:
    """Also where rank 0 is on another host than the command, which is passed on its output."""
    quiet = train(tmp_path / "quiet", CHATTY, *JOB)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    hosts = ("--listen", "127.0.0.1:0", "--agents", "2", "--spares", "0", "--set", "lines=1000")
    slow = ("--set", "pause=0.1", "--set", f"hurry={tmp_path / 'hurry'}")
    options = (*JOB, *hosts, *slow, "--log-limit", "1MiB")
    with started(tmp_path / "run", "train", CHATTY, *options) as run:
        agent = joining(run.directory, TMPDIR=str(scratch))
        try:
            until(lambda: bool(run.events("round")), "a round", run)
            (logs,) = scratch.glob("brim-agent-*/logs")
            remote_log = next(path for path in logs.glob("w*.log"))
            until(lambda: remote_log.stat().st_size > 4 << 20, "output", run)
            until(lambda: disk_use(logs) <= 1 << 20, "a cut", run)
            (tmp_path / "hurry").touch()
            summary = run.finish()
            assert agent.wait(DEADLINE) == 0
        finally:
            agent.kill()
            agent.wait()
    assert summary["weights_sha256"] == quiet["weights_sha256"]
    assert disk_use(run.directory / "logs") <= 1 << 20


@pytest.mark.long
def test_scheduler_and_node_logs_are_bounded(home: Home, calm: str) -> None:
    """Also while they are written by processes that inherited them."""
    limit = 64 << 20
    own_logs = [home.state / "scheduler.log", home.state / "nodes" / "n1" / "node.log"]
    job = home.submit("--workers", "2", *LIMITED)
    for log in own_logs:
        until(log.exists, f"{log}")
        with log.open("ab") as file:
            for _ in range(96):
                file.write(b"brim: something is odd, again and again\n" * ((1 << 20) // 40))
    until(lambda: sum(log.stat().st_blocks * 512 for log in own_logs) <= limit, "shorter logs")
    assert all(log.stat().st_size > 90 << 20 for log in own_logs)
    assert home.finished(job)["weights_sha256"] == calm
    home.brim("submit", DIGITS, "--log-limit", "1KiB", code=2)
    assert "--log-limit: got 1,024 bytes, need at least 1 MiB" in home.err


@pytest.mark.long
def test_job_logs_are_readable_over_http_after_cuts(home: Home) -> None:
    job = home.submit(
        "--workers", "2", *LIMITED, "--set", "lines=1500", "--epochs", "4", file=CHATTY
    )
    home.wait_for_step(job, 1)
    following = home.begin("logs", job, "-f", "--worker", "w1")
    output, err = following.communicate(timeout=DEADLINE)
    assert following.returncode == 0, err
    home.finished(job)
    lines = [line.removeprefix("w1 | ") for line in output.splitlines()]
    came, lost = check(lines)
    log = home.run_dir(job) / "logs" / "w1.log"
    assert came + lost == log.stat().st_size
    output = home.brim("logs", job, "--worker", "w1")
    omission, *rest = [line.removeprefix("w1 | ") for line in output.splitlines()]
    assert LOST.fullmatch(omission)
    assert rest[-1] == lines[-1]
    assert disk_use(log.parent) <= LIMIT
