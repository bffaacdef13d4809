"""Columns as they were read: distinct values and a code per row, or numbers.

They have no meaning for a model yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
_PARTS_OF_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_LARGEST_SINGLE = float(np.finfo(np.float32).max)
LIST_END = "\x1e"  # behind each item of a cell that is a list


class Cells(Protocol):
    """One column of some rows."""

    @property
    def codes(self) -> Codes:
        """Index into `tokens` for each row; -1 where the cell is empty."""

    @property
    def tokens(self) -> Sequence[str]:
        """The distinct values, as text."""

    @property
    def token_numbers(self) -> Floats:
        """Each token as a number; nan where it is none (or not finite)."""

    @property
    def numbers(self) -> Floats:
        """The number in each row; nan where the cell is empty, or no finite number."""

    @property
    def empty(self) -> npt.NDArray[np.bool_]:
        """A mask of the empty cells."""

    def text(self, row: int) -> str:
        """The cell as it was written."""

    @property
    def column(self) -> pa.Array:
        """The cells as they were read, to be written again: text where the file knows no types."""


class TextCells:
    """A column of a text file, dictionary-encoded by the reader.

    Each distinct text is parsed once.
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        array = column.unify_dictionaries()
        self.codes: Codes = numpy_of(
            [chunk.indices.cast(pa.int64()) for chunk in array.chunks], np.int64, -1
        )
        self._values = array.chunk(0).dictionary

    @cached_property
    def tokens(self) -> Sequence[str]:
        try:
            texts: list[str] = self._values.cast(pa.string()).to_pylist()
        except pa.ArrowInvalid:  # not UTF-8: still a value like any other
            texts = [
                value.decode("utf-8", "backslashreplace") for value in self._values.to_pylist()
            ]
        return texts

    @cached_property
    def token_numbers(self) -> Floats:
        try:
            parsed = numpy_of(
                [pc.cast(self._values.cast(pa.string()), pa.float64())], np.float64, np.nan
            )
        except pa.ArrowInvalid:
            parsed = np.array([number_in(text) for text in self.tokens], np.float64)
        return np.where(np.isfinite(parsed), parsed, np.nan)

    @cached_property
    def numbers(self) -> Floats:
        return np.append(self.token_numbers, np.nan)[self.codes]

    @property
    def empty(self) -> npt.NDArray[np.bool_]:
        return self.codes < 0

    def text(self, row: int) -> str:
        return "" if self.codes[row] < 0 else self.tokens[self.codes[row]]

    @property
    def column(self) -> pa.Array:
        codes = pa.array(self.codes, mask=self.codes < 0)
        return pa.DictionaryArray.from_arrays(
            codes, pa.array(self.tokens, pa.string())
        ).dictionary_decode()


class TypedCells:
    """A column of a file that knows its types."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._as_read, self._column = column, plain(column)

    @property
    def column(self) -> pa.Array:
        return _whole(self._as_read)

    @cached_property
    def _encoded(self) -> pa.DictionaryArray:
        column = _whole(self._column)
        if is_list(column.type):
            items = [None if cell is None else list_token(cell) for cell in column.to_pylist()]
            column = pa.array(items, pa.string())
        return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()

    @cached_property
    def codes(self) -> Codes:
        return numpy_of([self._encoded.indices.cast(pa.int64())], np.int64, -1)

    @cached_property
    def tokens(self) -> Sequence[str]:
        values = self._encoded.dictionary.to_pylist()
        if isinstance(self._as_read.type, pa.UuidType):
            return ["" if value is None else str(UUID(bytes=value)) for value in values]
        return [_token(value) for value in values]

    @cached_property
    def token_numbers(self) -> Floats:
        return _floats(self._encoded.dictionary)

    @cached_property
    def numbers(self) -> Floats:
        return _floats(self._column)

    @property
    def empty(self) -> npt.NDArray[np.bool_]:
        empty = pc.is_null(self._column, nan_is_null=True)
        return numpy_of([chunk.cast(pa.uint8()) for chunk in empty.chunks], np.uint8, 1).astype(
            bool
        )

    def text(self, row: int) -> str:
        return str(self._as_read[row].as_py())


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used.

    `row` counts from 0 in its part, -1 where the reader itself refused it.
    """

    row: int
    line: int
    column: str
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Flaw:
    """The rows in which a column cannot be what is asked of it, and why."""

    column: str
    rows: npt.NDArray[np.bool_]
    reason: str


