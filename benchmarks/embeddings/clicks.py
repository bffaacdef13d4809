"""The model that is trained.
Wide & Deep over ids drawn as clicks draw them, few of them often, with a table of any size.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import brim
from benchmarks.harness.gate import wait_at_gate
from brim import models

ROWS = brim.param("rows", 200_000)
FIELDS, DIM, HIDDEN = 26, 16, (256, 128)
BATCHES = 30  # of 4,096 samples


class Clicks(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.inner = models.WideDeep(rows, FIELDS, dim=DIM, hidden=HIDDEN)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.inner({"ids": ids})
        return output


def ids_of(rows: int) -> Tensor:
    """Ids, [samples, FIELDS]: Zipf's law with exponent 1.2 in each field, spread over the table."""
    rng = np.random.default_rng(0)
    drawn = rng.zipf(1.2, (4096 * BATCHES, FIELDS))
    return torch.from_numpy((drawn * 2654435761 + np.arange(FIELDS) * 7919) % rows)


def target_of(ids: Tensor) -> Tensor:
    """Whether there was a click, [samples]."""
    return (ids.sum(1) % 4 == 0).float()


def dataset(split: str) -> TensorDataset | None:
    if split != "train":
        return None
    ids = ids_of(ROWS)
    return TensorDataset(ids, target_of(ids))


def model() -> nn.Module:
    return Clicks(ROWS)


def loss(output: Tensor, target: Tensor) -> Tensor:
    wait_at_gate()
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(model.parameters(), lr=0.02)
