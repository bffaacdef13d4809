"""Rows that come to be by their first update end alike on any number of workers, through deaths and
a resume.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from brim_lab.driver import Driver
from e2e.running import DEADLINE, FILES, check_ledger, joining, lines, started, train, undisturbed
from tiers import LONG

pytestmark = pytest.mark.e2e

JOB = (str(FILES / "keyed_embedding.py"), "--epochs", "3", "--global-batch-size", "128")
FAULTS = "kill rank 0 at step 10; kill rank 2 at step 30; add 2 at step 50; term rank 1 at step 70"
RULES = ("--set", "admit_after=2", "--set", "expire_after=12", "--set", "limit=3000")


def _job(optimizer: str, *options: str) -> tuple[str, ...]:
    return (*JOB, "--set", f"optimizer={optimizer}", *options)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(_job("adagrad"), marks=LONG),
        pytest.param(_job("adam"), marks=LONG),
        pytest.param(_job("momentum"), marks=LONG),
        _job("adamw", *RULES),
        pytest.param(_job("rmsprop", "--clip-norm", "1"), marks=LONG),
    ],
    ids=["adagrad", "adam", "momentum", "adamw with rules", "rmsprop with clipping"],
)
def test_one_digest_for_any_number_of_workers(job: tuple[str, ...], tmp_path: Path) -> None:
    calm = undisturbed(*job)
    served = train(tmp_path / "served", *job, "--workers", "2", "--ps", "1")
    assert served["weights_sha256"] == calm["weights_sha256"]
    disturbed = train(tmp_path / "disturbed", *job, "--workers", "4", "--faults", FAULTS)
    assert disturbed["weights_sha256"] == calm["weights_sha256"]
    check_ledger(tmp_path / "disturbed")


@pytest.mark.long
def test_servers_and_workers_are_replaced_across_hosts(tmp_path: Path) -> None:
    job = _job("adamw", *RULES)
    calm = undisturbed(*job)
    faults = (
        "kill rank 3 at step 20; kill rank 0 at step 40; term rank 2 at step 60; kill rank 1 "
        "at step 61"
    )
    words = (
        "--workers",
        "2",
        "--ps",
        "2",
        "--agents",
        "2",
        "--listen",
        "127.0.0.1:0",
        "--faults",
        faults,
    )
    with (
        started(tmp_path / "run", "train", *job, *words) as run,
        joining(tmp_path / "run") as guest,
    ):
        summary = run.finish()
        assert guest.wait(DEADLINE) == 0
    assert summary["weights_sha256"] == calm["weights_sha256"]
    check_ledger(tmp_path / "run")
    assert len({event["agent"] for event in run.events("worker")}) == 2


@pytest.mark.long
def test_changes_between_checkpoints_are_written_and_resumed(tmp_path: Path) -> None:
    """With so many ids that checkpoints have a base and deltas; a step of the end is redone from
    them.
    """
    job = _job("adam", "--set", "many=200000", "--set", "expire_after=120")
    calm = undisturbed(*job)
    run = tmp_path / "run"
    options = (
        "--workers",
        "2",
        "--ps",
        "1",
        "--spares",
        "0",
        "--checkpoint-every",
        "8",
        "--keep",
        "99",
    )
    kill_all = "; ".join(f"kill rank {rank} at step 90" for rank in range(3))
    disturbed = train(run, *job, *options, "--faults", kill_all)
    assert disturbed["weights_sha256"] == calm["weights_sha256"]
    assert [event["kind"] for event in lines(run / "events.jsonl")].count("restored") == 1
    listed = Driver().call("checkpoints", str(run), "--json")
    checkpoints = json.loads(listed.stdout)["checkpoints"]
    assert any(table["deltas"] for checkpoint in checkpoints for table in checkpoint["tables"])


@pytest.mark.long
def test_a_lightning_module_has_such_rows_too(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    job = (str(FILES / "keyed_lightning.py"), "--epochs", "3", "--global-batch-size", "128")
    calm = undisturbed(*job)
    faults = "kill rank 0 at step 10; kill rank 3 at step 30; term rank 1 at step 50"
    disturbed = train(tmp_path / "run", *job, "--workers", "2", "--ps", "2", "--faults", faults)
    assert disturbed["weights_sha256"] == calm["weights_sha256"]
    check_ledger(tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize(
    "job",
    [_job("adam", *RULES), pytest.param(_job("momentum", "--delay", "2"), marks=LONG)],
    ids=["rules", "delay"],
)
def test_a_resume_goes_on_with_the_same_rows(job: tuple[str, ...], tmp_path: Path) -> None:
    calm = undisturbed(*job)
    run = tmp_path / "run"
    faults = "kill rank 0 at step 20; term rank 0 at step 41; term rank 1 at step 41"
    with started(run, "train", *job, "--workers", "2", "--faults", faults) as first:
        assert first.finish()["exit"] == "suspended"
    assert (
        train(run, *job, "--resume", "--workers", "3")["weights_sha256"] == calm["weights_sha256"]
    )


@pytest.mark.long
def test_a_checkpoint_has_rows_for_model_users(tmp_path: Path) -> None:
    train(tmp_path / "run", *_job("adagrad", "--set", "admit_after=2"), "--workers", "2")
    with started(
        tmp_path / "job", "evaluate", str(tmp_path / "run"), "--workers", "2"
    ) as evaluation:
        summary = evaluation.finish()
    last = [
        event for event in lines(tmp_path / "run" / "events.jsonl") if event["kind"] == "epoch"
    ][-1]
    assert summary["metrics"] == last["metrics"]


@pytest.mark.long
def test_a_loop_runs_without_brim_around_it(tmp_path: Path) -> None:
    command = [sys.executable, str(FILES / "keyed_loop.py")]
    plain_run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert plain_run.returncode == 0, plain_run.stderr
    with started(tmp_path / "run", "run", "--workers", "2", "--", *command) as run:
        elastic_run = run.finish()
    assert plain_run.stdout.split() == ["weights", elastic_run["weights_sha256"], "rows", "296"]
