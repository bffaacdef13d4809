"""Reads CSV files, and the values in their cells, with errors that name line and column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from brim.errors import SpecError
from brim.simulator.text_files import opened

_YES = frozenset({"1", "true", "t", "yes", "y"})
_FALSE = frozenset({"", "0", "false", "f", "no", "n"})


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Args:
        place: the table and the line, for messages.
        cells: by the names of their columns.
    """

    place: str
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return the text of a cell; empty where the table has no such column."""
        return self.cells.get(column, "")

    def number(
        self,
        column: str,
        *,
        minimum: float = -math.inf,
        maximum: float = math.inf,
        need: str = "a number",
    ) -> float:
        """Return the number in a cell.

        Raises:
            SpecError: the cell has no finite number, or one beyond a bound.
        """
        try:
            found = float(self.text(column))
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            raise self.fault(column, need)
        if found < minimum:
            raise self.fault(column, f"{minimum:g} or more")
        if found > maximum:
            raise self.fault(column, f"{maximum:g} or less")
        return found

    def positive(self, column: str) -> float:
        """Return the number above 0 in a cell.

        Raises:
            SpecError: the cell has none.
        """
        need = "a number above 0"
        found = self.number(column, need=need)
        if found <= 0:
            raise self.fault(column, need)
        return found

    def count(self, column: str, *, maximum: int | None = None) -> int:
        """Return the whole number from 1 in a cell, which may be written as `2.0`.

        Raises:
            SpecError: the cell has none, or one above `maximum`.
        """
        need = (
            "a whole number from 1" if maximum is None else f"a whole number from 1 to {maximum:,}"
        )
        found = self.number(column, need=need)
        if found != int(found) or not 1 <= found <= (math.inf if maximum is None else maximum):
            raise self.fault(column, need)
        return int(found)

    def whole(self, column: str) -> int:
        """Return the whole number from 0 in a cell, which may be written as `2.0`; empty: 0.

        Raises:
            SpecError: the cell has another value.
        """
        need = "a whole number from 0"
        found = self.number(column, need=need) if self.text(column) else 0.0
        if found != int(found) or found < 0:
            raise self.fault(column, need)
        return int(found)

    def flag(self, column: str) -> bool:
        """Return whether a cell says yes; an empty one, or none, says no.

        Raises:
            SpecError: the cell is neither a number 0 or 1 nor a word for yes or no.
        """
        word = self.text(column).lower().removesuffix(".0")
        if word not in _YES | _FALSE:
            raise self.fault(column, "1 or true, 0 or false")
        return word in _YES

    def fault(self, column: str, need: str, *, hint: str = "") -> SpecError:
        """Return the error for a cell with a wrong value."""
        actual = repr(self.text(column)) if self.text(column) else "an empty cell"
        return SpecError(f"{self.place}, column {column}", got=actual, need=need, hint=hint)


def read_table(path: Path, *, option: str, hint: str) -> list[Row]:
    """Return every line below the header of a CSV file, which may be compressed by gzip.

    Lines without anything are left out. Names of columns are read in lower case, with `_` for
    spaces and hyphens.

    Args:
        option: that named the file, for messages.
        hint: where the format is described.

    Raises:
        SpecError: no such file, or one that is no text; a line with more or fewer cells than the
            header, or a column twice.
    """
    with opened(path, option=option, need="a CSV file", hint=hint) as file:
        reader = csv.reader(io.StringIO(file.read(), newline=""))
    source = f"{option} {path}"
    rows: list[Row] = []
    columns: list[str] = []
    try:
        for line in reader:
            cells = [cell.strip() for cell in line]
            if not any(cells):
                continue
            if not columns:
                columns = [_name(cell) for cell in cells]
                _check_once(columns, source, hint)
                continue
            place = f"{source}, line {reader.line_num}"
            while len(cells) > len(columns) and not cells[-1]:  # commas at the end of a line
                cells.pop()
            if len(cells) != len(columns):
                need = f"{len(columns)}, as the header has"
                raise SpecError(place, got=f"{len(cells)} cells", need=need, hint=hint)
            rows.append(Row(place, dict(zip(columns, cells, strict=True))))
    except csv.Error as error:
        raise SpecError(source, got=str(error), need="a CSV file", hint=hint) from error
    return rows


def _name(cell: str) -> str:
    return cell.lower().replace(" ", "_").replace("-", "_")


def _check_once(columns: list[str], source: str, hint: str) -> None:
    for name in columns:
        if name and columns.count(name) > 1:
            raise SpecError(source, got=f"two columns {name}", need="each column once", hint=hint)
