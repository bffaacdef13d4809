"""A job's state to and from the bytes of a checkpoint (`storage/checkpoints.py` has the files)."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from brim.decoding import UNDECODABLE
from brim.errors import EnvironmentFault
from brim.storage.checkpoints import Checkpoint
from brim.train.layout import memory_of
from brim.train.state import flatten, unflatten

__all__ = ["Copy", "Image", "state_of"]

Bytes = npt.NDArray[np.uint8]

_LENGTH = struct.Struct("<Q")
_ZEROS = bytes(1 << 20)


class Image:
    """A safetensors file in memory that a state is copied into, again and again.

    The file is laid out once; after that, taking a state is one copy of its tensors, and nothing is left to serialise.
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
        """Begin to copy a state, beside what this thread does next.

        Args:
            steady: tensors of the state that stay as they are until the copy is done; all others are copied at once.

        Returns:
            The tree without its tensors, and `data` once all of them are in it.
        """
        skeleton, tensors = flatten(tree)
        may_wait = {id(tensor) for tensor in steady}
        parts = [_still(tensor, may_wait=id(tensor) in may_wait) for tensor in tensors]
        if self._copier is None:
            self._copier = ThreadPoolExecutor(max_workers=1, thread_name_prefix="brim-copy")
        return skeleton, self._copier.submit(self._copy, parts)

    def _copy(self, parts: Sequence[Tensor]) -> bytearray:
        # By numpy: a thread of its own that computes with torch may start others, and those of a forked process hang.
        shapes = [(part.dtype, part.shape) for part in parts]
        if shapes != self._shapes:
            self._lay_out(parts)
            self._shapes = shapes
        for place, part in zip(self._places, parts, strict=True):
            if part.numel():
                np.copyto(place, np.frombuffer(memory_of(part), np.uint8))
        return self.data

    def _lay_out(self, parts: Sequence[Tensor]) -> None:
        header: dict[str, Any] = {}
        stop = 0
        # The widest numbers first, so that all of them begin at multiples of their size.
        for index in sorted(range(len(parts)), key=lambda index: (-parts[index].itemsize, index)):
            start, stop = stop, stop + parts[index].nbytes
            header[str(index)] = {
                "dtype": _name_of(parts[index].dtype),
                "shape": list(parts[index].shape),
                "data_offsets": [start, stop],
            }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % _LENGTH.size)
        self._places = []  # before the memory that they look at
        self.data = bytearray(_LENGTH.pack(len(text)) + text)
        first = len(self.data)
        for left in range(stop, 0, -len(_ZEROS)):  # piece by piece: nobody else runs while memory is made
            self.data += _ZEROS[:left]
        memory = np.frombuffer(self.data, np.uint8)[first:]
        offsets = (header[str(index)]["data_offsets"] for index in range(len(parts)))
        self._places = [memory[start:stop] for start, stop in offsets]


def _still(tensor: Tensor, *, may_wait: bool) -> Tensor:
    """What can be copied later, byte by byte: the tensor itself where it will wait, else a copy."""
    if may_wait and tensor.device.type == "cpu" and tensor.is_contiguous() and not _is_lazy(tensor):
        return tensor.detach()
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def _is_lazy(tensor: Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


class Copy:
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
        started = time.perf_counter()
        self._data.result()
        self.pause += time.perf_counter() - started


def _name_of(dtype: torch.dtype) -> str:
    """What safetensors calls it."""
    file = save({"0": torch.zeros(0, dtype=dtype)})
    (length,) = _LENGTH.unpack_from(file)
    return str(json.loads(file[_LENGTH.size : _LENGTH.size + length])["0"]["dtype"])


def state_of(checkpoint: Checkpoint) -> Any:
    """The state that was written.

    Raises:
        EnvironmentFault: it is none; a writer of another version, or of another program, made it.
    """
    try:
        tensors = load(bytes(checkpoint.data))
        return unflatten(checkpoint.tree, [tensors[str(index)] for index in range(len(tensors))])
    except (SafetensorError, LookupError, TypeError, *UNDECODABLE) as error:
        raise EnvironmentFault(f"the checkpoint of step {checkpoint.step} holds no state: {error}") from error
