"""A job's state to and from the bytes of a checkpoint (`storage/checkpoints.py` has the files)."""

from __future__ import annotations

import json
import struct
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from brim.decoding import UNDECODABLE
from brim.errors import EnvironmentFault
from brim.storage.checkpoints import Checkpoint
from brim.train.state import flatten, unflatten

__all__ = ["Image", "state_of"]

_LENGTH = struct.Struct("<Q")


class Image:
    """A safetensors file in memory that a state is copied into, again and again.

    The file is laid out once; after that, taking a state is one copy of its tensors, and nothing is left to serialise.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self._shapes: list[tuple[torch.dtype, torch.Size]] = []
        self._views: list[Tensor] = []

    @torch.no_grad()
    def take(self, tree: Any) -> Any:
        """Copy a state; the tree without its tensors, which are in `data` under their numbers."""
        skeleton, tensors = flatten(tree)
        shapes = [(tensor.dtype, tensor.shape) for tensor in tensors]
        if shapes != self._shapes:
            self._lay_out(shapes)
        for view, tensor in zip(self._views, tensors, strict=True):
            view.copy_(tensor)
        return skeleton

    def _lay_out(self, shapes: list[tuple[torch.dtype, torch.Size]]) -> None:
        empty = {str(index): torch.zeros(shape, dtype=dtype) for index, (dtype, shape) in enumerate(shapes)}
        self._views = []  # before the memory that they look at
        self.data = bytearray(save(empty))
        (length,) = _LENGTH.unpack_from(self.data)
        start = _LENGTH.size + length
        header = json.loads(self.data[_LENGTH.size : start])
        for name, tensor in empty.items():
            if tensor.numel():
                at = start + header[name]["data_offsets"][0]
                flat = torch.frombuffer(self.data, dtype=tensor.dtype, count=tensor.numel(), offset=at)
                tensor = flat.view(tensor.shape)
            self._views.append(tensor)
        self._shapes = shapes


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
