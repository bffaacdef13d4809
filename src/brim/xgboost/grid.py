"""Sums that are the same in any order, over any split of the rows. Pure.

Numbers are rounded to whole multiples of one power of two, 2**-k, such that no sum of any of them has
more than the 53 bits of a double. Then each addition is exact, and neither their order nor their place
can change a bit: so XGBoost's histograms, which are doubles, are the same for any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from brim.xgboost.arithmetic import Floats
from brim.xgboost.workers import Collectives

MOST_ROWS = 1 << 30  # more would round the gradients of a mean row to fewer than 22 bits
_SUM_BITS = 52  # of a sum of absolute values; rounding up may add a bit
_UNIT_BITS = 20  # a sum is taken in units of 2**-20 of the largest value
_FINEST = 100  # 2**-100: finer steps would be no normal numbers of a float32


def powers_of(columns: Sequence[Floats], workers: Collectives) -> list[int]:
    """Return for each array the k of its grid: any sum of multiples of 2**-k is exact.

    The bound is the sum of the absolute values over all workers, found in whole numbers. The number
    of rows times the largest value would be a bound too, but a bad one where weights differ much.

    Args:
        columns: float32 values of this worker's rows.
        workers: all that have rows.
    """
    greatest = np.array([_greatest(values) for values in columns])
    powers = [
        max(math.frexp(value)[1], _UNIT_BITS - _FINEST)
        for value in workers.largest(greatest).tolist()
    ]
    units = [
        _units_in(values, _UNIT_BITS - power) for values, power in zip(columns, powers, strict=True)
    ]
    totals = workers.add(np.array(units, np.int64)).tolist()
    return [
        min(_SUM_BITS - (total.bit_length() + power - _UNIT_BITS), _FINEST)
        for total, power in zip(totals, powers, strict=True)
    ]


def round_to_grid(values: Floats, power: int) -> Floats:
    """Round to multiples of 2**-power, in place.

    >>> round_to_grid(np.float32([0.3, -0.8]), 2).tolist()
    [0.25, -0.75]
    """
    values *= np.float32(math.ldexp(1.0, power))
    np.rint(values, out=values)
    values *= np.float32(math.ldexp(1.0, -power))
    return values


def totals_of(columns: Sequence[Floats], workers: Collectives) -> list[float]:
    """Return the sum of each array over all workers, the same to the bit for any split.

    Args:
        columns: float32 values of this worker's rows; they are rounded in place.
    """
    for values, power in zip(columns, powers_of(columns, workers), strict=True):
        round_to_grid(values, power)
    sums: list[float] = workers.add(
        np.array([values.sum(dtype=np.float64) for values in columns])
    ).tolist()
    return sums


def _greatest(values: Floats) -> float:
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))


def _units_in(values: Floats, power: int) -> int:
    """The sum of absolute values, each rounded up to a multiple of 2**-power."""
    units = np.abs(values)
    units *= np.float32(math.ldexp(1.0, power))
    np.ceil(units, out=units)
    return int(units.sum(dtype=np.float64))  # whole numbers below 2**53: exact
