"""An error in the user's code ends the job at once, with their traceback first, wherever and on
whomever it is.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.running import FILES, Run, joining, started
from tiers import long_after

pytestmark = pytest.mark.e2e

JOB = (
    "train",
    str(FILES / "mistakes.py"),
    "--global-batch-size",
    "128",
    "--epochs",
    "2",
    "--workers",
    "2",
)
LOOP = """
import sys
from pathlib import Path
import torch
import brim

model = torch.nn.Linear(2, 1)
job = brim.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for batch in job.batches([(torch.zeros(2), torch.zeros(1))] * 640, global_batch_size=16, epochs=2):
    if Path("/proc/self/comm").read_text().strip() == "brim-w2":
        1 / 0
    job.step((model(batch.inputs) - batch.target).square().mean())
"""


def ends_with_their_traceback(run: Run, words: str, *, file: str = "mistakes.py") -> None:
    run.finish()
    assert run.process.returncode == 1
    trace = run.err[run.err.index("Traceback") :]
    assert file in trace
    assert words in trace
    assert "src/brim" not in trace.partition(words)[0]
    assert len(run.events("failed")) == 1
    assert run.events("failed")[0]["who"] == "user"
    assert {e["worker"] for e in run.events("worker")} <= {"w1", "w2", "w3"}, (
        "someone was started again"
    )


@pytest.mark.parametrize(
    ("place", "words"),
    long_after(3, [
        ("exit", "SystemExit: the user's own exit"),
        *((place, "ZeroDivisionError: the user's own mistake") for place in (
            "forward", "evaluation", "getitem", "loss", "optimizer", "scheduler", "metric", "result",
        )),
    ]),
)  # fmt: skip
def test_on_one_worker_of_two(place: str, words: str, tmp_path: Path) -> None:
    with started(tmp_path / "run", *JOB, "--set", f"where={place}") as run:
        ends_with_their_traceback(run, words)


@pytest.mark.parametrize("start", long_after(1, ["fork", "spawn"]))
def test_in_a_loop_of_ones_own(start: str, tmp_path: Path) -> None:
    loop = tmp_path / "loop.py"
    loop.write_text(
        LOOP
        if start == "fork"
        else LOOP.replace(
            'Path("/proc/self/comm").read_text().strip() == "brim-w2"', "job.rank == 1"
        )
    )
    options = ("--workers", "2", "--start-method", start)
    with started(tmp_path / "run", "run", *options, "--", sys.executable, str(loop)) as run:
        ends_with_their_traceback(run, "ZeroDivisionError", file="loop.py")


def test_on_one_host_of_two(tmp_path: Path) -> None:
    options = (
        "--set",
        "where=loss",
        "--set",
        "on_host=true",
        "--listen",
        "127.0.0.1:0",
        "--agents",
        "2",
    )
    with started(tmp_path / "run", *JOB, *options) as run:
        agent = joining(tmp_path / "run", BRIM_TEST_BAD_HOST="1", stderr=subprocess.DEVNULL)
        try:
            ends_with_their_traceback(run, "ZeroDivisionError: the user's own mistake")
        finally:
            agent.kill()
            agent.wait()
