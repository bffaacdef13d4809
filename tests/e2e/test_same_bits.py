"""The same weights, bit for bit, for any number of workers, through deaths, joins and leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.running import (
    DIGITS,
    FLIGHTS,
    PACED,
    check_ledger,
    ledger,
    started,
    train,
    undisturbed,
    until,
)
from tiers import LONG, long_after

pytestmark = pytest.mark.e2e

WIDE_DEEP = (FLIGHTS, "--set", "dropout=0.1", "--global-batch-size", "4096")
CNN = (DIGITS, "--epochs", "3", "--global-batch-size", "128")
Calm = tuple[tuple[str, ...], dict[str, Any]]
# Between the second and the third, the newcomer has time to come.
FAULTS = "kill rank 1 at step 5; add 1 at step 7; term rank 0 at step 23; kill rank 2 at step 26"


@pytest.fixture(
    scope="module",
    params=[CNN, pytest.param(WIDE_DEEP, marks=LONG)],
    ids=["cnn-batch-norm", "wide-and-deep-dropout"],
)
def calm(request: pytest.FixtureRequest) -> Calm:
    """The arguments of a job, and how it ends with one worker."""
    return request.param, undisturbed(*request.param)


@pytest.mark.parametrize("workers", long_after(1, [3, 2, 4, 8]))
def test_world_size_changes_neither_weights_nor_metrics(
    calm: Calm, workers: int, tmp_path: Path
) -> None:
    arguments, single = calm
    summary = train(tmp_path / "run", *arguments, "--workers", str(workers))
    assert summary["weights_sha256"] == single["weights_sha256"]
    assert summary["metrics"] == single["metrics"]
    assert summary["world_sizes"] == [workers]
    assert summary["steps_redone"] == 0


def test_deaths_joins_and_leaves_keep_the_weights(calm: Calm, tmp_path: Path) -> None:
    """Promises 1 to 3: any worker may die; every sample counts exactly once; the same weights."""
    arguments, single = calm
    # Until the newcomer is there, or it may end before.
    slow = ("--set", "pause=0.3") if DIGITS in arguments else ()
    options = (*arguments, *slow, "--workers", "4", "--faults", FAULTS)
    with started(tmp_path / "run", "train", *options) as run:
        if slow:
            until(lambda: any(e["world_size"] == 5 for e in run.events("round")), "growth", run)
            run.hurry()
        summary = run.finish()
        assert run.process.returncode == 0, run.err
    assert "Traceback" not in (tmp_path / "run" / "logs" / "master.log").read_text()
    assert summary["weights_sha256"] == single["weights_sha256"]
    assert 1 <= summary["steps_redone"] <= 2
    assert {4, 5} <= set(summary["world_sizes"])
    proof = ledger(tmp_path / "run")
    assert proof["exact"]
    for epoch in proof["epochs"]:
        assert epoch["applied_once"] == epoch["samples"] == summary["samples_per_epoch"]
        assert epoch["missing"] == epoch["repeated"] == 0


def test_a_growing_job_keeps_its_weights(tmp_path: Path) -> None:
    single = undisturbed(*CNN)
    slow = ("--set", "pause=0.3")  # until all are there, however late on a busy machine
    with started(tmp_path / "grown", "train", *CNN, *slow, "--workers", "1:3") as run:
        until(lambda: bool(run.events("round")) and len(run.members()) == 3, "growth", run)
        run.hurry()
        grown = run.finish()
        assert run.process.returncode == 0, run.err
    assert "Traceback" not in (tmp_path / "grown" / "logs" / "master.log").read_text()
    assert grown["weights_sha256"] == single["weights_sha256"]
    assert grown["world_sizes"][-1] == 3
    assert grown["steps_redone"] == 0


@pytest.mark.long
def test_clipping_and_a_schedule_stay_exact(tmp_path: Path) -> None:
    arguments = (*CNN, "--clip-norm", "0.5", "--set", "scheduler=true")
    digests = {
        train(tmp_path / workers, *arguments, "--workers", workers)["weights_sha256"]
        for workers in ("1", "3")
    }
    plain = train(tmp_path / "plain", *CNN, "--workers", "1")["weights_sha256"]
    assert len(digests) == 1
    assert plain not in digests


@pytest.mark.parametrize(
    "arguments", [CNN, pytest.param(WIDE_DEEP, marks=LONG)], ids=["cnn", "wide-and-deep"]
)
def test_torch_distributed_gives_the_same_weights(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    options = (
        "--workers",
        "3",
        "--transport",
        "distributed",
        "--faults",
        "kill rank 0 at step 10; add 1 at step 20",
    )
    summary = train(tmp_path / "run", *arguments, *options)
    assert summary["weights_sha256"] == undisturbed(*arguments)["weights_sha256"]
    check_ledger(tmp_path / "run")


@pytest.mark.long
def test_inexact_runs_are_elastic_too(tmp_path: Path) -> None:
    options = (
        "--workers",
        "3",
        "--no-exact",
        "--faults",
        "kill rank 1 at step 10; add 1 at step 20",
    )
    summary = train(tmp_path / "run", *CNN, *options)
    assert summary["exit"] == "done"
    assert summary["metrics"]["accuracy"] > 0.8
    check_ledger(tmp_path / "run")


def test_captured_steps_end_with_eager_weights(tmp_path: Path) -> None:
    job = (DIGITS, "--epochs", "10", "--global-batch-size", "128")
    eager = undisturbed(*job)
    kill = ("--workers", "2", "--faults", "kill rank 1 at step 80")
    # Eager passes are slow, so that programs come in time; replayed ones do not pause.
    captured = train(tmp_path / "run", *job, *PACED, "--capture", *kill)
    assert captured["weights_sha256"] == eager["weights_sha256"]
    check_ledger(tmp_path / "run")
    logs = "".join(path.read_text() for path in (tmp_path / "run" / "logs").glob("w*.log"))
    assert "steps are replayed" in logs
    assert "steps stay eager" not in logs
