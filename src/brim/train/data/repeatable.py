"""Whether data gives the same when it is read again, and what it draws from when it does not by
itself.

A sample is read by whoever computes its micro-batch, and again where that is done again. So the
generators that data keeps for itself are found and seeded like the global ones; what still differs
is refused before it spoils a result.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from brim.domain.seeds import mix
from brim.train.layout import memory_of

Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_SHORT = 100  # a longer list or dict holds data, not transforms
_DEPTH = 8


def own_generators(*things: Any) -> list[Generator]:
    """The generators that these keep, in attributes or further down; each once, in the order in
    which they are found.

    >>> flip = functools.partial(print, random.Random(3))
    >>> len(own_generators({"transforms": [flip, flip]}))
    1
    """
    found: dict[int, Generator] = {}
    seen: set[int] = set()

    def look(thing: Any, depth: int) -> None:
        if id(thing) in seen or depth > _DEPTH:
            return
        seen.add(id(thing))
        if isinstance(thing, _KINDS):
            found[id(thing)] = thing
            return
        for part in _parts(thing):
            look(part, depth + 1)

    for thing in things:
        look(thing, 0)
    return list(found.values())


def _parts(thing: Any) -> Iterator[Any]:
    """What something is made of, as far as it may draw."""
    match thing:
        case Tensor() | np.ndarray() | nn.Module() | ModuleType() | type() | str() | bytes() | None:
            return
        case Mapping():
            yield from thing.values() if len(thing) <= _SHORT else ()
        case list() | tuple() | set():
            yield from thing if len(thing) <= _SHORT else ()
        case functools.partial():
            yield from (thing.func, *thing.args, *thing.keywords.values())
        case MethodType() | BuiltinMethodType():
            yield thing.__self__
        case FunctionType():
            yield from (cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell))
    yield from getattr(thing, "__dict__", {}).values()


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asking is how one learns it
    except ValueError:
        return False
    return True


def seed_generators(generators: list[Generator], seed: int) -> None:
    """Seed each with a seed of its own."""
    for number, generator in enumerate(generators):
        own = mix(seed, number)
        match generator:
            case torch.Generator():
                generator.manual_seed(own)
            case np.random.Generator():
                bits: Any = generator.bit_generator
                bits.state = type(bits)(own).state
            case np.random.RandomState():
                generator.seed(own & 0xFFFFFFFF)
            case random.Random():
                generator.seed(own)


def is_same(one: Any, other: Any) -> bool:
    """Whether two collated samples are equal, as far as can be told: what is of an unknown kind
    counts as equal.

    >>> is_same({"a": [torch.tensor([1.0, torch.nan])]}, {"a": [torch.tensor([1.0, torch.nan])]})
    True
    >>> is_same((torch.zeros(2), "a"), (torch.zeros(2), "b"))
    False
    """
    if type(one) is not type(other):
        return False
    match one:
        case Tensor():
            return (
                one.shape == other.shape
                and one.dtype == other.dtype
                and _has_same_numbers(one, other)
            )
        case np.ndarray():
            return (
                is_same(torch.from_numpy(one), torch.from_numpy(other))
                if one.dtype.kind in "biuf"
                else True
            )
        case Mapping():
            return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
        case list() | tuple():
            return len(one) == len(other) and all(map(is_same, one, other))
        case bool() | int() | float() | str() | bytes():
            return one == other or one != one
    return True


def digest_of(sample: Any) -> str:
    """What tells a collated sample from others, 16 hex digits; what is of an unknown kind counts
    for nothing.

    >>> digest_of({"a": [torch.zeros(2)]}) == digest_of({"a": [torch.zeros(2)]})
    True
    >>> digest_of(torch.zeros(2)) == digest_of(torch.ones(2))
    False
    """
    digest = xxhash.xxh3_64()

    def take(part: Any) -> None:
        match part:
            case Tensor() if part.layout is torch.strided and not part.is_nested:
                digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
                digest.update(memory_of(part.detach().cpu().contiguous()))
            case np.ndarray() if part.dtype.kind in "biufc":
                digest.update(f"{part.dtype} {part.shape}".encode())
                digest.update(np.ascontiguousarray(part).data)
            case Mapping():
                for key in part:
                    take(key)
                    take(part[key])
            case list() | tuple():
                for each in part:
                    take(each)
            case bool() | int() | float() | str() | bytes():
                digest.update(repr(part).encode())

    take(sample)
    return digest.hexdigest()


def _has_same_numbers(one: Tensor, other: Tensor) -> bool:
    if one.layout is not torch.strided or one.is_nested:
        return True
    return bool(((one == other) | ((one != one) & (other != other))).all())
