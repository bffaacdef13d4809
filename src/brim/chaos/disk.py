"""A small disk that can be filled up and freed: a tmpfs."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SmallDisk", "can_mount", "small_disk"]

_MEBIBYTES = 16  # a few checkpoints of a small model, records and a report
_BALLAST = "ballast"


class SmallDisk:
    """A mounted directory of a few MiB."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Leave not a byte."""
        with (self.path / _BALLAST).open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        (self.path / _BALLAST).unlink(missing_ok=True)


def can_mount() -> bool:
    """Whether this process may mount."""
    return os.geteuid() == 0


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Mount a small disk at a new directory; it goes with all that is on it.

    Raises:
        subprocess.CalledProcessError: it cannot be mounted.
    """
    path.mkdir(parents=True)
    options = f"size={_MEBIBYTES}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "brim-chaos", str(path)], check=True)
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
        path.rmdir()
