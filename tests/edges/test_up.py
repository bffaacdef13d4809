"""`brim up` where a scheduler is there already, and has not answered yet."""

from __future__ import annotations

import itertools
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brim.backends.environment import keep_environment_of_jobs
from brim.cli import up as cli_up
from brim.cli.__main__ import cli
from brim.errors import EnvironmentFault
from brim.storage.database import Database
from brim.storage.files import is_locked, lock
from e2e.running import until


class Busy:
    """A scheduler that answers once it was asked so often."""

    def __init__(self, silent: float) -> None:
        self.silent = silent

    def cluster(self) -> None:
        if self.silent > 0:
            self.silent -= 1
            raise EnvironmentFault("the scheduler does not answer")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """Where a scheduler runs."""
    database = Database(tmp_path / "scheduler.db")
    database.put("cluster", b"as it was")
    database.close()
    lock_file = lock(tmp_path / ".scheduler.lock")
    assert lock_file is not None
    yield tmp_path
    os.close(lock_file)


def up(state: Path, scheduler: Busy, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setattr(cli_up, "client_of", lambda _: scheduler)
    monkeypatch.setattr(cli_up, "_spawn", lambda *_: pytest.fail("a second scheduler"))
    described = state / "cluster.yaml"
    described.write_text("nodes: [{name: n1, workers: 3}]\n")
    return CliRunner().invoke(cli, ["up", "--cluster", str(described), "--state", str(state)])


def description(state: Path) -> bytes | None:
    database = Database(state / "scheduler.db")
    try:
        return database.get("cluster")
    finally:
        database.close()


def test_an_unresponsive_scheduler_keeps_its_description(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_up, "_TO_COME_UP", 0.1)
    done = up(state, Busy(float("inf")), monkeypatch)
    assert done.exit_code == 1, done.output
    assert "has not answered" in done.stderr
    assert description(state) == b"as it was"


def test_a_scheduler_that_answers_late_is_waited_for(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = up(state, Busy(1), monkeypatch)
    assert done.exit_code == 2, done.output
    assert "where a scheduler runs" in done.stderr
    assert description(state) == b"as it was"


def test_a_started_scheduler_may_be_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler, ticks = Busy(3), itertools.count()
    monkeypatch.setattr(cli_up, "client_of", lambda _: scheduler)
    monkeypatch.setattr(cli_up, "_TO_SAY_SO", 0.0)
    monkeypatch.setattr(cli_up, "monotonic", lambda: next(ticks) / 10)
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert id(cli_up._await_scheduler(tmp_path, process)[0]) == id(scheduler)
            output = capsys.readouterr().err
            assert output.startswith("the scheduler is still starting (0 s so far)\n")
            scheduler.silent = float("inf")
            monkeypatch.setattr(cli_up, "_TO_START", 0.1)
            with pytest.raises(EnvironmentFault, match="it runs on in the background"):
                cli_up._await_scheduler(tmp_path, process)
        finally:
            process.kill()


def test_the_chosen_node_port_is_printed(tmp_path: Path) -> None:
    def brim(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "brim", *words, "--state", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    try:
        output = brim("up", "--nodes", "127.0.0.1:0").stderr
        found = re.search(r"brim node --join 127\.0\.0\.1:(\d+) --token-file", output)
        assert found is not None, output
        with socket.create_connection(("127.0.0.1", int(found[1])), timeout=10.0):
            pass
    finally:
        brim("down")
        until(lambda: not is_locked(tmp_path / ".scheduler.lock"), "its end")


def test_schedulers_drop_variables_not_meant_for_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        os, "environ", {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s", "BRIM_TOKEN": "t", "HF_HOME": "/h"}
    )  # fmt: skip
    keep_environment_of_jobs({"HF_HOME": "/h"})
    assert os.environ == {"PATH": "/bin", "HF_HOME": "/h"}
