"""A wall clock that can be made to jump.

It is that of all Python processes started with its environment.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

CLOCK = "BRIM_CHAOS_CLOCK"  # names its file; empty: the wall clock is the kernel's


class JumpingClock:
    """The offset of a job's wall clock.

    Args:
        path: a new file that holds it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0.0
        path.write_bytes(struct.pack("d", 0.0))

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a process follow this clock."""
        inherited = os.environ.get("PYTHONPATH")
        paths = [str(Path(__file__).parent / "jumping"), *([inherited] if inherited else [])]
        return {CLOCK: str(self._path), "PYTHONPATH": os.pathsep.join(paths)}

    def jump(self, seconds: float) -> None:
        """Forwards, or back where it is negative."""
        self._offset += seconds
        with self._path.open("r+b") as file:  # in place: the processes have it mapped
            file.write(struct.pack("d", self._offset))
