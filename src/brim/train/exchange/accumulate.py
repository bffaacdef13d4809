"""The sum of one worker's micro-batches along the canonical tree.

See `coordination/job/reduction.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress

import torch
from torch import Tensor

from brim.coordination.job.reduction import Block, fold

Contribution = list[Tensor]


def combine(left: Sequence[Tensor], right: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    """`out = left + right` tensor by tensor; whole numbers take the larger. `out` may be `left`."""
    for a, b, result in zip(left, right, out, strict=True):
        if _is_added(a):
            torch.add(a, b, out=result)
        else:
            torch.maximum(a, b, out=result)


def _is_added(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


class Accumulator:
    """Folds contributions, in micro-batch order, into the blocks that a rank leaves for others.

    Args:
        parts: micro-batches of a step.
        blocks: the rank's blocks, in order.
        rows: where a finished block goes; a block without a row stays in the worker's own memory.
    """

    def __init__(
        self, parts: int, blocks: Sequence[Block], rows: Mapping[Block, Contribution]
    ) -> None:
        self._sums: dict[int, Contribution] = {}  # by the first micro-batch that they cover
        self._rows = {block.start: rows[block] for block in blocks if block in rows}
        # Due after each micro-batch: left, right, whether that finishes the block.
        self._additions: dict[int, list[tuple[int, int, bool]]] = {}
        self._single: set[int] = set()
        self._last = blocks[-1] if blocks else None
        self._last_micro = min(blocks[-1].start + blocks[-1].size, parts) - 1 if blocks else 0
        for block in blocks:
            leaves = [
                Block(micro, 1)
                for micro in range(block.start, min(block.start + block.size, parts))
            ]
            additions, due = fold(leaves, block, parts), block.start
            for left, right in additions:
                due = max(due, right.start)  # the last leaf that the sums so far consist of
                self._additions.setdefault(due, []).append(
                    (left.start, right.start, (left, right) == additions[-1])
                )
            if not additions:
                self._single.add(block.start)
        self._early: set[int] = set()  # tensors of the last block that are in its row
        self._added: list[bool] = []  # of each tensor of a contribution, whether it is added up
        self._compared: list[int] = []  # the others

    def begin(self) -> None:
        """Start a step; unfinished work of a step before it is forgotten."""
        self._sums.clear()
        self._early.clear()

    def add_early(self, index: int, tensor: Tensor) -> None:
        """Take one tensor of the last micro-batch's contribution, and leave its sum in the row.

        All before that micro-batch have been added, and its whole contribution will be: the early
        part is then left out.
        """
        assert self._last is not None, "a contribution was computed"
        row = self._rows[self._last.start]
        pairs = self._additions.get(self._last_micro, ())
        if not pairs:
            row[index].copy_(tensor)
        for left, _, finishes in pairs:
            target = row[index] if finishes else torch.empty_like(tensor)
            tensor = torch.add(self._sums[left][index], tensor, out=target)
        self._early.add(index)

    def forget_early(self) -> None:
        """Take the early part once more, with the whole contribution."""
        self._early.clear()

    def add(self, micro: int, contribution: Contribution) -> None:
        """Take the contribution of one micro-batch.

        Its list and its sums are the accumulator's from now on.
        """
        if self._early:
            self._add_rest(contribution)
            return
        if micro in self._single and micro in self._rows:
            torch._foreach_copy_(self._rows[micro], contribution)
            contribution = self._rows[micro]
        self._sums[micro] = contribution
        for left, right, finishes in self._additions.get(micro, ()):
            if finishes and left in self._rows:
                combine(self._sums[left], self._sums.pop(right), self._rows[left])
                self._sums[left] = self._rows[left]
            else:
                self._take_in(self._sums[left], self._sums.pop(right))

    def _take_in(self, left: Contribution, right: Contribution) -> None:
        """Compute `left += right` where `left` has no other readers.

        One call does it for all sums, since small tensors cost mostly calls.

        A maximum is another tensor: contributions may share those, and where both have the same
        there is nothing to do.
        """
        if not self._added:  # all contributions have the same kinds of tensors, in the same order
            self._added = [_is_added(tensor) for tensor in left]
            self._compared = [i for i, is_added in enumerate(self._added) if not is_added]
        sums = list(compress(left, self._added))
        if sums:
            torch._foreach_add_(sums, list(compress(right, self._added)))
        for index in self._compared:
            if left[index] is not right[index]:
                left[index] = torch.maximum(left[index], right[index])

    def add_block(self, start: int, contribution: Contribution) -> None:
        """Take the sum of a whole block, computed elsewhere along the same tree."""
        if start in self._rows:
            torch._foreach_copy_(self._rows[start], contribution)
            contribution = self._rows[start]
        self._sums[start] = contribution

    def block(self, start: int) -> Contribution:
        """Return the sum of a block whose micro-batches have all been added."""
        return self._rows[start] if start in self._rows else self._sums[start]

    def _add_rest(self, contribution: Contribution) -> None:
        """Take the rest of the last micro-batch's contribution."""
        assert self._last is not None, "something was taken early"
        rest = [index for index in range(len(contribution)) if index not in self._early]
        row, sums = self._rows[self._last.start], [contribution[index] for index in rest]
        target = [row[index] for index in rest]
        pairs = self._additions.get(self._last_micro, ())
        if not pairs:
            torch._foreach_copy_(target, sums)
        for left, _, finishes in pairs:
            out = target if finishes else [torch.empty_like(tensor) for tensor in sums]
            combine([self._sums[left][index] for index in rest], sums, out)
            sums = out

    def local_sum(self) -> Contribution:
        """The sum over all micro-batches, where this worker had them all."""
        (contribution,) = self._sums.values()
        return contribution
