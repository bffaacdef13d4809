"""Where the tensors of one contribution to a step lie in a row of memory that workers share.

A contribution is what one block of micro-batches adds to a step: the gradients, what the buffers of the network
changed by, and which parameters were used at all. It is laid out in sections of one dtype and one way to combine
(`add` for floating point, `max` for whole numbers), so that any slice of a row can be folded without knowing
what it means.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["ALIGNMENT", "Layout", "Section", "memory_of"]

ALIGNMENT = 64  # bytes: a cache line, and what vector kernels want


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the host, not a copy."""
    if not tensor.numel():
        return memoryview(b"")
    array: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


@dataclass(frozen=True, slots=True)
class Section:
    """Part of a row, `[start, stop)` in bytes, both multiples of ALIGNMENT."""

    dtype: torch.dtype
    start: int
    stop: int

    def slice(self, index: int, count: int) -> tuple[int, int]:
        """The bytes `[start, stop)` of slice `index` of `count`."""
        lines = (self.stop - self.start) // ALIGNMENT
        low, high = lines * index // count, lines * (index + 1) // count
        return self.start + low * ALIGNMENT, self.start + high * ALIGNMENT


class Layout:
    """The places of a list of tensors in a row.

    Args:
        like: tensors whose shapes and dtypes the contributions have.

    >>> layout = Layout([torch.zeros(3), torch.zeros(2, dtype=torch.int64), torch.zeros(5)])
    >>> layout.row_bytes, [section.dtype for section in layout.sections]
    (192, [torch.float32, torch.int64])
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        self.device = like[0].device
        self.shapes = [tensor.shape for tensor in like]
        self.dtypes = [tensor.dtype for tensor in like]
        self.offsets = [0] * len(like)
        self.sections: list[Section] = []
        at = 0
        for dtype in dict.fromkeys(self.dtypes):
            start = at
            for index, tensor in enumerate(like):
                if tensor.dtype == dtype:
                    self.offsets[index] = at
                    at += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
            self.sections.append(Section(dtype, start, at))
        self.row_bytes = at

    @property
    def fingerprint(self) -> str:
        """The same for all workers of a job, or they do not train the same network."""
        text = repr(
            [(str(dtype), tuple(shape)) for dtype, shape in zip(self.dtypes, self.shapes, strict=True)]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def views(self, row: Tensor) -> list[Tensor]:
        """The tensors that lie in a row (uint8, [row_bytes])."""
        result = []
        for shape, dtype, offset in zip(self.shapes, self.dtypes, self.offsets, strict=True):
            size = shape.numel() * dtype.itemsize
            result.append(row[offset : offset + size].view(dtype).view(shape))
        return result

    def slices(self, row: Tensor, index: int, count: int) -> list[Tensor]:
        """Slice `index` of `count` of every section of a row, as tensors of one dimension."""
        bounds = [(section.dtype, *section.slice(index, count)) for section in self.sections]
        return [row[start:stop].view(dtype) for dtype, start, stop in bounds]
