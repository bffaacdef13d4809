"""A survey: one pass over all rows.

It finds the samples, the splits, the bad rows, and the columns' content.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from brim.data.encoding import Encoder, Fitter
from brim.data.quarantine import write
from brim.data.screening import Plan, check_share, screen
from brim.data.tables import BadRow, FileRows

RUN_DIRECTORY = "BRIM_RUN_DIR"
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The number of bad rows, and the path of their file (None where there are none)."""

    count: int
    path: Path | None


@dataclass(frozen=True, slots=True)
class SurveyedPart:
    """The rows of a part that are samples, and those of the test split.

    One bit per row.

    Args:
        size: rows that the reader could split.
        skipped: the places, among all rows of the part, of those that it could not.
    """

    size: int
    skipped: Sequence[int]
    kept: npt.NDArray[np.uint8]
    test: npt.NDArray[np.uint8]

    def mask_of(self, split: str | None) -> Mask:
        mask: Mask = np.unpackbits(self.kept, count=self.size).astype(bool)
        if split is None:
            return mask
        test: Mask = np.unpackbits(self.test, count=self.size).astype(bool)
        return mask & (test if split == "test" else ~test)

    @property
    def total(self) -> int:
        """Rows of the part, good or bad."""
        return self.size + len(self.skipped)

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """The place, among all rows of the part, of each that the reader could split."""
        return np.setdiff1d(
            np.arange(self.total), np.array(self.skipped, np.int64), assume_unique=True
        )


@dataclass(frozen=True, eq=False)
class Survey:
    """The result of one pass over all rows."""

    parts: list[SurveyedPart]
    encoder: Encoder
    quarantine: Quarantine


def survey(
    rows: Iterable[FileRows], total: int, plan: Plan, encoder: Encoder | None = None
) -> Survey:
    """Look at all rows once.

    Args:
        rows: part by part, in order.
        total: how many there are.
        plan: what is asked of them.
        encoder: what was fitted elsewhere; None fits the columns to the training rows here.

    Raises:
        SpecError: most rows are bad.
    """
    refused = 0
    bad: list[tuple[str, BadRow]] = []
    parts: list[SurveyedPart] = []
    fitter = None if encoder else Fitter(plan.columns, plan.targets)
    for part in rows:
        mask, bad_rows = screen(part, plan)
        test = plan.test.test_rows(part, total) if plan.test else np.zeros(part.size, bool)
        parts.append(SurveyedPart(part.size, part.skipped, np.packbits(mask), np.packbits(test)))
        if fitter is not None:
            fitter.observe(part, mask & ~test)
        bad += [(part.file, row) for row in (*part.refused, *bad_rows)]
        refused += len(part.refused)
    check_share(bad, total + refused, plan.hints_of_text)
    path = write(os.environ.get(RUN_DIRECTORY, ""), bad)
    return Survey(parts, encoder or fitter.finish(), Quarantine(len(bad), path))  # type: ignore[union-attr]
