"""Servers beside workers change no bit, and keep the state that workers lose."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brim import Run as PythonRun
from brim import client
from brim.errors import EnvironmentFault
from brim_lab.driver import Driver
from e2e.running import (
    DEADLINE,
    DIGITS,
    FILES,
    PACED,
    Run,
    check_ledger,
    joining,
    started,
    train,
    undisturbed,
    until,
)
from tiers import long_after

pytestmark = pytest.mark.e2e

CLICKS = str(FILES / "large_embedding.py")
JOB = (CLICKS, "--epochs", "4", "--global-batch-size", "128")


@pytest.fixture(scope="module")
def calm() -> str:
    """The digest of a run by one worker."""
    return str(undisturbed(*JOB)["weights_sha256"])


def brim(*arguments: str) -> subprocess.CompletedProcess[str]:
    return Driver().call(*arguments, codes=())


def kill(run: Run, *, servers: bool, number: int | None = None) -> None:
    """Kill members of the present round at one blow:
    all servers, or all workers, or one of them.
    """
    round = run.events("round")[-1]
    found = [
        w
        for w, share in zip(round["workers"], round["shares"], strict=True)
        if bool(share) != servers
    ]
    pids = [run.pid(worker) for worker in (found if number is None else [found[number]])]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("workers", long_after(1, ["2", "1"]))
@pytest.mark.parametrize("servers", long_after(1, ["2", "1"]))
def test_the_digest_is_that_of_one_worker(
    tmp_path: Path, calm: str, workers: str, servers: str
) -> None:
    last = int(workers) + int(servers) - 1
    faults = (
        f"kill rank {last} at step 10; kill rank 0 at step 40; term rank {last} at step 70; "
        "kill rank 1 at step 71"
    )
    run = tmp_path / "run"
    summary = train(run, *JOB, "--workers", workers, "--ps", servers, "--faults", faults)
    assert summary["weights_sha256"] == calm
    assert summary["steps_redone"] <= 3  # kills; who is asked to leave does so at a boundary
    check_ledger(run)
    assert set(summary["world_sizes"]) <= {1, int(workers)}


def test_all_workers_at_once(tmp_path: Path, calm: str) -> None:
    with started(
        tmp_path / "run", "train", *JOB, *PACED, "--workers", "2", "--ps", "1", "--spares", "0"
    ) as run:
        run.wait_for_step(5)
        round = len(run.events("round"))
        kill(run, servers=False)
        until(lambda: len(run.events("re_formed")) >= round, "a round with new workers", run)
        run.hurry()
        summary = run.finish()
    assert summary["weights_sha256"] == calm
    assert not run.events("restored")
    assert (
        summary["steps_redone"] <= 2
    )  # the second death may be heard of in the round behind the first
    check_ledger(tmp_path / "run")


@pytest.mark.long
def test_all_servers_at_once(tmp_path: Path, calm: str) -> None:
    with started(tmp_path / "run", "train", *JOB, *PACED, "--workers", "1", "--ps", "2") as run:
        run.wait_for_step(5)
        kill(run, servers=True)
        until(
            lambda: run.events("round")[-1]["shares"] == [8, 0, 0] and len(run.events("round")) > 1,
            "both",
            run,
        )
        run.hurry()
        summary = run.finish()
    assert summary["weights_sha256"] == calm
    assert (
        summary["steps_redone"] <= 2
    )  # the second death may be heard of in the round behind the first
    check_ledger(tmp_path / "run")


@pytest.mark.long
def test_a_slow_server_owns_less_without_changing_bits(tmp_path: Path, calm: str) -> None:
    with started(tmp_path / "run", "train", *JOB, *PACED, "--workers", "1", "--ps", "2") as run:
        run.wait_for_step(3)
        round = run.events("round")[-1]
        slow = run.pid(round["workers"][round["shares"].index(0)])

        def holds_up() -> bool:
            """Have it run for a third of the time."""
            os.kill(slow, signal.SIGSTOP)
            time.sleep(0.004)
            os.kill(slow, signal.SIGCONT)
            time.sleep(0.002)
            return bool(run.steps()[-1]["step"] > 60)

        until(holds_up, "60 steps", run)
        run.hurry()
        summary = run.finish()
    assert summary["weights_sha256"] == calm
    assert len(run.events("round")) == 1
    check_ledger(tmp_path / "run")


def active_servers(directory: Path) -> int:
    status = json.loads(brim("status", str(directory), "--json").stdout)
    return sum(worker["serves"] for worker in status["workers"] if worker["state"] == "active")


def test_servers_come_and_go_while_it_trains(tmp_path: Path, calm: str) -> None:
    directory = tmp_path / "run"

    def servers(count: int) -> None:
        until(lambda: run.events("round")[-1]["shares"].count(0) == count, f"{count} servers", run)

    with started(directory, "train", *JOB, *PACED, "--workers", "1:2", "--ps", "1") as run:
        run.wait_for_step(3)
        PythonRun(directory).resize(ps=2)
        servers(2)
        kill(run, servers=True, number=0)
        assert brim("resize", str(directory), "1", "--ps", "1").returncode == 0
        until(lambda: run.events("round")[-1]["world_size"] == 1, "1 worker", run)
        servers(1)
        until(lambda: active_servers(directory) == 1, "the other server's end", run)
        status = json.loads(brim("status", str(directory), "--json").stdout)
        assert (status["world_size"], status["servers"]) == (1, 1)
        assert "servers 1: " in brim("status", str(directory)).stdout
        run.hurry()
        summary = run.finish()
    assert summary["weights_sha256"] == calm
    assert summary["steps_redone"] <= 1  # of the kill
    check_ledger(directory)


@pytest.mark.parametrize(
    ("workers", "servers"), long_after(1, [("2", "2"), ("1", "2"), ("2", "1")])
)
def test_two_hosts(tmp_path: Path, calm: str, workers: str, servers: str) -> None:
    """With servers on both, and with one that has servers alone, or workers alone."""
    last = int(workers) + int(servers) - 1
    faults = f"kill rank {last} at step 20; kill rank 0 at step 50; term rank 1 at step 80"
    words = ("--workers", workers, "--ps", servers, "--agents", "2", "--listen", "127.0.0.1:0")
    with (
        started(tmp_path / "run", "train", *JOB, *words, "--faults", faults) as run,
        joining(tmp_path / "run") as guest,
    ):
        summary = run.finish()
        assert guest.wait(DEADLINE) == 0
    assert summary["weights_sha256"] == calm
    check_ledger(tmp_path / "run")
    assert len({event["agent"] for event in run.events("worker")}) == 2


@pytest.mark.long
def test_a_suspended_run_goes_on_with_other_servers(tmp_path: Path, calm: str) -> None:
    directory = tmp_path / "run"
    with started(directory, "train", *JOB, *PACED, "--workers", "2", "--ps", "1") as run:
        run.wait_for_step(5)
        client.suspend(directory)
        assert run.finish()["exit"] == "suspended"
    run.hurry()
    resumed = brim("resume", str(directory), "--ps", "2", "--workers", "1", "--json")
    assert json.loads(resumed.stdout)["weights_sha256"] == calm
    assert "1 worker and 2 servers" in resumed.stderr


@pytest.mark.long
def test_a_checkpoint_is_of_one_step_despite_writes(tmp_path: Path) -> None:
    """Copying these tables takes longer than a step, and another process than the one that copies
    changes them.
    """
    words = ("--set", "ids=500000", "--epochs", "4", "--global-batch-size", "128")
    checkpoint_options = ("--checkpoint-every", "8", "--keep", "99")
    digests: list[dict[str, str]] = []
    for servers in ("0", "1"):
        run = tmp_path / servers
        train(run, CLICKS, *words, *checkpoint_options, "--workers", "1", "--ps", servers)
        digests.append(
            {path.name: _weights_of(path) for path in sorted((run / "checkpoints").glob("step-*"))}
        )
    common_steps = digests[0].keys() & digests[1].keys()
    assert len(common_steps) > 1, digests  # the last of all is written when nobody trains
    assert {step: digests[0][step] for step in common_steps} == {
        step: digests[1][step] for step in common_steps
    }


def _weights_of(checkpoint: Path) -> str:
    output = checkpoint.parents[1] / f"exported-{checkpoint.name}"
    exported = brim("export", str(checkpoint), "--output", str(output))
    assert exported.returncode == 0, exported.stderr
    return hashlib.sha256((output / "model.safetensors").read_bytes()).hexdigest()


LOOP = """
import sys
sys.path.insert(0, {files!r})
import brim, torch, large_embedding as file
model = file.model()
torch.manual_seed(0)
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.01)
optimizer, _ = file.optimizer(model)
job = brim.join(model, optimizer)
metrics = {{"loss": brim.metrics.log_loss()}}
for epoch in job.epochs(2):
    for batch in job.batches(file.dataset("train"), global_batch_size=128):
        loss = job.step(file.loss(model(batch.inputs), batch.target))
        if loss is not None and job.committed % 20 == 0:
            job.log(**job.evaluate(file.dataset("test"), metrics))
            assert job.rank < job.world_size, "batches are for workers"
            assert job.world_size == {workers}
    job.log(**job.evaluate(file.dataset("test"), metrics))
