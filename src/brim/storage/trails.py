"""Trails: the reads of each worker of a host, for its successor if one kills it.

A worker that dies in a reader's C code has no last words. So it notes the samples that it is about
to read in memory that is a file's, which survives it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from brim.host.process import state_of

_NAME = ".reading-"
_LAYOUT = struct.Struct("<5q")


class SamplesRead(NamedTuple):
    """Samples that a worker was reading.

    Attributes:
        size: of an epoch, by which other data is told apart.
        epoch: in whose order they are.
        start: the first position.
        stop: one past the last; equal to `start` where it was not reading.
    """

    size: int
    epoch: int
    start: int
    stop: int


class Trail:
    """The trail of this worker.

    Args:
        run_dir: of the run on this host.
        worker: its name.

    Raises:
        OSError: the disk does not take it.
    """

    def __init__(self, run_dir: Path, worker: str) -> None:
        self._path = run_dir / f"{_NAME}{worker}"
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, bytes(_LAYOUT.size))
            self._memory = mmap.mmap(descriptor, _LAYOUT.size)
        finally:
            os.close(descriptor)

    def note(self, steps: SamplesRead) -> None:
        """Note the next read."""
        _LAYOUT.pack_into(self._memory, 0, os.getpid(), *steps)

    def remove(self) -> None:
        """Leave no trail."""
        self._path.unlink(missing_ok=True)


def trails_of_the_dead(run_dir: Path) -> Iterator[SamplesRead]:
    """Take up, once, the trails of workers that died as they were reading."""
    for path in sorted(run_dir.glob(f"{_NAME}*")):
        with contextlib.suppress(OSError, struct.error):
            pid, *steps = _LAYOUT.unpack(path.read_bytes())
            if state_of(pid) in ("", "Z", "X"):
                path.unlink()
                found = SamplesRead(*steps)
                if found.stop > found.start:
                    yield found
