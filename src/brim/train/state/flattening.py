"""A tree of state as plain JSON data and a list of tensors, and back.

Everything that a state may hold has its notation here: what newcomers get, what checkpoints hold
and what workers compare is the same tree.

A tensor comes back with its strides. Values alone are not enough: the eigenvectors that LAPACK
returns lie in memory by columns, and a product that finds them by rows adds in another order, so a
resumed run would end with other bits.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from brim.decoding import UNDECODABLE

_TENSOR, _STRIDED, _WRAPPED = "$tensor", "$strided", "$wrapped"
_ITEMS, _TUPLE = "$items", "$tuple"
_MOST_GAPS = 64  # times as much memory as its numbers that a tensor with gaps may take
_FACTORIES: dict[str, Callable[[], Any]] = {
    kind.__name__: kind for kind in (bool, dict, float, int, list, set, tuple)
}
# What reading a tree raises that nobody meant: torch's own errors, of impossible shapes, are
# RuntimeErrors, and classes of tensors assert what they need.
UNREADABLE = (
    LookupError, TypeError, AttributeError, OverflowError, RuntimeError, AssertionError, *UNDECODABLE
)  # fmt: skip
NEED = "tensors, numpy arrays, numbers, text, and lists, sets and dicts of them"


class NotCarried(TypeError):
    """A part of a state that is neither plain data nor tensors.

    Attributes:
        path: keys that lead to it.
        actual: it, in words.
    """

    def __init__(self, path: tuple[str, ...], actual: str) -> None:
        super().__init__(
            f"a state may hold {NEED}, not {actual}" + f" at {'.'.join(path)}" * bool(path)
        )
        self.path, self.actual = path, actual


def flatten(tree: Any, *, strides: bool = True) -> tuple[Any, list[Tensor]]:
    """Split a tree into plain JSON data and its tensors.

    A tensor that hangs in several places is listed once.

    Args:
        tree: dicts, lists and the like, with tensors and plain data at the leaves.
        strides: note how tensors lie in memory; False where values alone count.

    Raises:
        NotCarried: a leaf is neither plain data nor a tensor.

    >>> flatten({"lr": 0.1, "step": (torch.tensor(3), None)})[0]
    {'lr': 0.1, 'step': {'$tuple': [{'$tensor': 0}, None]}}
    >>> flatten(torch.zeros(2, 3).t())[0]
    {'$strided': [0, [1, 3]]}
    """
    flattening = _Flattening(strides=strides)
    return flattening.plain(tree, ()), flattening.tensors


def unflatten(skeleton: Any, tensors: list[Tensor]) -> Any:
    """The inverse of `flatten`; raises one of `UNREADABLE` where these are no tree."""
    return _Unflattening(tensors).value(skeleton)


class _Flattening:
    def __init__(self, *, strides: bool) -> None:
        self._strides = strides
        self.tensors: list[Tensor] = []
        self._places: dict[int, int] = {}

    def plain(self, node: Any, path: tuple[str, ...]) -> Any:
        match node:
            case Tensor():
                return self._tensor(node, path)
            case np.generic():
                return {"$scalar": [node.dtype.str, self.plain(node.item(), path)]}
            case np.ndarray():
                return {"$array": self._array(node, path)}
            case Enum():
                return {"$enum": [*_name_of(type(node), path), node.name]}
            case None | bool() | int() | float() | str():
                return node
            case dict():
                return self._dict(node, path)
            case list() if type(node) is list:
                return self._all_parts(node, path)
            case torch.Size():
                return {"$size": list(node)}
            case tuple() if type(node) is tuple:
                return {_TUPLE: self._all_parts(node, path)}
            case tuple():
                return {"$record": [*_name_of(type(node), path), *self._all_parts(node, path)]}
            case set() | frozenset():
                # In an order of their own: that of a set is another in each process.
                parts = sorted(self._all_parts(node, path), key=json.dumps)
                return {"$frozenset" if isinstance(node, frozenset) else "$set": parts}
            case deque():
                return {"$deque": [node.maxlen, *self._all_parts(node, path)]}
            case complex():
                return {"$complex": [node.real, node.imag]}
            case bytes() | bytearray():
                return {f"${type(node).__name__}": node.hex()}
            case torch.dtype():
                return {"$dtype": str(node).removeprefix("torch.")}
            case torch.device():
                return {"$device": str(node)}
        if is_record_of_values(type(node)):
            return {"$object": [*_name_of(type(node), path), self._dict(vars(node), path)]}
        raise NotCarried(path, f"a {type(node).__qualname__} ({_description(node)})")

    def _all_parts(self, parts: Any, path: tuple[str, ...]) -> list[Any]:
        return [self.plain(part, (*path, str(place))) for place, part in enumerate(parts)]

    def _dict(self, node: dict[Any, Any], path: tuple[str, ...]) -> Any:
        if type(node) is dict and all(
            isinstance(key, str) and not key.startswith("$") for key in node
        ):
            return {key: self.plain(value, (*path, key)) for key, value in node.items()}
        items = [
            [self.plain(key, path), self.plain(value, (*path, str(key)))]
            for key, value in node.items()
        ]
        if isinstance(node, OrderedDict):
            return {"$ordered": items}
        if isinstance(node, defaultdict):
            factory = next((n for n, f in _FACTORIES.items() if f is node.default_factory), None)
            if factory is not None:
                return {"$defaults": [factory, items]}
        return {_ITEMS: items}

    def _array(self, node: Any, path: tuple[str, ...]) -> Any:
        try:
            forwards = all(stride >= 0 for stride in node.strides)
            tensor = torch.from_numpy(node if forwards else np.ascontiguousarray(node))
        except (TypeError, ValueError):
            raise NotCarried(path, f"a numpy array of {node.dtype}") from None
        return self._tensor(tensor, path)

    def _tensor(self, tensor: Tensor, path: tuple[str, ...]) -> Any:
        if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) and not _is_values(tensor):
            return self._of_own_kind(tensor, path)
        if tensor.layout is torch.sparse_coo:
            parts = [tensor.detach()._indices(), tensor.detach()._values()]
            inner = [self._tensor(part, path) for part in parts]
            return {"$sparse": [*inner, list(tensor.shape), tensor.is_coalesced()]}
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            unsupported = tensor.layout if tensor.layout is not torch.strided else tensor.dtype
            raise NotCarried(path, f"a tensor of kind {'meta' if tensor.is_meta else unsupported}")
        place = self._places.get(id(tensor), len(self.tensors))
        if place == len(self.tensors):
            self.tensors.append(tensor)  # so that its id stays its own
            self._places[id(tensor)] = place
        is_usual = tensor.stride() == _c_order(tensor.shape)
        if not self._strides or is_usual or not keeps_strides(tensor):
            return {_TENSOR: place}
        return {_STRIDED: [place, list(tensor.stride())]}

    def _of_own_kind(self, tensor: Any, path: tuple[str, ...]) -> Any:
        """The notation of a subclass: torch's protocol for those that consist of other tensors."""
        kind = type(tensor)
        if not (hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")):
            raise NotCarried(path, f"a tensor of the class {kind.__module__}.{kind.__qualname__}")
        names, metadata = tensor.__tensor_flatten__()
        inner = {name: self.plain(getattr(tensor, name), (*path, name)) for name in names}
        plain_metadata = self.plain(metadata, path)
        size = [list(tensor.shape), list(tensor.stride())]
        return {_WRAPPED: [*_name_of(kind, path), inner, plain_metadata, *size]}


class _Unflattening:
    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._laid_out: dict[int, Tensor] = {}

    def value(self, skeleton: Any) -> Any:
        match skeleton:
            case dict() if len(skeleton) == 1 and next(iter(skeleton)).startswith("$"):
                ((notation, content),) = skeleton.items()
                return self._noted(notation, content)
            case dict():
                return {key: self.value(part) for key, part in skeleton.items()}
            case list():
                return [self.value(part) for part in skeleton]
        return skeleton

    def _noted(self, notation: str, content: Any) -> Any:
        match notation, content:
            case "$tensor", place:
                return self._tensors[place]
            case "$strided", [place, strides]:
                if place not in self._laid_out:
                    self._laid_out[place] = _laid_out(self._tensors[place], strides)
                return self._laid_out[place]
            case "$sparse", [indices, values, shape, is_coalesced]:
                return torch.sparse_coo_tensor(
                    self.value(indices),
                    self.value(values),
                    shape,
                    check_invariants=True,
                    is_coalesced=is_coalesced,
                )
            case "$wrapped", [module, name, inner, metadata, shape, strides]:
                kind: Any = _class_of(module, name, Tensor)
                parts = {key: self.value(part) for key, part in inner.items()}
                size = torch.Size(shape), tuple(strides)
                return kind.__tensor_unflatten__(parts, self.value(metadata), *size)
            case "$items", items:
                return dict(self._pairs(items))
            case "$ordered", items:
                return OrderedDict(self._pairs(items))
            case "$defaults", [factory, items]:
                return defaultdict(_FACTORIES[factory], self._pairs(items))
            case "$tuple", parts:
                return tuple(map(self.value, parts))
            case "$record", [module, name, *parts]:
                record: Any = _class_of(module, name, tuple)
                return getattr(record, "_make", record)([self.value(part) for part in parts])
            case "$set" | "$frozenset", parts:
                return (set if notation == "$set" else frozenset)(map(self.value, parts))
            case "$deque", [maximum_length, *parts]:
                return deque(map(self.value, parts), maximum_length)
            case "$size", sizes:
                return torch.Size(sizes)
            case "$enum", [module, name, member]:
                kinds: Any = _class_of(module, name, Enum)
                return kinds[member]
            case "$array", part:
                return self.value(part).numpy()
            case "$scalar", [kind, part]:
                return np.dtype(kind).type(self.value(part))
            case "$complex", [real, imaginary]:
                return complex(real, imaginary)
            case "$bytes", text:
                return bytes.fromhex(text)
            case "$bytearray", text:
                return bytearray.fromhex(text)
            case "$object", [module, name, parts]:
                return _with_values(_class_of(module, name, object), self.value(parts))
            case "$dtype", name:
                return _dtype_of(name)
            case "$device", name:
                return torch.device(name)
        raise ValueError(f"{notation} is not a part of a state")

    def _pairs(self, items: Any) -> Iterator[tuple[Any, Any]]:
        return ((self.value(key), self.value(part)) for key, part in items)


# Memory -------------------------------------------------------------------------------------------


def keeps_strides(tensor: Tensor) -> bool:
    """Return whether a tensor is carried with its strides: none is expanded, or mostly gaps."""
    return _can_be_laid_out(tensor.shape, tensor.stride())


def _is_values(tensor: Tensor) -> bool:
    """Return whether a tensor of another class is a parameter with memory of its own.

    The network keeps the parameter, of whatever class, and takes over values alone.
    """
    kind: Any = type(tensor)
    return (
        isinstance(tensor, nn.Parameter)
        and kind.__torch_dispatch__ is Tensor.__torch_dispatch__
        and not hasattr(kind, "__tensor_flatten__")
    )


def copy_of(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a tensor on a device, with its type and its strides."""
    if not keeps_strides(tensor):
        return tensor.detach().to(device, copy=True)
    copied = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return copied.copy_(tensor.detach())


def _laid_out(values: Tensor, strides: list[int]) -> Tensor:
    """Return these values in memory of these strides."""
    if not _can_be_laid_out(values.shape, strides):
        raise ValueError(f"strides {strides} for the shape {list(values.shape)}")
    return values.new_empty_strided(values.shape, strides).copy_(values)


def _can_be_laid_out(shape: torch.Size, strides: Any) -> bool:
    """Return whether each number has a place of its own, in not much more memory than they need."""
    if len(strides) != len(shape) or any(
        type(stride) is not int or stride < 0 for stride in strides
    ):
        return False
    extent = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < extent:
            return False
        extent = stride * (size - 1) + extent
    return extent <= _MOST_GAPS * max(shape.numel(), 1)


def _c_order(shape: torch.Size) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for place in range(len(shape) - 2, -1, -1):
        strides[place] = strides[place + 1] * max(shape[place + 1], 1)
    return tuple(strides)


# Objects ------------------------------------------------------------------------------------------


def is_record_of_values(kind: type) -> bool:
    """Return whether objects of a class are plain values of their attributes.

    Projectors and preconditioners are, that optimizers keep for each parameter. What says itself how
    it is copied or ends is not, nor is anything of Python's own library: a state that somebody else
    wrote must not bring such things to life.
    """
    is_usual = all(
        getattr(kind, name, None) is getattr(object, name, None)
        for name in (
            "__new__",
            "__reduce__",
            "__reduce_ex__",
            "__getstate__",
            "__setstate__",
            "__del__",
        )
    )
    library = kind.__module__.partition(".")[0]
    has_slots = any(vars(base).get("__slots__") for base in kind.__mro__)
    is_foreign = library not in sys.stdlib_module_names and library not in (
        "brim",
        "numpy",
        "torch",
    )
    return (
        type(kind) is type and is_usual and not has_slots and (is_foreign or library == "__main__")
    )


def _with_values(kind: type, values: Any) -> Any:
    if not (is_record_of_values(kind) and isinstance(values, dict)):
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is not a record of values")
    thing: Any = object.__new__(kind)
    vars(thing).update(values)
    return thing


# Names --------------------------------------------------------------------------------------------


def _name_of(kind: type, path: tuple[str, ...]) -> tuple[str, str]:
    """The module and the name by which other processes find a class."""
    try:
        if _class_of(kind.__module__, kind.__qualname__, object) is kind:
            return kind.__module__, kind.__qualname__
    except (LookupError, TypeError):
        pass
    raise NotCarried(path, f"a {kind.__qualname__}, a class that no module has by this name")


def _class_of(module: str, name: str, base: type) -> type:
    """A class that this process has: nothing is imported because a state names it."""
    found = vars(sys.modules[module])[name]
    if not (isinstance(found, type) and issubclass(found, base)):
        raise TypeError(f"{module}.{name} is no {base.__name__}")
    return found


def _dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch.{name} is not a type of numbers")
    return dtype


def _description(node: Any) -> str:
    text = " ".join(repr(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
