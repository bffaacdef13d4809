"""Comparison of samples that are read twice.

A sample is read by the worker that computes its micro-batch, and again where that is done again.
What differs then is refused before it spoils a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from brim.tensors.raw import memory_of

_OF_NUMPY = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


def is_same(first: Any, second: Any) -> bool:
    """Return whether two collated samples are equal, as far as can be told.

    Values of an unknown kind count as equal.

    >>> is_same({"a": [torch.tensor([1.0, torch.nan])]}, {"a": [torch.tensor([1.0, torch.nan])]})
    True
    >>> is_same((torch.zeros(2), "a"), (torch.zeros(2), "b"))
    False
    """
    if type(first) is not type(second):
        return False
    match first:
        case Tensor() if first.is_nested:  # each has a shape of its own, by a symbol
            return is_same(first.unbind(), second.unbind())
        case Tensor():
            return (
                first.shape == second.shape
                and first.dtype == second.dtype
                and _has_same_numbers(first, second)
            )
        case np.ndarray():
            return (
                is_same(torch.from_numpy(first), torch.from_numpy(second))
                if first.dtype.kind in "biuf"
                else True
            )
        case Mapping():
            return first.keys() == second.keys() and all(
                is_same(first[key], second[key])
                for key in first.keys()  # noqa: SIM118 - as below
            )
        case list() | tuple():
            return len(first) == len(second) and all(map(is_same, first, second))
        case bool() | int() | float() | str() | bytes():
            return first == second or first != first
    return True


def digest_of(sample: Any) -> str:
    """Return a digest of a collated sample, 16 hex digits.

    Values of an unknown kind count for nothing.

    >>> digest_of({"a": [torch.zeros(2)]}) == digest_of({"a": [torch.zeros(2)]})
    True
    >>> digest_of(torch.zeros(2)) == digest_of(torch.ones(2))
    False
    """
    return f"{hash_of(sample):016x}"


def hash_of(sample: Any, *, seed: int = 0) -> int:
    """Return a hash of a sample, of 64 bits, which depends on the seed.

    Values of an unknown kind count for nothing, unless they can be seen as an array: images can. So
    do those whose names begin with two underscores: they say which file a sample was read from, as
    WebDataset does, or by whom.
    """
    digest = xxhash.xxh3_64(seed=seed)

    def take(part: Any) -> None:
        match part:
            case bool() | int() | float() | str() | bytes():
                digest.update(repr(part).encode())
            case Tensor() if part.is_nested:
                take(part.unbind())
            case Tensor() if part.layout is torch.strided:
                digest.update(_head(part.dtype, part.shape))
                digest.update(_bytes_of(part))
            case np.ndarray() | np.generic():
                if part.dtype.kind in "biufc":
                    digest.update(_head(part.dtype, part.shape))
                    digest.update(np.ascontiguousarray(part).data)
                elif part.dtype.kind in "OUS":
                    take(part.tolist())
            case Mapping():
                for key in part.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
                    if not (isinstance(key, str) and key.startswith("__")):
                        take(key)
                        take(part[key])
            case list() | tuple():
                for item in part:
                    take(item)
            case _ if hasattr(type(part), "__array_interface__"):
                take(np.asarray(part))

    take(sample)
    return digest.intdigest()


@lru_cache(maxsize=1024)  # a stream has few, and putting them into words takes as long as the rest
def _head(kind: object, shape: tuple[int, ...]) -> bytes:
    return f"{kind} {tuple(shape)}".encode()


def _bytes_of(tensor: Tensor) -> Any:
    """The content of a tensor, in C order."""
    if tensor.is_cpu and tensor.dtype in _OF_NUMPY:  # a third of the time, which small samples feel
        return np.ascontiguousarray(tensor.detach().numpy()).data
    return memory_of(tensor.detach().cpu().contiguous())


def _has_same_numbers(first: Tensor, second: Tensor) -> bool:
    if first.layout is not torch.strided:
        return True
    return bool(((first == second) | ((first != first) & (second != second))).all())
