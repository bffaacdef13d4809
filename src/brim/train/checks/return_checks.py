"""Checks of the results of a training file's functions.

If not, that is said in four parts, before training.

What is of the wrong kind would fail later, in a traceback through brim and torch that does not say
what to change; or not at all, as a model that is never called. Only types are looked at, and one
sample.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from brim.errors import SpecError

_NEED = "a dataset with a length: dataset[i] is a pair (inputs, target)"
_TENSORS = "torch.utils.data.TensorDataset(inputs, target), of two tensors"
_FUNCTIONS = {
    "model": "def model(): ...",
    "dataset": "def dataset(split): ...",
    "loss": "def loss(output, target): ...",
    "optimizer": "def optimizer(model): ...",
}


class _WrongKind(NamedTuple):
    """A type that people return where a dataset is needed, and its replacement."""

    is_it: Callable[[Any], bool]
    got: Callable[[Any], str]
    hint: str


def _is_pair_of_arrays(thing: Any) -> bool:
    return (
        isinstance(thing, tuple | list)
        and len(thing) == 2
        and all(isinstance(item, Tensor | np.ndarray) and item.ndim >= 1 for item in thing)
        and len(thing[0]) == len(thing[1]) != 2
    )


def _is_a(module: str, *names: str) -> Callable[[Any], bool]:
    """Return a test for a class of a package that need not be installed."""

    def is_it(thing: Any) -> bool:
        return any(
            base.__module__.partition(".")[0] == module and base.__name__ in names
            for base in type(thing).__mro__
        )

    return is_it


def _type(thing: Any) -> str:
    name = f"{type(thing).__module__.partition('.')[0]}.{type(thing).__name__}".removeprefix(
        "builtins."
    )
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _shaped(thing: Any) -> str:
    return f"{_type(thing)} of shape {list(thing.shape)}"


# The first that fits is said.
_KINDS = (
    _WrongKind(
        lambda thing: thing is None,
        lambda _: "None",
        "does every path of the function end in a return?",
    ),
    _WrongKind(
        inspect.isclass,
        lambda thing: f"the class {thing.__name__}",
        "return an object of it: call the class",
    ),
    _WrongKind(
        inspect.isroutine,
        lambda thing: f"the function {thing.__name__}",
        "return what it gives: call it",
    ),
    _WrongKind(
        lambda thing: isinstance(thing, str | Path),
        lambda thing: f"the path {str(thing)!r}",
        "brim.data.csv(path, columns=[...], target=...) reads a file",
    ),
    _WrongKind(
        _is_a("pandas", "DataFrame", "Series"),
        _shaped,
        'TensorDataset(torch.tensor(df[["a", "b"]].to_numpy("float32")), '
        'torch.tensor(df["y"].to_numpy()))',
    ),
    _WrongKind(
        _is_a("polars", "DataFrame", "LazyFrame", "Series"),
        _type,
        "df.to_arrow() and brim.data.arrow, or " + _TENSORS,
    ),
    _WrongKind(
        _is_pair_of_arrays, lambda thing: f"a {type(thing).__name__} of two arrays", _TENSORS
    ),
    _WrongKind(lambda thing: isinstance(thing, Tensor | np.ndarray), _shaped, _TENSORS),
    _WrongKind(
        lambda thing: isinstance(thing, Mapping),
        lambda thing: f"{_type(thing)} with {', '.join(map(repr, list(thing)[:4])) or 'nothing'}",
        "return the part that was asked for: data[split]",
    ),
    _WrongKind(
        _is_a("torchdata", "BaseNode"),
        _type,
        "brim.data.stream(torchdata.nodes.Loader(node), samples=…)",
    ),
    _WrongKind(
        lambda thing: (
            isinstance(thing, Iterable)
            and not isinstance(thing, Iterator | Sized)
            and not hasattr(thing, "__getitem__")
        ),
        lambda thing: f"{_type(thing)}, which can only be iterated",
        "brim.data.stream(data, samples=…)",
    ),
    _WrongKind(
        lambda thing: isinstance(thing, Iterator),
        _type,
        "samples are read in an order of brim's: list(...) keeps them, if they fit into memory",
    ),
    _WrongKind(
        lambda thing: not (isinstance(thing, Sized) and hasattr(thing, "__getitem__")),
        lambda thing: f"{_type(thing)} without __len__ or __getitem__",
        "class Data(torch.utils.data.Dataset), with __len__(self) and __getitem__(self, index)",
    ),
)


def check_functions(module: ModuleType, path: str) -> None:
    """Check that a training file, run, has its functions.

    They may come by `from other import *`.

    Raises:
        SpecError: it lacks one, or has something else by its name.
    """
    for name, example in _FUNCTIONS.items():
        found = getattr(module, name, None)
        if not callable(found):
            actual = f"no function {name!r}" if found is None else f"{name} = {_type(found)}"
            raise SpecError(path, got=actual, need=f"a function {name}", hint=example)


def check_dataset(dataset: Any, split: str) -> None:
    """Check the result of `dataset(split)`.

    Args:
        split: `train`, whose samples are needed, or another, which may be None or empty.

    Raises:
        SpecError: it is no dataset, has no samples, or samples that cannot be made into batches.
    """
    field = f"dataset({split!r})"
    if (dataset is None and split != "train") or isinstance(dataset, DataLoader | IterableDataset):
        return  # what is wrong with these two a Feed says
    for kind in _KINDS:
        if kind.is_it(dataset):
            raise SpecError(field, got=kind.got(dataset), need=_NEED, hint=kind.hint)
    if len(dataset):
        # Who gathers whole batches has made them; and a file would be read for it.
        if not hasattr(dataset, "take") or hasattr(dataset, "__getitems__"):
            _check_sample(dataset[0], field)
    elif split == "train":
        raise SpecError(
            field, got="no samples", need="at least one", hint="print(len(...)) what it reads"
        )


def _check_sample(sample: Any, field: str) -> None:
    """Refuse a sample that torch cannot collate, or collates into a form no model takes."""
    if isinstance(sample, Mapping):
        return  # what a model does not take of it may be anything
    need = "a pair (inputs, target) of tensors, arrays or numbers"
    for leaf in _leaves(sample):
        if isinstance(leaf, str):
            actual, hint = (
                f"the text {leaf[:30]!r}",
                "numbers in place of text: a tokenizer's ids, a label's index",
            )
        elif leaf is None:
            actual, hint = "None", "a value for every sample: torch cannot make batches of None"
        elif _is_a("PIL", "Image")(leaf):
            actual, hint = "a PIL image", "transform=torchvision.transforms.ToTensor()"
        else:
            continue
        raise SpecError(f"{field}[0]", got=f"{actual} in the sample", need=need, hint=hint)


def _leaves(sample: Any) -> Iterator[Any]:
    if not isinstance(sample, tuple | list):
        yield sample
        return
    for part in sample:
        yield from _leaves(part)


def check_model(model: Any) -> None:
    """Raises SpecError where `model()` gave no network."""
    if isinstance(model, nn.Module):
        return
    actual, hint = _type(model), "return a torch.nn.Module"
    if model is None:
        actual, hint = "None", "does every path of the function end in a return?"
    elif inspect.isclass(model):
        actual, hint = (
            f"the class {model.__name__}",
            f"return {model.__name__}(...), an object of it",
        )
    elif isinstance(model, Mapping) and any(
        isinstance(output, Tensor) for output in model.values()
    ):
        actual, hint = (
            "a state_dict",
            "make the network, then network.load_state_dict(...), and return the network",
        )
    elif isinstance(model, tuple | list) and any(isinstance(item, nn.Module) for item in model):
        actual, hint = (
            f"{_type(model)} of networks",
            "torch.nn.Sequential(...), or a Module that has them all",
        )
    raise SpecError("model()", got=actual, need="a torch.nn.Module", hint=hint)


def check_metrics(
    metrics: Any,
    *,
    field: str = "metrics()",
    example: str = 'return {"accuracy": brim.metrics.accuracy()}',
) -> None:
    """Check that metrics by name were given.

    Args:
        metrics: that a function returned, or a call was given.
        field: that an error names.
        example: that its hint shows.

    Raises:
        SpecError: they are something else.
    """
    if not isinstance(metrics, Mapping):
        actual = "None" if metrics is None else _type(metrics)
        raise SpecError(field, got=actual, need="a dict of metrics by name", hint=example)
    for name, metric in metrics.items():
        if inspect.isclass(metric) or not (
            hasattr(metric, "observe") and hasattr(metric, "result")
        ):
            actual = f"{getattr(metric, '__name__', type(metric).__name__)} as {name!r}"
            need = "an object with observe(output, target) and result(states)"
            if inspect.isfunction(metric):
                need += ": a function's values of parts do not add up to that of the whole"
            raise SpecError(field, got=actual, need=need, hint=example)
