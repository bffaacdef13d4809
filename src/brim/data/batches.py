"""Batches by index: the questions of a training loop to a dataset of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

Indices = npt.NDArray[np.int64]
Collate = Callable[[list[Any]], Any]


@runtime_checkable
class Batched(Protocol):
    """A map-style dataset that gathers a whole batch at once."""

    def __len__(self) -> int: ...

    def take(self, indices: Indices) -> Any:
        """Return the collated batch of these samples, in this order, as `default_collate` would."""
        ...


def fetch(dataset: Any, indices: Indices, collate: Collate | None = None) -> Any:
    """Return the collated batch of these samples of any map-style dataset.

    Uses the fastest way that the dataset offers: `take`, or torch's `__getitems__`, or one sample
    at a time. The last two are collated as torch does, unless `__getitems__` gives no samples
    one after the other.

    Args:
        dataset: a map-style torch Dataset, or anything else with `__getitem__`.
        indices: int64 [B], in the order wanted; at least one.
        collate: turns a list of samples into a batch, instead of torch's default.

    Returns:
        What the dataset holds per sample, usually (inputs, target), each tensor with a first
        dimension B.

    >>> fetch([(1.0, 0), (2.0, 1)], np.array([1, 0]))
    [tensor([2., 1.], dtype=torch.float64), tensor([1, 0])]
    """
    if collate is not None:
        return collate(_samples(dataset, indices.tolist()))
    # Hugging Face's datasets have a `take` of another meaning (the first n), and `__getitems__`:
    # that one then.
    if type(dataset) is TensorDataset:  # a subclass may have changed what an item is
        rows = torch.from_numpy(indices)
        return [tensor.index_select(0, rows) for tensor in dataset.tensors]
    if isinstance(dataset, torch.Tensor):  # its `take` is of another meaning, too
        return dataset.index_select(0, torch.from_numpy(indices))
    if (
        hasattr(dataset, "take")
        and hasattr(dataset, "__len__")
        and not hasattr(dataset, "__getitems__")
    ):
        return dataset.take(
            indices
        )  # isinstance(dataset, Batched) takes as long as reading a small batch
    samples = _samples(dataset, indices.tolist())
    return default_collate(samples) if isinstance(samples, list) else samples


def is_quick(dataset: Any) -> bool:
    """Return whether reading this draws nothing by chance and takes next to no time."""
    return type(dataset) is TensorDataset or type(dataset).__module__.startswith("brim.")


def _samples(dataset: Any, indices: list[int]) -> Any:
    """Return a list of samples, or what `__getitems__` gives: of a TensorDict, a batch already."""
    if hasattr(dataset, "__getitems__"):
        found = dataset.__getitems__(indices)
        return list(found) if isinstance(found, (Sequence, Iterator, np.ndarray)) else found
    return [dataset[index] for index in indices]


class Tensors:
    """A dataset held in tensors: a tensor or a mapping of them as inputs, and a target.

    Args:
        inputs: tensor [rows, ...], or several by name.
        target: tensor [rows, ...].

    >>> Tensors(torch.arange(3.0), torch.tensor([0, 1, 0])).take(np.array([2, 1]))
    (tensor([2., 1.]), tensor([0, 1]))
    """

    block_size = 1

    def __init__(self, inputs: Tensor | Mapping[str, Tensor], target: Tensor) -> None:
        self.inputs = inputs if isinstance(inputs, Tensor) else dict(inputs)
        self.target = target

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        if isinstance(self.inputs, Tensor):
            return self.inputs[index], self.target[index]
        return {name: part[index] for name, part in self.inputs.items()}, self.target[index]

    def take(self, indices: Indices) -> tuple[Any, Tensor]:
        rows = torch.from_numpy(indices)
        target = self.target.index_select(0, rows)
        if isinstance(self.inputs, Tensor):
            return self.inputs.index_select(0, rows), target
        return {name: part.index_select(0, rows) for name, part in self.inputs.items()}, target
