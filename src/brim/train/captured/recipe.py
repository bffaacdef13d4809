"""The calls of a forward and a backward pass as plain values, which any worker can read from a file.

A recipe takes, in this order: the parameters that are trained, the frozen ones, the buffers as the
step found them, its constants; and of its micro-batch the gradient of the loss (the weight, in the
type of the loss), the weight as a float64 of shape [1] and as one of shape [], the tensors of the
samples, the rows of its lookups in embeddings that are trained by rows, and the random numbers that
it draws. It gives the gradients, the weighted changes of the averaged buffers, the weighted loss, the
counted buffers, the loss as it is, and the gradients of these rows.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from brim.storage.files import write_whole

# First words of arguments that are no plain values.
RESULT, INPUT, DRAWN, CONSTANT, KIND = "result", "input", "drawn", "constant", "kind"
# A call in place of those that add the gradients of lookups to a table of zeros: see `TableCall`.
TABLE = "brim::table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Random numbers that a pass fills a tensor with.

    Attributes:
        call: name and overload of the call, such as `("aten::bernoulli_", "float")`.
        is_fill: whether it fills a tensor in place; else it makes one.
        shape, stride, dtype: of the tensor.
        arguments: behind the tensor, or all.
        keywords: of a call that makes one.
    """

    call: tuple[str, str]
    is_fill: bool
    shape: list[int]
    stride: list[int]
    dtype: torch.dtype
    arguments: list[Any]
    keywords: dict[str, Any]

    def draw(self) -> Tensor:
        """Draw from torch's default generator."""
        space, _, name = self.call[0].partition("::")
        call = getattr(getattr(getattr(torch.ops, space), name), self.call[1])
        if not self.is_fill:
            made: Tensor = call(*self.arguments, **self.keywords)
            return made
        empty = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        filled: Tensor = call(empty, *self.arguments)
        return filled


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRecipe:
    """The lookups of a pass in embeddings by rows, and the calls that lead to their ids.

    Attributes:
        modules: of each lookup, the number of its embedding.
        constants: tensors that the calls start from, beside those of the samples.
        calls: as those of a pass; its inputs are the tensors of the samples.
        ids: of each lookup, as an argument.
    """

    modules: list[int] = field(default_factory=list)
    constants: list[Tensor] = field(default_factory=list)
    calls: list[tuple[str, str, list[Any]]] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecipe:
    """A pass, see above; or the reason why there is none.

    Attributes:
        refused: why the pass cannot be replayed; empty where it can.
        samples: the form of a micro-batch's samples, see `leaves_of`.
        loss: type and shape of the loss.
        inputs: tensors of the network and of a micro-batch that it takes, without random numbers.
        constants: tensors that the pass has made of Python's numbers.
        draws: in the order in which the pass draws.
        calls: name, overload and arguments of each call, in order. An argument is a plain value,
            `[RESULT, call, place]`, `[INPUT | DRAWN | CONSTANT, number, 0]`, `[KIND, kind, value]`, or
            a list of these.
        gives: what the recipe gives, as arguments.
        used: of each trained parameter, whether it has a gradient.
        lookups: in embeddings by rows.
    """

    refused: str = ""
    samples: str = ""
    loss: tuple[torch.dtype, list[int]] = (torch.float32, [])
    inputs: int
    constants: list[Tensor]
    draws: list[Draw]
    calls: list[tuple[str, str, list[Any]]]
    gives: list[Any]
    used: list[bool]
    lookups: LookupRecipe = field(default_factory=LookupRecipe)

    def save(self, path: Path) -> None:
        """Write the recipe to a file, whole or not at all."""
        content = io.BytesIO()
        torch.save(asdict(self), content)
        write_whole(path, content.getvalue())


class TableCall(NamedTuple):
    """The arguments of a call that gives the gradient of an embedding table.

    Attributes:
        rows: gradients of lookups, as an argument; of shape [lookups, width], or with further
            dimensions ahead.
        ids: of the lookups, as an argument.
        lookups: their number.
        size, width: of the table.
        padding: the id whose row has no gradient, or -1.
        is_early: whether the ids may be computed before everything else.
    """

    rows: Any
    ids: Any
    lookups: int
    size: int
    width: int
    padding: int
    is_early: bool


def tables_of(recipe: PassRecipe) -> dict[int, TableCall]:
    """Return the gradients of tables that a recipe gives, by their places."""
    found = {}
    for place, (kind, number, _) in enumerate(recipe.gives):
        if kind == RESULT and recipe.calls[number][0] == TABLE:
            found[place] = TableCall(*recipe.calls[number][2])
    return found


def load(path: Path) -> PassRecipe:
    """Read a recipe; only plain values and tensors are read."""
    values = torch.load(path, weights_only=True)
    draws = [Draw(**draw) for draw in values["draws"]]
    lookups = LookupRecipe(**values["lookups"])
    return PassRecipe(**values | {"draws": draws, "lookups": lookups})


def no_recipe(reason: str) -> PassRecipe:
    """Return a recipe that says why there is none."""
    return PassRecipe(refused=reason, inputs=0, constants=[], draws=[], calls=[], gives=[], used=[])


class NotCapturable(Exception):
    """A pass cannot be replayed: eager passes go on."""


def in_one_line(error: Exception) -> str:
    """Return the first line of an error, with its class unless it is ours."""
    first = next(iter(str(error).strip().splitlines()), "")
    return first if isinstance(error, NotCapturable) else f"{type(error).__name__}: {first}"


def leaves_of(samples: Any) -> tuple[list[Tensor], str]:
    """Return the tensors of collated samples, and their form: all that a program depends on.

    Raises:
        NotCapturable: the samples have parts that are neither tensors nor plain values.
    """
    leaves: list[Tensor] = []
    form: list[str] = []
    _look_into(samples, leaves, form)
    return leaves, "".join(form)


def _look_into(value: Any, leaves: list[Tensor], form: list[str]) -> None:
    if isinstance(value, Tensor) and value.is_cpu and value.layout is torch.strided:
        leaves.append(value)
        form.append(_form_of_tensor(value.dtype, value.shape, value.stride()))
    elif type(value) in (list, tuple):
        form.append(f"{type(value).__name__}(")
        for item in value:
            _look_into(item, leaves, form)
        form.append(")")
    elif type(value) is dict:
        for key, item in value.items():
            form.append(f"{key!r}:")
            _look_into(item, leaves, form)
        form.append("}")
    elif value is None or isinstance(value, (bool, int, float, str)):
        form.append(f"{value!r};")
    else:
        raise NotCapturable(f"samples with a {type(value).__name__}")


@lru_cache(maxsize=1024)  # entries; a step has the same forms as the one before
def _form_of_tensor(dtype: torch.dtype, shape: torch.Size, stride: tuple[int, ...]) -> str:
    return f"{dtype}{tuple(shape)}{stride};"


def with_leaves(samples: Any, leaves: Iterator[Tensor]) -> Any:
    """Return the same samples with other tensors in the place of theirs."""
    match samples:
        case Tensor():
            return next(leaves)
        case dict():
            return {key: with_leaves(item, leaves) for key, item in samples.items()}
        case list() | tuple():
            return type(samples)(with_leaves(item, leaves) for item in samples)
    return samples
