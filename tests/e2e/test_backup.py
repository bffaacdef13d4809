"""`brim backup` beside a scheduler that runs, and `brim restore` onto a later state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from e2e.running import PACED, has_ended, leftovers, lines, until
from e2e.test_scheduler import Home, calm, home

__all__ = ["calm", "home"]
pytestmark = pytest.mark.e2e


def hurry(home: Home, job: str) -> None:
    (home.run_dir(job) / "hurry").touch()


@pytest.mark.long
def test_an_old_backup_starts_no_job_twice(home: Home, calm: str, tmp_path: Path) -> None:
    went_on = home.submit("--workers", "2", "--checkpoint-every", "20", *PACED)
    home.wait_for_step(went_on, 25)
    file = tmp_path / "backup.tar.gz"
    home.brim("backup", str(file))
    hurry(home, went_on)
    assert home.finished(went_on)["weights_sha256"] == calm
    later_job = home.submit("--workers", "2", "--checkpoint-every", "20", *PACED)
    home.wait_for_step(later_job, 25)

    home.kill_scheduler()
    home.brim("restore", str(file), "--force", code=1)
    assert f"jobs train on in {home.state}, without a scheduler: {later_job}" in home.err
    home.brim("up")
    home.brim("down")
    assert not leftovers(home.run_dir(later_job))
    home.brim("restore", str(file), code=2)
    assert "add --force" in home.err
    summary = json.loads(home.brim("restore", str(file), "--force", "--json"))
    assert (summary["go_on"], summary["begin_anew"], summary["unknown"]) == (
        [went_on],
        [],
        [later_job],
    )

    steps = (home.run_dir(later_job) / "steps.jsonl").read_bytes()
    home.brim("up")
    end = home.finished(went_on)
    assert (end["state"], end["exit"], end["weights_sha256"]) == ("done", "done", calm)
    newest = home.submit("--workers", "2")
    assert newest == "digits-3", "digits-2 has files of its own"
    assert home.finished(newest)["weights_sha256"] == calm
    assert (home.run_dir(later_job) / "steps.jsonl").read_bytes() == steps, "nobody touched it"


@pytest.mark.long
def test_a_restored_directory_uses_its_run_directories(
    home: Home, calm: str, tmp_path: Path
) -> None:
    kept_job, lacks = (
        home.submit("--workers", "1:2", "--checkpoint-every", "20", *PACED) for _ in range(2)
    )
    for job in (kept_job, lacks):
        home.wait_for_step(job, 25)
    home.brim("down")
    pid = home.events(kept_job, "worker")[-1]["pid"]
    assert not pid or has_ended(pid)
    home.brim("backup", str(tmp_path / "b.tar.gz"))
    moved = Home(tmp_path)
    moved.state = tmp_path / "moved"
    moved.state.mkdir(mode=0o700)
    shutil.copytree(home.run_dir(kept_job), moved.run_dir(kept_job))
    moved.brim("restore", str(tmp_path / "b.tar.gz"))
    assert f"start from scratch, since their run directories are not there: {lacks}" in moved.err
    moved.brim("up")
    for job in (kept_job, lacks):
        until(moved.run_dir(job).exists, "its directory")
        hurry(moved, job)
    ends = {job: moved.finished(job) for job in (kept_job, lacks)}
    assert {job: end["weights_sha256"] for job, end in ends.items()} == {
        kept_job: calm,
        lacks: calm,
    }
    steps = [line["step"] for line in lines(moved.run_dir(kept_job) / "steps.jsonl")]
    assert steps.count(1) == 1, "it went on from a checkpoint"
    moved.brim("down")
    until(lambda: not leftovers(moved.state), "the end of all")