@dataclass(frozen=True)
class FileRows:
    """Consecutive rows of one file.

    Args:
        file: the path or URL, as it is shown to people.
        start: rows of the dataset before these.
        size: rows here.
        cells: the columns that were asked for.
        lines: gives the 1-based line (or, in a file without lines, row) of each row here; called
            when needed.
        refused: rows that the reader could not split into the right number of fields.
        skipped: the places of the refused among all rows here, from 0.
        flaws: of columns, as they were asked for.
    """

    file: str
    start: int
    size: int
    cells: Mapping[str, Cells]
    lines: Callable[[], Sequence[int]]
    refused: Sequence[BadRow] = field(default=())
    skipped: Sequence[int] = field(default=())
    flaws: Sequence[Flaw] = field(default=())

    def column(self, name: str) -> Cells:
        return self.cells[name]


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of an extension type, as it stores them, or of a dictionary."""
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is one of lists, of any length or of a fixed one."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without its extension type, for which Arrow computes next to nothing.

    UUIDs are 16 bytes then, JSON is text, and numbers that Arrow does not know are bytes.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in column.chunks]
        stored = pa.chunked_array(chunks, kind.storage_type)
        return plain(stored.cast(pa.bool_()) if isinstance(kind, pa.Bool8Type) else stored)
    if pa.types.is_run_end_encoded(kind):
        chunks = [pc.run_end_decode(chunk) for chunk in column.chunks]
        return plain(pa.chunked_array(chunks, kind.value_type))
    if pa.types.is_dictionary(kind) and is_list(plain_type(kind)):
        chunks = [chunk.dictionary_decode() for chunk in column.chunks]
        return plain(pa.chunked_array(chunks, kind.value_type))
    return column


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        return whole.chunk(0) if whole.num_chunks else pa.array([], whole.type)
    return whole


def items_in(token: str, separator: str) -> list[str]:
    """The items of a list: of a text, or of a cell that was a list.

    >>> items_in("drama|comedy|", "|"), items_in(list_token(["a|b", "c"]), "|")
    (['drama', 'comedy'], ['a|b', 'c'])
    """
    if token.endswith(LIST_END):
        token, separator = token[:-1], LIST_END
    return [item for item in token.split(separator) if item]


def list_token(items: Sequence[Any]) -> str:
    """The text by which a cell that is a list is known, whatever its items contain.

    As cells of their own, null and nan are empty: here they are no items.

    >>> list_token([7, None, float("nan")]) == list_token([7])
    True
    """
    return "".join(
        f"{_token(item)}{LIST_END}" for item in items if item is not None and item == item
    )


def stable_hash(token: str) -> int:
    """64 bits that are the same in every process, machine and version.

    >>> stable_hash("brim") % 1000
    483
    """
    digest = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def numpy_of(chunks: Sequence[pa.Array], kind: type[np.generic], null: float) -> npt.NDArray[Any]:
    """The chunks' numbers, all of this kind, in one array; `null` where there is none."""
    # Not Arrow's own to_numpy and fill_null: they import pandas where it is installed, which takes
    # 0.25 s and memory in every worker.
    parts = []
    for chunk in chunks:
        valid, content = chunk.buffers()
        width = np.dtype(kind).itemsize
        part = np.frombuffer(content or b"", kind, len(chunk), chunk.offset * width)
        if chunk.null_count:
            bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
            part = np.where(
                bits[chunk.offset : chunk.offset + len(chunk)].astype(bool), part, kind(null)
            )
        parts.append(part)
    return np.concatenate(parts) if parts else np.empty(0, kind)


def number_in(text: str) -> float:
    """The number that a cell's text stands for; nan where it is none.

    >>> number_in("1e3"), number_in("1_000"), number_in("far")
    (1000.0, nan, nan)
    """
    try:
        return float(text) if "_" not in text else np.nan
    except ValueError:
        return np.nan


def _token(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return float_token(value) if isinstance(value, float) else str(value)


def float_token(value: float) -> str:
    """Return the text of a number that is a category.

    It is the same in single and in double precision.

    >>> float_token(0.1), float_token(0.10000000149011612), float_token(3.0)
    ('0.1', '0.1', '3')
    """
    if value.is_integer():
        return str(int(value))
    single = np.float32(value) if abs(value) < _LARGEST_SINGLE else np.float32(0.0)
    return str(single) if float(single) == value else str(value)


def _floats(array: pa.Array | pa.ChunkedArray) -> Floats:
    """Numbers, truth values, and instants as seconds since 1970."""
    kind, parts_of_a_second = array.type, 1
    if pa.types.is_date(kind):
        kind = pa.timestamp("us")
        array = array.cast(kind)
    if pa.types.is_timestamp(kind):
        parts_of_a_second = _PARTS_OF_A_SECOND[kind.unit]
        array = array.cast(pa.int64())
    numbers = pc.cast(array, pa.float64(), safe=False)
    chunks = numbers.chunks if isinstance(numbers, pa.ChunkedArray) else [numbers]
    floats: Floats = numpy_of(chunks, np.float64, np.nan) / parts_of_a_second
    return np.where(np.isfinite(floats), floats, np.nan)
