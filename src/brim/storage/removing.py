"""Removal of run directories with no more rights than their owners have.

The targets of links stay.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from brim.host.account import acting_as

_DEEP = 100  # directories that are open at a time


def remove_run(path: Path, *, user: str = "") -> int:
    """Remove a run directory; missing files are no error.

    Args:
        user: the account that owns it; empty: ours. Its content is removed with the rights of that
            account: whatever it has put there, or moves there meanwhile, nothing is lost that it
            could not remove itself.

    Returns:
        How many bytes of the disk it took.

    Raises:
        OSError: it cannot be removed.
        EnvironmentFault: there is no such account.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return 0
    if not stat.S_ISDIR(found.st_mode):
        path.unlink(missing_ok=True)
        return 0
    removal = _Removal()
    with acting_as(user):
        removal.empty(path)
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()  # with our rights: the folder above is ours
    return removal.freed


class _Removal:
    """Removes the content of a directory, however deep, by descriptors.

    No link that is put there meanwhile is followed.
    """

    def __init__(self) -> None:
        # bytes on the disk; of files alone, since those of directories depend on the file system
        self.freed = 0

    def empty(self, path: Path) -> None:
        """Leave nothing in it."""
        try:
            self._empty(path)
        except PermissionError:  # its owner may have taken its own right to write
            path.chmod(0o700)
            self._empty(path, open_up=True)

    def _empty(self, path: Path, *, open_up: bool = False) -> None:
        top = _open_folder(path)
        try:
            while self._go_down(top, open_up=open_up):
                pass
        finally:
            os.close(top)

    def _go_down(self, top: int, *, open_up: bool) -> bool:
        """Remove the content; whether something was too deep, and was moved up for another time.

        Args:
            open_up: take the right to write to each directory first.
        """
        moved = False
        path = [(top, "", _names_in(top))]
        try:
            while path:
                folder, called, names = path[-1]
                name = next(names, None)
                if name is None:
                    path.pop()
                    if path:
                        os.close(folder)
                        os.rmdir(called, dir_fd=path[-1][0])
                    continue
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    os.unlink(name, dir_fd=folder)
                    self.freed += found.st_blocks * 512
                    continue
                if open_up:
                    os.chmod(name, 0o700, dir_fd=folder)
                if len(path) > _DEEP:
                    os.rename(
                        name, f".deep-{secrets.token_hex(8)}", src_dir_fd=folder, dst_dir_fd=top
                    )
                    moved = True
                    continue
                inner = _open_folder(name, folder)
                path.append((inner, name, _names_in(inner)))
        finally:
            for folder, _, _ in path[1:]:
                os.close(folder)
        return moved


def _open_folder(path: Path | str, parent: int | None = None) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _names_in(folder: int) -> Iterator[str]:
    yield from os.listdir(folder)
