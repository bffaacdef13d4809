"""How many functions of brim a micro-batch calls: each costs as much as an operation on few numbers."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import median
from types import FrameType

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import brim
from brim.train.context import spec_of_a_loner
from brim.train.job import Job

BRIM = str(Path(brim.__file__).parent)
STEPS = 9


def calls_of_a_step(parts: int) -> float:
    """Return how often functions of brim are entered in the median step of so many micro-batches."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
    data = TensorDataset(torch.randn(2048, 20), torch.randint(0, 2, (2048,)))
    spec = replace(spec_of_a_loner(), micro_batches=parts, audit=False)
    job = Job(network, torch.optim.SGD(network.parameters(), lr=0.01), spec=spec, context=None)
    calls = 0
    of_steps = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(BRIM)

    def steps() -> Iterator[None]:
        for batch in job.batches(data, global_batch_size=64, epochs=1):
            loss = nn.functional.cross_entropy(network(batch.inputs), batch.target)
            if job.step(loss) is not None:
                yield

    made = steps()
    for _ in range(8):  # the first look at more
        next(made)
    profile_before = sys.getprofile()
    sys.setprofile(count)
    try:
        for _ in range(STEPS):
            calls = 0
            next(made)
            of_steps.append(calls)
    finally:
        sys.setprofile(profile_before)
    for _ in made:
        pass
    return median(of_steps)


def test_a_micro_batch_takes_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceilings are a little above what was counted: 47, and 150 for a step of one."""
    of_torch = import_module("torch.optim.optimizer")
    monkeypatch.setattr(of_torch, "_global_optimizer_pre_hooks", OrderedDict())  # of others' jobs
    of_eight, of_one = calls_of_a_step(8), calls_of_a_step(1)
    assert (of_eight - of_one) / 7 <= 50
    assert of_one <= 160
