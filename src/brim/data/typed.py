"""Parquet and Arrow files into rows of cells, one row group or record batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from brim.data.files import File
from brim.data.tables import FileRows, TypedCells
from brim.errors import SpecError, did_you_mean


@dataclass(frozen=True)
class RowGroup:
    """Rows that are read at once.

    `read` may be called any number of times, also in a forked process.
    """

    file: str
    start: int
    start_in_file: int
    size: int
    table: Callable[[], pa.Table]

    def read(self) -> FileRows:
        table = self.table()
        cells = {name: TypedCells(table.column(name)) for name in table.column_names}
        first = self.start_in_file + 1
        lines = range(first, first + self.size)
        return FileRows(
            file=self.file, start=self.start, size=self.size, cells=cells, lines=lambda: lines
        )


def parquet_groups(
    files: Sequence[File], *, wanted: Sequence[str], numbers: Collection[str]
) -> list[RowGroup]:
    """The row groups of Parquet files, in order.

    Args:
        files: where they are.
        wanted: the columns to read.
        numbers: those of them that must hold numbers.

    Raises:
        SpecError: not a Parquet file, no rows, no such column, a column of the wrong type.
    """
    groups: list[RowGroup] = []
    for file in files:
        opened = _parquet(file)
        _check_schema(file, opened.schema_arrow, wanted, numbers)
        sizes = [
            opened.metadata.row_group(index).num_rows for index in range(opened.num_row_groups)
        ]
        groups += _groups(file, groups, sizes, _ParquetGroup, wanted)
    return _some(files, groups)


def arrow_groups(
    files: Sequence[File], *, wanted: Sequence[str], numbers: Collection[str]
) -> list[RowGroup]:
    """The record batches of Arrow IPC (Feather) files, in order; see `parquet_groups`."""
    groups: list[RowGroup] = []
    for file in files:
        opened = _ipc(file)
        _check_schema(file, opened.schema, wanted, numbers)
        sizes = [opened.get_batch(index).num_rows for index in range(opened.num_record_batches)]
        groups += _groups(file, groups, sizes, _ArrowGroup, wanted)
    return _some(files, groups)


@dataclass(frozen=True, slots=True)
class _ParquetGroup:
    file: File
    index: int
    wanted: tuple[str, ...]

    def __call__(self) -> pa.Table:
        # Opened again each time: an open file does not survive a fork.
        return _parquet(self.file).read_row_group(
            self.index, columns=list(self.wanted), use_threads=False
        )


@dataclass(frozen=True, slots=True)
class _ArrowGroup:
    file: File
    index: int
    wanted: tuple[str, ...]

    def __call__(self) -> pa.Table:
        return pa.Table.from_batches([_ipc(self.file).get_batch(self.index)]).select(
            list(self.wanted)
        )


def _groups(
    file: File,
    before: Sequence[RowGroup],
    sizes: Sequence[int],
    kind: Callable[..., Any],
    wanted: Sequence[str],
) -> list[RowGroup]:
    start = before[-1].start + before[-1].size if before else 0
    groups, inside = [], 0
    for index, size in enumerate(sizes):
        if size:
            table = kind(file, index, tuple(wanted))
            groups.append(RowGroup(file.shown, start + inside, inside, size, table))
        inside += size
    return groups


def _some(files: Sequence[File], groups: list[RowGroup]) -> list[RowGroup]:
    if not groups:
        raise SpecError(files[0].shown, got="no rows", need="at least one")
    return groups


def _parquet(file: File) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file.open())
    except (pa.ArrowInvalid, OSError) as problem:
        raise SpecError(file.shown, got=_first_line(problem), need="a Parquet file") from problem


def _ipc(file: File) -> pa.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(file.open())
    except (pa.ArrowInvalid, OSError) as problem:
        raise SpecError(
            file.shown, got=_first_line(problem), need="an Arrow IPC (Feather) file"
        ) from problem


def _first_line(problem: Exception) -> str:
    return str(problem).splitlines()[0] if str(problem) else type(problem).__name__


def _check_schema(
    file: File, schema: pa.Schema, wanted: Sequence[str], numbers: Collection[str]
) -> None:
    for name in wanted:
        if name not in schema.names:
            hint = did_you_mean(name, schema.names)
            raise SpecError(
                f"column {name!r}",
                got=f"no such column in {file.shown}",
                need="one that it has",
                hint=hint,
            )
        kind = schema.field(name).type
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_nested(value):
            raise SpecError(
                f"column {name!r}", got=f"type {kind} in {file.shown}", need="numbers or text"
            )
        if name in numbers and not _is_number(value):
            raise SpecError(
                f"column {name!r}",
                got=f"type {kind} in {file.shown}",
                need="numbers",
                hint=f"brim.data.vocabulary({name!r})",
            )


def _is_number(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal,
        pa.types.is_timestamp, pa.types.is_date, pa.types.is_null,
    )  # fmt: skip
    return any(test(kind) for test in tests)
