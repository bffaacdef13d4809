"""A small disk that can be filled up and freed: a tmpfs."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_LEAST_BYTES = 16 << 20  # a few checkpoints of a small model, records and a report
_TIMES = 4  # what a run keeps at its end: while checkpoints take turns it has more
_BALLAST = "ballast"
# So the records of some steps still fit, and no checkpoint: first there are warnings, then the run
# ends.
_LEFT_BYTES = 48 << 10


class SmallDisk:
    """A mounted directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Leave room for a few records, and for nothing else."""
        with (self.path / _BALLAST).open("wb") as file:
            while True:
                space = os.statvfs(self.path)
                room = space.f_bavail * space.f_frsize - _LEFT_BYTES
                if room <= 0:
                    return
                try:
                    return os.posix_fallocate(file.fileno(), 0, room)
                except OSError as error:  # the run wrote meanwhile: look again
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        (self.path / _BALLAST).unlink(missing_ok=True)


def can_mount() -> bool:
    """Return whether this process may mount."""
    return os.geteuid() == 0


@contextlib.contextmanager
def small_disk(path: Path, *, kept_bytes: int = 0) -> Iterator[SmallDisk]:
    """Mount a small disk at a new directory; it goes with all that is on it.

    Args:
        kept_bytes: that a run on it keeps at its end.

    Raises:
        subprocess.CalledProcessError: it cannot be mounted.
    """
    path.mkdir(parents=True)
    options = f"size={max(_LEAST_BYTES, _TIMES * kept_bytes)}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "brim-chaos", str(path)], check=True)
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
        path.rmdir()
