"""The training file of the benchmarks: Wide & Deep or a small CNN on random data in memory."""

from typing import Any

import torch
from torch import Tensor, nn

import brim
from benchmarks.harness import jobs
from benchmarks.harness.gate import wait_at_gate
from benchmarks.harness.pacing import paced

KIND = brim.param("kind", "wide_deep")
SAMPLES = brim.param("samples", 1 << 30)
OPTIMIZER = brim.param("optimizer", "sgd")


def model() -> nn.Module:
    return paced(jobs.model(KIND))


def dataset(split: str) -> Any:
    return jobs.dataset(KIND, SAMPLES) if split == "train" else None


def loss(output: Tensor, target: Tensor) -> Tensor:
    return jobs.loss(KIND, output, target)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    made = jobs.optimizer(OPTIMIZER, model)
    made.register_step_pre_hook(lambda *_: wait_at_gate())  # captured steps call no loss
    return made
