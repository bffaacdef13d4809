"""The body of a request, decoded piece by piece.

While C code decodes a piece, nothing else of the process runs.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from brim.decoding import UNDECODABLE
from brim.errors import BrimError, SpecError
from brim.serving.bundle import Model
from brim.serving.inputs import Cell, ColumnReader, Inputs, TensorReader, columns_of_rows, quoted

MOST_ROWS = 1 << 16  # of a request
LARGE = 1 << 16  # bytes that are decoded at once: less than a millisecond
_DEEPEST = 4  # nested lists that are split, at most
_MAX_OTHER_OBJECTS = 1 << 10  # objects of a body that are no rows
_MOST_LISTS = 1 << 20
_MOST_COLUMNS = 1 << 16
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)

T = TypeVar("T")


class Malformed(BrimError):
    """A body is not a request."""


class _Predict(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a request: rows, or the same by column, or inputs as they go into the model."""

    rows: msgspec.Raw = msgspec.Raw()
    columns: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()


class _Row(msgspec.Struct):
    """A row of which nothing is built."""


_request = msgspec.json.Decoder(_Predict)
_cell, _row = msgspec.json.Decoder(Cell), msgspec.json.Decoder(dict[str, Cell])
_cells = msgspec.json.Decoder(list[Cell])
_list, _object = (
    msgspec.json.Decoder(list[msgspec.Raw]),
    msgspec.json.Decoder(dict[str, msgspec.Raw]),
)
_counted_rows = msgspec.json.Decoder(list[_Row])
_any_decoder = msgspec.json.Decoder()


class Body:
    """A request's body, of which no cell has been looked at yet.

    Args:
        content: JSON.
        limit: rows that it may have.

    Attributes:
        is_large: reading it takes long.

    Raises:
        Malformed: it is no JSON, or no request.
        SpecError: it asks for nothing, or for two things, or for too much.
    """

    def __init__(self, content: bytes | bytearray, *, limit: int = MOST_ROWS) -> None:
        self.is_large = len(content) > LARGE
        if self.is_large:
            _check_parts(content, limit)
        request = _decoded(_request, content, "")
        self._contents = {
            name: raw
            for name in ("rows", "columns", "inputs")
            if _is_given(raw := getattr(request, name))
        }
        keys_given = list(self._contents)
        if len(keys_given) != 1:
            actual = " and ".join(keys_given) or "neither"
            raise SpecError(
                "the body", got=actual, need="rows, or columns", hint='{"rows": [{"color": "red"}]}'
            )
        self._key = keys_given[0]
        self._rows: list[msgspec.Raw] = []
        self._columns: dict[str, msgspec.Raw] = {}
        raw = self._contents[self._key]
        if self._key == "rows":
            if self.is_large:
                _decoded(_counted_rows, raw, "rows: ")  # before anything is built of them
            self._rows = _decoded(_list, raw, "rows: ")
        elif self._key == "columns":
            _check_keys(raw, "columns")
            self._columns = _decoded(_object, raw, "columns: ")

    def size(self, model: Model) -> int:
        """Return how many rows it has; raises as `read`."""
        if self._key == "rows":
            return len(self._rows)
        if self._key == "columns":
            name, first = next(iter(self._columns.items()), ("", msgspec.Raw(b"[]")))
            return len(_cells_of(name, first))
        if isinstance(model.reader, ColumnReader):
            return 1
        return model.reader.count(_pieces(self._contents["inputs"]))

    def read(self, model: Model) -> tuple[Inputs, int]:
        """Return the inputs of a model, and their number of rows.

        Raises:
            Malformed: a cell is none.
            SpecError: the model does not take this.
        """
        reader = model.reader
        if isinstance(reader, TensorReader):
            if self._key != "inputs":
                raise SpecError("the body", got=self._key, need="inputs, as the model takes them")
            return reader.read(_pieces(self._contents["inputs"]))
        if self._key == "inputs":
            raise SpecError("the body", got=self._key, need="rows, or columns")
        if self._key == "rows":
            return reader.read(columns_of_rows(self._cells_of_rows()))
        return reader.read({name: _cells_of(name, raw) for name, raw in self._columns.items()})

    def _cells_of_rows(self) -> list[dict[str, Cell]]:
        rows: list[dict[str, Cell]] = []
        for number, raw in enumerate(self._rows):
            _check_keys(raw, f"row {number}")
            try:
                rows.append(_decoded(_row, raw, f"row {number}: "))
            except Malformed:
                for name, cell in _decoded(_object, raw, f"row {number}: ").items():
                    _decoded(_cell, cell, f"column {quoted(name)} of row {number}: ")
                raise
            if rows[-1].keys() != rows[0].keys():
                columns_of_rows([rows[0], rows[-1]], last=number)
        return rows


def _check_parts(content: bytes | bytearray, row_limit: int) -> None:
    """Raises SpecError for a body with more objects and lists than any model takes."""
    for mark, limit, noun in (
        (b"{", row_limit + _MAX_OTHER_OBJECTS, "objects"),
        (b"[", _MOST_LISTS, "lists"),
    ):
        if _has_more(content, mark, limit):
            actual, hint = f"more than {limit:,} {noun}", "send some at a time"
            raise SpecError("the body", got=actual, need=f"{row_limit:,} rows at most", hint=hint)


def _check_keys(raw: msgspec.Raw, field: str) -> None:
    """Raises SpecError for an object with more keys than any model has columns."""
    content = memoryview(raw)
    if len(content) > LARGE and _has_more(bytes(content), b":", _MOST_COLUMNS):
        raise SpecError(
            field, got=f"more than {_MOST_COLUMNS:,} columns", need="the columns of the model"
        )


def _cells_of(name: str, raw: msgspec.Raw) -> list[Cell]:
    """The cells of a column; half a million lists in one piece would take a second."""
    content, field = memoryview(raw), f"column {quoted(name)}"
    if len(content) > LARGE and _has_more(bytes(content), b"[", MOST_ROWS + 1):
        actual, need = f"more than {MOST_ROWS:,} lists", "one in each row, at most"
        raise SpecError(field, got=actual, need=need)
    return _decoded(_cells, raw, f"{field}: ")


def _has_more(content: bytes | bytearray, mark: bytes, limit: int) -> bool:
    """Return whether a mark stands in JSON more often than that, outside of its texts."""
    if content.count(mark) <= limit:
        return False
    found = begin = 0
    for text in _TEXT.finditer(content):
        found += content.count(mark, begin, text.start())
        begin = text.end()
        if found > limit:
            return True
    return found + content.count(mark, begin) > limit


def _is_given(raw: msgspec.Raw) -> bool:
    content = memoryview(raw)
    return len(content) > 0 and bytes(content[:5]) != b"null"


def _pieces(raw: msgspec.Raw, depth: int = 0) -> Any:
    """Decode nested lists, large ones element by element."""
    content = memoryview(raw)
    if len(content) > LARGE and depth < _DEEPEST:
        match bytes(content[:1]):
            case b"[":
                return [_pieces(item, depth + 1) for item in _decoded(_list, raw, "inputs: ")]
            case b"{":
                parts = _decoded(_object, raw, "inputs: ")
                return {name: _pieces(item, depth + 1) for name, item in parts.items()}
    return _decoded(_any_decoder, raw, "inputs: ")


def _decoded(
    decoder: msgspec.json.Decoder[T], content: bytes | bytearray | msgspec.Raw, field: str
) -> T:
    try:
        return decoder.decode(content)
    except UNDECODABLE as error:
        problem = error if content else "it is empty"
        raise Malformed(f"the body is not a request: {field}{problem}") from error
