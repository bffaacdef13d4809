"""`brim demo` with real jobs: its claims are true, and nothing of it is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brim.storage.contact import read_scheduler_contact
from brim_lab.driver import Driver
from e2e.running import DEADLINE, leftovers, until

pytestmark = [pytest.mark.e2e, pytest.mark.cold]


@pytest.mark.long
def test_experiment_1_has_the_weights_of_undisturbed_runs(tmp_path: Path) -> None:
    out_folder = tmp_path / "out"
    words = ("demo", "experiment-1", "--quick", "--out", str(out_folder), "--json")
    done = Driver(tmp_path).call(*words, timeout=DEADLINE, codes=(0, 1))
    found = json.loads(done.stdout or "{}")
    assert found, done.stderr
    results = {claim["claim"]: claim["held"] for claim in found["claims"]}
    # How long it takes is no matter here: the machine has other things to do.
    assert results["the weights are those of undisturbed runs, bit for bit"]
    assert done.returncode == (0 if all(results.values()) else 1)
    for side in ("gang", "elastic"):
        assert most_at_once(found["rounds"][0][side]) <= 8
    gangs = [count for job in found["rounds"][0]["gang"] for _, count in job["workers"]]
    assert gangs == [5, 0, 5, 0]  # a gang has all of its workers or none
    assert most_at_once(found["rounds"][0]["gang"]) == 5
    assert Path(found["figure"]).read_bytes().startswith(b"\x89PNG")
    assert read_scheduler_contact(out_folder / "state") is None
    until(lambda: not leftovers(out_folder), f"the end of {leftovers(out_folder)}")


@pytest.mark.long
def test_experiment_2_loses_no_request(tmp_path: Path) -> None:
    out_folder = tmp_path / "out"
    words = ("demo", "experiment-2", "--quick", "--out", str(out_folder), "--json")
    done = Driver(tmp_path).call(*words, timeout=2 * DEADLINE, codes=(0, 1))
    found = json.loads(done.stdout or "{}")
    assert found, done.stderr
    results = {claim["claim"]: claim["held"] for claim in found["claims"]}
    assert results["the weights are those of undisturbed runs, bit for bit"]
    assert results["no request is lost"]
    assert done.returncode == (0 if all(results.values()) else 1)
    day = found["beside"]
    assert {count for _, count in day["wanted"]} > {1, 3}, "its replicas hardly changed"
    assert Path(found["figure"]).read_bytes().startswith(b"\x89PNG")
    until(lambda: not leftovers(out_folder), f"the end of {leftovers(out_folder)}")


def test_the_first_job_has_undisturbed_weights(tmp_path: Path) -> None:
    """It is the demo of brim alone: nothing of the laboratory is needed for it."""
    out_folder = tmp_path / "out"
    words = ("demo", "first-job", "--quick", "--json", "--out", str(out_folder))
    done = Driver(tmp_path).call(*words, timeout=DEADLINE)
    found = json.loads(done.stdout)
    assert found["held"]
    assert all(claim["held"] for claim in found["claims"])
    calm, broken = found["runs"]["undisturbed"], found["runs"]["disturbed"]
    assert calm["weights_sha256"] == broken["weights_sha256"]
    assert calm["world_sizes"] == [1]
    assert len(broken["world_sizes"]) > 1
    assert Path(found["figure"]).read_text().startswith("<!")
    assert json.loads((out_folder / "first-job.json").read_text()) == found
    until(lambda: not leftovers(out_folder), f"the end of {leftovers(out_folder)}")


def most_at_once(jobs: list[dict[str, Any]]) -> int:
    """Workers of all jobs together."""
    changes = [
        (moment, number, count)
        for number, job in enumerate(jobs)
        for moment, count in job["workers"]
    ]
    now: dict[int, int] = {}
    maximum = 0
    for _, number, count in sorted(changes):
        now[number] = count
        maximum = max(maximum, sum(now.values()))
    return maximum
