"""Fitting columns to the training rows, and turning rows into the numbers a model takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from brim.data.columns import Categorical, Column, ItemSequence, Numeric, Target
from brim.data.tables import Codes, FileRows, Floats, items_in, stable_hash
from brim.errors import SpecError

_CROSS = "\x1f"
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Encoded rows.

    Ids are [rows, F] (one shared space; int32, or int64 where it is larger), numbers [rows, N]
    (float32), target [rows], or [rows, T] of several targets.
    """

    ids: Tensor
    numbers: Tensor
    target: Tensor


@dataclass(frozen=True, slots=True)
class SequencePlaces:
    """Places of the ids of a `sequence` among the ids of a row.

    Args:
        name: of the column.
        start: the first of its places.
        length: how many it has.
        padding: the id in the places behind its last item.
        candidate: the place of the column whose ids the items have; None where it has its own.
    """

    name: str
    start: int
    length: int
    padding: int
    candidate: int | None


@dataclass(frozen=True)
class Encoder:
    """Columns with the encoding fitted to the training rows.

    Args:
        columns: as the user gave them.
        targets: as the user gave them; none where rows are inputs alone, whose target counts as 0.
        tables: the ids, from 0 within the field, of the values of each vocabulary, by place in
            `columns`.
        moments: mean and standard deviation (after a `log`) and the mean of the raw numbers, by
            place.
    """

    columns: tuple[Column, ...]
    targets: tuple[Target, ...]
    tables: Mapping[int, Mapping[str, int]]
    moments: Mapping[int, tuple[float, float, float]]

    @property
    def fields(self) -> int:
        """Ids of a row: one of each categorical column, `length` of each sequence."""
        return sum(_width(column) for column in self.columns)

    @property
    def numbers(self) -> int:
        return sum(isinstance(column, Numeric) for column in self.columns)

    @property
    def vocabulary_size(self) -> int:
        return sum(self._sizes.values())

    @cached_property
    def offsets(self) -> dict[int, int]:
        """The first id of each column that has ids, by place: those of columns do not overlap.

        A sequence of another column's items has that column's.
        """
        ends = np.cumsum([0, *self._sizes.values()]).tolist()
        owned = dict(zip(self._sizes, ends, strict=False))
        return {
            place: owned[table_place(self.columns, place)]
            for place, column in enumerate(self.columns)
            if not isinstance(column, Numeric)
        }

    @property
    def sequences(self) -> tuple[SequencePlaces, ...]:
        """Places of the items of each sequence."""
        starts = np.cumsum([0, *map(_width, self.columns)]).tolist()
        return tuple(
            SequencePlaces(
                name=column.name,
                start=starts[place],
                length=column.length,
                padding=self.offsets[place],
                candidate=starts[table_place(self.columns, place)] if column.of else None,
            )
            for place, column in enumerate(self.columns)
            if isinstance(column, ItemSequence)
        )

    @cached_property
    def _kind(self) -> type[np.int32 | np.int64]:
        """Half the memory where all ids fit."""
        return np.int32 if self.vocabulary_size < 1 << 31 else np.int64

    @cached_property
    def _sizes(self) -> dict[int, int]:
        """Ids of each column that has some of its own, by place."""
        return {
            place: column.buckets
            if isinstance(column, Categorical) and column.buckets
            else 1 + len(self.tables[place])
            for place, column in enumerate(self.columns)
            if not isinstance(column, Numeric) and table_place(self.columns, place) == place
        }

    def encode(self, rows: FileRows, mask: Mask) -> EncodedRows:
        """The kept rows, in order."""
        count = int(mask.sum())
        ids = np.empty((self.fields, count), self._kind)
        numbers = np.empty((self.numbers, count), np.float32)
        at_field = at_number = 0
        for place, column in enumerate(self.columns):
            if isinstance(column, Numeric):
                numbers[at_number] = self.number_of(
                    place, column, rows.column(column.name).numbers[mask]
                )
                at_number += 1
            else:
                width = _width(column)
                ids[at_field : at_field + width] = self.ids_of(place, rows, mask).T
                ids[at_field : at_field + width] += self._kind(self.offsets[place])
                at_field += width
        return EncodedRows(
            ids=torch.from_numpy(np.ascontiguousarray(ids.T)),
            numbers=torch.from_numpy(np.ascontiguousarray(numbers.T)),
            target=torch.from_numpy(targets_of(self.targets, rows, mask)),
        )

    def number_of(self, place: int, column: Numeric, values: Floats) -> Floats:
        """Return a column's numbers as the model sees them.

        nan where a cell is empty.
        """
        mean, deviation, raw_mean = self.moments[place]
        if column.missing is not None:
            values = np.where(
                np.isnan(values), raw_mean if column.missing == "mean" else column.missing, values
            )
        return values if column.transform is None else (_logged(column, values) - mean) / deviation

    def ids_of(self, place: int, rows: FileRows, mask: Mask) -> npt.NDArray[Any]:
        """The ids of the kept rows, from 0 within the field: [rows, places of the column]."""
        column = self.columns[place]
        assert not isinstance(column, Numeric)
        if isinstance(column, ItemSequence):
            cells, find = rows.column(column.name), self.item_finder(place)
            ids = np.zeros((len(cells.tokens) + 1, column.length), self._kind)  # the last: no cell
            for row, token in enumerate(cells.tokens):
                found = find(items_in(token, column.separator))
                ids[row, : len(found)] = found
            return ids[cells.codes[mask]]
        codes, tokens = _tokens(column, rows)
        if column.buckets is None:
            table = self.tables[place]
            found = [table.get(token, 0) for token in tokens]
        else:
            found = [stable_hash(token) % column.buckets for token in tokens]
        return np.array(found, self._kind)[codes[mask], np.newaxis]

    def item_finder(self, place: int) -> Callable[[Sequence[str]], list[int]]:
        """A function from items to the ids of the last of them that have some."""
        column = self.columns[place]
        assert isinstance(column, ItemSequence)
        length, owner = column.length, table_place(self.columns, place)
        table_column = self.columns[owner]
        if isinstance(table_column, Categorical) and table_column.buckets:
            buckets = table_column.buckets

            def hashed(items: Sequence[str]) -> list[int]:
                return [id_ for item in items if (id_ := stable_hash(item) % buckets)][-length:]

            return hashed
        table = self.tables[owner]

        def find(items: Sequence[str]) -> list[int]:
            return [id_ for item in items if (id_ := table.get(item))][-length:]

        return find


