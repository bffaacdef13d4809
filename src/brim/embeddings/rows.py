"""The gradient of an embedding's weight by rows: of those that a step looks up, and of no others.

A row that a micro-batch does not look up adds zero to the step's sum, and its part is left out. So
the bits are those of the dense gradient, folded along the same tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from brim.coordination.job.reduction import Block, fold
from brim.embeddings.tables.kernels import distinct_of, put

_LAST = (1 << 63) - 1  # of all ids


class GradientRows(NamedTuple):
    """Some rows of a weight's gradient.

    Args:
        ids: which rows, ascending and each once; int64, shape [N].
        values: their gradients, shape [N, D].
    """

    ids: Tensor
    values: Tensor

    def copy(self) -> GradientRows:
        """Return the same rows in memory of their own."""
        return GradientRows(self.ids.clone(), self.values.clone())


class OwnedRows(NamedTuple):
    """The part of a weight's gradient that one worker applies.

    Args:
        rows: the sum over all micro-batches.
        owner: the worker's number among those of its host that apply such parts.
        start: an id that none of the rows is below, and none of the parts of owners before it
            reaches.
        owners: how many of them there are; rows with keys are cut evenly among them.
    """

    rows: GradientRows
    owner: int
    start: int
    owners: int = 1


def no_rows(like: Tensor) -> GradientRows:
    """Return the gradient of a weight `like`, shape [R, D], of which no row was looked up."""
    return GradientRows(torch.empty(0, dtype=torch.int64), like.new_empty((0, like.shape[1])))


def total_of(lookups: Sequence[GradientRows]) -> GradientRows:
    """Add up the results of several lookups of a micro-batch, in their order."""
    if len(lookups) == 1:
        return lookups[0]
    union = _union([lookup.ids for lookup in lookups])
    values = lookups[0].values.new_zeros((len(union.ids), lookups[0].values.shape[1]))
    for lookup, places in zip(lookups, union.places, strict=True):
        values.index_add_(0, places, lookup.values)
    return GradientRows(union.ids, values)


class _Union(NamedTuple):
    """The ids of several blocks."""

    parts: list[Tensor]
    ids: Tensor
    places: list[Tensor]  # of each block's ids among all

    def is_of(self, parts: Sequence[Tensor]) -> bool:
        return all(
            earlier_part is part or torch.equal(earlier_part, part)
            for earlier_part, part in zip(self.parts, parts, strict=True)
        )


def _union(parts: list[Tensor]) -> _Union:
    ids, places = distinct_of(torch.cat(parts))
    return _Union(parts, ids, list(torch.split(places, [len(part) for part in parts])))


def fold_rows(
    blocks: Mapping[Block, Sequence[GradientRows]], want: Block, parts: int
) -> list[GradientRows]:
    """Fold blocks into one along the canonical tree, as `accumulate.combine` folds dense gradients.

    Args:
        blocks: the present blocks, with the rows of each embedding.
        want: the block that they cover together.
        parts: micro-batches of a step.

    Returns:
        The rows of each embedding.

    Raises:
        ValueError: they do not cover it.
    """
    additions = fold(blocks, want, parts)
    if not additions:
        return list(next(tables for block, tables in blocks.items() if block.start == want.start))
    sums: list[GradientRows] = []
    union: _Union | None = None
    starts = [block.start for block in blocks]
    for tables in zip(*blocks.values(), strict=True):
        ids = [rows.ids for rows in tables]
        if union is None or not union.is_of(ids):  # embeddings are often asked for the same ids
            union = _union(ids)
        values = {start: rows.values for start, rows in zip(starts, tables, strict=True)}
        places = dict(zip(starts, union.places, strict=True))
        sums.append(
            GradientRows(
                union.ids, _sum(values, places, additions, count=len(union.ids), start=want.start)
            )
        )
    return sums


def _sum(
    values: Mapping[int, Tensor],
    places: Mapping[int, Tensor],
    additions: Iterable[tuple[Block, Block]],
    *,
    count: int,
    start: int,
) -> Tensor:
    """Sum the values of blocks at their places among `count` rows.

    Each block is given by its first micro-batch.
    """
    sums: dict[int, Tensor] = {}
    for left, right in additions:
        if left.start not in sums:
            first = values[left.start]
            sums[left.start] = first.new_zeros((count, first.shape[1]))
            put(sums[left.start], places[left.start], first.contiguous())
        if right.start in sums:
            sums[left.start] += sums.pop(right.start)
        else:
            sums[left.start].index_add_(0, places[right.start], values[right.start])
    return sums[start]


def rows_between(rows: GradientRows, start: int, stop: int) -> GradientRows:
    """Return the rows of ids in `[start, stop)`; views, not copies.

    `stop` may be 2**63, which is beyond all ids.
    """
    bounds = torch.tensor([start, min(stop, _LAST)])
    first, last = torch.searchsorted(rows.ids, bounds).tolist()
    last = last if stop <= _LAST else len(rows.ids)
    return GradientRows(rows.ids[first:last], rows.values[first:last])


def joined(slices: Sequence[GradientRows]) -> GradientRows:
    """Join rows of which each slice has larger ids than the one before."""
    if len(slices) == 1:
        return slices[0]
    return GradientRows(
        torch.cat([part.ids for part in slices]), torch.cat([part.values for part in slices])
    )


class RowSums:
    """Sums of the rows of one worker's micro-batches.

    `accumulate.Accumulator` does the same for dense gradients.

    Args:
        parts: micro-batches of a step.
        blocks: the rank's blocks, in order.
    """

    def __init__(self, parts: int, blocks: Sequence[Block]) -> None:
        self._parts, self._blocks = parts, blocks
        self._leaves: dict[int, Sequence[GradientRows]] = {}  # by micro-batch; of each table

    def begin(self) -> None:
        """Start a step; unfinished work of a step before it is forgotten."""
        self._leaves.clear()

    def add(self, micro: int, tables: Sequence[GradientRows]) -> None:
        """Take the rows of one micro-batch, of each table."""
        self._leaves[micro] = tables

    def of_micro_batch(self, micro: int) -> Sequence[GradientRows]:
        """Return the rows of one micro-batch, of each table."""
        return self._leaves[micro]

    def blocks(self) -> dict[Block, list[GradientRows]]:
        """Return the sum of each block of this rank, for each table."""
        return {block: self._sum(block) for block in self._blocks}

    def _sum(self, block: Block) -> list[GradientRows]:
        micros = range(block.start, min(block.start + block.size, self._parts))
        return fold_rows(
            {Block(micro, 1): self._leaves[micro] for micro in micros}, block, self._parts
        )
