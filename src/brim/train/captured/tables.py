"""Gradients of embedding tables in a program, which adds up the rows that are looked up.

An eager pass adds the gradient of each lookup to a table of zeros, in the order of lookups, and the
canonical tree adds whole tables. Here tables have the rows alone that any micro-batch of the block
looks up. These undergo the same additions in the same order; all others are zeros that are added to
zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from brim.train.captured.recipe import KIND, PassRecipe, TableCall, tables_of
from brim.train.captured.script import Script, Value

_INT64 = [KIND, "dtype", "torch.int64"]


@dataclass(frozen=True, slots=True)
class WrittenPass:
    """The pass of a micro-batch, as it is written into a program.

    Attributes:
        recipe: of the pass.
        value_of: what an argument of the recipe is; the calls that lead to it are written then.
    """

    recipe: PassRecipe
    value_of: Callable[[list[object]], Value]


@dataclass(frozen=True, slots=True)
class _Distinct:
    """The distinct ids of a block.

    Attributes:
        ids: in any order.
        count: of them.
        places: among them, of the lookups of each pass.
    """

    ids: Value
    count: Value
    places: Sequence[Value]


class BlockTables:
    """The gradients of tables in a block of micro-batches.

    Args:
        script: that they are written into.
        passes: of the block, of which nothing is written yet.

    Attributes:
        by_rows: how many tables have the rows alone that are looked up.
    """

    def __init__(self, script: Script, passes: Sequence[WrittenPass]) -> None:
        self._script, self._passes = script, passes
        self._tables = [tables_of(each.recipe) for each in passes]
        self._distinct: dict[int, _Distinct] = {}  # by the place of a gradient in what a pass gives
        found: dict[object, _Distinct] = {}
        for place, first in self._tables[0].items():
            calls = [tables[place] for tables in self._tables if place in tables]
            if len(calls) < len(passes) or not _is_worth_it(calls):
                continue
            ids = [self._ids_of(each, call) for each, call in zip(passes, calls, strict=True)]
            key = first.size, *(value.unique() for value in ids)
            if key not in found:
                found[key] = self._distinct_of(ids, calls)
            self._distinct[place] = found[key]
        self.by_rows = len(self._distinct)

    def of_pass(self, number: int, call: Sequence[Any]) -> Value:
        """Return the gradient that a pass gives a table.

        Args:
            number: of the pass in the block.
            call: the arguments of its call.
        """
        table, written = TableCall(*call), self._passes[number]
        place = next(place for place, each in self._tables[number].items() if each == table)
        distinct = self._distinct.get(place)
        (rows,) = self._call("reshape", "", written.value_of(table.rows), [-1, table.width])
        count = table.size if distinct is None else distinct.count
        ids = self._ids_of(written, table) if distinct is None else distinct.places[number]
        (zeros,) = self._call("new_zeros", "", rows, [count, table.width], None, None, None, None)
        (column,) = self._call("unsqueeze", "", ids, 1)
        (index,) = self._call("expand", "", column, [-1, table.width], False)
        return self._call("scatter_add_", "", zeros, 0, index, rows)[0]

    def whole(self, sums: Sequence[Value]) -> list[Value]:
        """Return the sums of the block with whole tables among them."""
        whole = list(sums)
        for place, table in {p: t for tables in self._tables for p, t in tables.items()}.items():
            total = whole[place]
            if place in self._distinct:
                size = [table.size, table.width]
                (zeros,) = self._call("new_zeros", "", total, size, None, None, None, None)
                ids = self._distinct[place].ids
                (whole[place],) = self._call("index_copy_", "", zeros, 0, ids, total)
            if table.padding >= 0:
                (row,) = self._call("select", "int", whole[place], 0, table.padding)
                self._call("zero_", "", row)
        return whole

    def _call(self, name: str, overload: str, *arguments: object) -> list[Value]:
        return self._script.call(f"aten::{name}", overload, arguments)

    def _ids_of(self, written: WrittenPass, table: TableCall) -> Value:
        (flat,) = self._call("reshape", "", written.value_of(table.ids), [-1])
        return self._call("to", "dtype", flat, _INT64, False, False, None)[0]

    def _distinct_of(self, ids: Sequence[Value], calls: Sequence[TableCall]) -> _Distinct:
        """Write the calls that find distinct ids, without sorting them.

        Each lookup writes its number to the place of its id, and reads which number is there: that
        of one lookup for each id, whichever it is.
        """
        options = (None, None, None, None)
        bounds = [0]
        for call in calls:
            bounds.append(bounds[-1] + call.lookups)
        (lookups,) = self._call("cat", "", self._script.tensors(ids), 0)
        numbers = self._script.constant(torch.arange(bounds[-1]))
        (last,) = self._call("new_empty", "", lookups, [calls[0].size], *options)
        self._call("scatter_", "src", last, 0, lookups, numbers)
        (representative,) = self._call("index_select", "", last, 0, lookups)
        (is_kept,) = self._call("eq", "Tensor", representative, numbers)
        (distinct,) = self._call("masked_select", "", lookups, is_kept)
        (ranks,) = self._call("cumsum", "", is_kept, 0, None)
        (ranks,) = self._call("sub_", "Scalar", ranks, 1, 1)
        (places,) = self._call("index_select", "", ranks, 0, representative)
        (count,) = self._call("size", "int", distinct, 0)
        parts = [
            self._call("slice", "Tensor", places, 0, start, stop, 1)[0]
            for start, stop in pairwise(bounds)
        ]
        return _Distinct(distinct, count, parts)


def _is_worth_it(calls: Sequence[TableCall]) -> bool:
    """Return whether the tables of a block have fewer rows with the distinct ids alone."""
    lookups = sum(call.lookups for call in calls)
    return len(calls) > 1 and all(call.is_early for call in calls) and lookups < calls[0].size
