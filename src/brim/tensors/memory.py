"""The memory of a worker.

What it reuses, what it gives back, and what it makes its own at the start.

A fork shares its template's pages until it writes to them, and memory that goes back to the kernel
comes again a page at a time. Either costs a page fault: microseconds per 4 KiB, paid by the process
that waits for this worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

READY_BYTES = (
    32 << 20
)  # what is worth having in advance: beyond it, faults are a small part of any step
_PAD_BYTES = 64 << 20  # what the allocator asks of the kernel at once
_KEPT_BYTES = _PAD_BYTES + (64 << 20)
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # of madvise, since Linux 5.14


def keep_what_is_freed() -> None:
    """Ask the allocator (glibc) to reuse memory of freed tensors.

    It gives nothing back to the kernel then.

    A step frees and allocates the same gradients over and over: the page faults would be a third of
    a small backward pass.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 1 << 30)
        mallopt(_TOP_PAD, _PAD_BYTES)
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that it takes


def give_back(*, all_but: int = _KEPT_BYTES) -> None:
    """Give memory that is free back to the kernel, where it is more than so many bytes."""
    trim = _of_glibc("malloc_trim")
    if trim is not None and _free_bytes() > all_but:
        trim(ctypes.c_size_t(0))


def make_own(tensors: Iterable[Tensor], *, limit_bytes: int = READY_BYTES) -> None:
    """Write these values to their own places, where they are few.

    Pages that a template shares become the worker's own.
    """
    on_host = [t.detach() for t in tensors if t.device.type == "cpu" and t.layout is torch.strided]
    if sum(tensor.nbytes for tensor in on_host) > limit_bytes:
        return
    for tensor in on_host:
        if tensor.is_contiguous():
            tensor.copy_(tensor.clone())


def have_room(tensors: Iterable[Tensor], *, copies: int, limit_bytes: int = READY_BYTES) -> None:
    """Touch memory for so many copies of tensors, or for as many as the limit lets in.

    The allocator keeps what is freed here (`keep_what_is_freed`).
    """
    on_host = [t for t in tensors if t.device.type == "cpu" and t.layout is torch.strided]
    size_bytes = sum(tensor.nbytes for tensor in on_host)
    if size_bytes:
        count = min(copies, limit_bytes // size_bytes)
        _ = [torch.empty_like(tensor).zero_() for _ in range(count) for tensor in on_host]


def have_ready(memory: mmap.mmap, *, limit_bytes: int = READY_BYTES) -> None:
    """Put the beginning of a mapping into this process's page tables.

    They are as if all of it had been written to.
    """
    size = min(len(memory), limit_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if size:
        with contextlib.suppress(OSError):  # an older kernel: then faults come one by one
            memory.madvise(_POPULATE_WRITE, 0, size)


def have_mapped(memory: mmap.mmap, file: int, section: range) -> None:
    """Put a part of a mapped file into this process's page tables.

    Only pages that the file has: holes stay holes.

    For each GiB that takes a tenth of a second; its pages one by one, as they are used, take some
    thirty times as long.
    """
    for start, stop in _pages_of(file):
        start, stop = max(start, section.start), min(stop, section.stop)
        start -= start % mmap.PAGESIZE
        if start < stop:
            with contextlib.suppress(OSError):  # as above
                memory.madvise(_POPULATE_READ, start, stop - start)


def _pages_of(file: int) -> Iterator[tuple[int, int]]:
    stop = 0
    while True:
        try:
            start = os.lseek(file, stop, os.SEEK_DATA)
            stop = os.lseek(file, start, os.SEEK_HOLE)
        except OSError:  # behind the last
            return
        yield start, stop


class _Mallinfo(ctypes.Structure):
    """The result of glibc's mallinfo2; the ninth number is unused bytes."""

    _fields_ = [(name, ctypes.c_size_t) for name in (*"abcdefgh", "free", "behind")]


def _free_bytes() -> int:
    """Return the unused bytes of the allocator.

    0 where it does not say.
    """
    mallinfo = _of_glibc("mallinfo2")
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo
    return int(mallinfo().free)


def _of_glibc(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None  # another allocator
