"""Queries of ranked rows: which rows each has, and shares of the rows that cut none. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.errors import SpecError
from brim.xgboost.workers import share_of


@dataclass(frozen=True, slots=True)
class Queries:
    """Queries, one after another.

    Args:
        starts: int64 of shape (queries + 1,): the first row of each, and the number of rows.
    """

    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of rows of each."""
        return np.diff(self.starts)

    @property
    def of_rows(self) -> NDArray[np.int64]:
        """The number of each row's query."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def part_of(self, rows: range) -> Queries:
        """Return those of some rows, which are counted from the first of these.

        Args:
            rows: whole queries.
        """
        begin, end = np.searchsorted(self.starts, [rows.start, rows.stop])
        return Queries(self.starts[begin : end + 1] - rows.start)

    def blocks(self, rows: int) -> list[range]:
        """Return the rows of blocks of whole queries.

        Args:
            rows: of a block, at least, unless it is the last one.

        >>> Queries(np.array([0, 3, 4, 9, 10])).blocks(4)
        [range(0, 4), range(4, 9), range(9, 10)]
        """
        cuts = [0]
        while cuts[-1] < self.starts[-1]:
            place = np.searchsorted(self.starts, min(cuts[-1] + rows, self.starts[-1]))
            cuts.append(int(self.starts[place]))
        return [range(begin, end) for begin, end in itertools.pairwise(cuts)]


def queries_of(ids: NDArray[Any]) -> Queries:
    """Return the queries of rows.

    Args:
        ids: of the query of each row; rows of one query lie side by side.

    Raises:
        SpecError: the rows of a query are in two places.

    >>> queries_of(np.array([7, 7, 3])).starts.tolist()
    [0, 2, 3]
    """
    changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    starts = np.concatenate([[0], changes, [len(ids)]]) if len(ids) else np.zeros(1)
    heads = ids[starts[:-1].astype(np.int64)]
    distinct, counts = np.unique(heads, return_counts=True)
    if len(distinct) < len(heads):
        query = distinct[counts.argmax()]
        places = changes[heads[1:] == query][-1:]
        raise SpecError(
            "qid",
            got=f"rows of query {query} in two places, again from row {places[0]} on",
            need="the rows of a query side by side",
            hint="sort the rows by qid",
        )
    return Queries(starts.astype(np.int64))


def share_of_queries(queries: Queries, rank: int, size: int) -> range:
    """Return the rows of one of several workers: whole queries, at least one, and about as many rows.

    Args:
        queries: at least as many as workers.

    >>> queries = Queries(np.array([0, 8, 9, 10]))
    >>> [share_of_queries(queries, rank, 3) for rank in range(3)]
    [range(0, 8), range(8, 9), range(9, 10)]
    """
    rows, count = int(queries.starts[-1]), len(queries)
    cuts = [0]
    for place in range(1, size):
        nearest = int(np.searchsorted(queries.starts, share_of(rows, place, size).start))
        cuts.append(min(max(nearest, cuts[-1] + 1), count - (size - place)))
    cuts.append(count)
    return range(int(queries.starts[cuts[rank]]), int(queries.starts[cuts[rank + 1]]))
