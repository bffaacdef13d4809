"""The check that brim obeys only directories of its own account.

Their content decides on the programs of this account.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from brim.errors import SpecError


def make_ours(directory: Path, *, mode: int = 0o755) -> None:
    """Make a private directory, whichever umask is set.

    The same holds for those above it that are made.

    Raises:
        OSError: it cannot be made, or is there.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=mode)


def check_ours(directory: Path, *, field: str) -> None:
    """Check that no other account, but root, may change the content of a directory.

    Args:
        field: that named it, for the error.

    Raises:
        SpecError: another account owns it or may write to it.
        OSError: there is none.
    """
    found = directory.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise SpecError(
            field,
            got=f"{str(directory)!r}, which belongs to {_name_of(found.st_uid)}",
            need=f"a directory of {_name_of(os.geteuid())}: its owner decides what runs from it",
            hint=f"run brim as {_name_of(found.st_uid)}, or choose another directory",
        )
    open_to_all = bool(found.st_mode & stat.S_IWOTH)
    if open_to_all or (found.st_mode & stat.S_IWGRP and not _is_alone_in(found.st_gid)):
        raise SpecError(
            field,
            got=f"{str(directory)!r}, which other accounts may write to (mode "
            f"{found.st_mode & 0o777:o})",
            need="a directory that only its owner can write to, since code runs from it",
            hint=f"chmod go-w {directory}",
        )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"account {uid}"


def _is_alone_in(gid: int) -> bool:
    """Return whether this is the group that many systems give each account for itself."""
    try:
        group, account = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == account.pw_name and not set(group.gr_mem) - {account.pw_name}
