"""Fitting columns to the training rows, and turning rows into the numbers a model takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from brim.data.columns import Categorical, Column, Numeric, Target
from brim.data.tables import Codes, FileRows, Floats, stable_hash
from brim.errors import SpecError

_CROSS = "\x1f"
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Encoded rows.

    Ids are [rows, F] (int32, one shared space), numbers [rows, N] (float32), target [rows].
    """

    ids: Tensor
    numbers: Tensor
    target: Tensor


@dataclass(frozen=True)
class Encoder:
    """Columns with the encoding fitted to the training rows.

    Args:
        columns: as the user gave them.
        target: as the user gave it; None where rows are inputs alone, whose target counts as 0.
        tables: the ids, from 0 within the field, of the values of each vocabulary, by place in
            `columns`.
        moments: mean and standard deviation (after a `log`) and the mean of the raw numbers, by
            place.
    """

    columns: tuple[Column, ...]
    target: Target | None
    tables: Mapping[int, Mapping[str, int]]
    moments: Mapping[int, tuple[float, float, float]]

    @property
    def fields(self) -> int:
        return sum(isinstance(column, Categorical) for column in self.columns)

    @property
    def numbers(self) -> int:
        return len(self.columns) - self.fields

    @property
    def vocabulary_size(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Ids of each categorical field, in order."""
        return [
            column.buckets or 1 + len(self.tables[place])
            for place, column in enumerate(self.columns)
            if isinstance(column, Categorical)
        ]

    def encode(self, rows: FileRows, mask: Mask) -> EncodedRows:
        """The kept rows, in order."""
        count = int(mask.sum())
        ids = np.empty((self.fields, count), np.int32)
        numbers = np.empty((self.numbers, count), np.float32)
        offset = at_field = at_number = 0
        for place, column in enumerate(self.columns):
            if isinstance(column, Numeric):
                numbers[at_number] = self.number_of(
                    place, column, rows.column(column.name).numbers[mask]
                )
                at_number += 1
            else:
                ids[at_field] = self.ids_of(place, column, rows, mask) + np.int32(offset)
                offset += self.sizes[at_field]
                at_field += 1
        return EncodedRows(
            ids=torch.from_numpy(np.ascontiguousarray(ids.T)),
            numbers=torch.from_numpy(np.ascontiguousarray(numbers.T)),
            target=torch.from_numpy(_target(self.target, rows, mask))
            if self.target
            else torch.zeros(count),
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

    def ids_of(
        self, place: int, column: Categorical, rows: FileRows, mask: Mask
    ) -> npt.NDArray[np.int32]:
        """The ids of the kept rows, from 0 within the field."""
        codes, tokens = _tokens(column, rows)
        if column.buckets is None:
            table = self.tables[place]
            ids = [table.get(token, 0) for token in tokens]
        else:
            ids = [stable_hash(token) % column.buckets for token in tokens]
        return np.array(ids, np.int32)[codes[mask]]


@dataclass
class Fitter:
    """Sees the training rows part by part, in order; `finish` gives the encoder."""

    columns: tuple[Column, ...]
    target: Target | None
    _counts: dict[int, dict[str, int]] = field(default_factory=dict)
    _sums: dict[int, Floats] = field(default_factory=dict)

    def observe(self, rows: FileRows, train: Mask) -> None:
        for place, column in enumerate(self.columns):
            if isinstance(column, Numeric):
                self._observe_numbers(place, column, rows.column(column.name).numbers[train])
            elif column.buckets is None:
                codes, tokens = _tokens(column, rows)
                seen = self._counts.setdefault(place, {})
                counts = np.bincount(codes[train], minlength=len(tokens)).tolist()
                for token, count in zip(tokens, counts, strict=True):
                    if count:
                        seen[token] = seen.get(token, 0) + count

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
            elif column.buckets is None:
                counts = self._counts.get(place, {})
                tokens = [token for token, count in counts.items() if count >= column.min_count]
                # The most frequent first: their rows of the table lie close together in the cache.
                tokens.sort(key=lambda token: (-counts[token], token))
                tables[place] = {token: id_ for id_, token in enumerate(tokens, 1)}
        return Encoder(self.columns, self.target, tables, moments)


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