"""


@pytest.mark.long
@pytest.mark.parametrize("servers", long_after(1, ["2", "0"]))
def test_a_loop_of_ones_own(tmp_path: Path, servers: str) -> None:
    """It measures within its loop over batches, where no server is, and behind it,
    where all are.
    """
    digests, losses = [], []
    for workers in (1, 2):
        script, run_dir = tmp_path / f"loop{workers}.py", tmp_path / f"run{workers}"
        script.write_text(LOOP.format(files=str(FILES), workers=workers))
        count = servers if workers == 2 else "0"
        command = [
            "run",
            "--workers",
            str(workers),
            "--ps",
            count,
            "--",
            sys.executable,
            str(script),
        ]
        with started(run_dir, *command) as run:
            summary = run.finish()
        assert run.process.returncode == 0, run.err
        digests.append(summary["weights_sha256"])
        losses.append([event["values"]["loss"] for event in run.events("logged")])
    assert digests[0] == digests[1]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 5  # of steps 20, 32, 40, 60 and 64


def test_refused_with_words(tmp_path: Path) -> None:
    directory = str(tmp_path / "run")
    refused = brim("train", DIGITS, "--ps", "1", "--run-dir", directory)
    assert "--ps: got 1 for a model without an embedding that is trained by rows" in refused.stderr
    assert refused.returncode == 2
    for option in ("--no-exact", "--transport=distributed", "--embeddings=dense"):
        assert (
            f"--ps: got 1 beside {option.replace('=', ' ')}"
            in brim("train", CLICKS, "--ps", "1", option).stderr
        )


@pytest.mark.long
def test_a_run_without_servers_gets_none(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with started(directory, "train", *JOB, *PACED, "--workers", "1") as run:
        run.wait_for_step(2)
        with pytest.raises(EnvironmentFault, match="this run began without any"):
            client.resize(directory, 0, servers=1)
        run.hurry()
        assert run.finish()["exit"] == "done"
