"""All micro-batches of a worker's step as one program, which needs neither Python nor autograd."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
import torch
from torch import Tensor

from brim.coordination.job.reduction import Block, fold
from brim.train.captured.recipe import (
    CONSTANT,
    DRAWN,
    INPUT,
    RESULT,
    TABLE,
    NotCapturable,
    PassRecipe,
    in_one_line,
)
from brim.train.captured.script import Script, Value
from brim.train.captured.tables import BlockTables, WrittenPass
from brim.train.captured.trust import Trust

_MOST_CALLS = 20_000  # of a program: TorchScript takes some 30 µs to read each


class MicroInputs(msgspec.Struct, frozen=True):
    """The inputs of a program for one micro-batch: see `recipe`.

    Attributes:
        weights: the gradient of the loss, and the weight of shapes [1] and [].
        samples: tensors.
        rows: of lookups.
        draws: random numbers.
    """

    weights: Sequence[Tensor]
    samples: Sequence[Tensor]
    rows: Sequence[Tensor]
    draws: Sequence[Tensor]


class StepProgram:
    """The sums of a worker's blocks of micro-batches, along the canonical tree.

    Args:
        recipes: of each of the worker's micro-batches, in order.
        blocks: of them.
        parts: micro-batches of a step.
        shared: how many tensors of the network a recipe takes.
        counted: how many of what a recipe gives, before the loss, are maxima and no sums.

    Attributes:
        used: of each trained parameter, whether it has a gradient.
        trust: that it has earned.
        by_rows: of each block, how many tables it adds up by rows.
        call_count: calls of the program.

    Raises:
        NotCapturable: there can be no program.
    """

    def __init__(
        self,
        recipes: Sequence[PassRecipe],
        blocks: Sequence[Block],
        *,
        parts: int,
        shared: int,
        counted: int,
    ) -> None:
        if sum(len(recipe.calls) for recipe in recipes) > _MOST_CALLS:
            raise NotCapturable("the passes of a step have too many calls")
        self.used = [any(marks) for marks in zip(*(recipe.used for recipe in recipes), strict=True)]
        self.trust = Trust()
        self._block_count = len(blocks)
        self._row_counts = [len(recipe.lookups.modules) for recipe in recipes]
        distinct = _distinct(recipes)
        self._constants = [tensor for recipe in distinct for tensor in recipe.constants]
        try:
            views_last = not any(map(_changes_shapes, distinct))
            self._script = Script(views_last=views_last)
            writer = _StepWriter(self._script, distinct, shared, counted)
            writer.write(recipes, blocks, parts)
        except Exception as error:  # private functions may raise anything
            raise NotCapturable(in_one_line(error)) from error
        self.by_rows, self.call_count = writer.by_rows, self._script.call_count

    def __call__(
        self, network: Sequence[Tensor], micro_batches: Sequence[MicroInputs]
    ) -> tuple[list[list[Tensor]], list[list[Tensor]], Tensor]:
        """Compute a worker's part of a step.

        Returns:
            The sum of each block, the gradients of each micro-batch's rows, and the losses of shape
            [micro-batches].

        Args:
            network: parameters and buffers.
            micro_batches: in the order of their recipes.
        """
        arguments = [*network, *self._constants]
        for micro in micro_batches:
            arguments += micro.weights
            arguments += micro.samples
            arguments += [rows.detach() for rows in micro.rows]
            arguments += micro.draws
        *results, losses = self._script(arguments)
        remaining = iter(results)
        rows = [list(islice(remaining, count)) for count in self._row_counts]
        sums = list(remaining)
        each = len(sums) // self._block_count
        return [sums[at : at + each] for at in range(0, len(sums), each)], rows, losses


def _distinct(recipes: Sequence[PassRecipe]) -> list[PassRecipe]:
    return list({id(recipe): recipe for recipe in recipes}.values())


def _changes_shapes(recipe: PassRecipe) -> bool:
    """Return whether a pass changes the shape of a tensor in place."""
    for name, overload, _ in recipe.calls:
        if name.endswith("_") and not name.endswith("__"):
            space, _, plain = name.partition("::")
            packet = getattr(getattr(torch.ops, space), plain)
            if torch.Tag.inplace_view in getattr(packet, overload or "default").tags:
                return True
    return False


class _StepWriter:
    """Writes passes, and the additions of their results.

    Args:
        script: that they are written into.
        recipes: the distinct ones.
        shared: how many tensors of the network a recipe takes.
        counted: how many of what a recipe gives, before the loss, are maxima and no sums.

    Attributes:
        by_rows: of each block, how many tables it adds up by rows.
    """

    def __init__(
        self, script: Script, recipes: Sequence[PassRecipe], shared: int, counted: int
    ) -> None:
        self._script, self._counted = script, counted
        self._network = script.add_inputs(shared)
        self._constants = {
            id(recipe): script.add_inputs(len(recipe.constants)) for recipe in recipes
        }
        self.by_rows: list[int] = []

    def write(self, recipes: Sequence[PassRecipe], blocks: Sequence[Block], parts: int) -> None:
        """Write the passes of all micro-batches, and the additions of each block behind its own."""
        sums: list[Value] = []
        losses: list[Value] = []
        rows: list[Value] = []
        passes = iter([self._begin(recipe) for recipe in recipes])
        for block in blocks:
            stop = min(block.start + block.size, parts)
            leaves = [Block(micro, 1) for micro in range(block.start, stop)]
            additions = deque(fold(leaves, block, parts))
            found: dict[int, list[Value]] = {}
            of_block = [next(passes) for _ in leaves]
            tables = BlockTables(self._script, [each.as_written for each in of_block])
            self.by_rows.append(tables.by_rows)
            for number, (leaf, pass_) in enumerate(zip(leaves, of_block, strict=True)):
                values = pass_.write(tables, number)
                loss_at = len(values) - len(pass_.recipe.lookups.modules) - 1
                found[leaf.start] = values[:loss_at]
                losses.append(values[loss_at])
                rows += values[loss_at + 1 :]
                while additions and min(sum(additions[0][1]), parts) - 1 <= leaf.start:
                    left, right = additions.popleft()
                    self._add(found[left.start], found.pop(right.start))
            (total,) = found.values()
            sums += tables.whole(total)
        (stacked,) = self._script.call("aten::cat", "", [self._script.tensors(losses), 0])
        self._script.end([*rows, *sums, stacked])

    def _begin(self, recipe: PassRecipe) -> _Pass:
        own = self._script.add_inputs(recipe.inputs - len(self._network))
        draws = self._script.add_inputs(len(recipe.draws))
        values = {CONSTANT: self._constants[id(recipe)], INPUT: [*self._network, *own]}
        return _Pass(self._script, recipe, values | {DRAWN: draws})

    def _add(self, left: list[Value], right: list[Value]) -> None:
        """Add a sum to another in place; of whole numbers the larger is taken."""
        last_sum = len(left) - self._counted
        for index, (mine, other) in enumerate(zip(left, right, strict=True)):
            if index < last_sum:
                (left[index],) = self._script.call("aten::add_", "Tensor", [mine, other, 1])
            else:
                (left[index],) = self._script.call("aten::maximum", "", [mine, other])


class _Pass:
    """The calls of a micro-batch, which are written one after the other.

    Args:
        script: that they are written into.
        recipe: of the pass.
        values: what the pass takes, by kinds of arguments.
    """

    def __init__(self, script: Script, recipe: PassRecipe, values: dict[str, list[Value]]) -> None:
        self.recipe = recipe
        self.as_written = WrittenPass(recipe, self._value_of)
        self._script, self._values = script, values
        self._results: dict[int, list[Value]] = {}

    def write(self, tables: BlockTables, number: int) -> list[Value]:
        """Write all calls that were not written before; return what the pass gives.

        Args:
            tables: of the block.
            number: of the pass in it.
        """
        for index, (name, _, arguments) in enumerate(self.recipe.calls):
            if name == TABLE:
                self._results[index] = [tables.of_pass(number, arguments)]
            elif index not in self._results:
                self._write_call(index)
        return [self._value_of(given) for given in self.recipe.gives]

    def _write_call(self, index: int) -> None:
        name, overload, arguments = self.recipe.calls[index]
        self._results[index] = self._script.call(name, overload, arguments, self._value_of)

    def _value_of(self, argument: list[Any]) -> Value:
        kind, index, place = argument
        if kind != RESULT:
            return self._values[kind][index]
        if index not in self._results:
            self._write_call(index)
        return self._results[index][place]
