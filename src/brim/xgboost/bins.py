"""Thresholds at which a feature may be split, the same for any split of the rows. Pure.

XGBoost's own come from a sketch of each worker's rows, and differ with the number of workers. These
come from a sample that depends on the numbers of the rows. XGBoost takes them from a table that has
each threshold once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from brim.xgboost.arithmetic import Floats
from brim.xgboost.sampling import chosen
from brim.xgboost.workers import Collectives

SAMPLE_ROWS = 200_000
_SAMPLE_CELLS = 1 << 25  # of float32: 128 MiB
_KEY = 0xB145  # another sample than those of rounds


def ranges_of(features: Floats, workers: Collectives) -> tuple[Floats, Floats]:
    """Return the least and the largest value of each feature; NaN where all are missing.

    Args:
        features: of this worker's rows, of shape (rows, features).
    """
    ends = np.full((2, features.shape[1]), -np.inf, np.float32)
    np.fmax.reduce(features, axis=0, out=ends[0], initial=-np.inf)
    ends[1] = -np.fmin.reduce(features, axis=0, initial=np.inf)
    ends = workers.largest(ends)
    ends[np.isneginf(ends)] = np.nan
    return -ends[1], ends[0]


def sample_of(features: Floats, rows: range, total: int, seed: int, workers: Collectives) -> Floats:
    """Return the rows of the sample, those of all workers.

    Args:
        features: of this worker's rows, of shape (rows, features).
        rows: their numbers among all.
        total: rows of all workers.
    """
    limit = min(SAMPLE_ROWS, _SAMPLE_CELLS // features.shape[1])
    drawn = features[chosen(rows, seed ^ _KEY, limit / total)]
    counts = np.zeros(workers.size, np.int64)
    counts[workers.rank] = len(drawn)
    counts = workers.add(counts)
    begin = int(counts[: workers.rank].sum())
    # A sum with the zeros of all others is exact.
    table = np.zeros((int(counts.sum()), features.shape[1]), np.float32)
    table[begin : begin + len(drawn)] = drawn
    sample: Floats = workers.add(table)
    return sample


def thresholds_of(values: Floats, largest: float, limit: int) -> Floats:
    """Return the thresholds of one feature: a value belongs to the bins below those above it.

    Each distinct value has a bin where they are few. Otherwise bins have equal counts, but for values
    that would fill two or more: such a value has a bin of its own. The largest value is always a threshold:
    so no value lies beyond the last one.

    Args:
        values: of the sample; NaN: missing.
        largest: of all rows.
        limit: of bins.

    Returns:
        At most `limit - 1` numbers, ascending.

    >>> thresholds_of(np.float32([3, 1, 1, 2]), 4.0, 256).tolist()
    [2.0, 3.0, 4.0]
    >>> thresholds_of(np.arange(8, dtype=np.float32), 7.0, 4).tolist()
    [3.0, 5.0, 7.0]
    """
    distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if np.isnan(largest):
        return np.empty(0, np.float32)
    if not len(distinct) or distinct[-1] < largest:
        distinct = np.append(distinct, np.float32(largest))
        counts = np.append(counts, 0)
    if len(distinct) <= limit:
        return distinct[1:].astype(np.float32)
    is_alone = counts * (limit - 1) >= 2 * counts.sum()
    is_alone[-1] = True
    rest = np.where(is_alone, 0, counts)
    # A value of its own, but for the last, may cut one group of others in two.
    groups = max(limit + 1 - 2 * int(is_alone.sum()), 1)
    group = (np.cumsum(rest) - rest) * groups // max(int(rest.sum()), 1)
    begins = (group[1:] != group[:-1]) | is_alone[1:] | is_alone[:-1]
    thresholds: Floats = distinct[1:][begins].astype(np.float32)
    return thresholds


def codes_below(largest: float) -> Floats:
    """Return the codes of categories that stand for thresholds: all but the first.

    Args:
        largest: of all rows; NaN: all are missing.

    >>> codes_below(3.0).tolist(), codes_below(math.nan).tolist()
    ([1.0, 2.0, 3.0], [])
    """
    count = 1 if math.isnan(largest) else int(largest) + 1
    return np.arange(1, count, dtype=np.float32)


def reference_of(thresholds: Sequence[Floats], lowest: Floats) -> Floats:
    """Return a table from which XGBoost takes exactly these thresholds.

    Args:
        thresholds: of each feature.
        lowest: the least value of each feature; NaN where all are missing.

    Returns:
        Float32 of shape (rows, features): in each column the least value and the thresholds, the
        last one repeated.
    """
    rows = max(map(len, thresholds), default=0) + 1
    table = np.empty((rows, len(thresholds)), np.float32)
    for column, (numbers, low) in enumerate(zip(thresholds, lowest, strict=True)):
        values = np.append(np.float32(low), numbers)
        table[:, column] = values[np.minimum(np.arange(rows), len(values) - 1)]
    return table
