"""Exchanges between the workers of one start, and the proof that all have the same. Pure.

An exchange that a worker's death has torn may return without an error, and return anything: the
caller's own numbers, as if no other worker had any. So a result counts where each worker has put its
digest into a place of its own, and all places hold the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from brim.errors import EnvironmentFault, SpecError

_MARK = 1  # in each place that is filled: a place that was added twice holds another number
_FIELDS = 3  # before the digest: the mark, and what a report has
_WORDS = 4  # of 8 bytes: a sha256


class Collectives(Protocol):
    """The collectives of all workers of one start, in one of them.

    Attributes:
        rank: of this worker, from 0.
        size: how many there are.
    """

    rank: int
    size: int

    def add(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sums over all workers, of the same shape."""

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the maxima over all workers, of the same shape."""

    def pass_on(self, content: bytes) -> bytes:
        """Return the content of the one worker that has any; that of all others is empty."""


class LoneWorker:
    """The only worker."""

    rank, size = 0, 1

    def add(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values themselves."""
        return values

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values themselves."""
        return values

    def pass_on(self, content: bytes) -> bytes:
        """Return the content itself."""
        return content


def farthest(count: int, workers: Collectives) -> int:
    """Return the rank of the first worker that has the most.

    Args:
        count: of this worker.
    """
    counts = np.zeros(workers.size, np.int64)
    counts[workers.rank] = count
    return int(workers.add(counts).argmax())


def share_of(rows: int, rank: int, size: int) -> range:
    """Return the rows of one of several workers.

    >>> [share_of(10, rank, 3) for rank in range(3)]
    [range(0, 3), range(3, 6), range(6, 10)]
    """
    return range(rank * rows // size, (rank + 1) * rows // size)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """A worker's report on a batch of rounds, or the sum of all reports.

    Args:
        is_stopping: it, or any worker, was asked to end.
        microseconds: of it, or of the slowest.
    """

    is_stopping: bool = False
    microseconds: int = 0


def slots_of(rank: int, size: int, digest: bytes, report: BatchReport) -> NDArray[np.int64]:
    """Return a table of zeros in which the row of one worker has its digest and report.

    Args:
        digest: 32 bytes.

    Returns:
        int64 of shape (size, 7).
    """
    table = np.zeros((size, _FIELDS + _WORDS), np.int64)
    words = np.frombuffer(digest, np.int64)
    table[rank] = _MARK, report.is_stopping, report.microseconds, *words
    return table


def unequal_in(table: NDArray[np.int64], digest: bytes) -> list[int]:
    """Return the ranks whose digest is another one.

    Args:
        table: the sum of the tables of all workers.
        digest: one's own.

    Raises:
        EnvironmentFault: the exchange was torn.

    >>> tables = [slots_of(rank, 2, bytes(32), BatchReport()) for rank in range(2)]
    >>> unequal_in(tables[0] + tables[1], bytes(32))
    []
    """
    if not (table[:, 0] == _MARK).all():
        raise EnvironmentFault("an exchange between workers was torn: one of them has died")
    words = np.frombuffer(digest, np.int64)
    return [int(rank) for rank in np.flatnonzero((table[:, _FIELDS:] != words).any(axis=1))]


def compare(subject: str, content: str, workers: Collectives) -> None:
    """Refuse an argument that is not the same on all workers.

    Raises:
        SpecError: it differs.
        EnvironmentFault: a worker has died.
    """
    digest = hashlib.sha256(content.encode()).digest()
    table = workers.add(slots_of(workers.rank, workers.size, digest, BatchReport()))
    if ranks := unequal_in(table, digest):
        raise SpecError(
            subject,
            got=f"others on rank {ranks[0]} than on rank {workers.rank}",
            need="the same on all workers",
            hint="do they differ by rank, by chance or by file?",
        )


def agree(digest: bytes, workers: Collectives, report: BatchReport) -> BatchReport:
    """Return the sum of all reports, once all workers have the same digest.

    Raises:
        EnvironmentFault: a worker has died, or has another digest.
    """
    table = workers.add(slots_of(workers.rank, workers.size, digest, report))
    if ranks := unequal_in(table, digest):
        raise EnvironmentFault(
            f"rank {ranks[0]} and rank {workers.rank} have made different trees: they do not count",
            retryable=True,
        )
    return BatchReport(is_stopping=bool(table[:, 1].any()), microseconds=int(table[:, 2].max()))
