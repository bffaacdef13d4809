"""torch.compile with its own compiler: the same weights through a kill and a join, in a training
file and in a loop.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from brim_lab.driver import Driver
from tiers import long_after

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not shutil.which(os.environ.get("CXX", "g++")),
        reason="torch.compile needs a C++ compiler: g++, or CXX",
    ),
]
TO_COMPILE = (
    400.0  # seconds, on a busy machine: each worker compiles, the first ones without a cache
)

NETWORK = """
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))

def samples():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(270, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].argmax(1))
"""
TRAINING_FILE = (
    NETWORK
    + """
def model():
    return torch.compile(network())

def dataset(split):
    return samples() if split == "train" else None

def loss(output, target):
    return functional.cross_entropy(output, target)

def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)
"""
)
LOOP = (
    NETWORK
    + """
import brim

model = network()
compiled = torch.compile(model)
job = brim.join(model, torch.optim.Adam(model.parameters(), lr=1e-3))
for batch in job.batches(samples(), global_batch_size=28, epochs=2):
    job.step(functional.cross_entropy(compiled(batch.inputs), batch.target))
"""
)


def run(folder: Path, name: str, *words: str) -> dict[str, Any]:
    verb, tail = (
        (["train", "model.py", "--epochs", "2", "--global-batch-size", "28"], [])
        if (folder / "model.py").exists()
        else (["run"], ["--", sys.executable, "loop.py"])
    )
    driver = Driver(folder, TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"))
    command = (*verb, "--run-dir", name, "--json", *words, *tail)
    done = driver.call(*command, timeout=TO_COMPILE, codes=())
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.parametrize(
    ("file", "text"), long_after(0, [("model.py", TRAINING_FILE), ("loop.py", LOOP)])
)
def test_a_compiled_model_stays_exact_through_changes(file: str, text: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    broken = ("--workers", "2", "--faults", "kill rank 1 at step 3; add 1 at step 5")
    result = run(tmp_path, "through", *broken)
    assert result["exit"] == "done"
    assert len(result["world_sizes"]) > 1
    assert list((tmp_path / "cache").iterdir()), "nothing was compiled"
    plain = run(tmp_path, "plain", "--workers", "1")
    assert plain["weights_sha256"] == result["weights_sha256"]
