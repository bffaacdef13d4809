"""A folder into which files of other hosts are received: each is there whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from brim.storage.files import sync_directory

_CHUNK = 1 << 20
_DRAFT = ".receiving-"  # the name of a file that is being received begins so


class ReceivedFile:
    """A file that is being received.

    Args:
        path: where it is to be.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f"{_DRAFT}{uuid.uuid4().hex}")
        self._file = self._draft.open("xb")

    def write(self, data: bytes) -> None:
        """Append data. Raises OSError."""
        self._file.write(data)

    def keep(self) -> None:
        """Have the file there, whole and on disk. Raises OSError."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
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

    def names(self) -> dict[str, int]:
        """Return all files with their sizes in bytes, by names relative to the folder."""
        found = {}
        for path in self._folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # another writer may just remove it
                if path.is_file() and not path.name.startswith(_DRAFT):
                    found[str(path.relative_to(self._folder))] = path.stat().st_size
        return found

    def open(self, name: str) -> tuple[int, Iterator[bytes]]:
        """Return the size of a file, and its bytes in chunks. Raises OSError."""
        file = (self._folder / name).open("rb")
        size = os.fstat(file.fileno()).st_size

        def chunks() -> Iterator[bytes]:
            with file:
                left = size
                while left and (data := file.read(min(left, _CHUNK))):
                    left -= len(data)
                    yield data

        return size, chunks()

    def draft(self, name: str) -> ReceivedFile:
        """Begin to receive a file. Raises OSError."""
        path = self._folder / name
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            for directory in {self._folder, self._folder.parent}:
                sync_directory(directory)
        return ReceivedFile(path)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there, and its folder behind the last one. Raises OSError."""
        path = self._folder / name
        path.unlink(missing_ok=True)
        if path.parent != self._folder:
            with contextlib.suppress(OSError):  # not empty yet
                path.parent.rmdir()
