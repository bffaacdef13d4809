"""Files that another account may have put where ours are looked for.

Opening one never waits, and follows no link.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NotRegularError(OSError):
    """A file without content of its own: a link, a pipe, a directory or the like."""


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a regular file.

    Args:
        flags: as for `os.open`.
        mode: its rights where it is made.

    Returns:
        A descriptor.

    Raises:
        NotRegularError: it is none.
        OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(
            path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, mode
        )
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    os.set_blocking(descriptor, True)  # a process that inherits it expects that
    return descriptor


def read_regular(path: Path, *, at_most: int) -> bytes:
    """Return the content of a regular file.

    Args:
        at_most: how many bytes it may have.

    Raises:
        NotRegularError: it is none.
        OSError: it has more, or cannot be read.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(at_most + 1)
    if len(content) > at_most:
        raise OSError(errno.EFBIG, f"it has more than {at_most:,} bytes", str(path))
    return content


def _not_regular(path: Path) -> NotRegularError:
    return NotRegularError(errno.EINVAL, "it is no regular file", str(path))
