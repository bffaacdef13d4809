"""The job of the benchmarks of a live cluster: handwritten digits and a small CNN, whose
micro-batches mostly wait.

Worker slots are more than cores: a micro-batch sleeps, as it would wait for an accelerator, before
it computes.
"""

from __future__ import annotations

import importlib.util
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from brim import param

STEPS_PER_EPOCH = 10
GLOBAL_BATCH, MICRO_BATCHES = 128, 8

WAIT = float(param("wait", 0.0))
"""Seconds that a micro-batch waits in training."""

param("salt", "")  # changes nothing but what the model is called, so that nobody has measured it


class Waiting(nn.Module):
    """A small CNN that waits before each micro-batch, and computes the same whether it waits or
    not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        if WAIT and self.training:
            time.sleep(WAIT)
        output: Tensor = self.layers(images)
        return output


def model() -> nn.Module:
    return Waiting()


@cache
def dataset(split: str) -> Any:
    """The first images, as many as make `STEPS_PER_EPOCH`; no test split, so that steps are all
    there is.
    """
    if split != "train":
        return None
    # The file alone: to import scikit-learn takes longer than the shortest jobs train.
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    rows = np.loadtxt(
        Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=","
    )
    rows = rows[: STEPS_PER_EPOCH * GLOBAL_BATCH]
    images = torch.tensor(rows[:, :64], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return torch.utils.data.TensorDataset(images, torch.tensor(rows[:, 64], dtype=torch.int64))


loss = functional.cross_entropy


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
