"""Files that are whole or absent, whatever dies while they are written."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write `path` so that a reader, or a host after a power cut, sees all of it or the old one.

    The bytes go into a temporary file beside it (a rename is atomic within one file system only), which is
    synced before it is renamed, and then the directory is synced: a rename that is not on disk can be undone.

    Raises:
        OSError: the directory is missing, full or not writable; nothing is left behind.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
