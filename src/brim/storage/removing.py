"""Removes run directories, with no more rights than their owners have: what is linked from them stays."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

from brim.account import acting_as

__all__ = ["remove_run"]


def remove_run(path: Path, *, user: str = "") -> int:
    """Remove a run directory; what is not there any more is no error.

    Args:
        user: the account that owns it; empty: ours. Its content is removed with the rights of that account: whatever
            it has put there, or moves there meanwhile, nothing is lost that it could not remove itself.

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
    with acting_as(user):
        size = _size_of(path)
        _remove_content(path)
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()  # with our rights: the folder above is ours
    return size


def _remove_content(path: Path) -> None:
    try:
        _remove_all_in(path)
    except PermissionError:  # its owner may have taken its own right to write
        path.chmod(0o700)
        for folder, names, _ in os.walk(path):
            for each in (Path(folder, name) for name in names):
                if _is_folder(each):
                    each.chmod(0o700)
        _remove_all_in(path)


def _remove_all_in(path: Path) -> None:
    for each in list(path.iterdir()):
        if _is_folder(each):
            shutil.rmtree(each)
        else:
            each.unlink()


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def _size_of(path: Path) -> int:
    """Bytes on the disk; of files alone, since those of directories depend on the file system."""
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return size
