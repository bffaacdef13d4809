"""Samples of rows that depend on the number of a row alone, not on the worker that has it. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 14  # rows, that stay in a processor's cache
_FIRST, _SECOND = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_KEY_STEP = 0x9E3779B97F4A7C15  # 2**64 by the golden ratio: keys beside each other lie far apart


def chosen(rows: range, key: int, fraction: float) -> NDArray[np.bool_]:
    """Return which of these rows are in a sample.

    Args:
        rows: their numbers among all rows, below 2**32.
        key: of the sample: another one gives another sample.
        fraction: of all rows, about; from 1 on all are in.

    Returns:
        One value a row.

    Source: Appleby, MurmurHash3, its finalizer of 32 bits, before and after the key.
    """
    if fraction >= 1.0:
        return np.ones(len(rows), np.bool_)
    limit = np.uint32(int(fraction * 2.0**32))
    word = np.uint32(((key * _KEY_STEP) % 2**64) >> 32)
    sample = np.empty(len(rows), np.bool_)
    for begin in range(0, len(rows), _BLOCK):
        block = rows[begin : begin + _BLOCK]
        numbers = np.arange(block.start, block.stop, dtype=np.uint32)
        _mix(numbers)
        numbers += word
        _mix(numbers)
        np.less(numbers, limit, out=sample[begin : begin + _BLOCK])
    return sample


def _mix(numbers: NDArray[np.uint32]) -> None:
    numbers ^= numbers >> np.uint32(16)
    numbers *= _FIRST
    numbers ^= numbers >> np.uint32(13)
    numbers *= _SECOND
    numbers ^= numbers >> np.uint32(16)
