"""The memory that holds all tables of a host.

It outlives every worker; the agent holds it, as that of gradients.

It is mapped twice. What owners write goes to the one mapping; the other is what the user's code
sees as weights: what somebody writes there is their own, and `is_written_to` tells.
"""

from __future__ import annotations

import fcntl
import io
import mmap
import os
from collections.abc import Iterator, Sequence
from itertools import dropwhile
from pathlib import Path

import torch

from brim.embeddings.tables.keyed_table import KeyedTable
from brim.embeddings.tables.table import WEIGHT, Table
from brim.errors import EnvironmentFault
from brim.host.anonymous import anonymous_file
from brim.host.clock import monotonic, sleep
from brim.tensors.memory import have_mapped, have_ready

_PAGE = mmap.PAGESIZE
_NORESERVE = 0x4000  # of mmap on Linux: a private mapping that nobody writes to needs no memory
_POLL_INTERVAL = 0.002  # seconds
_MAPS = Path("/proc/self/smaps")
_PIECE = 256  # bytes: less than the kernel says of a mapping


class TableMemory:
    """All tables of a job on this host.

    Args:
        tables: each gets its part of the memory.
        descriptor: of an anonymous file, which the first worker makes large enough; None makes one.

    Raises:
        EnvironmentFault: the system does not give as much.
    """

    def __init__(self, tables: Sequence[Table | KeyedTable], descriptor: int | None) -> None:
        self._tables = tables
        own_descriptor = anonymous_file("brim-tables") if descriptor is None else None
        file = descriptor if own_descriptor is None else own_descriptor
        assert file is not None
        size = _PAGE + sum(_whole_pages(table.size_bytes) for table in tables)
        try:
            if os.fstat(file).st_size < size:
                os.ftruncate(file, size)
            shared = mmap.mmap(file, size)
            seen = mmap.mmap(file, size, flags=mmap.MAP_PRIVATE | _NORESERVE)
        except OSError as error:
            raise EnvironmentFault(
                f"no memory for embeddings of {size:,} bytes: {error}"
            ) from error
        self._memory = torch.frombuffer(shared, dtype=torch.uint8)
        self._seen = torch.frombuffer(seen, dtype=torch.uint8)
        self._step = self._memory[:8].view(torch.int64)
        offset = _PAGE
        for table in tables:
            table.bind(
                self._memory[offset : offset + table.size_bytes],
                self._seen[offset : offset + table.size_bytes],
            )
            offset += _whole_pages(table.size_bytes)
        self._get_ready(shared, seen, file)
        self._file = descriptor
        if descriptor is not None:  # until this process ends: see `be_alone`
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
        if own_descriptor is not None:
            os.close(own_descriptor)

    def _get_ready(self, shared: mmap.mmap, seen: mmap.mmap, file: int) -> None:
        """Map the pages that others filled.

        Else page faults of the first step would keep them waiting.
        """
        if self.step is None:
            have_ready(shared)
            return
        have_mapped(shared, file, range(len(shared)))
        for table in self._tables:
            if isinstance(table, Table):
                weight = table.seen[WEIGHT]
                start = weight.data_ptr() - self._seen.data_ptr()
                have_mapped(seen, file, range(start, start + weight.nbytes))

    @property
    def step(self) -> int | None:
        """Committed steps that the tables have; None where nothing was put into them."""
        return int(self._step) - 1 if self._step else None

    @step.setter
    def step(self, step: int | None) -> None:
        self._step.fill_(0 if step is None else step + 1)

    def take_back(self, committed: int) -> None:
        """Undo owners' writes for steps that do not count. No worker may write meanwhile."""
        for table in self._tables:
            table.take_back(committed)

    def be_alone(self, patience: float) -> None:
        """Wait until all other processes have ended that may write to the tables.

        Args:
            patience: seconds.

        Raises:
            EnvironmentFault: one has not.
        """
        deadline = monotonic() + patience
        while self._file is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
                return
            except (BlockingIOError, PermissionError) as error:
                if monotonic() >= deadline:
                    text = (
                        "another process may still write to the tables of embeddings after "
                        f"{patience:g} s"
                    )
                    raise EnvironmentFault(text) from error
            sleep(_POLL_INTERVAL)

    @property
    def is_written_to(self) -> bool:
        """Return whether the user's code wrote to its view of the weights.

        False where the system does not tell.
        """
        address = f"{self._seen.data_ptr():x}-".encode()
        try:
            with _MAPS.open("rb", buffering=0) as maps:
                mapping_lines = dropwhile(
                    lambda line: not line.startswith(address), _lines_of(maps)
                )
                anonymous = next(
                    (line for line in mapping_lines if line.startswith(b"Anonymous:")), b""
                )
        except OSError:
            return False
        return bool(anonymous) and int(anonymous.split()[1]) > 0


def _lines_of(maps: io.FileIO) -> Iterator[bytes]:
    """Yield the lines of a kernel file, read piece by piece.

    The kernel makes as many as are asked for, and those of a large mapping take long.
    """
    rest = b""
    while piece := maps.read(_PIECE):
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE) * _PAGE
