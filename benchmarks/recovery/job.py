"""What brim trains in this benchmark: Wide & Deep on random data in memory."""

from typing import Any

import torch
from torch import Tensor, nn

import brim
from benchmarks.harness import jobs

OPTIMIZER = brim.param("optimizer", "sgd")
SAMPLES = brim.param("samples", 1 << 30)


def model() -> nn.Module:
    return jobs.model("wide_deep")


def dataset(split: str) -> Any:
    return jobs.dataset("wide_deep", SAMPLES) if split == "train" else None


def loss(output: Tensor, target: Tensor) -> Tensor:
    return jobs.loss("wide_deep", output, target)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return jobs.optimizer(OPTIMIZER, model)
