"""A network of 19.9 million parameters (80 MB) on random data: gradients take longer than it does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness.jobs import InMemory

_INPUTS, _WIDTH, _CLASSES, _HIDDEN = 512, 2048, 1000, 4
_SAMPLES, _ROWS = 1 << 30, 4096


def model() -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(_INPUTS, _WIDTH), nn.ReLU()]
    for _ in range(_HIDDEN):
        layers += [nn.Linear(_WIDTH, _WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(_WIDTH, _CLASSES))


def dataset(split: str) -> Any:
    if split != "train":
        return None
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(_ROWS, _INPUTS, generator=random)
    return InMemory(_SAMPLES, inputs, torch.randint(0, _CLASSES, (_ROWS,), generator=random))


def loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)
