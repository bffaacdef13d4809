"""`brim forget` with real jobs, and a scheduler that is killed in the middle of it."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest

from e2e.running import PACED, until
from e2e.test_scheduler import Home, calm, home

__all__ = ["calm", "home"]
pytestmark = pytest.mark.e2e

_MANY = 60_000  # files: they take a second to remove


def listed_jobs(home: Home) -> list[str]:
    """The jobs that are on disk."""
    with contextlib.closing(sqlite3.connect(home.state / "scheduler.db")) as sql:
        return [id for (id,) in sql.execute("select id from jobs order by number")]


@pytest.mark.long
def test_forgetting_survives_a_kill_beside_running_jobs(home: Home, calm: str) -> None:
    job = home.submit("--workers", "1", *PACED, tenant="web")
    ended = [home.submit("--workers", "1") for _ in range(2)]
    for ended_job in ended:
        assert home.finished(ended_job)["exit"] == "done"
    home.brim("forget", job, "--yes", code=1)
    assert f"brim cancel {job} ends it" in home.err

    summary = json.loads(home.brim("forget", ended[0], "--yes", "--json"))
    assert summary["bytes"] > 10_000
    assert not home.run_dir(ended[0]).exists()

    scratch = home.run_dir(ended[1]) / "scratch"
    scratch.mkdir()
    for k in range(_MANY):
        (scratch / str(k)).touch()
    asking = home.begin("forget", ended[1], "--yes")
    until(lambda: ended[1] not in listed_jobs(home), "the end of its record")
    home.kill_scheduler()
    asking.kill()
    asking.communicate()
    assert home.run_dir(ended[1]).exists(), "it was killed too late"
    home.brim("up")
    until(lambda: not home.run_dir(ended[1]).exists(), "the end of its directory")
    home.brim("status", ended[1], code=2)

    (home.run_dir(job) / "hurry").touch()
    end = home.finished(job)
    assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 1, calm)
    home.brim("report", "--cluster")
    home.brim("forget", "--ended-before", "1ms", "--yes")
    assert listed_jobs(home) == []
    assert home.submit("--workers", "1") == "digits-4", "no number is given twice"
    home.brim("cancel", "digits-4")
