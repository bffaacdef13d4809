"""Embeddings that are trained by rows end with the dense way's bits on any number of workers,
through deaths.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from e2e.running import FILES, check_ledger, has_ended, started, train, undisturbed

pytestmark = pytest.mark.e2e

CLICKS = str(FILES / "large_embedding.py")
JOB = (CLICKS, "--epochs", "4", "--global-batch-size", "128")
FAULTS = "kill rank 0 at step 10; kill rank 2 at step 30; add 2 at step 50; term rank 1 at step 70"


@pytest.mark.long
def test_the_digest_is_that_of_the_dense_way(tmp_path: Path) -> None:
    dense = train(tmp_path / "dense", *JOB, "--workers", "1", "--embeddings", "dense")
    disturbed = train(tmp_path / "disturbed", *JOB, "--workers", "3", "--faults", FAULTS)
    assert disturbed["weights_sha256"] == dense["weights_sha256"]
    check_ledger(tmp_path / "disturbed")
    run = tmp_path / "run"
    with started(
        run,
        "train",
        *JOB,
        "--workers",
        "2",
        "--faults",
        "term rank 0 at step 40; term rank 1 at step 40",
    ) as first:
        assert first.finish()["exit"] == "suspended"
    resumed = train(run, *JOB, "--resume", "--workers", "1", "--embeddings", "dense")
    assert resumed["weights_sha256"] == dense["weights_sha256"]


@pytest.mark.long
def test_delays_have_one_digest_for_any_world(tmp_path: Path) -> None:
    late = (*JOB, "--delay", "2")
    calm = undisturbed(*late)
    assert (
        calm["weights_sha256"]
        != train(tmp_path / "exact", *JOB, "--workers", "1")["weights_sha256"]
    )
    disturbed = train(tmp_path / "disturbed", *late, "--workers", "3", "--faults", FAULTS)
    assert disturbed["weights_sha256"] == calm["weights_sha256"]
    run = tmp_path / "run"
    with started(
        run,
        "train",
        *late,
        "--workers",
        "2",
        "--faults",
        "term rank 0 at step 41; term rank 1 at step 41",
    ) as first:
        assert first.finish()["exit"] == "suspended"
    assert (
        train(run, *late, "--resume", "--workers", "3")["weights_sha256"] == calm["weights_sha256"]
    )


def test_kills_leave_no_partial_step(tmp_path: Path) -> None:
    calm = undisturbed(*JOB)
    chance, kills = random.Random(3), 0
    options = ("--workers", "3", "--spares", "2", "--set", "pause=0.03")
    with started(tmp_path / "run", "train", *JOB, *options) as run:
        run.wait_for_step(1)
        while run.process.poll() is None and kills < 12:
            time.sleep(chance.uniform(0.0, 0.3))
            members = [run.pid(worker) for worker in run.members()]
            victim = chance.choice(members)
            if all(not has_ended(pid) for pid in members):  # one that knows the state is left
                os.kill(victim, signal.SIGKILL)
                kills += 1
        run.hurry()
        disturbed = run.finish()
    assert kills >= 5
    assert disturbed["weights_sha256"] == calm["weights_sha256"]
    check_ledger(tmp_path / "run")
