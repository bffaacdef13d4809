"""A job runs the code that was submitted, whatever happens to its files, beside others and on other
hosts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.running import leftovers, train, until
from e2e.test_scheduler import Home

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FILE = """
import time
from typing import Any

import torch
from torch import Tensor, nn

import brim
from layers import RATE, width

PAUSE = brim.param("pause", 0.0)
HURRY = brim.param("hurry", "")


def model() -> nn.Module:
    return nn.Linear(4, width())


def dataset(split: str) -> Any:
    inputs = torch.randn(512, 4, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))


def loss(output: Tensor, target: Tensor) -> Tensor:
    from pathlib import Path

    if PAUSE and not Path(HURRY).exists():
        time.sleep(PAUSE)
    return ((output - target) ** 2).mean()


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    from late import METHOD  # nobody has imported it before the first worker begins

    return getattr(torch.optim, METHOD)(model.parameters(), lr=RATE)


def metrics() -> dict[str, Any]:
    return {"accuracy": brim.metrics.accuracy()}
"""
JOB = ("--epochs", "2", "--global-batch-size", "64")


def write(folder: Path, *, rate: float) -> str:
    """A training file with modules of its own; where it is."""
    folder.mkdir()
    (folder / "job.py").write_text(FILE)
    (folder / "layers.py").write_text(f"RATE = {rate}\n\n\ndef width() -> int:\n    return 1\n")
    (folder / "late.py").write_text('METHOD = "SGD"\n')
    return str(folder / "job.py")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.brim("up", "--cluster", str(home.file))
    yield home
    home.brim("down", "--kill")
    until(lambda: not leftovers(home.state), f"the end of {leftovers(home.state)}")


def test_what_was_submitted_runs_whatever_becomes_of_the_files(home: Home, tmp_path: Path) -> None:
    slow, fast = write(tmp_path / "slow", rate=0.1), write(tmp_path / "fast", rate=0.2)
    calm = {
        file: train(tmp_path / f"calm-{k}", file, *JOB, "--workers", "1")["weights_sha256"]
        for k, file in enumerate((slow, fast))
    }
    assert calm[slow] != calm[fast]
    hurry = ("--set", "pause=0.05", "--set", f"hurry={tmp_path / 'hurry'}")
    # Two jobs with modules of the same names, at once, from a folder that has others of them.
    (tmp_path / "layers.py").write_text("raise RuntimeError('modules of the working directory')\n")
    words = (*JOB, "--tenant", "ads", "--workers", "1:2", *hurry)
    jobs = {file: home.brim("submit", file, *words).strip() for file in (slow, fast)}
    (tmp_path / "slow" / "layers.py").write_text("RATE = 5.0\n")  # no width
    shutil.rmtree(tmp_path / "fast")
    home.wait_for_step(jobs[slow], 1)
    home.brim("suspend", jobs[slow])
    until(lambda: home.job(jobs[slow]).state == "suspended", "the pause")
    home.brim("resume", jobs[slow])
    home.wait_for_step(jobs[fast], 1)
    (tmp_path / "hurry").touch()
    for file, job in jobs.items():
        summary = home.finished(job)
        assert (summary["exit"], summary["weights_sha256"]) == ("done", calm[file])
    # So does what uses the model.
    found = json.loads(home.brim("evaluate", jobs[fast], "--split", "train", "--json"))
    assert found["exit"] == "done"
    home.brim("evaluate", jobs[slow], "--split", "train")
    assert "has changed" not in home.err
    home.brim("export", jobs[fast], "--output", str(tmp_path / "model"))


def test_an_error_names_the_line_and_a_dry_run_what_is_not_sent(home: Home, tmp_path: Path) -> None:
    file = write(tmp_path / "job", rate=0.1)
    (tmp_path / "job" / "data").mkdir()
    (tmp_path / "job" / "data" / "x.csv").write_bytes(bytes(2048))
    with (tmp_path / "job" / "layers.py").open("a") as layers:
        layers.write('\n\nPATH = "data/x.csv"\n')
        layers.write("raise RuntimeError('no such layer')\n")
    job = home.brim("submit", file, *JOB, "--tenant", "ads").strip()
    assert "brim: not sent with the code: data/x.csv (2 KiB): each host that runs it" in home.err
    Path(file).unlink()
    home.brim("status", job, "--wait", code=1)
    story = home.brim("explain", job)
    assert "RuntimeError: no such layer" in story
    logs = home.brim("logs", job) + home.err + (home.run_dir(job) / "events.jsonl").read_text()
    assert "layers.py" in logs
    assert "line 9" in logs
