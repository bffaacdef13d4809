"""A gate that a benchmark closes on a run: its worker waits in the user's code, and all that is
around it lives on.

A run that is stopped by a signal for long would find, once it goes on, that everyone was silent.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

VARIABLE = "BENCHMARK_GATE"  # path of a file of one byte; without it nobody waits
_LOOK = 0.005
_OPEN, _CLOSED = b"o", b"c"


class Gate:
    """The benchmark's side of a gate, open at first.

    Args:
        path: where its file is made.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(_OPEN)
        self._state = _mapped(path)

    def open(self) -> None:
        self._state[:] = _OPEN

    def close(self) -> None:
        self._state[:] = _CLOSED


def _mapped(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 1)


_gate = _mapped(Path(os.environ[VARIABLE])) if VARIABLE in os.environ else None


def wait_at_gate() -> None:
    """Wait while the gate is closed: to be called in each step."""
    while _gate is not None and _gate[0] == _CLOSED[0]:
        time.sleep(_LOOK)
