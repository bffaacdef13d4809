"""Sources of chance: the global generators of a process, and those that objects keep.

All of them can be read and set.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from brim.domain.seeds import mix

Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_SHORT = 100  # a longer list or dict holds data, not transforms
_DEPTH = 8


def own_generators(*things: Any) -> list[Generator]:
    """Return the generators that these objects keep, in attributes or further down.

    Each appears once, in the order in which they are found.

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
        if not _says_its_class(thing):
            return
        if isinstance(thing, _KINDS):
            found[id(thing)] = thing
            return
        for part in _parts(thing):
            look(part, depth + 1)

    for thing in things:
        look(thing, 0)
    return list(found.values())


def _says_its_class(thing: Any) -> bool:
    """Return whether an object can be asked for its class; those of numpy's open archives cannot."""
    try:
        thing.__class__  # noqa: B018 - asking is how one learns it
    except Exception:  # noqa: BLE001 - whatever its own lookup raises
        return False
    return True


def _parts(thing: Any) -> Iterator[Any]:
    """Yield the parts of an object that may draw random numbers."""
    match thing:
        case Tensor() | np.ndarray() | nn.Module() | ModuleType() | type() | str() | bytes() | None:
            return
        case dict():  # not each mapping: some read a file for their values
            yield from dict.values(thing) if dict.__len__(thing) <= _SHORT else ()
        case list() | tuple() | set():  # what a class of others makes of its length is its own
            kind: Any = next(kind for kind in (list, tuple, set) if isinstance(thing, kind))
            yield from kind.__iter__(thing) if kind.__len__(thing) <= _SHORT else ()
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
        derived = mix(seed, number)
        match generator:
            case torch.Generator():
                generator.manual_seed(derived)
            case np.random.Generator():
                bits: Any = generator.bit_generator
                bits.state = type(bits)(derived).state
            case np.random.RandomState():
                generator.seed(derived & 0xFFFFFFFF)
            case random.Random():
                generator.seed(derived)


def seed_host(seed: int) -> None:
    """Seed the host's default generators: torch's, Python's `random` and numpy's."""
    # torch.manual_seed takes 140 µs: it asks for devices each time.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def seed_everything(seed: int) -> None:
    """All sources of chance that a micro-batch may draw from."""
    seed_host(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


class Sources:
    """The global sources of chance, and the generators that a network and its optimizers keep.

    Args:
        model: the network; those in the attributes of its modules.
        drawers: objects with generators in their attributes.

    >>> class Noisy(nn.Module):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.generator = torch.Generator()
    >>> model = Noisy()
    >>> sources = Sources(model)
    >>> sources.seed(7); first = torch.rand(1, generator=model.generator)
    >>> sources.seed(7); bool(first == torch.rand(1, generator=model.generator))
    True
    """

    def __init__(self, model: nn.Module, *drawers: object) -> None:
        things = [*model.modules(), *drawers]
        self._generators = own_generators(*(vars(thing) for thing in things))

    def seed(self, seed: int) -> None:
        """Restart every source from this 64-bit seed."""
        seed_everything(seed)
        if self._generators:
            seed_generators(self._generators, seed)


class Chance:
    """The randomness of an occasional drawer, independent of draws between.

    Args:
        seed: where it starts.

    >>> coin = Chance(0)
    >>> with coin.drawing(): first = random.random()
    >>> with coin.drawing(): second = random.random()
    >>> seed_host(0)
    >>> (random.random(), random.random()) == (first, second)
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed
        self._state: Any = None

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Draw from this chance in here; outside, the process goes on with its own."""
        process_state = _state()
        if self._seed is None:
            _go_on_from(self._state)
        else:
            seed_host(self._seed)
            self._seed = None
        try:
            yield
        finally:
            self._state = _state()
            _go_on_from(process_state)


def _state() -> Any:
    return torch.default_generator.get_state(), random.getstate(), np.random.get_state()


def _go_on_from(state: Any) -> None:
    of_torch, of_python, of_numpy = state
    torch.default_generator.set_state(of_torch)
    random.setstate(of_python)
    np.random.set_state(of_numpy)
