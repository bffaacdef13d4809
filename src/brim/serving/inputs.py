"""Raw rows of a request into the inputs that the model was trained on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from brim.data.columns import Categorical, Column, ItemSequence, Numeric
from brim.data.encoding import Encoder
from brim.data.screening import Plan
from brim.data.tables import (
    Codes,
    FileRows,
    Floats,
    float_token,
    items_in,
    list_token,
    number_in,
    stable_hash,
)
from brim.domain.quantities import counted
from brim.errors import SpecError, did_you_mean

Item = str | int | float | bool
Cell = Item | list[Item | None] | None
Inputs = Any  # a tensor, or a tree of them, whose first dimension is that of the rows
_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
}
_DTYPES |= {
    "uint8": torch.uint8,
    "bool": torch.bool,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


_MAX_SHOWN_CHARACTERS = 60  # characters of what was sent that an answer repeats


def quoted(sent: object) -> str:
    """Return a value as an answer may repeat it.

    >>> quoted("far"), len(quoted("far" * 1000))
    ("'far'", 61)
    """
    whole = repr(sent)
    return whole if len(whole) <= _MAX_SHOWN_CHARACTERS else f"{whole[:_MAX_SHOWN_CHARACTERS]}…"


def columns_of_rows(
    rows: Sequence[Mapping[str, Cell]], *, last: int | None = None
) -> dict[str, list[Cell]]:
    """Turn rows by column.

    Args:
        last: the number of the last row, where rows before it were left out.

    Raises:
        SpecError: there is none, or they do not all have the same columns.
    """
    if not rows:
        raise SpecError("rows", got="none", need="at least one")
    names = rows[0].keys()
    for number, row in enumerate(rows):
        if row.keys() != names:
            odd = sorted(row.keys() ^ names)[0]
            verb = "has" if odd in row else "lacks"
            raise SpecError(
                f"row {number if last is None else last}",
                got=f"one that {verb} {quoted(odd)}",
                need="the columns of row 0",
                hint="write null where a value is missing",
            )
    return {name: [row[name] for row in rows] for name in names}


class ColumnReader:
    """Reads the cells of requests as those of the training data were read.

    A request has few rows, so the cost of a numpy call counts: plain columns are looked up cell by
    cell, and all numbers are transformed at once, element by element as `Encoder` does it.

    Args:
        encoder: with the values fitted to the training rows.
        nulls: texts that mean an empty cell.
    """

    def __init__(self, encoder: Encoder, nulls: Collection[str]) -> None:
        self._encoder, self._nulls = encoder, frozenset(nulls)
        plan = Plan(encoder.columns, (), None, None)
        self.names = tuple(dict.fromkeys(plan.names))
        self._fields = [
            _Field(encoder, place, column, self._nulls)
            if isinstance(column, Categorical)
            else _Items(encoder, place, column)
            for place, column in enumerate(encoder.columns)
            if not isinstance(column, Numeric)
        ]
        self._offsets = np.array(
            [encoder.offsets[field.place] for field in self._fields for _ in range(field.width)],
            np.int64,
        )
        self._single = [name for name in self.names if name not in plan.list_names]
        self._numbers = _Numbers(encoder)
        self._by_function = sorted(set(plan.number_names) - set(self._numbers.names))

    @property
    def described(self) -> dict[str, Column]:
        """The column of the model by which each column of a request is read, or the first of them.

        A number is one in all of them.
        """
        found: dict[str, Column] = {}
        for column in self._encoder.columns:
            for name in column.names if isinstance(column, Categorical) else (column.name,):
                if name not in found or isinstance(column, Numeric):
                    found[name] = column
        return found

    def read(self, columns: Mapping[str, Sequence[Cell]]) -> tuple[Inputs, int]:
        """Encode rows.

        Args:
            columns: cells by the names of columns, in the order of the rows.

        Returns:
            The inputs, and how many rows they are.

        Raises:
            SpecError: a column is missing, unknown or of another length, or a cell does
                not fit its column.
        """
        count = self._check(columns)
        tensors: dict[str, Tensor] = {}
        if self._fields:
            cells = _AllCells(columns, self._nulls)
            for name in self._by_function:
                numbers = cells[name].numbers
                _refuse(np.isnan(numbers) & ~cells[name].empty, name, columns, "not a number")
            rows = FileRows(file="", start=0, size=count, cells=cells, lines=lambda: ())
            ids = [part for field in self._fields for part in field.ids(rows, columns)]
            tensors["ids"] = torch.from_numpy(np.array(ids, np.int64).T + self._offsets)
        if self._numbers.names:
            tensors["numbers"] = torch.from_numpy(self._numbers.read(columns, self._nulls))
        return tensors, count

    def _check(self, columns: Mapping[str, Sequence[Cell]]) -> int:
        for name in self.names:
            if name not in columns:
                hint = "write null in each row where it is missing"
                raise SpecError(
                    f"column {name!r}", got="nothing", need="one cell in each row", hint=hint
                )
        for name in columns.keys() - self.names:
            hint = did_you_mean(name[:_MAX_SHOWN_CHARACTERS], self.names)
            raise SpecError(
                f"column {quoted(name)}",
                got="an unknown column",
                need="only those of the model",
                hint=hint,
            )
        lengths = {len(cells) for cells in columns.values()}
        if len(lengths) != 1 or not lengths - {0}:
            counts = " and ".join(f"{length:,}" for length in sorted(lengths))
            actual = "no rows" if lengths == {0} else f"columns of {counts} rows"
            raise SpecError(
                "columns", got=actual, need="columns of one length, of at least one row"
            )
        for name in self._single:
            if list in map(type, columns[name]):
                row = next(row for row, cell in enumerate(columns[name]) if type(cell) is list)
                raise SpecError(
                    f"column {name!r} of row {row}", got="a list", need="one value, or null"
                )
        return lengths.pop()


class _Field:
    """A categorical column: a plain one is a table from cells to ids."""

    width = 1

    def __init__(
        self, encoder: Encoder, place: int, column: Categorical, nulls: frozenset[str]
    ) -> None:
        self._encoder, self.place, self._column = encoder, place, column
        self._is_plain = column.by is None and len(column.names) == 1
        self._table: dict[str | None, int] = {}
        if self._is_plain and column.buckets is None:
            empty = encoder.tables[place].get("", 0)
            self._table.update(encoder.tables[place])
            self._table.update(dict.fromkeys((None, *nulls), empty))

    def ids(self, rows: FileRows, columns: Mapping[str, Sequence[Cell]]) -> Sequence[Sequence[int]]:
        """The ids of all rows, from 0 within the field, for each of its places: [width, rows]."""
        return [self._ids(rows, columns)]

    def _ids(self, rows: FileRows, columns: Mapping[str, Sequence[Cell]]) -> Sequence[int]:
        if not self._is_plain:
            all_rows = np.ones(rows.size, bool)
            ids: list[int] = self._encoder.ids_of(self.place, rows, all_rows)[:, 0].tolist()
            return ids
        name = self._column.name
        if self._column.buckets is not None:
            return [stable_hash(token) % self._column.buckets for token in rows.column(name).tokens]
        cells, find = columns[name], self._table.get
        if not _TEXTS.issuperset(map(type, cells)):
            cells = rows.column(name).tokens
        return [find(cell, 0) for cell in cells]  # type: ignore[arg-type]


class _Items:
    """A sequence of items, in a text or in a list."""

    def __init__(self, encoder: Encoder, place: int, column: ItemSequence) -> None:
        self.place, self.width, self._column = place, column.length, column
        self._find = encoder.item_finder(place)

    def ids(self, rows: FileRows, columns: Mapping[str, Sequence[Cell]]) -> Sequence[Sequence[int]]:
        """See `_Field.ids`."""
        found = [
            self._find(items_in(token, self._column.separator))
            for token in rows.column(self._column.name).tokens
        ]
        return [
            [ids[place] if place < len(ids) else 0 for ids in found] for place in range(self.width)
        ]


_TEXTS = {str, type(None)}


class _Numbers:
    """The numeric columns of an encoder, all at once."""

    def __init__(self, encoder: Encoder) -> None:
        found = [
            (place, column)
            for place, column in enumerate(encoder.columns)
            if isinstance(column, Numeric)
        ]
        self.names = [column.name for _, column in found]
        moments = [encoder.moments[place] for place, _ in found]
        self._means, self._deviations = (
            np.array([[moment[part]] for moment in moments], np.float64) for part in (0, 1)
        )
        self._fill = np.array(
            [
                [
                    math.nan
                    if column.missing is None
                    else mean
                    if column.missing == "mean"
                    else column.missing
                ]
                for (_, column), (_, _, mean) in zip(found, moments, strict=True)
            ],
            np.float64,
        )
        self._may_be_empty = [column.missing is not None for _, column in found]
        transforms = [column.transform for _, column in found]
        self._logged = np.array([transform == "log" for transform in transforms], bool)
        self._shifted = np.array([transform is not None for transform in transforms], bool)

    def read(
        self, columns: Mapping[str, Sequence[Cell]], nulls: frozenset[str]
    ) -> npt.NDArray[np.float32]:
        """Return the cells as the model sees them, [rows, columns].

        Raises SpecError where one is no number.
        """
        values = np.array([_floats(columns[name], nulls) for name in self.names], np.float64)
        bad = ~np.isfinite(values)
        if bad.any():
            for name, may_be_empty, wrong in zip(self.names, self._may_be_empty, bad, strict=True):
                if wrong.any():
                    empty = _Cells(columns[name], nulls).empty
                    _refuse(wrong & ~empty, name, columns, "not a number")
                    _refuse(wrong & (not may_be_empty), name, columns, "an empty cell")
            values = np.where(bad, self._fill, values)
        if self._logged.any():
            logged_values = values[self._logged]
            values[self._logged] = np.sign(logged_values) * np.log1p(np.abs(logged_values))
        values = np.where(self._shifted[:, None], (values - self._means) / self._deviations, values)
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(values.T, np.float32)
        if np.isinf(array).any():
            for name, column in zip(self.names, array.T, strict=True):
                _refuse(np.isinf(column), name, columns, "too large")
        return array


def _floats(cells: Sequence[Cell], nulls: frozenset[str]) -> Any:
    """The number in each cell; nan where there is none."""
    if str in map(type, cells):
        return _Cells(cells, nulls).numbers
    try:
        return np.array(cells, np.float64)
    except OverflowError:
        return _Cells(cells, nulls).numbers


def _refuse(
    wrong: npt.NDArray[np.bool_], name: str, columns: Mapping[str, Sequence[Cell]], problem: str
) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        cell = columns[name][row]
        actual = (
            problem if cell is None or problem == "an empty cell" else f"{quoted(cell)}, {problem}"
        )
        raise SpecError(f"column {name!r} of row {row}", got=actual, need="a number")


class _AllCells(dict[str, "_Cells"]):
    """Cells by the name of their column; only those that somebody asks for are looked at."""

    def __init__(self, columns: Mapping[str, Sequence[Cell]], nulls: frozenset[str]) -> None:
        super().__init__()
        self._columns, self._nulls = columns, nulls

    def __missing__(self, name: str) -> _Cells:
        self[name] = _Cells(self._columns[name], self._nulls)
        return self[name]


class _Cells:
    """One column of a request, as `train.data` knows columns: each row has a token of its own."""

    def __init__(self, cells: Sequence[Cell], nulls: frozenset[str]) -> None:
        self._cells = [None if type(cell) is not list and cell in nulls else cell for cell in cells]

    @cached_property
    def tokens(self) -> Sequence[str]:
        return [cell if type(cell) is str else _token(cell) for cell in self._cells]

    @cached_property
    def codes(self) -> Codes:
        return np.where(self.empty, -1, np.arange(len(self._cells)))

    @cached_property
    def empty(self) -> npt.NDArray[np.bool_]:
        return np.array([cell is None for cell in self._cells], bool)

    @cached_property
    def numbers(self) -> Floats:
        return np.array([_number(cell) for cell in self._cells], np.float64)

    @property
    def token_numbers(self) -> Floats:
        return self.numbers

    def text(self, row: int) -> str:
        return self.tokens[row]

    @property
    def column(self) -> pa.Array:
        return pa.array(self.tokens)


def _token(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, list):
        return list_token(cell)
    return float_token(cell) if isinstance(cell, float) else str(cell)


def _number(cell: Cell) -> float:
    if cell is None or isinstance(cell, list):
        return math.nan
    try:
        number = number_in(cell) if isinstance(cell, str) else float(cell)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


@dataclass(frozen=True)
class TensorReader:
    """Reads inputs as they go into the model, where the data has no columns.

    Args:
        shapes: a tree of `{"dtype": …, "shape": ["rows", …]}`.
    """

    shapes: Any

    def count(self, inputs: Any) -> int:
        """Return how many rows the first of these nested lists has.

        1 where it has none, which `read` refuses.
        """
        node, shapes = inputs, self.shapes
        while not _is_leaf(shapes):
            first = next(iter(shapes), None) if isinstance(shapes, dict) else 0
            try:
                node, shapes = node[first], shapes[first]
            except (LookupError, TypeError):
                return 1
        return len(node) if isinstance(node, list) else 1

    def read(self, inputs: Any) -> tuple[Inputs, int]:
        """Make tensors of nested lists.

        Raises:
            SpecError: they are not of these shapes.
        """
        tensors = _tensors(inputs, self.shapes, "inputs")
        counts = {len(leaf) for leaf in _leaves(tensors)}
        if len(counts) != 1 or not counts - {0}:
            raise SpecError(
                "inputs", got=f"{sorted(counts)} rows", need="as many in each, and at least one"
            )
        return tensors, counts.pop()


def _is_leaf(shapes: Any) -> bool:
    return isinstance(shapes, dict) and isinstance(shapes.get("dtype"), str) and "shape" in shapes


def _tensors(node: Any, shapes: Any, path: str) -> Any:
    match shapes:
        case {"dtype": str(dtype), "shape": [_, *rest]}:
            try:
                tensor = _tensor(node, _DTYPES[dtype], path)
            except (TypeError, ValueError, RuntimeError, OverflowError) as error:
                raise SpecError(
                    path, got=f"no array ({error})", need=f"lists of {dtype}"
                ) from error
            if list(tensor.shape[1:]) != rest or not tensor.dim():
                raise SpecError(
                    path, got=f"shape {list(tensor.shape)}", need=f"shape {['rows', *rest]}"
                )
            return tensor
        case dict():
            if not isinstance(node, dict) or node.keys() != shapes.keys():
                raise SpecError(
                    path,
                    got=quoted(sorted(node))
                    if isinstance(node, dict)
                    else f"a {type(node).__name__}",
                    need=f"an object with {counted(len(shapes), 'key')}: {sorted(shapes)}",
                )
            return {
                name: _tensors(node[name], shape, f"{path}.{name}")
                for name, shape in shapes.items()
            }
        case list():
            if not isinstance(node, list) or len(node) != len(shapes):
                raise SpecError(path, got="something else", need=f"a list of {len(shapes)}")
            return [
                _tensors(item, shape, f"{path}[{i}]")
                for i, (item, shape) in enumerate(zip(node, shapes, strict=True))
            ]
    raise SpecError(
        path,
        got=f"a model that takes {shapes}",
        need="tensors",
        hint="serve it by a program of your own",
    )


def _tensor(node: Any, dtype: torch.dtype, path: str) -> Tensor:
    """A tensor of nested lists.

    A whole number may be written as 7 or 7.0, and any number may be a float.
    """
    wide = torch.tensor(node, dtype=torch.float64)
    if dtype.is_floating_point:
        tensor = wide.to(dtype)
        _refuse_number(
            tensor.isinf(), wide, path, f", too large for {dtype}", need="a number that it can hold"
        )
        return tensor
    whole = torch.tensor(node, dtype=torch.int64)
    tensor = whole.to(dtype)
    need = f"a whole number of {dtype}"
    _refuse_number((whole.double() != wide) | (tensor.long() != whole), wide, path, "", need=need)
    return tensor


def _refuse_number(wrong: Tensor, values: Tensor, path: str, problem: str, *, need: str) -> None:
    if bool(wrong.any()):
        first = wrong.nonzero()[0]
        row = f" of row {int(first[0])}" if len(first) else ""
        actual = f"{values[tuple(first)].item():g}{problem}".replace("torch.", "")
        raise SpecError(f"{path}{row}", got=actual, need=need.replace("torch.", ""))


def _leaves(node: Any) -> list[Tensor]:
    if isinstance(node, Tensor):
        return [node]
    return [
        leaf
        for item in (node.values() if isinstance(node, dict) else node)
        for leaf in _leaves(item)
    ]


def join(several: Sequence[Inputs]) -> Inputs:
    """Put the rows of several requests one behind the other."""
    first = several[0]
    if len(several) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(several))
    if isinstance(first, dict):
        return {name: join([inputs[name] for inputs in several]) for name in first}
    return [join(list(parts)) for parts in zip(*several, strict=True)]
