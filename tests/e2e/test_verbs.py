"""The verbs for another terminal while a run goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from brim import client
from brim.errors import EnvironmentFault
from brim_lab.driver import Driver
from e2e.running import LONG_JOB, PACED, ROOT, check_ledger, started, undisturbed, until
from tiers import long_after

pytestmark = pytest.mark.e2e

COMMAND = ("train", *LONG_JOB)


def brim(*arguments: str) -> str:
    return Driver().call(*arguments).stdout


def test_resize_status_suspend_and_resume(tmp_path: Path) -> None:
    calm = undisturbed(*LONG_JOB)
    directory = tmp_path / "run"
    with started(directory, *COMMAND, *PACED, "--workers", "2") as run:
        run.wait_for_step(10)
        client.resize(directory, 4)
        until(lambda: run.events("round")[-1]["world_size"] == 4, "4 workers", run)
        client.resize(directory, 1)
        until(lambda: run.events("round")[-1]["world_size"] == 1, "1 worker", run)
        with pytest.raises(EnvironmentFault, match="got 9, need 1 to 4"):
            client.resize(directory, 9)
        assert client.status(directory)["target"] == 1
        client.suspend(directory)
        summary = run.finish()
    assert run.process.returncode == 0
    assert summary["exit"] == "suspended"
    assert summary["steps_redone"] == 0
    assert 0 < summary["steps"] < calm["steps"]
    run.hurry()
    with started(directory, *COMMAND, *PACED, "--workers", "3", "--resume") as resumed_run:
        resumed = resumed_run.finish()
    assert resumed["weights_sha256"] == calm["weights_sha256"]
    check_ledger(directory)
    assert not (directory / "report.html").exists()  # they were asked for JSON
    assert Path(brim("report", str(directory)).strip()).stat().st_size > 10_000


def test_the_verbs_of_another_terminal(tmp_path: Path) -> None:
    directory = str(tmp_path / "run")
    with started(tmp_path / "run", *COMMAND, *PACED, "--workers", "1") as run:
        until((tmp_path / "run" / "master.json").exists, "the master", run)
        assert json.loads(brim("status", directory, "--json"))["state"] in ("starting", "running")
        run.wait_for_step(1)
        brim("resize", directory, "2")
        status = json.loads(brim("status", directory, "--json"))
        assert (status["state"], status["target"]) == ("running", 2)
        brim("logs", directory)
        brim("suspend", directory)
        assert run.finish()["exit"] == "suspended"
    assert json.loads(brim("status", directory, "--json"))["state"] == "suspended"


def test_ctrl_c_suspends_with_a_checkpoint(tmp_path: Path) -> None:
    with started(tmp_path / "run", *COMMAND, *PACED, "--workers", "2") as run:
        run.wait_for_step(10)
        run.process.send_signal(signal.SIGINT)
        summary = run.finish()
    assert summary["exit"] == "suspended"
    assert run.events("checkpoint")[-1]["step"] == summary["steps"]


@pytest.mark.long
def test_the_last_worker_to_leave_writes_a_checkpoint(tmp_path: Path) -> None:
    with started(
        tmp_path / "run", *COMMAND, "--workers", "1", "--faults", "term rank 0 at step 30"
    ) as run:
        summary = run.finish()
    assert summary["exit"] == "suspended"
    assert run.events("checkpoint")[-1]["step"] == summary["steps"] >= 30


@pytest.mark.parametrize("method", long_after(1, ["fork", "spawn"]))
def test_a_script_that_never_joins_is_not_restarted(tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, brim\nif len(sys.argv) > 1:\n    brim.join\n")
    with started(
        tmp_path / "run", "run", "--start-method", method, "--", sys.executable, str(script)
    ) as run:
        run.finish()
    assert run.process.returncode == 2
    assert "never called brim.join" in run.err


@pytest.mark.parametrize("method", long_after(1, ["fork", "spawn"]))
def test_an_early_ending_loop_is_not_restarted(tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, brim\n"
        "model = torch.nn.Linear(2, 1)\n"
        "job = brim.join(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "data = [(torch.zeros(2), torch.zeros(1))] * 32\n"
        "for batch in job.batches(data, global_batch_size=16, epochs=4):\n"
        "    job.step((model(batch.inputs) - batch.target).square().mean())\n"
        "    if job.committed == 2:\n"
        "        break\n"
    )
    with started(
        tmp_path / "run", "run", "--start-method", method, "--", sys.executable, str(script)
    ) as run:
        run.finish()
    assert run.process.returncode == 2
    assert "a loop that was left after step" in run.err


@pytest.mark.parametrize("method", long_after(1, ["fork", "spawn"]))
def test_own_loops_give_equal_weights_in_any_world(tmp_path: Path, method: str) -> None:
    loop = str(ROOT / "tests" / "e2e" / "files" / "own_loop.py")
    plain = subprocess.run(
        [sys.executable, loop], check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    faults = ("--faults", "kill rank 1 at step 10")
    options = ("--workers", "3", "--start-method", method, "--no-restart", *faults)
    # A script of Python's is run within a process of brim's; any other command is executed as it
    # is.
    command = (
        [sys.executable, loop]
        if method == "fork"
        else ["sh", "-c", f"exec {sys.executable} {loop}"]
    )
    with started(tmp_path / "run", "run", *options, "--", *command) as run:
        summary = run.finish()
    assert summary["weights_sha256"] == plain
    check_ledger(tmp_path / "run")


UNSEEDED = """
import brim, numpy as np, torch
from torch.utils.data import TensorDataset, random_split
vocabulary = {word: number for number, word in enumerate({f"word {number}" for number in range(100)})}
inputs = torch.linspace(-1, 1, 300).reshape(150, 2) * vocabulary["word 7"]
train, test = random_split(TensorDataset(inputs, inputs.sum(1, keepdim=True)), [120, 30])
model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))
torch.nn.init.constant_(model[2].weight, np.random.rand())
job = brim.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in job.epochs(2):
    for batch in job.batches(train, global_batch_size=24):
        job.step(torch.nn.functional.mse_loss(model(batch.inputs), batch.target))
"""


@pytest.mark.long
def test_an_unseeded_script_trains_equally_everywhere(
    tmp_path: Path,
) -> None:
    """They are forked from one process, or started each by itself: all split their data alike."""
    script = tmp_path / "loop.py"
    script.write_text(UNSEEDED)
    digests = set()
    for workers, method in ((1, "fork"), (2, "spawn")):
        options = ("--workers", str(workers), "--start-method", method)
        with started(tmp_path / method, "run", *options, "--", sys.executable, str(script)) as run:
            digests.add(run.finish()["weights_sha256"])
    assert len(digests) == 1