def table_place(columns: Sequence[Column], place: int) -> int:
    """The place of the column whose ids a column has: its own, or that of a sequence's items."""
    column = columns[place]
    if not isinstance(column, ItemSequence) or column.of is None:
        return place
    return next(
        (
            other_place
            for other_place, other in enumerate(columns)
            if isinstance(other, Categorical) and other.names == (column.of,) and other.by is None
        ),
        -1,
    )


def _width(column: Column) -> int:
    """Ids of a row that a column fills."""
    if isinstance(column, ItemSequence):
        return column.length
    return int(isinstance(column, Categorical))


@dataclass
class Fitter:
    """Sees the training rows part by part, in order; `finish` gives the encoder."""

    columns: tuple[Column, ...]
    targets: tuple[Target, ...]
    _counts: dict[int, dict[str, int]] = field(default_factory=dict)
    _sums: dict[int, Floats] = field(default_factory=dict)

    def observe(self, rows: FileRows, train: Mask) -> None:
        for place, column in enumerate(self.columns):
            if isinstance(column, Numeric):
                self._observe_numbers(place, column, rows.column(column.name).numbers[train])
            elif isinstance(column, ItemSequence):
                self._observe_items(place, column, rows, train)
            elif column.buckets is None:
                codes, tokens = _tokens(column, rows)
                seen = self._counts.setdefault(place, {})
                counts = np.bincount(codes[train], minlength=len(tokens)).tolist()
                for token, count in zip(tokens, counts, strict=True):
                    if count:
                        seen[token] = seen.get(token, 0) + count

    def _observe_items(self, place: int, column: ItemSequence, rows: FileRows, train: Mask) -> None:
        cells = rows.column(column.name)
        seen = self._counts.setdefault(table_place(self.columns, place), {})
        present = cells.codes[train]
        counts = np.bincount(present[present >= 0], minlength=len(cells.tokens)).tolist()
        for token, count in zip(cells.tokens, counts, strict=True):
            if count:
                for item in items_in(token, column.separator):
                    seen[item] = seen.get(item, 0) + count

    def _observe_numbers(self, place: int, column: Numeric, values: Floats) -> None:
        present = values[~np.isnan(values)]
        if column.missing is not None and column.missing != "mean":
            present = np.where(np.isnan(values), column.missing, values)
        if not present.size:
            return
        values_seen = _logged(column, present)
        mean = values_seen.mean()
        part = np.array([present.size, mean, np.square(values_seen - mean).sum(), present.mean()])
        whole = self._sums.get(place)
        self._sums[place] = part if whole is None else _joined(whole, part)

    def finish(self) -> Encoder:
        tables: dict[int, dict[str, int]] = {}
        moments: dict[int, tuple[float, float, float]] = {}
        for place, column in enumerate(self.columns):
            if isinstance(column, Numeric):
                count, mean, squares, raw_mean = self._sums.get(
                    place, np.array([1.0, 0.0, 0.0, 0.0])
                ).tolist()
                moments[place] = (mean, (squares / count) ** 0.5 or 1.0, raw_mean)
            elif table_place(self.columns, place) == place and not (
                isinstance(column, Categorical) and column.buckets
            ):
                counts = self._counts.get(place, {})
                tokens = [token for token, count in counts.items() if count >= column.min_count]
                # The most frequent first: their rows of the table lie close together in the cache.
                tokens.sort(key=lambda token: (-counts[token], token))
                tables[place] = {token: id_ for id_, token in enumerate(tokens, 1)}
        return Encoder(self.columns, self.targets, tables, moments)


