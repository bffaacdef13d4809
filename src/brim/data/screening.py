"""Screening: rows that are samples, rows dropped on purpose, and bad rows with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from brim.data.columns import Categorical, Column, ItemSequence, Numeric, Target, Where
from brim.data.encoding import apply
from brim.data.sparse import NOT_AN_ID, TWICE, TWO_OF_A_FIELD
from brim.data.splits import Sample, Split
from brim.data.tables import BadRow, FileRows
from brim.errors import SpecError

Mask = npt.NDArray[np.bool_]
_FLAWS = {  # need and hint
    NOT_AN_ID: ("1, or 1/√n in a line of n features", "brim.data.numeric({})"),
    TWO_OF_A_FIELD: ("one feature of the field in most rows", "brim.data.sequence({}, length=5)"),
    TWICE: ("each feature once", ""),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The request for the columns of files.

    Without targets, rows are inputs alone.
    """

    columns: tuple[Column, ...]
    targets: tuple[Target, ...]
    keep: Where | None
    test: Split | None
    negatives: Sample | None = None

    @property
    def names(self) -> list[str]:
        """Every column that is read, each once."""
        names: list[str] = []
        for column in self.columns:
            names += column.names if isinstance(column, Categorical) else [column.name]
        names += self._target_names
        names += self.keep.names if self.keep else ()
        for chosen in (self.test, self.negatives):
            if isinstance(chosen, Sample) and chosen.by:
                names.append(chosen.by)
        return list(dict.fromkeys(names))

    @property
    def list_names(self) -> list[str]:
        """Names of the columns whose cells may be lists."""
        return [column.name for column in self.columns if isinstance(column, ItemSequence)]

    @property
    def number_names(self) -> list[str]:
        """Names of the columns whose cells must be numbers (or empty)."""
        names: list[str] = list(self.keep.names) if self.keep else []
        for column in self.columns:
            if isinstance(column, Numeric):
                names.append(column.name)
            elif isinstance(column, Categorical) and column.by is not None:
                names += column.names
        for target in self.targets:
            if not isinstance(target.equals, str):
                names += target.names
        return list(dict.fromkeys(names))

    @property
    def hints_of_text(self) -> dict[str, str]:
        """Return the replacement for each of these columns, where it holds text."""
        of_target = self._target_names
        return {
            name: f"brim.data.target({name!r}, equals=…): 1 where it is this text"
            if name in of_target
            else f"brim.data.vocabulary({name!r})"
            for name in self.number_names
        }

    @property
    def full_names(self) -> list[str]:
        """Names of the columns with no empty cell in a row that is kept."""
        needed = [
            column.name
            for column in self.columns
            if isinstance(column, Numeric) and column.missing is None
        ]
        return list(dict.fromkeys((*needed, *self._target_names)))

    @property
    def _target_names(self) -> list[str]:
        return [name for target in self.targets for name in target.names]


def screen(rows: FileRows, plan: Plan) -> tuple[Mask, list[BadRow]]:
    """Return the rows to keep, and the bad rows among the others.

    Each bad row comes with the first thing that is wrong.
    """
    bad = np.zeros(rows.size, bool)
    found: list[tuple[int, str, str]] = []
    mask = np.ones(rows.size, bool)

    def check(name: str, wrong: Mask, reason: str) -> None:
        new = np.flatnonzero(wrong & mask & ~bad)
        bad[new] = True
        found.extend((row, name, reason) for row in new.tolist())

    def check_numbers(name: str) -> None:
        cells = rows.column(name)
        nan = np.isnan(cells.numbers)
        if nan.any():
            check(name, nan & ~cells.empty, "not a number")

    if plan.keep is not None:
        for name in plan.keep.names:
            check_numbers(name)
        arrays = [rows.column(name).numbers for name in plan.keep.names]
        mask &= apply(plan.keep.by, arrays, f"where{plan.keep.names}").astype(bool)
    for name in plan.number_names:
        check_numbers(name)
    for name in plan.full_names:
        check(name, rows.column(name).empty, "empty")
    for flaw in rows.flaws:
        check(flaw.column, flaw.rows, flaw.reason)
    for target in plan.targets:
        if target.classes and not isinstance(target.equals, str) and target.by is None:
            classes = rows.column(target.names[0]).numbers
            wrong = (classes < 0) | (classes != np.floor(classes))
            check(target.names[0], wrong, "not a class number")
    lines = rows.lines() if found else ()
    bad_rows = [
        BadRow(
            row=row, line=lines[row], column=name, text=rows.column(name).text(row), reason=reason
        )
        for row, name, reason in found
    ]
    return mask & ~bad, bad_rows


def check_share(
    bad: Sequence[tuple[str, BadRow]], total: int, hints_of_text: Mapping[str, str]
) -> None:
    """Refuse a column by which most rows are bad: it is not as the user describes it.

    Raises:
        SpecError: more than half of all rows are bad for one column and reason.
    """
    if not bad:
        return
    (column, reason), count = Counter((row.column, row.reason) for _, row in bad).most_common(1)[0]
    if 2 * count <= total or not column:
        return
    file, first = next(
        (file, row) for file, row in bad if (row.column, row.reason) == (column, reason)
    )
    numbers = reason == "not a number"
    if reason in _FLAWS:
        need, hint = _FLAWS[reason]
        raise SpecError(
            f"column {column!r}",
            got=f"{reason} ({first.text}) in line {first.line} of {file}, and {count - 1} more "
            f"such rows of {total}",
            need=need,
            hint=hint.format(repr(column)),
        )
    raise SpecError(
        f"column {column!r}",
        got=f"{first.text!r} in line {first.line} of {file}, and {count - 1} more such rows of "
        f"{total}",
        need="numbers" if numbers else "a value in most rows",
        hint=hints_of_text[column].replace("…", repr(first.text))
        if numbers
        else f"missing=0, or keep=where({column!r}, by=…)",
    )
