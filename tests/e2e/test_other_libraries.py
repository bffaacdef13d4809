"""Scripts for TensorFlow and JAX: resized, killed, and with the losses of one undisturbed process.

Their packages are no dependencies of brim's: each script runs in an environment of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from brim import client
from brim.errors import EnvironmentFault
from brim_lab.environments import python_with
from e2e.running import ROOT, Run, has_ended, started, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "06-any-command"
PATTERN = r"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>[\d.]+)"
STEPS = 280
PACKAGES = {
    "digits_tensorflow.py": ("tensorflow-cpu==2.21.0", "scikit-learn==1.9.1"),
    "digits_jax.py": ("jax==0.10.2", "jaxlib==0.10.2", "optax==0.2.8", "scikit-learn==1.9.1"),
}


def losses(text: str) -> dict[int, float]:
    """The loss of each step that was printed; of a step that was made again the last one."""
    return {int(step): float(loss) for step, _, loss in re.findall(PATTERN, text)}


def printed(run: Run) -> str:
    """What the processes printed, those that began later behind the others."""
    logs = (run.directory / "logs").glob("w*.log")
    return "".join(log.read_text() for log in sorted(logs, key=lambda log: log.stat().st_mtime))


def accuracy(text: str) -> float:
    return float(re.findall(r"done: accuracy ([\d.]+)", text)[-1])


def step_of(run: Run) -> int:
    reports = run.events("progress")
    return int(reports[-1]["step"]) if reports else 0


def first_process(run: Run) -> psutil.Process:
    """The process of rank 0."""
    for process in psutil.process_iter():
        try:
            variables: Mapping[str, str] = process.environ()
        except psutil.Error:
            continue
        ours = variables.get("BRIM_CHECKPOINTS") == str(run.directory / "saved")
        if ours and variables.get("RANK") == "0":
            return process
    raise AssertionError("no process")


@pytest.mark.parametrize("script", PACKAGES)
def test_losses_are_those_of_one_undisturbed_process(script: str, tmp_path: Path) -> None:
    try:
        python = python_with(PACKAGES[script], tmp_path / "environment")
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    command = [python, str(EXAMPLE / script)]
    calm = subprocess.run(
        command,
        env={**os.environ, "BRIM_CHECKPOINTS": str(tmp_path / "calm")},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    options = ("--workers", "1:2", "--grace", "30s", "--progress", PATTERN)
    with started(tmp_path / "run", "run", *options, "--", *command) as run:
        until(lambda: step_of(run) >= 60, "step 60", run)
        client.resize(run.directory, 1)
        until(lambda: run.events("round")[-1]["world_size"] == 1, "one process", run)
        until(lambda: step_of(run) >= 110, "step 110", run)
        client.resize(run.directory, 2)
        until(lambda: run.events("round")[-1]["world_size"] == 2, "two processes", run)
        until(lambda: step_of(run) >= 190, "step 190", run)
        process = first_process(run)
        process.kill()
        summary = run.finish()
    assert (summary["exit"], run.process.returncode) == ("done", 0), run.err
    assert has_ended(process.pid)
    found, expected = losses(printed(run)), losses(calm)
    assert sorted(found) == sorted(expected) == list(range(1, STEPS + 1))
    # Sums of two processes are rounded in another order (by JAX 0.0002 was seen); one batch left out of
    # JAX's 280 changes a loss by 0.014.
    assert max(abs(found[step] - expected[step]) for step in found) < 1e-3
    assert accuracy(printed(run)) == pytest.approx(accuracy(calm), abs=0.003)
