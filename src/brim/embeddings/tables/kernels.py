"""Operations on ids and rows, each by the fastest way on a CPU (benchmarks/embeddings).

torch finds distinct ids by sorting, and copies rows element by element; numpy copies a row as one
value, and where there are few ids, marks say which are there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_DENSE_IDS = (
    1 << 20
)  # ids up to which a mark for each costs less than sorting those that are asked for


_SPARSE = 96  # ids for each that is asked for, from which on sorting these costs less than marks
_UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {4: np.uint32, 8: np.uint64}


def distinct_of(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Find the distinct ids among some.

    Args:
        ids: integers, of any shape.

    Returns:
        The distinct ids, ascending, shape [N]; and of each id its place among them, in the shape of
        `ids`. Both in the type of `ids`.
    """
    array = ids.numpy()
    largest = int(array.max()) if array.size else _DENSE_IDS
    if largest >= _DENSE_IDS or largest > _SPARSE * array.size or array.min() < 0:
        distinct_ids, places = torch.unique(ids, return_inverse=True)
        return distinct_ids, places.to(ids.dtype)
    is_there = np.zeros(largest + 1, np.bool_)
    is_there[array] = True
    distinct = np.flatnonzero(is_there)
    place = np.empty(largest + 1, np.int32)
    place[distinct] = np.arange(len(distinct), dtype=np.int32)
    found = (distinct, np.asarray(place[array]))  # of a single id it would be a number
    distinct_ids, places = (
        torch.from_numpy(column.astype(array.dtype, copy=False)) for column in found
    )
    return distinct_ids, places


def gather(rows: Tensor, places: Tensor, target: Tensor) -> None:
    """Copy the rows at some places, [N, D], to `target`.

    Args:
        rows: shape [R, D], contiguous, as `target`.
        places: integers, [N].

    Raises:
        IndexError: there is no such place.
    """
    array, records = places.numpy(), _records(rows)
    _check(array, len(records))
    # With mode="raise" numpy would take to a copy first.
    records.take(array, out=_records(target), mode="clip")


def put(rows: Tensor, places: Tensor, values: Tensor) -> None:
    """Write `values`, [N, D], to some places of `rows`; as `gather`."""
    array, records = places.numpy(), _records(rows)
    _check(array, len(records))
    records.put(array, _records(values), mode="clip")


def _check(array: NDArray[Any], count: int) -> None:
    # Those below 0 are the largest of all when taken for unsigned.
    if array.size and array.view(_UNSIGNED[array.itemsize]).max() >= count:
        raise IndexError(f"index out of range: {array.min()} to {array.max()} of {count:,} rows")


def _records(rows: Tensor) -> NDArray[Any]:
    """Rows as one value each."""
    array = rows.numpy()
    size_bytes = array.itemsize * (array.shape[1] if array.ndim > 1 else 1)
    return array.view(_record_of(size_bytes)).reshape(len(array))


@cache
def _record_of(size_bytes: int) -> np.dtype[np.void]:
    return np.dtype((np.void, size_bytes))
