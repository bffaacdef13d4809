"""On a real GPU: the same result with any number of workers, which share it, come and go."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine"),
]

FILE = """
import torch
from torch.nn import functional
from brim import data
def dataset(split):
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(8192, 32, generator=chance)
    return data.Tensors(inputs, inputs[:, :4].argmax(1)) if split == "train" else None
def model():
    return torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(0.1),
        torch.nn.Linear(64, 4),
    )
loss = functional.cross_entropy
def optimizer(model): return torch.optim.Adam(model.parameters(), lr=1e-3)
"""
SCRIPT = """
import torch, brim
from torch.nn import functional
torch.manual_seed(0)
inputs = torch.randn(2048, 32)
rows = list(zip(inputs, inputs[:, :4].argmax(1)))
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
job = brim.join(model, optimizer, scaler=torch.amp.GradScaler("cuda"), clip_norm=1.0)
for batch in job.batches(rows, global_batch_size=64, epochs=1):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = functional.cross_entropy(model(batch.inputs), batch.target)
    job.step(loss)
"""
FAULTS = "kill rank 1 at step 6; add 1 at step 9; term rank 0 at step 12"


def brim(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "brim", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def digest(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = re.findall("sha256 ([0-9a-f]{64})", done.stdout + done.stderr)
    return str(found)


def test_any_number_of_workers_gives_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(FILE)
    train = ["train", "file.py", "--device", "cuda", "--run-dir"]
    calm = digest(brim(tmp_path, *train, "one", "--workers", "1"))
    assert digest(brim(tmp_path, *train, "four", "--workers", "4", "--faults", FAULTS)) == calm
    assert brim(tmp_path, "ledger", "four").returncode == 0


def test_a_script_in_16_bits_loses_a_worker(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ["--", sys.executable, "script.py"]
    calm = digest(brim(tmp_path, "run", "--run-dir", "one", *words))
    faults = ["--workers", "2", "--faults", "kill rank 1 at step 4"]
    assert digest(brim(tmp_path, "run", "--run-dir", "two", *faults, *words)) == calm


def test_a_cpu_job_ignores_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(FILE)
    train = ["train", "file.py", "--device", "cpu", "--run-dir"]
    calm = digest(brim(tmp_path, *train, "one", "--workers", "1"))
    assert digest(brim(tmp_path, *train, "four", "--workers", "4", "--faults", FAULTS)) == calm


def test_nccl_takes_no_two_workers_on_one_gpu(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(FILE)
    workers = str(torch.cuda.device_count() + 1)
    train = ["train", "file.py", "--device", "cuda", "--transport", "distributed"]
    done = brim(tmp_path, *train, "--workers", workers)
    assert done.returncode == 2
    assert "need a GPU for each worker" in done.stderr
