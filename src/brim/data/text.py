"""Delimited text files into rows of cells, with the lines that cannot be split set aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.csv as arrow_csv

from brim.data.files import File
from brim.data.tables import BadRow, FileRows, TextCells
from brim.errors import SpecError, did_you_mean

_LARGEST_BLOCK = 1 << 30
_SHOWN = 100  # characters of a first line


def read_text(
    file: File,
    *,
    columns: Sequence[str],
    names: Sequence[str] | None,
    delimiter: str,
    null: Sequence[str],
    start: int,
) -> FileRows:
    """Read the wanted columns of a whole file.

    Args:
        file: where it is.
        columns: the columns to keep.
        names: the columns' names where the file has no header line, else None.
        delimiter: what stands between fields.
        null: texts that mean an empty cell.
        start: rows of the dataset before this file.

    Raises:
        SpecError: no rows, no such column, two columns of a name that is wanted, or most lines do
            not have the header's number of fields.
    """
    content = file.content()
    found = list(names) if names is not None else _header(file, content, delimiter)
    _check_columns(file, found, columns)
    refused: list[tuple[int, int, str]] = []

    def refuse(row: arrow_csv.InvalidRow) -> str:
        refused.append((row.number, row.actual_columns, row.text))
        return "skip"

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(content),
            # One thread: line numbers are known, and a worker keeps to its share of the cores.
            read_options=arrow_csv.ReadOptions(
                use_threads=False,
                block_size=min(max(len(content), 1 << 16) + 1, _LARGEST_BLOCK),
                column_names=None if names is None else found,
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=delimiter,
                invalid_row_handler=refuse,
                newlines_in_values=len(content)
                > _LARGEST_BLOCK,  # within one block they are read in any case
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(columns),
                column_types=dict.fromkeys(columns, pa.dictionary(pa.int32(), pa.binary())),
                null_values=list(null),
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as problem:
        raise SpecError(
            file.label, got=str(problem), need="a text file of rows and columns"
        ) from problem
    numbers, skipped = {number for number, _, _ in refused}, 0 if names is not None else 1

    def lines() -> list[int]:
        begins = _record_lines(content, delimiter)
        return [
            line
            for record, line in enumerate(begins, 1)
            if record > skipped and record not in numbers
        ]

    broken = _broken(refused, _record_lines(content, delimiter), len(found)) if refused else []
    _check_rows(file, table.num_rows, refused, len(found), delimiter)
    cells = {name: TextCells(table.column(name)) for name in columns}
    return FileRows(
        file=file.label,
        start=start,
        size=table.num_rows,
        cells=cells,
        lines=lines,
        refused=broken,
        skipped=[number - 1 - skipped for number, _, _ in refused],
    )


def check_text(
    file: File, *, columns: Sequence[str], names: Sequence[str] | None, delimiter: str
) -> None:
    """Raises SpecError where a file lacks one of these columns."""
    _check_columns(
        file,
        list(names) if names is not None else _header(file, file.content(), delimiter),
        columns,
    )


def _header(file: File, content: bytes, delimiter: str) -> list[str]:
    first = next((line for line in content[: 1 << 20].splitlines() if line), b"")
    if not first:
        raise SpecError(file.label, got="an empty file", need="a header line and rows")
    if b"\0" in first:
        raise SpecError(
            file.label,
            got="a first line with bytes of value 0",
            need="text in UTF-8, or in UTF-16 with its mark at the start",
            hint=f"iconv -f UTF-16LE -t UTF-8 {file.label}",
        )
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(first + b"\n"),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
        )
    except pa.ArrowInvalid as problem:
        raise SpecError(
            file.label, got=str(problem), need="a header line with the columns' names"
        ) from problem
    names: list[str] = table.column_names
    return names


def _check_columns(file: File, found: Sequence[str], columns: Sequence[str]) -> None:
    times = Counter(found)
    has_names = not times.keys().isdisjoint(columns)
    for name in columns:
        if name not in times:
            raise SpecError(
                f"column {name!r}",
                got=f"no such column in {file.label}",
                need="one that it has",
                hint=did_you_mean(name, found) if has_names else _no_names(found),
            )
        if times[name] > 1:
            raise SpecError(
                f"column {name!r}", got=f"{times[name]} of that name in {file.label}", need="one"
            )


def _no_names(found: Sequence[str]) -> str:
    """Say what stands where the names of columns should."""
    for mark in ("\t", ";", "|", ","):
        if len(found) == 1 and mark in found[0]:
            return f"are its columns separated by {mark!r}? delimiter={mark!r}"
    line = " ".join(found)
    shown = line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
    return f"its first line should name the columns, and is: {shown}"


def _check_rows(
    file: File, good: int, refused: Sequence[tuple[int, int, str]], width: int, delimiter: str
) -> None:
    if len(refused) > good:
        number, fields, _ = refused[0]
        raise SpecError(
            file.label,
            got=f"{fields} fields in row {number} (and {len(refused) - 1} more rows like it)",
            need=f"{width} fields separated by {delimiter!r}",
            hint="check delimiter= and names=",
        )
    if not good:
        raise SpecError(file.label, got="no rows", need="at least one")


def _broken(
    refused: Sequence[tuple[int, int, str]], begins: Sequence[int], width: int
) -> list[BadRow]:
    return [
        BadRow(
            row=-1,
            line=begins[number - 1],
            column="",
            text=text,
            reason=f"{fields} fields, need {width}",
        )
        for number, fields, text in refused
    ]


def _record_lines(content: bytes, delimiter: str) -> list[int]:
    """Return the line (from 1) on which each record begins.

    Empty lines hold no record, and quotes may span lines.
    """
    begins, quoted, separator = [], False, delimiter.encode()
    for line, text in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if text and not quoted:
            begins.append(line)
        if b'"' in text:
            quoted = _ends_quoted(text, separator, quoted)
    return begins


def _ends_quoted(text: bytes, delimiter: bytes, quoted: bool) -> bool:
    """Return whether a quoted field goes on after this line.

    A quote opens a field only at the field's start.
    """
    offset = 0
    while True:
        if not quoted and text[offset : offset + 1] == b'"':
            quoted, offset = True, offset + 1
        if quoted:
            closing = text.find(b'"', offset)
            if closing < 0:
                return True
            if text[closing + 1 : closing + 2] == b'"':  # a doubled quote stands for one
                offset = closing + 2
                continue
            quoted, offset = False, closing + 1
        offset = text.find(delimiter, offset) + 1
        if offset == 0:
            return False
