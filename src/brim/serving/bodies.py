"""The body of a request, decoded piece by piece.

While C code decodes a piece, nothing else of the process runs.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from brim.decoding import UNDECODABLE
from brim.errors import BrimError, SpecError
from brim.serving.bundle import Model
from brim.serving.inputs import Cell, ColumnReader, Inputs, TensorReader, columns_of_rows, shown

LARGE = 1 << 16  # bytes that are decoded at once: less than a millisecond
_DEEPEST = 4  # nested lists that are split, at most

T = TypeVar("T")


class Malformed(BrimError):
    """A body is no request."""


class _Predict(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a request: rows, or the same by column, or inputs as they go into the model."""

    rows: list[msgspec.Raw] | None = None
    columns: dict[str, msgspec.Raw] | None = None
    inputs: msgspec.Raw = msgspec.Raw()


_request = msgspec.json.Decoder(_Predict)
_row, _cells = msgspec.json.Decoder(dict[str, Cell]), msgspec.json.Decoder(list[Cell])
_list, _object = (
    msgspec.json.Decoder(list[msgspec.Raw]),
    msgspec.json.Decoder(dict[str, msgspec.Raw]),
)
_anything = msgspec.json.Decoder()


class Body:
    """A request's body, of which no cell has been looked at yet.

    Args:
        content: JSON.

    Attributes:
        is_large: reading it takes long.

    Raises:
        Malformed: it is no JSON, or no request.
        SpecError: it asks for nothing, or for two things.
    """

    def __init__(self, content: bytes) -> None:
        self._asked = _decoded(_request, content, "")
        self.is_large = len(content) > LARGE
        asked = {"rows": self._asked.rows, "columns": self._asked.columns}
        given = [name for name, each in asked.items() if each is not None]
        given += ["inputs"] if _is_given(self._asked.inputs) else []
        if len(given) != 1:
            got = " and ".join(given) or "neither"
            raise SpecError(
                "the body", got=got, need="rows, or columns", hint='{"rows": [{"color": "red"}]}'
            )
        self._given = given[0]

    def size(self, model: Model) -> int:
        """Return how many rows it has; raises as `read`."""
        asked, reader = self._asked, model.reader
        if asked.rows is not None:
            return len(asked.rows)
        if asked.columns is not None:
            name, first = next(iter(asked.columns.items()), ("", msgspec.Raw(b"[]")))
            return len(_decoded(_cells, first, f"column {shown(name)}: "))
        return 1 if isinstance(reader, ColumnReader) else reader.count(_pieces(asked.inputs))

    def read(self, model: Model) -> tuple[Inputs, int]:
        """Return what goes into a model, and how many rows it is.

        Raises:
            Malformed: a cell is none.
            SpecError: this is not what the model takes.
        """
        reader, asked = model.reader, self._asked
        if isinstance(reader, TensorReader):
            if self._given != "inputs":
                raise SpecError("the body", got=self._given, need="inputs, as the model takes them")
            return reader.read(_pieces(asked.inputs))
        if self._given == "inputs":
            raise SpecError("the body", got=self._given, need="rows, or columns")
        if asked.rows is not None:
            rows = [
                _decoded(_row, each, f"row {number}: ") for number, each in enumerate(asked.rows)
            ]
            return reader.read(columns_of_rows(rows))
        columns = {
            name: _decoded(_cells, each, f"column {shown(name)}: ")
            for name, each in (asked.columns or {}).items()
        }
        return reader.read(columns)


def _is_given(raw: msgspec.Raw) -> bool:
    return len(memoryview(raw)) > 0


def _pieces(raw: msgspec.Raw, depth: int = 0) -> Any:
    """Decode nested lists, large ones element by element."""
    content = memoryview(raw)
    if len(content) > LARGE and depth < _DEEPEST:
        match bytes(content[:1]):
            case b"[":
                return [_pieces(each, depth + 1) for each in _decoded(_list, raw, "inputs: ")]
            case b"{":
                parts = _decoded(_object, raw, "inputs: ")
                return {name: _pieces(each, depth + 1) for name, each in parts.items()}
    return _decoded(_anything, raw, "inputs: ")


def _decoded(decoder: msgspec.json.Decoder[T], content: bytes | msgspec.Raw, where: str) -> T:
    try:
        return decoder.decode(content)
    except UNDECODABLE as error:
        raise Malformed(f"the body is no request: {where}{error}") from error
