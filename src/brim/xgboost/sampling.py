"""Samples of rows that depend on the number of a row alone, not on the worker that has it. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def chosen(rows: range, key: int, fraction: float) -> NDArray[np.bool_]:
    """Return which of these rows are in a sample.

    Args:
        rows: their numbers among all rows.
        key: of the sample: another one gives another sample.
        fraction: of all rows, about; from 1 on all are in.

    Returns:
        One value a row.

    Source: Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators (OOPSLA 2014).
    """
    if fraction >= 1.0:
        return np.ones(len(rows), np.bool_)
    numbers = np.arange(rows.start, rows.stop, dtype=np.uint64)
    key_hash = _mix(np.array([key % 2**64], np.uint64))
    return _mix(numbers ^ key_hash) < np.uint64(int(fraction * 2.0**64))


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = numbers + _WEYL
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))
