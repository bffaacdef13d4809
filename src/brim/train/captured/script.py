"""A function of ATen calls for TorchScript's interpreter, which this module alone knows.

Its functions are private to torch: where one is missing, or refuses, there is no program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from brim.train.captured.recipe import CONSTANT, DRAWN, INPUT, KIND, RESULT, NotCapturable

Value = Any  # of the graph: a tensor, a number, or a list, once the function runs

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


class Script:
    """A function that is written call by call, and then called.

    Args:
        views_last: whether a view stays the same: nothing in the function changes the shape of a
            tensor in place.

    Attributes:
        call_count: calls that were written.
    """

    def __init__(self, *, views_last: bool) -> None:
        self._is_optimizing = torch._C._get_graph_executor_optimize
        self._optimize = torch._C._set_graph_executor_optimize
        self._below_autograd = torch._C._AutoDispatchBelowAutograd
        self._graph: Any = torch._C.Graph()
        self._constants: dict[Any, Value] = {}
        self._schemas: dict[tuple[str, str], Any] = {}
        self._views_last = views_last
        self._views: dict[tuple[Any, ...], list[Value]] = {}
        self._function: Callable[..., Any] | None = None
        self.call_count = 0

    def add_inputs(self, count: int) -> list[Value]:
        """Add tensors that the function takes."""
        return [self._graph.addInput() for _ in range(count)]

    def call(
        self,
        name: str,
        overload: str,
        arguments: Sequence[Any],
        value_of: Callable[[list[Any]], Value] | None = None,
    ) -> list[Value]:
        """Write a call, and return its results; a view that was written before is not repeated.

        Args:
            name, overload: of the call.
            arguments: values, plain values, and arguments of a recipe.
            value_of: gives the values of the latter.
        """
        schema = self._schemas.get((name, overload))
        if schema is None:
            schema = self._schemas[name, overload] = torch._C._get_schema(name, overload)
        inputs = [
            self._value(argument, str(parameter.type), value_of)
            for argument, parameter in zip(arguments, schema.arguments, strict=True)
        ]
        if not (self._views_last and _is_view(schema)):
            return self._new_call(name, inputs, schema)
        key = (name, overload, *(value.unique() for value in inputs))
        if key not in self._views:
            self._views[key] = self._new_call(name, inputs, schema)
        return self._views[key]

    def constant(self, tensor: Tensor) -> Value:
        """Return a tensor that is the same whenever the function runs."""
        return self._graph.insertConstant(tensor)

    def tensors(self, items: Sequence[Value], *, is_optional: bool = False) -> Value:
        """Return a list of tensors."""
        tensor = torch._C.TensorType.get()
        return self._list(items, torch._C.OptionalType(tensor) if is_optional else tensor)

    def end(self, outputs: Sequence[Value]) -> None:
        """End the function: it returns these tensors."""
        node = self._graph.insertNode(self._graph.create("prim::TupleConstruct", outputs, 1))
        types: Any = [torch._C.TensorType.get()] * len(outputs)
        node.output().setType(torch._C.TupleType(types))
        self._graph.registerOutput(node.output())
        self._function = torch._C._create_function_from_graph("brim_step", self._graph)

    def __call__(self, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Call the function."""
        assert self._function is not None, "it has an end"
        was_on = self._is_optimizing()
        # TorchScript's optimizer would put calls together, which changes bits.
        self._optimize(False)
        try:
            with self._below_autograd():
                results: tuple[Tensor, ...] = self._function(*arguments)
        finally:
            self._optimize(was_on)
        return results

    def _new_call(self, name: str, inputs: list[Value], schema: Any) -> list[Value]:
        self.call_count += 1
        node = self._graph.insertNode(self._graph.create(name, inputs, len(schema.returns)))
        outputs = list(node.outputs())
        for output, result in zip(outputs, schema.returns, strict=True):
            is_item = str(result.type) == "t"  # of a list, which is one of tensors here
            output.setType(torch._C.TensorType.get() if is_item else result.type)
        return outputs

    def _value(self, argument: Any, kind: str, value_of: Any) -> Value:
        if isinstance(argument, torch._C.Value):
            return argument
        if isinstance(argument, list):
            if argument and argument[0] == KIND:
                return self._constant(_number_of(*argument[1:]), kind)
            if argument and argument[0] in (RESULT, INPUT, DRAWN, CONSTANT):
                return value_of(argument)
            if any(isinstance(item, (list, torch._C.Value)) for item in argument):
                return self._list_of(argument, kind, value_of)
        return self._constant(argument, kind)

    def _list_of(self, items: list[Any], kind: str, value_of: Any) -> Value:
        if "int" in kind:
            numbers = [self._value(item, "int", value_of) for item in items]
            return self._list(numbers, torch._C.IntType.get())
        values = [self._value(item, "", value_of) for item in items]
        return self.tensors(values, is_optional="Optional" in kind)

    def _list(self, items: Sequence[Value], element: Any) -> Value:
        node = self._graph.insertNode(self._graph.create("prim::ListConstruct", items, 1))
        node.output().setType(torch._C.ListType(element))
        return node.output()

    def _constant(self, value: Any, kind: str) -> Value:
        plain = kind.removeprefix("Optional[").removesuffix("]")
        if plain == "float" and type(value) is int:
            value = float(value)
        if plain.startswith("List[int") and isinstance(value, int):
            value = [value]
        key = (kind, type(value).__name__, str(value))
        if key not in self._constants:
            self._constants[key] = self._new_constant(value, kind)
        return self._constants[key]

    def _new_constant(self, value: Any, kind: str) -> Value:
        if isinstance(value, list) and not value:
            return self._list([], (torch._C.BoolType if "bool" in kind else torch._C.IntType).get())
        return self._graph.insertConstant(value)


def _is_view(schema: Any) -> bool:
    """Return whether a call gives a view of its first argument, and changes nothing."""
    if len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
        return False
    alias = schema.returns[0].alias_info
    return alias is not None and not alias.is_write


def _number_of(kind: str, text: str) -> Any:
    if kind == "device":
        return torch.device(text)
    if text not in _NUMBERS:
        raise NotCapturable(f"a tensor of {text}")
    return _NUMBERS[text]
