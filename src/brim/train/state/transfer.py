"""The state of a job on its way to a newcomer, and the digest of a network.

A newcomer has built the same network, so it usually has the frozen weights. The giver offers these
by the digests of their content, and sends only those that the newcomer does not have.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from brim.errors import ProtocolError
from brim.tensors.raw import in_c_order, memory_of
from brim.train.state.flattening import UNREADABLE, flatten, unflatten
from brim.train.state.frozen import LEAST, content_digest
from brim.wire.peer import Cancelled, read_exactly, write_all

_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = (
    1 << 28
)  # bytes: the numbers of a state and the shapes of its tensors, not what is in them
_WANTED, _PRESENT = 1, 0  # a byte for each offered tensor


def send_state(
    peer: socket.socket,
    tree: Any,
    *,
    frozen: Iterable[Tensor] = (),
    timeout: float,
    cancelled: Cancelled,
) -> None:
    """Give the state to a newcomer, straight from the tensors' memory.

    Args:
        peer: the stream to it.
        tree: the state.
        frozen: tensors of it that the newcomer may have.
        timeout: as `wire.peer.swap` has it, and `cancelled`.
        cancelled: whether to give up.

    Raises as `wire.peer.swap` does.
    """
    skeleton, given = flatten(tree)
    tensors = [in_c_order(tensor) for tensor in given]
    offered = _offer(given, tensors, frozen)
    specs = [
        [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), *offered.get(number, ())]
        for number, tensor in enumerate(tensors)
    ]
    header = json.dumps([skeleton, specs]).encode()
    data = [memoryview(_LENGTH.pack(len(header))), memoryview(header)]
    if offered:
        write_all(peer, data, timeout=timeout, cancelled=cancelled)
        answer, data = bytearray(len(offered)), []
        read_exactly(peer, [memoryview(answer)], timeout=timeout, cancelled=cancelled)
        present = {n for n, word in zip(offered, answer, strict=True) if word == _PRESENT}
        tensors = [tensor for number, tensor in enumerate(tensors) if number not in present]
    data += map(memory_of, tensors)
    write_all(peer, data, timeout=timeout, cancelled=cancelled)


def _offer(
    given: Sequence[Tensor], tensors: Sequence[Tensor], frozen: Iterable[Tensor]
) -> dict[int, list[str]]:
    """Return the digests of the frozen tensors by number, where they are worth it.

    Args:
        given: the tensors of a state.
        tensors: the same, on the host and in C order.
        frozen: those of the first that may be offered.
    """
    may_be_offered = {id(tensor) for tensor in frozen}
    numbers = [number for number, tensor in enumerate(given) if id(tensor) in may_be_offered]
    if sum(tensors[number].nbytes for number in numbers) < LEAST:
        return {}
    return {number: [content_digest(tensors[number])] for number in numbers}


def receive_state(
    peer: socket.socket,
    *,
    frozen: Iterable[Tensor] = (),
    timeout: float,
    cancelled: Cancelled,
) -> Any:
    """Take the state that a member gives.

    Args:
        peer: the stream from it.
        frozen: tensors of this process, which are not sent where they are those of the state: it
            has them themselves then.
        timeout: as `wire.peer.swap` has it, and `cancelled`.
        cancelled: whether to give up.

    Raises:
        ProtocolError: what came is no state, or a larger one than this host has memory for.
        Interrupted, PeerLost: as `wire.peer.swap`.
    """
    own = _by_digest(frozen)  # while the giver does the same
    length = bytearray(_LENGTH.size)
    read_exactly(peer, [memoryview(length)], timeout=timeout, cancelled=cancelled)
    (size,) = _LENGTH.unpack(length)
    if size > _LARGEST_HEADER:
        raise ProtocolError(f"not the state of a job: its header would have {size} bytes")
    header = bytearray(size)
    read_exactly(peer, [memoryview(header)], timeout=timeout, cancelled=cancelled)
    try:
        skeleton, specs = json.loads(header)
        offered = {number: spec[2] for number, spec in enumerate(specs) if len(spec) > 2}
        present = {n: own[digest] for n, digest in offered.items() if digest in own}
        tensors = _room_for([spec[:2] for spec in specs], present)
        memory = [memory_of(part) for number, part in enumerate(tensors) if number not in present]
    except UNREADABLE as error:
        raise ProtocolError(f"not the state of a job: {error}") from error
    if offered:
        answer = bytes(_PRESENT if number in present else _WANTED for number in offered)
        write_all(peer, [memoryview(answer)], timeout=timeout, cancelled=cancelled)
    read_exactly(peer, memory, timeout=timeout, cancelled=cancelled)
    try:
        return unflatten(skeleton, tensors)
    except UNREADABLE as error:
        raise ProtocolError(f"not the state of a job: {error}") from error


def _by_digest(frozen: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return this process's tensors, not copies, by their digests."""
    own = [in_c_order(tensor) for tensor in frozen]
    if sum(tensor.nbytes for tensor in own) < LEAST:
        return {}
    return {content_digest(tensor): tensor for tensor in own}


def _room_for(specs: Any, present: Mapping[int, Tensor]) -> list[Tensor]:
    """Tensors of these names of types and shapes, of which some are present.

    Raises one of `UNREADABLE` where no worker has such.
    """
    kinds = [(getattr(torch, dtype), [int(size) for size in shape]) for dtype, shape in specs]
    size_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size_bytes > memory_bytes or any(size < 0 for _, shape in kinds for size in shape):
        raise ValueError(f"its tensors would have {size_bytes} bytes, this host has {memory_bytes}")
    if any(dtype.startswith("q") for dtype, _ in specs):  # a number of these is more than its bytes
        raise ValueError("quantized tensors")
    return [
        present[number] if number in present else torch.empty(shape, dtype=dtype)
        for number, (dtype, shape) in enumerate(kinds)
    ]


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
