"""Chance: the generators that a process draws from unless told otherwise, and how they are set."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from brim.train.data.repeatable import own_generators, seed_generators


def seed_host(seed: int) -> None:
    """Seed what code on the host draws from by default: torch, Python's `random` and numpy."""
    torch.default_generator.manual_seed(
        seed
    )  # torch.manual_seed takes 140 µs: it asks for devices each time
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def seed_everything(seed: int) -> None:
    """All sources of chance that a micro-batch may draw from."""
    seed_host(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


class Sources:
    """The global sources of chance, and the generators that a network keeps in attributes of its
    modules.

    Args:
        model: the network.

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

    def __init__(self, model: nn.Module) -> None:
        self._generators = own_generators(*(vars(module) for module in model.modules()))

    def seed(self, seed: int) -> None:
        """Start every source anew from this 64-bit seed."""
        seed_everything(seed)
        if self._generators:
            seed_generators(self._generators, seed)


class Chance:
    """The chance of something that draws now and then and must not notice who drew between.

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
        outside = _state()
        if self._seed is None:
            _go_on_from(self._state)
        else:
            seed_host(self._seed)
            self._seed = None
        try:
            yield
        finally:
            self._state = _state()
            _go_on_from(outside)


def _state() -> Any:
    return torch.default_generator.get_state(), random.getstate(), np.random.get_state()


def _go_on_from(state: Any) -> None:
    of_torch, of_python, of_numpy = state
    torch.default_generator.set_state(of_torch)
    random.setstate(of_python)
    np.random.set_state(of_numpy)
