"""A large frozen layer, and a small adapter beside it that is trained."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from brim import param

# Seconds for each micro-batch, until there is a file `hurry` in the run's directory.
PAUSE = param("pause", 0.0)
HURRY = Path(os.environ.get("BRIM_RUN_DIR", "") + "/hurry")
WIDTH = 512  # 1.2 MB of frozen weights, and 30 KB of others


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, WIDTH).requires_grad_(False)
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Linear(4, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, 10)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.first(pixels).relu() * self.scale
        hidden = (self.base(hidden) + self.up(self.down(self.dropout(hidden)))).relu()
        found: Tensor = self.out(hidden)
        return found


def model() -> nn.Module:
    return Adapted()


def loss(output: Tensor, target: Tensor) -> Tensor:
    if PAUSE and output.requires_grad and not HURRY.exists():
        time.sleep(PAUSE)
    return nn.functional.cross_entropy(output, target)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([part for part in model.parameters() if part.requires_grad], lr=0.003)


def dataset(split: str) -> Any:
    chance = torch.Generator().manual_seed(len(split))
    inputs = torch.randn(1536 if split == "train" else 256, 64, generator=chance)
    return TensorDataset(inputs, inputs[:, :10].argmax(1))
