"""A job's state to and from the bytes of a checkpoint (`storage/checkpoints.py` has the files)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.storage.checkpoints import Checkpoint
from brim.tensors.file_layout import Bytes, copy_to, lay_out
from brim.train.state.flattening import UNREADABLE, flatten, unflatten
from brim.train.state.frozen import FrozenCopy, FrozenTensors


class Image:
    """A safetensors file in memory that states are copied into, one after the other.

    The file is laid out once; after that, taking a state is one copy of its tensors, and nothing is
    left to serialise.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self._shapes: dict[int, tuple[torch.dtype, torch.Size]] = {}
        self._places: dict[str, Bytes] = {}
        self._copier: ThreadPoolExecutor | None = None

    def take(self, tree: Any) -> Any:
        """Copy a state; the tree without its tensors, which are in `data` under their numbers."""
        skeleton, copied = self.begin(tree, steady=())
        copied.result()
        return skeleton

    @torch.no_grad()
    def begin(
        self,
        tree: Any,
        *,
        steady: Iterable[Tensor],
        frozen: FrozenCopy | None = None,
    ) -> tuple[Any, Future[bytearray]]:
        """Begin to copy a state, beside this thread's next work.

        Args:
            steady: tensors of the state that stay as they are until the copy is done; all others
                are copied at once.
            frozen: takes the tensors that are frozen, which are not in `data` then.

        Returns:
            The tree without its tensors, and `data` once all of them are in it.
        """
        skeleton, tensors = flatten(tree)
        may_wait = {id(tensor) for tensor in steady}
        parts = [_unchanging(tensor, may_wait=id(tensor) in may_wait) for tensor in tensors]
        if self._copier is None:
            self._copier = ThreadPoolExecutor(max_workers=1, thread_name_prefix="brim-copy")
        frozen = frozen or FrozenCopy(FrozenTensors(), {})
        return skeleton, self._copier.submit(self._copy, parts, frozen, frozen.numbers_in(tensors))

    def _copy(
        self, parts: Sequence[Tensor], frozen: FrozenCopy, candidates: Mapping[str, int]
    ) -> bytearray:
        frozen.look({name: parts[number] for name, number in candidates.items()}, candidates)
        numbers = [number for number in range(len(parts)) if number not in frozen.digests]
        shapes = {number: (parts[number].dtype, parts[number].shape) for number in numbers}
        if shapes != self._shapes:
            self._places = {}  # before the memory that they look at
            self.data, self._places = lay_out({str(number): parts[number] for number in numbers})
            self._shapes = shapes
        for number in numbers:
            copy_to(self._places[str(number)], parts[number])
        return self.data


def _unchanging(tensor: Tensor, *, may_wait: bool) -> Tensor:
    """Return a tensor that can be copied later.

    It is the tensor itself where it will wait, else a copy.
    """
    if may_wait and tensor.device.type == "cpu" and tensor.is_contiguous() and not _is_lazy(tensor):
        return tensor.detach()
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def _is_lazy(tensor: Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


class StateCopy:
    """The copy of a state that is being taken.

    Args:
        data: the copy, once it is complete.
        pause: seconds that training stood still for it so far.
        frozen: tensors that are not in `data`, once it is complete.
    """

    def __init__(self, data: Future[bytearray], *, frozen: FrozenCopy, pause: float) -> None:
        self._data, self.frozen, self.pause = data, frozen, pause

    def data(self) -> bytearray:
        """The whole of it, however long it takes."""
        return self._data.result()

    def wait(self) -> None:
        """Stand still until it is complete."""
        started = monotonic()
        self._data.result()
        self.pause += monotonic() - started


def state_of(checkpoint: Checkpoint) -> Any:
    """The state that was written.

    Raises:
        EnvironmentFault: it is none; a writer of another version, or of another program, made it.
    """
    try:
        tensors = {int(number): part for number, part in load(bytes(checkpoint.data)).items()}
        for part, data in zip(checkpoint.frozen, checkpoint.frozen_data, strict=True):
            stored = load(bytes(data))
            tensors |= {number: stored[digest] for number, digest in part.tensors}
        return unflatten(checkpoint.tree, [tensors[number] for number in range(len(tensors))])
    except (SafetensorError, *UNREADABLE) as error:
        raise EnvironmentFault(
            f"the checkpoint of step {checkpoint.step} holds no state: {error}"
        ) from error
