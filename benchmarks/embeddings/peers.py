"""The peers of brim, with the same network, ids and optimizer: loops in plain torch, and a bare
copy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.embeddings import clicks
from benchmarks.harness.turns import Step
from brim.models.layers import Perceptron

BATCH, LR = 4096, 0.02


class Sparse(clicks.Clicks):
    """The network as torch offers it for large tables: `nn.Embedding(sparse=True)`."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        inner: Any = self.inner  # it has tables of brim's own kind
        inner.embedding = nn.Embedding(rows, clicks.DIM, sparse=True)
        inner.wide.weight = nn.Embedding(rows, 1, sparse=True)


class ManyTables(nn.Module):
    """The network as DeepCTR-Torch lays it out: each field has its tables, and their gradients are
    dense.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows // clicks.FIELDS
        self.embeddings = nn.ModuleList(
            nn.Embedding(self.rows, clicks.DIM) for _ in range(clicks.FIELDS)
        )
        self.wide = nn.ModuleList(nn.Embedding(self.rows, 1) for _ in range(clicks.FIELDS))
        self.deep = Perceptron(clicks.FIELDS * clicks.DIM, clicks.HIDDEN, 0.0)

    def forward(self, ids: Tensor) -> Tensor:
        fields = [field % self.rows for field in ids.unbind(1)]
        rows = [table(field) for table, field in zip(self.embeddings, fields, strict=True)]
        wide = [table(field) for table, field in zip(self.wide, fields, strict=True)]
        logits: Tensor = self.deep(torch.cat(rows, 1)) + torch.cat(wide, 1).sum(1)
        return logits


def plain(rows: int, kind: type[nn.Module]) -> Step:
    """A loop as anyone writes it."""
    torch.manual_seed(0)
    network, ids = kind(rows), clicks.ids_of(rows)
    target = clicks.target_of(ids)
    optimizer = torch.optim.Adagrad(network.parameters(), lr=LR)
    position = 0

    def step() -> None:
        nonlocal position
        optimizer.zero_grad()
        batch = slice(position, position + BATCH)
        functional.binary_cross_entropy_with_logits(network(ids[batch]), target[batch]).backward()
        optimizer.step()
        position = (position + BATCH) % (len(ids) - BATCH)

    return step


def copy_of_rows(rows: int) -> Step:
    """The least that a step can do: copy the row of each lookup out of the tables, once."""
    deep, wide, ids = torch.zeros(rows, clicks.DIM), torch.zeros(rows, 1), clicks.ids_of(rows)
    position = 0

    def step() -> None:
        nonlocal position
        looked_up = ids[position : position + BATCH].flatten()
        deep.index_select(0, looked_up)
        wide.index_select(0, looked_up)
        position = (position + BATCH) % (len(ids) - BATCH)

    return step
