"""Gives away the sums of a rank while its last backward pass still computes others.

A backward pass comes to the gradients of the last layers first. In the last micro-batch of a rank
each of them completes the sum of its block as soon as it is there, along the same tree as ever
(`Accumulator.add_early`), and pieces of a row that are complete are said to be ready. What the
backward pass did not give early, or changed afterwards, is added up when it is done: the bits are
those of an accumulator that gets all at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from brim.train.exchange.accumulate import Accumulator
from brim.train.exchange.layout import RowPiece


class EarlySums:
    """The sums of a rank, of which pieces are ready early.

    Args:
        parameters: whose gradients contributions begin with.
        pieces: of a row; the last has no gradient.
        accumulator: of the rank.
        have_ready: says how many pieces are, from the first.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        pieces: Sequence[RowPiece],
        accumulator: Accumulator,
        have_ready: Callable[[int], None],
    ) -> None:
        self._parameters, self._pieces, self._have_ready = parameters, pieces, have_ready
        self._accumulator = accumulator
        self._seen: dict[int, tuple[Tensor, int]] = {}  # gradients, as they were when they came
        self._is_void = False
        self._missing: list[int] = []  # tensors of each piece
        self._ready = 0
        self._pieces_of: list[list[int]] = [[] for _ in parameters]
        for number, piece in enumerate(pieces[:-1]):
            for index in piece.tensors:
                self._pieces_of[index].append(number)

    @contextlib.contextmanager
    def in_backward(self) -> Iterator[None]:
        """Take gradients as a backward pass gives them, the only one of the last micro-batch."""
        self._seen.clear()
        self._is_void, self._ready = False, 0
        self._missing = [len(piece.tensors) for piece in self._pieces]
        hooks: list[RemovableHandle] = []
        for index, parameter in enumerate(self._parameters):
            register: Any = parameter.register_post_accumulate_grad_hook
            hooks.append(register(partial(self._came, index)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _came(self, index: int, parameter: Tensor) -> None:
        """A gradient is there, for the first time or, where a graph is unusual, once more."""
        gradient = parameter.grad
        if index in self._seen or gradient is None:
            self._is_void = self._is_void or index in self._seen
            return
        if gradient.layout is not torch.strided or gradient.dtype != parameter.dtype:
            return  # what it is to be instead is found out when the pass is done
        with torch.no_grad():
            self._accumulator.add_early(index, gradient)
        self._seen[index] = gradient, gradient._version
        for number in self._pieces_of[index]:
            self._missing[number] -= 1
        ready_before = self._ready
        while self._ready < len(self._missing) - 1 and not self._missing[self._ready]:
            self._ready += 1
        if self._ready > ready_before:
            self._have_ready(self._ready)

    def settle(self) -> bool:
        """Look at the gradients when the backward pass is done, before anybody takes them.

        Returns:
            Whether what was given away is not what they are: a hook of the user's changed one, or
            the pass added to it twice. Then all is added up again.
        """
        is_void = self._is_void or any(
            self._parameters[index].grad is not gradient or gradient._version != version
            for index, (gradient, version) in self._seen.items()
        )
        self._seen.clear()
        if is_void:
            self._accumulator.forget_early()
        return is_void
