"""Kept files of a run come home: its records and checkpoints are there when its host is not, and the
verbs that read them work from anywhere.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.client import Client
from brim.storage.contact import read_scheduler_contact, token_of
from brim_lab.driver import Driver
from e2e.running import DIGITS, JOB, PACED, lines, started, undisturbed, until
from e2e.test_scheduler import Home
from objectstore import ObjectStore, object_store

pytestmark = pytest.mark.e2e

COMMAND = ("train", *JOB)


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.mark.long
def test_a_lost_run_resumes_from_its_store(
    tmp_path: Path, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    s3.clear()
    calm = undisturbed(*JOB)
    first_folder, second_folder = tmp_path / "here", tmp_path / "there"
    first_folder.mkdir()
    second_folder.mkdir()
    shutil.copy(DIGITS, first_folder / "digits.py")
    run_url = f"{s3.url}/runs/mine"
    options = ("--runs", f"{s3.url}/runs", "--checkpoint-every", "10", *PACED)
    with started(first_folder / "mine", "train", "digits.py", *COMMAND[2:], *options) as run:
        run.wait_for_step(25)
        second_driver = Driver(second_folder)
        until(lambda: _step(second_driver, run_url) >= 20, "20 steps in the store")
        assert (
            json.loads(second_driver.call("status", run_url, "--json").stdout)["state"] == "running"
        )
        refused = second_driver.call("resume", run_url, codes=(2,)).stderr
        assert "which is running" in refused
    # `started` has killed it all.
    shutil.rmtree(first_folder)  # with the code: what the store keeps of it is run
    # Nobody adds to it any more, which shows after a minute; here it is said by hand.
    s3.files().rm_file(f"{run_url.removeprefix('s3://')}/kept")
    assert json.loads(second_driver.call("status", run_url, "--json").stdout)["state"] == "died"
    assert second_driver.call("logs", run_url).stdout is not None
    resumed = second_driver.call("resume", run_url, "--json", "--workers", "2")
    assert json.loads(resumed.stdout)["weights_sha256"] == calm["weights_sha256"]
    account = json.loads(second_driver.call("ledger", run_url, "--json").stdout)
    assert account["exact"]
    report = f"{run_url.removeprefix('s3://')}/report.html"
    assert b"<html" in s3.files().cat_file(report)
    evaluated = json.loads(second_driver.call("evaluate", run_url, "--json").stdout)
    assert evaluated["metrics"]
    assert (second_folder / "runs" / "mine" / "events.jsonl").is_file()


def _step(driver: Driver, run_url: str) -> int:
    done = driver.call("status", run_url, "--json", codes=(0, 1, 2))
    return int(json.loads(done.stdout)["step"]) if done.returncode == 0 and done.stdout else 0


@pytest.mark.long
def test_verbs_read_jobs_of_a_remote_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    home.brim("up", "--cluster", str(home.file))
    try:
        job = home.submit()
        contact = read_scheduler_contact(home.state)
        assert contact is not None
        second_driver = Driver(
            tmp_path,
            BRIM_HOME=str(tmp_path / "nothing"),
            BRIM_TOKEN=token_of(home.state),
            XDG_CACHE_HOME=str(tmp_path / "cache"),
        )

        def brim(*words: str) -> str:
            return second_driver.call("--server", f"http://127.0.0.1:{contact.port}", *words).stdout

        ended = json.loads(brim("status", job, "--wait", "--json"))
        home.run_dir(job).chmod(0o700)
        assert ended["state"] == "done"
        assert json.loads(brim("ledger", job, "--json"))["exact"]
        (checkpoint,) = json.loads(brim("checkpoints", job, "--json"))["checkpoints"][-1:]
        assert checkpoint["whole"]
        assert str(home.state) not in checkpoint["path"], "that would be another host's"
        evaluated = json.loads(brim("evaluate", job, "--json"))["metrics"]
        assert evaluated == json.loads(home.brim("evaluate", job, "--json"))["metrics"]
        assert "done" in brim("explain", job)
        brim("report", job)
        copied = next((tmp_path / "cache" / "brim" / "runs").glob(f"{job}-*"))
        assert lines(copied / "steps.jsonl") == lines(home.run_dir(job) / "steps.jsonl")
        assert not (copied / "master.json").exists()
        assert Client(home.state).job(job).state == "done"
    finally:
        home.brim("down", "--kill")
