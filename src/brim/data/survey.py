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

from brim.data.encoding import Encoder, Fitter, targets_of
from brim.data.quarantine import write
from brim.data.screening import Plan, check_share, screen
from brim.data.tables import BadRow, FileRows
from brim.errors import SpecError

RUN_DIRECTORY = "BRIM_RUN_DIR"
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The number of bad rows, and the path of their file (None where there are none)."""

    count: int
    path: Path | None


@dataclass(frozen=True, slots=True)
class SurveyedPart:
    """The rows of a part that are samples, those of the test split, and negatives left out of others.

    One bit per row.

    Args:
        size: rows that the reader could split.
        skipped: the places, among all rows of the part, of those that it could not.
    """

    size: int
    skipped: Sequence[int]
    kept: npt.NDArray[np.uint8]
    test: npt.NDArray[np.uint8]
    left_out: npt.NDArray[np.uint8]

    def mask_of(self, split: str | None) -> Mask:
        mask: Mask = np.unpackbits(self.kept, count=self.size).astype(bool)
        left_out: Mask = np.unpackbits(self.left_out, count=self.size).astype(bool)
        if split is None:
            return mask & ~left_out
        test: Mask = np.unpackbits(self.test, count=self.size).astype(bool)
        return mask & (test if split == "test" else ~test & ~left_out)

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
        left_out = _negatives_left_out(part, plan, mask & ~test)
        parts.append(
            SurveyedPart(part.size, part.skipped, *map(np.packbits, (mask, test, left_out)))
        )
        if fitter is not None:
            fitter.observe(part, mask & ~test & ~left_out)
        bad += [(part.file, row) for row in (*part.refused, *bad_rows)]
        refused += len(part.refused)
    check_share(bad, total + refused, plan.hints_of_text)
    path = write(os.environ.get(RUN_DIRECTORY, ""), bad)
    return Survey(parts, encoder or fitter.finish(), Quarantine(len(bad), path))  # type: ignore[union-attr]


def _negatives_left_out(part: FileRows, plan: Plan, train: Mask) -> Mask:
    """The negatives among the training rows that are not trained on."""
    left_out = np.zeros(part.size, bool)
    if plan.negatives is None:
        return left_out
    target = targets_of(plan.targets, part, train)
    odd = target[(target != 0) & (target != 1)]
    if odd.size:
        raise SpecError(
            "negatives=",
            got=f"a target of {odd[0]:g} in {part.file}",
            need="a target of 0 and 1",
            hint="target('label', above=0), where labels are -1 and 1",
        )
    left_out[train] = target == 0
    return left_out & ~plan.negatives.negatives_kept(part)
