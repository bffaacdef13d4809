"""The state of the last commit, in memory that all workers of a host share.

A worker that dies leaves it whole.

It has two slots. A turn writes the one that does not hold the last commit; the commit itself is the
hub's. So there is always a whole image of the state that counts, and where the turn did not count,
the other slot is that of before.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from brim.errors import EnvironmentFault, InternalError
from brim.host.clock import monotonic, sleep
from brim.tensors.raw import ALIGNMENT
from brim.train.state.flattening import flatten, unflatten

_PAGE = mmap.PAGESIZE
_ROUND, _HEADS = 0, 1  # words of the first page: whose turns count, then the heads of the slots
_STEP, _OFFSET, _CAPACITY, _HEADER = range(
    4
)  # words of a head; the step is counted from 1, 0 means an empty slot
_HEAD = 4
_POLL_INTERVAL = 0.001


class Home:
    """The state that the workers of a host share.

    Args:
        descriptor: of an anonymous file, which grows as it is needed.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        # Never unmapped: closing a descriptor of a file gives up the locks that a process has on
        # it.
        self._maps: dict[tuple[int, int], Tensor] = {}
        if os.fstat(descriptor).st_size < _PAGE:
            os.ftruncate(descriptor, _PAGE)
        self._words = self._map(0, _PAGE)[: 8 * (_HEADS + 2 * _HEAD)].view(torch.int64)

    @property
    def round(self) -> int:
        """The round whose turns count; 0 where none do."""
        return int(self._words[_ROUND])

    @round.setter
    def round(self, round: int) -> None:
        self._words[_ROUND] = round

    @property
    def newest(self) -> int:
        """The last step that is here."""
        return max(int(self._head(slot)[_STEP]) for slot in range(2)) - 1

    @contextlib.contextmanager
    def locked(self, *, patience: float) -> Iterator[None]:
        """Be the only process that changes the shared state.

        The kernel frees the lock of one that dies.

        Args:
            patience: seconds to wait for another.

        Raises:
            EnvironmentFault: it does not let go.
        """
        deadline = monotonic() + patience
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):
                if monotonic() > deadline:
                    raise EnvironmentFault(
                        "another worker of this host does not end its turn"
                    ) from None
                sleep(_POLL_INTERVAL)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def begin(self, tree: Any, step: int) -> None:
        """Store this state and no other.

        No other process may use this memory meanwhile.
        """
        for slot in range(2):
            self._head(slot)[_STEP] = 0
        self._write(0, tree, step)

    def store(self, tree: Any, step: int) -> None:
        """Store this state beside that of the step before it."""
        self._write(1 if int(self._head(0)[_STEP]) == step else 0, tree, step)

    def load(self, step: int) -> Any:
        """Return a copy of the state after so many steps; raises as `view` does."""
        skeleton, tensors = self.view(step)
        return unflatten(skeleton, [tensor.clone() for tensor in tensors])

    def view(self, step: int) -> tuple[Any, list[Tensor]]:
        """Return the state after so many steps as `flatten` gives it.

        Its tensors are views of this memory.

        Raises:
            InternalError: it is not here.
        """
        for slot in range(2):
            state_step, offset, capacity, header = self._head(slot).tolist()
            if state_step == step + 1:
                memory = self._map(offset, capacity)
                skeleton, specs = json.loads(bytes(memory[:header].numpy()))
                return skeleton, _views(memory, header, specs)
        raise InternalError(f"the state after step {step} is not in the workers' shared memory")

    def _head(self, slot: int) -> Tensor:
        start = _HEADS + _HEAD * slot
        return self._words[start : start + _HEAD]

    @torch.no_grad()
    def _write(self, slot: int, tree: Any, step: int) -> None:
        skeleton, tensors = flatten(tree)
        specs = [
            [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in tensors
        ]
        header = json.dumps([skeleton, specs]).encode()
        size = _end(len(header), tensors)
        head = self._head(slot)
        head[_STEP] = 0  # first: half an image is none
        if int(head[_CAPACITY]) < size:
            self._make_room(head, size)
        memory = self._map(int(head[_OFFSET]), int(head[_CAPACITY]))
        memory[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        views = _views(memory, len(header), specs)
        if views:
            torch._foreach_copy_(views, [tensor.detach() for tensor in tensors])
        head[_HEADER] = len(header)
        head[_STEP] = step + 1  # last

    def _make_room(self, head: Tensor, size: int) -> None:
        """Give a slot a new place behind all others.

        The place of the last commit must stay as it is.
        """
        capacity = -(-(size + size // 4) // _PAGE) * _PAGE
        offset = os.fstat(self._file).st_size
        try:
            os.ftruncate(self._file, offset + capacity)
        except OSError as error:
            raise EnvironmentFault(
                f"no memory for the state of the job, {capacity:,} bytes: {error}"
            ) from error
        head[_OFFSET], head[_CAPACITY] = offset, capacity

    def _map(self, offset: int, size: int) -> Tensor:
        if (offset, size) not in self._maps:
            mapped = mmap.mmap(self._file, size, offset=offset)
            self._maps[offset, size] = torch.frombuffer(mapped, dtype=torch.uint8)
        return self._maps[offset, size]


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _end(header: int, tensors: list[Tensor]) -> int:
    return _aligned(header) + sum(
        _aligned(tensor.numel() * tensor.element_size()) for tensor in tensors
    )


def _views(memory: Tensor, header: int, specs: list[Any]) -> list[Tensor]:
    """The tensors of an image, in its own memory."""
    views, offset = [], _aligned(header)
    for name, shape in specs:
        dtype = getattr(torch, name)
        size = dtype.itemsize * torch.Size(shape).numel()
        views.append(memory[offset : offset + size].view(dtype).view(shape))
        offset += _aligned(size)
    return views
