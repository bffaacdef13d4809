"""The processes of one trial, wherever they went: each carries a mark in its environment that it
cannot lose.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from brim.procfs import read_proc

MARK = "CHAOS_TRIAL"  # names that begin with BRIM_ are reserved


class Marked:
    """All processes whose environment has this mark, those that nobody waits for among them.

    Args:
        mark: unique on this machine.
    """

    def __init__(self, mark: str) -> None:
        self.environment = {MARK: mark}
        self._needle = f"{MARK}={mark}".encode()

    def alive(self) -> dict[int, str]:
        """Process id -> command line; a zombie can do nothing any more and is not counted."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended while we looked, or is not ours
                if self._needle in (entry / "environ").read_bytes().split(b"\0") and _lives(entry):
                    command = (
                        (entry / "cmdline")
                        .read_bytes()
                        .replace(b"\0", b" ")
                        .decode(errors="replace")
                    )
                    found[int(entry.name)] = command.strip()
        return found

    def kill(self) -> None:
        """SIGKILL, until nobody is left: who is forked meanwhile is found in the next round."""
        while pids := self.alive():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def left_after(self, seconds: float) -> dict[int, str]:
        """Who is still alive when so many seconds have passed; returns as soon as nobody is."""
        deadline = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left


def _lives(entry: Path) -> bool:
    return read_proc(f"{entry}/stat").rpartition(")")[2].split()[0] not in "ZX"
