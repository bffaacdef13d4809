"""What brim trains in this benchmark: Wide & Deep or a small CNN on random data in memory."""

from typing import Any

import torch
from torch import Tensor, nn

import brim
from benchmarks.harness import jobs

KIND = brim.param("kind", "wide_deep")
OPTIMIZER = brim.param("optimizer", "sgd")


def model() -> nn.Module:
    return jobs.model(KIND)


def dataset(split: str) -> Any:
    return jobs.dataset(KIND, 1 << 30) if split == "train" else None


def loss(output: Tensor, target: Tensor) -> Tensor:
    return jobs.loss(KIND, output, target)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return jobs.optimizer(OPTIMIZER, model)
