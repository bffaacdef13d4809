"""A folder into which files of other hosts are received: each is there whole, or not at all.

What is being received lies in a folder of its own, which who looks for files passes over; what an
earlier life left there is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from brim.storage.files import sizes_of, sync_directory

_CHUNK = 1 << 20
_RECEIVING = ".receiving"  # the folder of files that are being received, beside that of all


class ReceivedFile:
    """A file that is being received.

    Args:
        path: where it is to be.
        folder: on the same file system, where it is until then.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._draft = folder / uuid.uuid4().hex
        self._file = self._draft.open("xb")

    def write(self, data: bytes) -> None:
        """Append data. Raises OSError."""
        self._file.write(data)

    def keep(self) -> None:
        """Have the file there, whole and on disk. Raises OSError."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._draft.replace(self._path)
        sync_directory(self._path.parent)

    def drop(self) -> None:
        """Forget the file, unless it was kept."""
        with contextlib.suppress(OSError):  # a full disk: what is left in its buffer is lost
            self._file.close()
        self._draft.unlink(missing_ok=True)


class ReceivedFiles:
    """The files of a folder, which the first of them makes.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._receiving = folder.with_name(f"{folder.name}{_RECEIVING}")
        shutil.rmtree(self._receiving, ignore_errors=True)

    def names(self) -> dict[str, int]:
        """Return all files with their sizes in bytes, by names relative to the folder."""
        return sizes_of(self._folder)

    def open(self, name: str) -> tuple[int, Iterator[bytes]]:
        """Return the size of a file, and its bytes in chunks. Raises OSError."""
        file = (self._folder / name).open("rb")
        size = os.fstat(file.fileno()).st_size

        def chunks() -> Iterator[bytes]:
            with file:
                remaining = size
                while remaining and (data := file.read(min(remaining, _CHUNK))):
                    remaining -= len(data)
                    yield data

        return size, chunks()

    def draft(self, name: str) -> ReceivedFile:
        """Begin to receive a file. Raises OSError."""
        path = self._folder / name
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            for directory in {self._folder, self._folder.parent}:
                sync_directory(directory)
        self._receiving.mkdir(mode=0o700, exist_ok=True)
        return ReceivedFile(path, self._receiving)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there, and its folder behind the last one. Raises OSError."""
        path = self._folder / name
        path.unlink(missing_ok=True)
        if path.parent != self._folder:
            with contextlib.suppress(OSError):  # not empty yet
                path.parent.rmdir()
