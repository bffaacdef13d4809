"""Lookups of a pass in embeddings that are trained by rows: their results are inputs of a program.

The calls that lead from samples to ids are made here, before the program. The lookups themselves, and the way of their
gradients into tables, are those of eager passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from brim.embeddings.embedding import Embeddings
from brim.embeddings.rows import GradientRows
from brim.train.captured.recipe import CONSTANT, INPUT, KIND, RESULT, LookupRecipe, NotCapturable


class Lookups:
    """Lookups of a worker for a program, and the way of the program's gradients into its tables.

    Args:
        embeddings: of the job.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings
        self.modules = embeddings.modules
        self._counts: list[int] = []

    def look_up(self, recipe: LookupRecipe, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return the rows for each lookup of a micro-batch, with their graphs.

        Args:
            recipe: of the lookups of a pass.
            leaves: the tensors of the samples.
        """
        self._embeddings.begin()
        ids = _ids_of(recipe, leaves)
        with torch.enable_grad():
            return [
                self.modules[number].forward(tensor)
                for number, tensor in zip(recipe.modules, ids, strict=True)
            ]

    def give_back(
        self, rows: Sequence[Sequence[Tensor]], gradients: Sequence[Sequence[Tensor]]
    ) -> tuple[list[list[GradientRows]], list[bool]]:
        """Return the gradients of tables, from those of lookups.

        Args:
            rows: of the lookups of each micro-batch.
            gradients: of these rows.

        Returns:
            The gradient of each table in each micro-batch, and whether any micro-batch gave it one.
        """
        if not self.modules:
            return [[] for _ in rows], []
        taken = list(map(self._give_back, rows, gradients))
        marks = zip(*(marks for _, marks in taken), strict=True)
        return [tables for tables, _ in taken], list(map(any, marks))

    def _give_back(
        self, rows: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> tuple[list[GradientRows], list[bool]]:
        self._embeddings.begin()
        if rows:
            with self._embeddings.in_backward:
                # What torch.autograd.backward ends in, after importing modules for two seconds.
                _engine_run_backward(
                    tuple(rows),
                    tuple(gradients),
                    False,  # keep_graph
                    False,  # create_graph
                    (),
                    allow_unreachable=True,
                    accumulate_grad=True,
                )
        return self._embeddings.take()


def _ids_of(recipe: LookupRecipe, leaves: Sequence[Tensor]) -> list[Tensor]:
    results: list[Any] = []

    def value_of(argument: Any) -> Any:
        match argument:
            case [str(kind), int(number), int(place)] if kind == RESULT:
                result = results[number]
                return result[place] if isinstance(result, (tuple, list)) else result
            case [str(kind), int(number), int()] if kind == INPUT:
                return leaves[number]
            case [str(kind), int(number), int()] if kind == CONSTANT:
                return recipe.constants[number]
            case [str(kind), str(attribute), str(text)] if kind == KIND:
                return torch.device(text) if attribute == "device" else _named(text)
            case list():
                return [value_of(item) for item in argument]
        return argument

    with torch.no_grad():
        for name, overload, arguments in recipe.calls:
            results.append(_call(name, overload)(*map(value_of, arguments)))
    return [value_of(ids) for ids in recipe.ids]


def _named(text: str) -> Any:
    return getattr(torch, text.removeprefix("torch."))


def _call(name: str, overload: str) -> Callable[..., Any]:
    if name == "aten::__getitem__":
        return lambda items, place: items[place]
    space, _, plain = name.partition("::")
    packet = getattr(getattr(torch.ops, space), plain)
    function = getattr(packet, overload or "default")
    names = [a.name if a.kwarg_only else "" for a in function._schema.arguments]

    def call(*values: Any) -> Any:
        pairs = list(zip(names, values, strict=True))
        return function(
            *(value for key, value in pairs if not key), **{key: v for key, v in pairs if key}
        )

    return call


@dataclass(slots=True)
class LookupsSeen:
    """The lookups of a pass that is being noted.

    Attributes:
        modules: embeddings that are trained by rows.
        numbers: of the module of each lookup, in order.
        rows: what each has given, in a pass that is made for it.
        ids: of each lookup.
    """

    modules: Sequence[nn.Module]
    numbers: list[int]
    rows: list[Tensor]
    ids: list[Tensor]

    @classmethod
    def of(
        cls, one_pass: Callable[[], Any], modules: Sequence[nn.Module]
    ) -> tuple[Any, LookupsSeen]:
        """Make a pass, and see its lookups; return its result, too."""
        seen = cls(modules, [], [], [])

        def look_up(number: int, ids: Tensor) -> Tensor:
            rows: Tensor = type(modules[number]).forward(modules[number], ids)
            seen.numbers.append(number)
            seen.rows.append(rows.detach().clone())
            seen.ids.append(ids)
            return rows

        return seen._made_with(look_up, one_pass), seen

    def replaced(
        self, rows: Iterator[Tensor], one_pass: Callable[[], Any]
    ) -> tuple[Any, list[Tensor]]:
        """Make the pass with other rows; return its result, and the ids of its lookups.

        Raises:
            NotCapturable: it has other lookups.
        """
        ids: list[Tensor] = []
        expected = iter(self.numbers)

        def look_up(number: int, own_ids: Tensor) -> Tensor:
            if next(expected, None) != number:
                raise NotCapturable("lookups in embeddings differ from pass to pass")
            ids.append(own_ids)
            return next(rows)

        return self._made_with(look_up, one_pass), ids

    def _made_with(
        self, look_up: Callable[[int, Tensor], Tensor], one_pass: Callable[[], Any]
    ) -> Any:
        def stand_in(number: int) -> Callable[..., Tensor]:
            def forward(*arguments: Any, **named: Any) -> Tensor:
                if named or len(arguments) != 1 or not isinstance(arguments[0], Tensor):
                    raise NotCapturable("a lookup in an embedding by more than ids")
                return look_up(number, arguments[0])

            return forward

        for number, module in enumerate(self.modules):
            vars(module)["forward"] = stand_in(number)
        try:
            return one_pass()
        finally:
            for module in self.modules:
                vars(module).pop("forward", None)
