"""Rows that come to be by their first update end alike on any number of workers, through deaths and a resume."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.running import DEADLINE, FILES, ledger, lines, started, train

pytestmark = pytest.mark.e2e

JOB = (str(FILES / "keyed_embedding.py"), "--epochs", "3", "--global-batch-size", "128")
FAULTS = "kill rank 0 at step 10; kill rank 2 at step 30; add 2 at step 50; term rank 1 at step 70"
RULES = ("--set", "admit_after=2", "--set", "expire_after=12", "--set", "limit=3000")


def _job(optimizer: str, *more: str) -> tuple[str, ...]:
    return (*JOB, "--set", f"optimizer={optimizer}", *more)


@pytest.mark.parametrize(
    "job",
    [
        _job("adagrad"),
        _job("adam"),
        _job("momentum"),
        _job("adamw", *RULES),
        _job("rmsprop", "--clip-norm", "1"),
    ],
    ids=["adagrad", "adam", "momentum", "adamw with rules", "rmsprop with clipping"],
)
def test_one_digest_for_any_number_of_workers(job: tuple[str, ...], tmp_path: Path) -> None:
    calm = train(tmp_path / "calm", *job, "--workers", "1")
    served = train(tmp_path / "served", *job, "--workers", "2", "--ps", "1")
    assert served["weights_sha256"] == calm["weights_sha256"]
    disturbed = train(tmp_path / "disturbed", *job, "--workers", "4", "--faults", FAULTS)
    assert disturbed["weights_sha256"] == calm["weights_sha256"]
    assert ledger(tmp_path / "disturbed")["exact"]


@pytest.mark.parametrize(
    "job", [_job("adam", *RULES), _job("momentum", "--delay", "2")], ids=["rules", "delay"]
)
def test_a_resume_goes_on_with_the_same_rows(job: tuple[str, ...], tmp_path: Path) -> None:
    calm = train(tmp_path / "calm", *job, "--workers", "1")
    run = tmp_path / "run"
    faults = "kill rank 0 at step 20; term rank 0 at step 41; term rank 1 at step 41"
    with started(run, "train", *job, "--workers", "2", "--faults", faults) as first:
        assert first.finish()["exit"] == "suspended"
    assert train(run, *job, "--resume", "--workers", "3")["weights_sha256"] == calm["weights_sha256"]


def test_a_checkpoint_has_the_rows_for_those_who_use_the_model(tmp_path: Path) -> None:
    train(tmp_path / "run", *_job("adagrad", "--set", "admit_after=2"), "--workers", "2")
    with started(tmp_path / "job", "evaluate", str(tmp_path / "run"), "--workers", "2") as evaluation:
        summary = evaluation.finish()
    last = [each for each in lines(tmp_path / "run" / "events.jsonl") if each["kind"] == "epoch"][-1]
    assert summary["metrics"] == last["metrics"]


def test_a_loop_runs_without_brim_around_it(tmp_path: Path) -> None:
    command = [sys.executable, str(FILES / "keyed_loop.py")]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert alone.returncode == 0, alone.stderr
    with started(tmp_path / "run", "run", "--workers", "2", "--", *command) as run:
        together = run.finish()
    assert alone.stdout.split() == ["weights", together["weights_sha256"], "rows", "296"]
