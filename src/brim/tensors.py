"""The memory of tensors as bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: a cache line, and what vector kernels want


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the host, not a copy."""
    if not tensor.numel():
        return memoryview(b"")
    array: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)
