"""Lines of text, and rows of tables, read one at a time from files of any length."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from brim.errors import SpecError
from brim.simulator.tables import Row
from brim.simulator.text_files import opened

MOST_LINE = 1 << 20  # characters
LARGEST = 10**11  # number in a log, of anything; as a time, it is in the year 5138

OPTION = "--from"


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file in a format.

    Args:
        need: the kind of file that it should be, such as `a CSV file`.
        hint: where the format is described, or how such a file is made.
    """

    path: Path
    need: str
    hint: str

    def place(self, part: str) -> str:
        """A part of the file, for messages."""
        return f"{OPTION} {self.path}, {part}"


def lines(source: LogFile) -> Iterator[tuple[int, str]]:
    """Return each line with its number, from 1, and without its end.

    Raises:
        SpecError: the file cannot be read as text, or has a line that is too long.
    """
    with opened(source.path, option=OPTION, need=source.need, hint=source.hint) as file:
        number = 0
        while line := file.readline(MOST_LINE):
            number += 1
            if len(line) == MOST_LINE and not line.endswith("\n"):
                raise SpecError(
                    source.place(f"line {number}"),
                    got=f"a line of {MOST_LINE:,} characters or more",
                    need=source.need,
                    hint=source.hint,
                )
            yield number, line.rstrip("\r\n")


def rows(
    source: LogFile,
    split: Callable[[str], list[str]],
    *,
    columns: Sequence[str] = (),
    required: Sequence[str] = (),
) -> Iterator[Row]:
    """Return each row of a table.

    Args:
        split: makes cells of a line; it may raise `csv.Error`.
        columns: of a table without a header; otherwise the first line has them.
        required: columns that have to be in the header, in lower case.

    Raises:
        SpecError: a required column is missing, or a row has another number of cells.
    """
    names = list(columns)
    for number, line in lines(source):
        if not line.strip():
            continue
        place = source.place(f"line {number}")
        try:
            cells = [cell.strip() for cell in split(line)]
        except csv.Error as error:
            raise SpecError(place, got=str(error), need=source.need, hint=source.hint) from None
        if not names:
            names = [cell.lower() for cell in cells]
            _check_header(source, names, required)
            continue
        while len(cells) > len(names) and not cells[-1]:  # separators at the end of a line
            cells.pop()
        if len(cells) != len(names):
            need = f"{len(names)}: {', '.join(names)}"
            raise SpecError(place, got=f"{len(cells)} cells", need=need, hint=source.hint)
        yield Row(place, dict(zip(names, cells, strict=True)))


def _check_header(source: LogFile, names: list[str], required: Sequence[str]) -> None:
    while names and not names[-1]:
        names.pop()
    missing = [name for name in required if name not in names]
    twice = [name for name in names if names.count(name) > 1]
    if missing or twice:
        raise SpecError(
            source.place("line 1"),
            got=f"two columns {twice[0]}" if twice else f"the columns {', '.join(names)[:200]}",
            need="each column once" if twice else f"a header with {', '.join(required)}",
            hint=source.hint,
        )