_LARGEST_CODE = 1 << 62  # of several cells taken together


def apply(
    function: Callable[..., Any], arrays: Sequence[Floats], argument: str
) -> npt.NDArray[Any]:
    """Call a user's `by=` and check that it answered for each element.

    Raises:
        SpecError: another length, or no array.
    """
    result = np.asarray(function(*arrays))
    if result.shape != arrays[0].shape:
        raise SpecError(
            f"{argument}, by=",
            got=f"a result of shape {list(result.shape)}",
            need=f"shape {list(arrays[0].shape)}",
            hint="by= takes whole columns (numpy arrays) and treats each element on its own",
        )
    return result


def _tokens(column: Categorical, rows: FileRows) -> tuple[Codes, list[str]]:
    """A code for each row and the values they stand for (an empty cell is the value "")."""
    cells = [rows.column(name) for name in column.names]
    if len(cells) == 1:
        codes, width = cells[0].codes, len(cells[0].tokens)
        picked = [np.arange(width)]
        if (codes < 0).any():  # else a user's by= is not troubled with nan
            picked = [np.append(np.arange(width), -1)]
            codes = np.where(codes < 0, width, codes)
    else:
        combined, bound = np.zeros(rows.size, np.int64), 1
        for cell in cells:
            width = len(cell.tokens) + 1
            if (
                bound * width > _LARGEST_CODE
            ):  # never more than there are rows, so that the next product fits
                distinct, combined = _compact(combined, bound)
                bound = len(distinct)
            combined = combined * width + (cell.codes + 1)
            bound *= width
        present, codes = _compact(combined, bound)
        first = np.empty(len(present), np.int64)  # a row of each
        first[codes[::-1]] = np.arange(rows.size)[::-1]
        picked = [cell.codes[first] for cell in cells]
    if column.by is not None:
        numbers = [
            np.append(cell.token_numbers, np.nan)[code]
            for cell, code in zip(cells, picked, strict=True)
        ]
        return codes, [
            _as_token(value) for value in apply(column.by, numbers, column.name).tolist()
        ]
    if len(cells) == 1:
        return codes, [*cells[0].tokens, ""]
    texts = [
        [cell.tokens[index] if index >= 0 else "" for index in code.tolist()]
        for cell, code in zip(cells, picked, strict=True)
    ]
    return codes, [_CROSS.join(parts) for parts in zip(*texts, strict=True)]


def _compact(numbers: Codes, bound: int) -> tuple[Codes, Codes]:
    """The distinct numbers in order, and for each number its place among them.

    All lie in [0, bound).
    """
    if bound > 4 * len(numbers) + 1024:
        present, places = np.unique(numbers, return_inverse=True)
        return present, places
    # Few enough to count: a tenth of the time that sorting takes.
    present = np.flatnonzero(np.bincount(numbers, minlength=bound))
    place_of = np.zeros(bound, np.int64)
    place_of[present] = np.arange(len(present))
    return present, place_of[numbers]


def _as_token(value: object) -> str:
    if isinstance(value, float):
        return "" if value != value else str(int(value)) if value.is_integer() else str(value)
    return str(value)


def targets_of(targets: Sequence[Target], rows: FileRows, mask: Mask) -> npt.NDArray[Any]:
    """The targets of the kept rows, as of `EncodedRows`."""
    if not targets:
        return np.zeros(int(mask.sum()), np.float32)
    values = [_target(target, rows, mask) for target in targets]
    return values[0] if len(values) == 1 else np.stack(values, 1)


def _target(target: Target, rows: FileRows, mask: Mask) -> npt.NDArray[Any]:
    first = rows.column(target.names[0])
    if isinstance(target.equals, str):
        match = np.array([token == target.equals for token in first.tokens] + [False])
        values: npt.NDArray[Any] = match[first.codes[mask]]
    else:
        arrays = [rows.column(name).numbers[mask] for name in target.names]
        values = arrays[0]
        if target.above is not None:
            values = values > target.above
        elif target.equals is not None:
            values = values == target.equals
        elif target.by is not None:
            values = apply(target.by, arrays, f"target({target.names[0]!r})")
    return values.astype(np.int64 if target.classes else np.float32)


def _logged(column: Numeric, values: Floats) -> Floats:
    return np.sign(values) * np.log1p(np.abs(values)) if column.transform == "log" else values


def _joined(first: Floats, two: Floats) -> Floats:
    """Count, mean, sum of squares about the mean and raw mean of two parts together.

    Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm", 1979, equation
    2.1.
    """
    count = first[0] + two[0]
    weight, difference = two[0] / count, two[1] - first[1]
    squares = first[2] + two[2] + difference**2 * first[0] * weight
    return np.array(
        [count, first[1] + difference * weight, squares, first[3] + (two[3] - first[3]) * weight]
    )
