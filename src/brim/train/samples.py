"""Collated samples: on which device they are, and which part of them is the target."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate


def pair_of(sample: Any) -> tuple[Any, Any]:
    """Return inputs and target of a collated sample.

    A pair is split; anything else is the inputs, and the target is None.

    >>> pair_of(["images", "labels"])
    ('images', 'labels')
    >>> pair_of({"ids": 1, "labels": 2})
    ({'ids': 1, 'labels': 2}, None)
    """
    if isinstance(sample, (tuple, list)) and len(sample) == 2:
        return sample[0], sample[1]
    return sample, None


def to_device(value: Any, device: torch.device) -> Any:
    """A collated value on another device."""
    if device.type == "cpu":
        return value
    match value:
        case Tensor():
            return value.to(device, non_blocking=True)
        case dict():
            return {key: to_device(item, device) for key, item in value.items()}
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*(to_device(item, device) for item in value))
        case tuple() | list():
            return type(value)(to_device(item, device) for item in value)
        case _ if hasattr(value, "to"):  # what tokenizers give, or a batch of graphs
            return value.to(device)
    return value


@dataclass(frozen=True, slots=True)
class Whole:
    """Collates an unsplit batch: a pair too goes to the model's own step as it is."""

    collate: Any = default_collate

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        return {"batch": self.collate(samples)}


def with_whole_batches(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a copy of a DataLoader that collates as it does, to `{"batch": ...}`."""
    copied = copy.copy(loader)
    copied.collate_fn = Whole(loader.collate_fn)
    return copied
