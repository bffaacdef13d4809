"""The networks, data and optimizers that both sides of a benchmark train: the same objects, the
same samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from benchmarks.harness.gpt import TOKENS, SmallGPT
from benchmarks.harness.gpt import VOCABULARY as GPT_VOCABULARY
from brim.models import SmallCNN, WideDeep

VOCABULARY, FIELDS = 27_193, 39
_FEATURES = 20  # of the tiny network
_ROWS = {
    "wide_deep": 65_536,
    "cnn": 8_192,
    "gpt": 4_096,
    "tiny": 1 << 20,
}  # distinct samples in memory


class InMemory:
    """Samples in memory, used over and over, so that an epoch is as long as a benchmark wants.

    Args:
        size: samples of an epoch.
        inputs: tensor [rows, …], or a dict of such.
        target: [rows], or [rows, tokens].
    """

    def __init__(self, size: int, inputs: Tensor | dict[str, Tensor], target: Tensor) -> None:
        self._size, self._inputs, self._target = size, inputs, target

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        row = index % len(self._target)
        if isinstance(self._inputs, dict):
            return {name: values[row] for name, values in self._inputs.items()}, self._target[row]
        return self._inputs[row], self._target[row]

    def take(self, indices: np.ndarray) -> tuple[Any, Tensor]:
        """A collated batch."""
        rows = torch.from_numpy(np.asarray(indices) % len(self._target))
        target = self._target.index_select(0, rows)
        if isinstance(self._inputs, dict):
            return {
                name: values.index_select(0, rows) for name, values in self._inputs.items()
            }, target
        return self._inputs.index_select(0, rows), target


def dataset(kind: str, size: int) -> InMemory | TensorDataset:
    """Random samples for a network of this kind."""
    random = torch.Generator().manual_seed(0)
    rows = _ROWS[kind]
    if kind == "wide_deep":
        ids = torch.randint(0, VOCABULARY, (rows, FIELDS), generator=random)
        return InMemory(size, {"ids": ids}, torch.rand(rows, generator=random).round())
    if kind == "gpt":
        text = torch.randint(0, GPT_VOCABULARY, (rows, TOKENS + 1), generator=random)
        return InMemory(size, text[:, :-1], text[:, 1:])
    if kind == "tiny":
        features = torch.randn(rows, _FEATURES, generator=random)
        return TensorDataset(features, torch.randint(0, 2, (rows,), generator=random))
    images = torch.rand(rows, 1, 28, 28, generator=random)
    return InMemory(size, images, torch.randint(0, 10, (rows,), generator=random))


def model(kind: str) -> nn.Module:
    if kind == "wide_deep":
        return WideDeep(VOCABULARY, FIELDS, dim=16, hidden=(256, 128))
    if kind == "gpt":
        return SmallGPT()
    if kind == "tiny":
        return nn.Sequential(nn.Linear(_FEATURES, 16), nn.ReLU(), nn.Linear(16, 2))
    return SmallCNN(channels=8)


def loss(kind: str, output: Tensor, target: Tensor) -> Tensor:
    if kind == "wide_deep":
        return functional.binary_cross_entropy_with_logits(output, target)
    return functional.cross_entropy(output, target.flatten())


def optimizer(name: str, network: nn.Module) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(network.parameters(), lr=1e-3)
    return torch.optim.SGD(network.parameters(), lr=0.01)
