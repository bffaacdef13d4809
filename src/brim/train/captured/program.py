"""All micro-batches of a worker's step as one program, which needs neither Python nor autograd.

It runs in TorchScript's interpreter, which this module alone knows. Its functions are private to
torch: where one is missing, or refuses, there is no program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from brim.coordination.job.reduction import Block, fold
from brim.train.captured.recipe import (
    CONSTANT,
    DRAWN,
    INPUT,
    KIND,
    RESULT,
    NotCapturable,
    PassRecipe,
    in_one_line,
)
from brim.train.captured.trust import Trust

_MOST_CALLS = 20_000  # of a program: TorchScript takes some 30 µs to read each
# TorchScript's numbers of types, layouts and memory formats.
_NUMBERS = {
    "torch.uint8": 0,
    "torch.int8": 1,
    "torch.int16": 2,
    "torch.int32": 3,
    "torch.int64": 4,
    "torch.float16": 5,
    "torch.float32": 6,
    "torch.float64": 7,
    "torch.complex64": 9,
    "torch.complex128": 10,
    "torch.bool": 11,
    "torch.bfloat16": 15,
    "torch.strided": 0,
    "torch.contiguous_format": 0,
    "torch.preserve_format": 1,
    "torch.channels_last": 2,
}


class MicroInputs(NamedTuple):
    """The inputs of a program for one micro-batch: see `recipe`."""

    gradient: Tensor
    weight: Tensor
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
        self._constants = [tensor for recipe in _distinct(recipes) for tensor in recipe.constants]
        try:
            self._is_optimizing = torch._C._get_graph_executor_optimize
            self._optimize = torch._C._set_graph_executor_optimize
            graph = _Graph(_distinct(recipes), shared, counted)
            graph.write(recipes, blocks, parts)
            self._function = graph.function()
        except Exception as error:  # private functions may raise anything
            raise NotCapturable(in_one_line(error)) from error

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
            arguments += (micro.gradient, micro.weight, micro.weight.reshape(()), *micro.samples)
            arguments += (*(rows.detach() for rows in micro.rows), *micro.draws)
        was_on = self._is_optimizing()
        # TorchScript's optimizer would put calls together, which changes bits.
        self._optimize(False)
        try:
            with torch.no_grad():
                *results, losses = self._function(*arguments)
        finally:
            self._optimize(was_on)
        remaining = iter(results)
        rows = [list(islice(remaining, count)) for count in self._row_counts]
        sums = list(remaining)
        each = len(sums) // self._block_count
        return [sums[at : at + each] for at in range(0, len(sums), each)], rows, losses


def _distinct(recipes: Sequence[PassRecipe]) -> list[PassRecipe]:
    return list({id(recipe): recipe for recipe in recipes}.values())


class _Graph:
    """A graph of TorchScript, written call by call."""

    def __init__(self, recipes: Sequence[PassRecipe], shared: int, counted: int) -> None:
        self._graph: Any = torch._C.Graph()
        self._constants: dict[Any, Any] = {}
        self._schemas: dict[tuple[str, str], Any] = {}
        self._counted = counted
        self._network = [self._graph.addInput() for _ in range(shared)]
        self._tensors_of = {
            id(recipe): [self._graph.addInput() for _ in recipe.constants] for recipe in recipes
        }

    def write(self, recipes: Sequence[PassRecipe], blocks: Sequence[Block], parts: int) -> None:
        """Write the passes of all micro-batches, and the additions of each block behind its own."""
        sums: list[Any] = []
        losses: list[Any] = []
        rows: list[Any] = []
        micro_batches = iter(recipes)
        for block in blocks:
            stop = min(block.start + block.size, parts)
            leaves = [Block(micro, 1) for micro in range(block.start, stop)]
            additions = deque(fold(leaves, block, parts))
            found: dict[int, list[Any]] = {}
            for leaf in leaves:
                recipe = next(micro_batches)
                values = self._pass(recipe)
                loss_at = len(values) - len(recipe.lookups.modules) - 1
                found[leaf.start] = values[:loss_at]
                losses.append(values[loss_at])
                rows += values[loss_at + 1 :]
                while additions and min(sum(additions[0][1]), parts) - 1 <= leaf.start:
                    left, right = additions.popleft()
                    self._add(found[left.start], found.pop(right.start))
            (total,) = found.values()
            sums += total
        (stacked,) = self._call("aten::cat", "", [self._tensors(losses, is_optional=False), 0])
        self._give([*rows, *sums, stacked])

    def function(self) -> Any:
        return torch._C._create_function_from_graph("brim_step", self._graph)

    def _pass(self, recipe: PassRecipe) -> list[Any]:
        """Write the calls of a micro-batch, and give what they come to."""
        known = {CONSTANT: self._tensors_of[id(recipe)], INPUT: list(self._network)}
        known[INPUT] += [self._graph.addInput() for _ in range(recipe.inputs - len(self._network))]
        known[DRAWN] = [self._graph.addInput() for _ in recipe.draws]
        results: list[list[Any]] = []

        def value_of(argument: Any) -> Any:
            kind, number, place = argument
            return results[number][place] if kind == RESULT else known[kind][number]

        for name, overload, arguments in recipe.calls:
            results.append(self._call(name, overload, arguments, value_of))
        return [value_of(given) for given in recipe.gives]

    def _add(self, left: list[Any], right: list[Any]) -> None:
        """Add a sum to another in place; of whole numbers the larger is taken."""
        last_sum = len(left) - self._counted
        for index, (mine, other) in enumerate(zip(left, right, strict=True)):
            if index < last_sum:
                (left[index],) = self._call("aten::add_", "Tensor", [mine, other, 1])
            else:
                (left[index],) = self._call("aten::maximum", "", [mine, other])

    def _call(self, name: str, overload: str, arguments: list[Any], value_of: Any = None) -> Any:
        schema = self._schemas.get((name, overload))
        if schema is None:
            schema = self._schemas[name, overload] = torch._C._get_schema(name, overload)
        inputs = [
            self._value(argument, str(parameter.type), value_of)
            for argument, parameter in zip(arguments, schema.arguments, strict=True)
        ]
        node = self._graph.insertNode(self._graph.create(name, inputs, len(schema.returns)))
        outputs = list(node.outputs())
        for output, result in zip(outputs, schema.returns, strict=True):
            is_item = str(result.type) == "t"  # of a list, which is one of tensors here
            output.setType(torch._C.TensorType.get() if is_item else result.type)
        return outputs

    def _value(self, argument: Any, kind: str, value_of: Any) -> Any:
        if isinstance(argument, torch._C.Value):
            return argument
        if isinstance(argument, list):
            if argument and argument[0] == KIND:
                return self._constant(_number_of(*argument[1:]), kind)
            if argument and argument[0] in (RESULT, INPUT, DRAWN, CONSTANT):
                return value_of(argument)
            if any(isinstance(item, list) for item in argument):
                items = [self._value(item, "", value_of) for item in argument]
                return self._tensors(items, is_optional="Optional" in kind)
        return self._constant(argument, kind)

    def _tensors(self, items: list[Any], *, is_optional: bool) -> Any:
        node = self._graph.insertNode(self._graph.create("prim::ListConstruct", items, 1))
        tensor = torch._C.TensorType.get()
        element = torch._C.OptionalType(tensor) if is_optional else tensor
        node.output().setType(torch._C.ListType(element))
        return node.output()

    def _constant(self, value: Any, kind: str) -> Any:
        plain = kind.removeprefix("Optional[").removesuffix("]")
        if plain == "float" and type(value) is int:
            value = float(value)
        if plain.startswith("List[int") and isinstance(value, int):
            value = [value]
        key = (kind, type(value).__name__, str(value))
        if key not in self._constants:
            self._constants[key] = self._new_constant(value, kind)
        return self._constants[key]

    def _new_constant(self, value: Any, kind: str) -> Any:
        if isinstance(value, list) and not value:
            node = self._graph.insertNode(self._graph.create("prim::ListConstruct", [], 1))
            element = torch._C.BoolType.get() if "bool" in kind else torch._C.IntType.get()
            node.output().setType(torch._C.ListType(element))
            return node.output()
        return self._graph.insertConstant(value)

    def _give(self, outputs: list[Any]) -> None:
        node = self._graph.insertNode(self._graph.create("prim::TupleConstruct", outputs, 1))
        types: Any = [torch._C.TensorType.get()] * len(outputs)
        node.output().setType(torch._C.TupleType(types))
        self._graph.registerOutput(node.output())


def _number_of(kind: str, text: str) -> Any:
    return torch.device(text) if kind == "device" else _NUMBERS[text]
