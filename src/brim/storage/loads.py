"""The past loads of a service in a file: a line for each stretch of time, and a week at most."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from brim.storage.files import write_whole

_MOST_LINES = 7 * 17_280  # a week of five seconds each
_LONGEST_LINE = 64  # bytes


def read_loads(path: Path) -> list[tuple[float, float]]:
    """Return (seconds since 1970, load), in order; lines that are none are left out."""
    lines: deque[bytes] = deque(maxlen=_MOST_LINES)
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        lines.extend(islice(file, 4 * _MOST_LINES))
    found = []
    for line in lines:
        time, _, load = line[:_LONGEST_LINE].partition(b" ")
        with contextlib.suppress(ValueError):
            found.append((float(time), float(load)))
    return found


def keep_loads(path: Path, loads: Iterable[tuple[float, float]]) -> None:
    """Write down loads in place of all that were there.

    Raises:
        OSError: the disk does not take them.
    """
    write_whole(path, (_line(*load) for load in loads), mode=0o600, is_sole_writer=True)


def add_load(path: Path, time: float, load: float) -> None:
    """Write down one more load. Half a line of a process that was killed is no load.

    Raises:
        OSError: the disk does not take it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, _line(time, load))
    finally:
        os.close(descriptor)


def _line(time: float, load: float) -> bytes:
    return f"{time:.3f} {load:.6g}\n".encode()
