"""The memory of tensors as bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: a cache line, and what vector kernels want


def bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, not a copy."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the host, not a copy."""
    if not tensor.numel():
        return memoryview(b"")
    array: Any = bytes_of(tensor).numpy()
    return memoryview(array)


def in_c_order(tensor: Tensor) -> Tensor:
    """Return a tensor on the host whose bytes are its numbers, one after the other.

    It is the same one where that is so already.
    """
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
