"""The rows of the test split.

A row's place or content alone decides, so every process agrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from brim.data.tables import FileRows, stable_hash
from brim.domain.seeds import mix
from brim.errors import SpecError

Mask = npt.NDArray[np.bool_]
_NEGATIVES = 1  # beside the seed


@dataclass(frozen=True, slots=True)
class Last:
    """See `last`."""

    amount: float

    def test_rows(self, part: FileRows, total: int) -> Mask:
        # Rounding first: 0.1 of 80,000 rows is 8,000 of them, whatever 0.1 is in binary.
        count = int(self.amount) if self.amount >= 1 else round(self.amount * total)
        return np.arange(part.start, part.start + part.size) >= total - count


@dataclass(frozen=True, slots=True)
class RowRange:
    """See `rows`."""

    start: int
    stop: int

    def test_rows(self, part: FileRows, total: int) -> Mask:
        place = np.arange(part.start, part.start + part.size)
        return (place >= self.start) & (place < self.stop)


@dataclass(frozen=True, slots=True)
class Sample:
    """See `sample`."""

    share: float
    seed: int
    by: str | None

    def test_rows(self, part: FileRows, total: int) -> Mask:
        return self._rows(part, mix(self.seed))

    def negatives_kept(self, part: FileRows) -> Mask:
        """The rows that stay if they are negatives, whatever rows are the test split."""
        return self._rows(part, mix(self.seed, _NEGATIVES))

    def _rows(self, part: FileRows, key: int) -> Mask:
        if self.by is None:
            numbers = np.arange(part.start, part.start + part.size, dtype=np.uint64)
        else:
            column = part.column(self.by)
            hashes = [
                stable_hash(token) for token in (*column.tokens, "")
            ]  # -1, an empty cell, is the last
            numbers = np.array(hashes, np.uint64)[column.codes]
        return _scramble(numbers, key) < np.uint64(int(self.share * 2**64))


Split = Last | RowRange | Sample


def last(amount: float) -> Last:
    """Use the last rows as the test split.

    `amount` is a share of all rows (below 1) or a number of rows (from 1).

    Raises:
        SpecError: not a positive number.
    """
    if not amount > 0:
        raise SpecError(
            "last()", got=str(amount), need="a share below 1 or a number of rows", hint="last(0.1)"
        )
    return Last(amount)


def rows(start: int, stop: int) -> RowRange:
    """Use the rows [start, stop), counted from 0 over all files, as the test split.

    Raises:
        SpecError: an empty range.
    """
    if not 0 <= start < stop:
        raise SpecError(
            "rows()", got=f"({start}, {stop})", need="0 <= start < stop", hint="rows(72000, 80000)"
        )
    return RowRange(start, stop)


def sample(share: float, *, seed: int = 0, by: str | None = None) -> Sample:
    """Use about this share of the rows, chosen by a hash, as the test split, or of the negatives.

    Args:
        share: between 0 and 1.
        seed: another seed chooses other rows.
        by: a column: all rows with the same value in it (a user, a day) go into the same split.
            None hashes the row's position.

    Raises:
        SpecError: a share that is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise SpecError(
            "sample()", got=str(share), need="a share between 0 and 1", hint="sample(0.1)"
        )
    return Sample(share, seed, by)


def _scramble(numbers: npt.NDArray[np.uint64], key: int) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser over an array."""
    z = numbers + np.array([key], np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.array([0xBF58476D1CE4E5B9], np.uint64)
    z = (z ^ (z >> np.uint64(27))) * np.array([0x94D049BB133111EB], np.uint64)
    scrambled: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return scrambled
