"""Imports of a script are made once, by the template, unless that would spoil its forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brim.telemetry.history import read_history
from e2e.running import DEADLINE
from tiers import long_after

pytestmark = pytest.mark.e2e

LOOP = """
import package
from beside import WIDTH
import brim
import torch

torch.manual_seed(0)
model = torch.nn.Linear(WIDTH, 1)
job = brim.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for batch in job.batches([(torch.ones(WIDTH), torch.zeros(1))] * 64, global_batch_size=16, epochs=1):
    job.step((model(batch.inputs) - batch.target).square().mean())
"""
TELL = """
import os
with open(os.environ["SEEN"], "a") as file:
    file.write(f"{__name__} {os.environ['FLAVOUR']}\\n")
"""
SLOW = "import time; time.sleep(2.0)"
THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
SPOILED = """
import torch
torch.cuda.is_available = lambda: True
os.register_at_fork(after_in_child=lambda: setattr(torch.cuda, "_is_in_bad_fork", lambda: True))
"""


@pytest.mark.parametrize(("action", "times"), long_after(1, [(SLOW, 1), (THREAD, 4), (SPOILED, 4)]))
def test_forked_workers_share_one_import(action: str, times: int, tmp_path: Path) -> None:
    installed, folder = tmp_path / "installed", tmp_path / "folder"
    installed.mkdir()
    folder.mkdir()
    (installed / "package.py").write_text(TELL + action)
    (folder / "beside.py").write_text(TELL + "WIDTH = 2")
    (folder / "loop.py").write_text(LOOP)
    command = [
        sys.executable,
        "-m",
        "brim.cli",
        "run",
        "--run-dir",
        "run",
        "--workers",
        "3",
        "--spares",
        "0",
    ]
    command += ["--env", "FLAVOUR=sour", "--", sys.executable, "folder/loop.py"]
    environment = {**os.environ, "PYTHONPATH": str(installed), "SEEN": str(tmp_path / "seen")}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines_seen = (tmp_path / "seen").read_text().splitlines()
    assert lines_seen.count("package sour") == times
    assert lines_seen.count("beside sour") == 3
    started = read_history(tmp_path / "run").started
    assert started is not None
    assert started.start_method == "fork"


SPAWNS = """
import multiprocessing
import brim
import torch


def main():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (width,) = pool.map_async(abs, [-2]).get(timeout=60)
    model = torch.nn.Linear(width, 1)
    job = brim.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in job.batches([(torch.ones(2), torch.zeros(1))] * 8, global_batch_size=8, epochs=1):
        job.step((model(batch.inputs) - batch.target).square().mean())


if __name__ == "__main__":
    main()
"""


def test_spawned_processes_find_the_script(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/loop.py").write_text(SPAWNS)
    command = [sys.executable, "-m", "brim", "run", "--run-dir", "run", "--", sys.executable]
    process = subprocess.run(
        [*command, "folder/loop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE
    )
    assert process.returncode == 0, process.stdout + process.stderr
