"""The state of a job on its way to a newcomer, and the digest of a network."""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import struct
from typing import Any

import torch
from torch import Tensor, nn

from brim.errors import ProtocolError
from brim.tensors.raw import in_c_order, memory_of
from brim.train.state.flattening import UNREADABLE, flatten, unflatten
from brim.wire.peer import Cancelled, read_exactly, write_all

_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = (
    1 << 28
)  # bytes: the numbers of a state and the shapes of its tensors, not what is in them


def send_state(peer: socket.socket, tree: Any, *, timeout: float, cancelled: Cancelled) -> None:
    """Give the state to a newcomer, straight from the tensors' memory.

    Raises as `wire.peer.swap` does.
    """
    skeleton, tensors = flatten(tree)
    tensors = [in_c_order(tensor) for tensor in tensors]
    specs = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in tensors]
    header = json.dumps([skeleton, specs]).encode()
    data = [memoryview(_LENGTH.pack(len(header))), memoryview(header), *map(memory_of, tensors)]
    write_all(peer, data, timeout=timeout, cancelled=cancelled)


def receive_state(peer: socket.socket, *, timeout: float, cancelled: Cancelled) -> Any:
    """Take the state that a member gives.

    Raises:
        ProtocolError: what came is no state, or a larger one than this host has memory for.
        Interrupted, PeerLost: as `wire.peer.swap`.
    """
    length = bytearray(_LENGTH.size)
    read_exactly(peer, [memoryview(length)], timeout=timeout, cancelled=cancelled)
    (size,) = _LENGTH.unpack(length)
    if size > _LARGEST_HEADER:
        raise ProtocolError(f"not the state of a job: its header would have {size} bytes")
    header = bytearray(size)
    read_exactly(peer, [memoryview(header)], timeout=timeout, cancelled=cancelled)
    try:
        skeleton, specs = json.loads(header)
        tensors = _room_for(specs)
        memory = [memory_of(tensor) for tensor in tensors]
    except UNREADABLE as error:
        raise ProtocolError(f"not the state of a job: {error}") from error
    read_exactly(peer, memory, timeout=timeout, cancelled=cancelled)
    try:
        return unflatten(skeleton, tensors)
    except UNREADABLE as error:
        raise ProtocolError(f"not the state of a job: {error}") from error


def _room_for(specs: Any) -> list[Tensor]:
    """Tensors of these names of types and shapes.

    Raises one of `UNREADABLE` where no worker has such.
    """
    kinds = [(getattr(torch, dtype), [int(size) for size in shape]) for dtype, shape in specs]
    size_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size_bytes > memory_bytes or any(size < 0 for _, shape in kinds for size in shape):
        raise ValueError(f"its tensors would have {size_bytes} bytes, this host has {memory_bytes}")
    if any(dtype.startswith("q") for dtype, _ in specs):  # a number of these is more than its bytes
        raise ValueError("quantized tensors")
    return [torch.empty(shape, dtype=dtype) for dtype, shape in kinds]


def weights_sha256(model: nn.Module) -> str:
    """Return the digest of a network.

    It is the sha256 over names, dtypes, shapes and bytes of its state, sorted by name.
    """
    digest = hashlib.sha256()
    for name, part in sorted(model.state_dict().items()):
        if not isinstance(part, Tensor):  # what a module's get_extra_state gives
            digest.update(f"{name} {part!r}\n".encode())
            continue
        host = in_c_order(part)
        digest.update(
            f"{name} {str(host.dtype).removeprefix('torch.')} {list(host.shape)}\n".encode()
        )
        digest.update(memory_of(host))
    return digest.hexdigest()
