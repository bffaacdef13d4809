"""Parquet and Arrow files into rows of cells, one row group or record batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from brim.data.files import File
from brim.data.tables import FileRows, TypedCells, is_list, plain_type
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
    files: Sequence[File],
    *,
    columns: Sequence[str],
    numbers: Mapping[str, str],
    lists: Collection[str] = (),
) -> list[RowGroup]:
    """The row groups of Parquet files, in order.

    Args:
        files: where they are.
        columns: the names of those to read.
        numbers: those of them that must hold numbers, with what to write where one holds text.
        lists: those of them that may hold lists of numbers or texts.

    Raises:
        SpecError: not a Parquet file, no rows, no such column, a column of the wrong type.
    """
    groups: list[RowGroup] = []
    for file in files:
        opened = _parquet(file)
        _check_schema(file, opened.schema_arrow, columns, numbers, lists)
        sizes = [
            opened.metadata.row_group(index).num_rows for index in range(opened.num_row_groups)
        ]
        groups += _groups(file, groups, sizes, _ParquetGroup, columns)
    return _checked_groups(files, groups)


def arrow_groups(
    files: Sequence[File],
    *,
    columns: Sequence[str],
    numbers: Mapping[str, str],
    lists: Collection[str] = (),
) -> list[RowGroup]:
    """The record batches of Arrow IPC (Feather) files or streams, in order; see `parquet_groups`."""
    groups: list[RowGroup] = []
    for file in files:
        opened = _ipc(file)
        _check_schema(file, opened.schema, columns, numbers, lists)
        sizes = [batch.num_rows for batch in opened.batches()]
        groups += _groups(file, groups, sizes, _ArrowGroup, columns)
    return _checked_groups(files, groups)


@dataclass(frozen=True, slots=True)
class _ParquetGroup:
    file: File
    index: int
    columns: tuple[str, ...]

    def __call__(self) -> pa.Table:
        # Opened again each time: an open file does not survive a fork.
        return _parquet(self.file).read_row_group(
            self.index, columns=list(self.columns), use_threads=False
        )


@dataclass(frozen=True, slots=True)
class _ArrowGroup:
    file: File
    index: int
    columns: tuple[str, ...]

    def __call__(self) -> pa.Table:
        return pa.Table.from_batches([_ipc(self.file).batch(self.index)]).select(list(self.columns))


def _groups(
    file: File,
    groups_before: Sequence[RowGroup],
    sizes: Sequence[int],
    kind: Callable[..., Any],
    columns: Sequence[str],
) -> list[RowGroup]:
    start = groups_before[-1].start + groups_before[-1].size if groups_before else 0
    groups, sizes_so_far = [], 0
    for index, size in enumerate(sizes):
        if size:
            table = kind(file, index, tuple(columns))
            groups.append(RowGroup(file.label, start + sizes_so_far, sizes_so_far, size, table))
        sizes_so_far += size
    return groups


def _checked_groups(files: Sequence[File], groups: list[RowGroup]) -> list[RowGroup]:
    if not groups:
        raise SpecError(files[0].label, got="no rows", need="at least one")
    return groups


def _parquet(file: File) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file.open())
    except (pa.ArrowException, OSError) as problem:
        raise _unreadable(file, problem, "a Parquet file") from problem


class _Batches:
    """The record batches of an opened file."""

    def __init__(self, reader: pa.RecordBatchFileReader) -> None:
        self._reader, self.schema = reader, reader.schema

    def batch(self, index: int) -> pa.RecordBatch:
        return self._reader.get_batch(index)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return map(self.batch, range(self._reader.num_record_batches))


class _BatchesOfStream:
    """The record batches of an opened stream, which has no index: it is read up to each."""

    def __init__(self, reader: pa.RecordBatchStreamReader) -> None:
        self._reader, self.schema = reader, reader.schema

    def batch(self, index: int) -> pa.RecordBatch:
        return next(islice(self.batches(), index, None))

    def batches(self) -> Iterator[pa.RecordBatch]:
        return iter(self._reader)


def _ipc(file: File) -> _Batches | _BatchesOfStream:
    """Open a file with an index, or a stream, as Hugging Face's datasets are."""
    try:
        try:
            return _Batches(pa.ipc.open_file(file.open()))
        except pa.ArrowInvalid as problem:
            if "not an arrow file" not in str(problem).lower():
                raise
            return _BatchesOfStream(pa.ipc.open_stream(_mapped(file)))
    except (pa.ArrowException, OSError) as problem:
        raise _unreadable(file, problem, "an Arrow IPC (Feather) file or stream") from problem


def _mapped(file: File) -> Any:
    """The content of a file of this host without a copy: it is gone through for each batch."""
    return pa.memory_map(file.path) if file.is_local else file.open()


def _unreadable(file: File, problem: Exception, need: str) -> SpecError:
    hint = ""
    if isinstance(problem, pa.ArrowNotImplementedError):
        hint = "write columns of types that Arrow reads: integers of 64 bits, float64, text"
    return SpecError(file.label, got=_first_line(problem), need=need, hint=hint)


def _first_line(problem: Exception) -> str:
    return str(problem).splitlines()[0] if str(problem) else type(problem).__name__


def _check_schema(
    file: File,
    schema: pa.Schema,
    columns: Sequence[str],
    numbers: Mapping[str, str],
    lists: Collection[str],
) -> None:
    for name in columns:
        if name not in schema.names:
            hint = did_you_mean(name, schema.names)
            raise SpecError(
                f"column {name!r}",
                got=f"no such column in {file.label}",
                need="one that it has",
                hint=hint,
            )
        kind = schema.field(name).type
        value = plain_type(kind)
        if is_list(value) and name in lists:
            value = plain_type(value.value_type)
        if pa.types.is_nested(value):
            hint = f"brim.data.sequence({name!r}, length=…)" if is_list(value) else ""
            raise SpecError(
                f"column {name!r}",
                got=f"type {kind} in {file.label}",
                need="numbers or text",
                hint=hint,
            )
        if name in numbers and not _is_number(value):
            raise SpecError(
                f"column {name!r}",
                got=f"type {kind} in {file.label}",
                need="numbers",
                hint=numbers[name],
            )


def _is_number(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal,
        pa.types.is_timestamp, pa.types.is_date, pa.types.is_null,
    )  # fmt: skip
    return any(test(kind) for test in tests)
