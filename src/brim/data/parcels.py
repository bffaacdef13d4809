"""Samples on their way from one process to another on the same host.

Their content is copied once, tensors included.

A tensor arrives with its strides, and as far from a multiple of 64 bytes as it was: kernels may
choose by either how they add up, and what is read elsewhere must give the same bits. torch's own
way takes a connection, a descriptor and a place in /dev/shm for each tensor; here a parcel takes
one descriptor of nameless memory, whatever is in it.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

_LINE = 64  # bytes that a tensor's memory is aligned to
_INLINE = 1 << 16  # bytes of tensors that are sent along instead of being shared
_HEADER = 8


def send(connection: Connection, value: Any) -> None:
    """Send a value; nothing is sent where it cannot be pickled, and that is raised."""
    text = io.BytesIO()
    text.write(bytes(_HEADER))
    packing = _Packing(text)
    packing.dump(value)
    text.seek(0)
    text.write(packing.size.to_bytes(_HEADER, "little"))
    connection.send_bytes(text.getbuffer())
    if not packing.size:
        return
    if packing.size <= _INLINE or not hasattr(os, "memfd_create"):
        with mmap.mmap(-1, packing.size) as memory:
            packing.fill(memory)
            connection.send_bytes(memory)
        return
    descriptor = os.memfd_create("brim-sample")
    try:
        os.ftruncate(descriptor, packing.size)
        with mmap.mmap(descriptor, packing.size) as memory:
            packing.fill(memory)
        _send_descriptor(connection, descriptor)
    finally:
        os.close(descriptor)


def receive(connection: Connection) -> Any:
    """Return the parcel of `send`.

    Its tensors keep the memory that they came in for as long as they live.

    Raises:
        EOFError, OSError: the other process is gone.
    """
    text = connection.recv_bytes()
    size = int.from_bytes(text[:_HEADER], "little")
    memory = None
    if size and (size <= _INLINE or not hasattr(os, "memfd_create")):
        memory = mmap.mmap(-1, size)
        connection.recv_bytes_into(memory)
    elif size:
        descriptor = _receive_descriptor(connection)
        try:
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    return _Unpacking(io.BytesIO(text[_HEADER:]), memory).load()


# `multiprocessing.reduction` would do for both, but from Python 3.14 on its sender waits until the receiver has
# answered: no loader would read ahead.


def _send_descriptor(connection: Connection, descriptor: int) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        socket.send_fds(end, [b"\0"], [descriptor])


def _receive_descriptor(connection: Connection) -> int:
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        _, descriptors, _, _ = socket.recv_fds(end, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise EOFError
    return descriptors[0]


class _Packing(pickle.Pickler):
    """Pickles all but plain tensors.

    For these it finds a place in memory that is made afterwards.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.size = 0
        self._places: list[tuple[int, Tensor]] = []

    def persistent_id(self, value: Any) -> Any:
        if type(value) is not Tensor or not _is_plain(value):
            return None
        extent = 1 + sum(
            (n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True)
        )
        flat = value.as_strided((extent,), (1,), value.storage_offset())
        start = -(-self.size // _LINE) * _LINE + flat.data_ptr() % _LINE
        self._places.append((start, flat))
        self.size = start + extent * value.element_size()
        return start, extent, value.dtype, tuple(value.shape), value.stride()

    def fill(self, memory: mmap.mmap) -> None:
        for start, flat in self._places:
            torch.frombuffer(memory, dtype=flat.dtype, count=len(flat), offset=start).copy_(flat)


class _Unpacking(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: mmap.mmap | None) -> None:
        super().__init__(file)
        self._memory = memory

    def persistent_load(self, pid: Any) -> Tensor:
        start, extent, dtype, shape, stride = pid
        flat = torch.frombuffer(self._memory, dtype=dtype, count=extent, offset=start)
        return flat.as_strided(shape, stride)


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and not tensor.is_nested
    )
