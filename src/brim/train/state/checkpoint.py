"""A job's state to and from the bytes of a checkpoint (`storage/checkpoints.py` has the files)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


class Image:
    """A safetensors file in memory that states are copied into, one after the other.

    The file is laid out once; after that, taking a state is one copy of its tensors, and nothing is
    left to serialise.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self._shapes: list[tuple[torch.dtype, torch.Size]] = []
        self._places: list[Bytes] = []
        self._copier: ThreadPoolExecutor | None = None

    def take(self, tree: Any) -> Any:
        """Copy a state; the tree without its tensors, which are in `data` under their numbers."""
        skeleton, copied = self.begin(tree, steady=())
        copied.result()
        return skeleton

    @torch.no_grad()
    def begin(self, tree: Any, *, steady: Iterable[Tensor]) -> tuple[Any, Future[bytearray]]:
        """Begin to copy a state, beside this thread's next work.

        Args:
            steady: tensors of the state that stay as they are until the copy is done; all others
                are copied at once.

        Returns:
            The tree without its tensors, and `data` once all of them are in it.
        """
        skeleton, tensors = flatten(tree)
        may_wait = {id(tensor) for tensor in steady}
        parts = [_unchanging(tensor, may_wait=id(tensor) in may_wait) for tensor in tensors]
        if self._copier is None:
            self._copier = ThreadPoolExecutor(max_workers=1, thread_name_prefix="brim-copy")
        return skeleton, self._copier.submit(self._copy, parts)

    def _copy(self, parts: Sequence[Tensor]) -> bytearray:
        shapes = [(part.dtype, part.shape) for part in parts]
        if shapes != self._shapes:
            self._places = []  # before the memory that they look at
            self.data, places = lay_out({str(index): part for index, part in enumerate(parts)})
            self._places = [places[str(index)] for index in range(len(parts))]
            self._shapes = shapes
        for place, part in zip(self._places, parts, strict=True):
            copy_to(place, part)
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
    """

    def __init__(self, data: Future[bytearray], *, pause: float) -> None:
        self._data, self.pause = data, pause

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
        tensors = load(bytes(checkpoint.data))
        return unflatten(checkpoint.tree, [tensors[str(index)] for index in range(len(tensors))])
    except (SafetensorError, *UNREADABLE) as error:
        raise EnvironmentFault(
            f"the checkpoint of step {checkpoint.step} holds no state: {error}"
        ) from error
