"""Usage of a real job that trains on while its scheduler is dead."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from e2e.running import PACED, lines, until
from e2e.test_scheduler import Home, home

__all__ = ["home"]
pytestmark = pytest.mark.e2e


def used(home: Home) -> Mapping[str, float]:
    """Device-seconds by job."""
    rows = json.loads(home.brim("usage", "--by", "job", "--json"))["rows"]
    return {row["name"]: row["used_seconds"] for row in rows}


@pytest.mark.long
def test_usage_survives_a_killed_scheduler_and_forgetting(home: Home) -> None:
    job = home.submit("--workers", "2", *PACED)
    home.wait_for_step(job, 10)
    home.kill_scheduler()
    step_file = home.run_dir(job) / "steps.jsonl"
    reached = len(lines(step_file))
    until(lambda: len(lines(step_file)) > reached + 20, "steps without a scheduler")
    home.brim("up")
    (home.run_dir(job) / "hurry").touch()
    assert home.finished(job)["exit"] == "done"
    view = home.job(job)
    assert view.started is not None
    assert view.ended is not None
    trained = 2 * (view.ended - view.started)
    assert trained <= used(home)[job] <= trained + 2 * 30.0, "its start, too"
    before = used(home)[job]
    home.brim("forget", job, "--yes")
    assert used(home) == {"": pytest.approx(before)}
