"""The training of each world: clicks over embeddings, by rows, with several models and
optimizers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import brim
from benchmarks.embeddings.clicks import ids_of, target_of
from brim import models

MODEL, OPTIMIZER = brim.param("model", "wide_deep"), brim.param("optimizer", "adagrad")
ROWS, SAMPLES, FIELDS = 200_000, 24_576, 26
# Of these an ordinary embedding would have all of its rows moved by a step.
OF_HASHES: dict[str, Any] = {
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.002),
}
OPTIMIZERS: dict[str, Any] = {
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.02),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "sparse_adam": lambda weights: torch.optim.SparseAdam(list(weights), lr=0.002),
    **OF_HASHES,
}


class Hashes(nn.Module):
    """Wide & Deep over `brim.Embedding`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = brim.Embedding(16, limit=ROWS, init="normal")
        self.wide = brim.Embedding(1, limit=ROWS, init="zeros")
        self.deep = nn.Sequential(nn.Linear(16 * FIELDS, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = (
            self.deep(self.embedding(ids).flatten(1)) + self.wide(ids).sum(1)
        ).squeeze(1)
        return logits


class Numbers(nn.Module):
    """A model of brim over `nn.Embedding`."""

    def __init__(self) -> None:
        super().__init__()
        kind = {"wide_deep": models.WideDeep, "xdeepfm": models.XDeepFM}[MODEL]
        small: dict[str, Any] = {"cin": (8,)} if MODEL == "xdeepfm" else {}
        self.inner = kind(ROWS, FIELDS, dim=16, hidden=(64,), **small)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.inner({"ids": ids})
        return logits


class Factors(nn.Module):
    """A factorization machine without a linear part:
    nothing but one embedding with `sparse=True`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 16, sparse=True)
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.table(ids)
        logits: Tensor = (rows.sum(1).square() - rows.square().sum(1)).sum(1) / 2
        return logits


def dataset(split: str) -> TensorDataset | None:
    if split != "train":
        return None
    ids = ids_of(ROWS)[:SAMPLES]
    return TensorDataset(ids, target_of(ids))


def model() -> nn.Module:
    if MODEL == "factors":
        return Factors()
    return Hashes() if OPTIMIZER in OF_HASHES else Numbers()


def loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    optimizer_made: torch.optim.Optimizer = OPTIMIZERS[OPTIMIZER](model.parameters())
    return optimizer_made
