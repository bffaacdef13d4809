"""Shortages of a host in words: the missing resource, and the place of its limit.

The kernel refuses with a number, and Python's threads with an error of no type of their own.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from brim.errors import EnvironmentFault

_PROCESSES = (
    "no more processes or threads are allowed here: see ulimit -u, and pids.max of a container"
)
_MEMORY = "there is no more memory: see free, ulimit -v, and the memory limit of a container"
_DISK = "the disk is full: see df -h and df -i"
_WORDS = {
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: _MEMORY,
    errno.ENOSPC: _DISK,
    errno.EDQUOT: "the quota of this account is used up: see quota",
    errno.EMFILE: "no more open files are allowed in a process: see ulimit -n",
    errno.ENFILE: "no more open files are allowed on this host: see fs.file-max",
    errno.EFBIG: "no larger file is allowed: see ulimit -f",
    errno.EROFS: "the file system can only be read",
    errno.EACCES: "this account may not do that",
    errno.EPERM: "this account may not do that",
}
_NO_THREAD = "can't start new thread"


def words_of_shortage(error: BaseException) -> str:
    """Return the shortage behind an error, in words; empty for other errors.

    >>> words_of_shortage(OSError(errno.ENOSPC, "No space left on device", "runs/a"))
    "[Errno 28] No space left on device: 'runs/a'; the disk is full: see df -h and df -i"
    >>> words_of_shortage(MemoryError())
    'there is no more memory: see free, ulimit -v, and the memory limit of a container'
    >>> words_of_shortage(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    ''
    """
    if isinstance(error, OSError) and error.errno in _WORDS:
        return f"{error}; {_WORDS[error.errno]}"
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, RuntimeError) and str(error).startswith(_NO_THREAD):
        return f"{_NO_THREAD}; {_PROCESSES}"
    return ""


@contextlib.contextmanager
def told_in_words(of: str = "") -> Iterator[None]:
    """Turn errors of shortages into faults with their words.

    Args:
        of: the beginning of the words, such as `cannot start the run`.

    Raises:
        EnvironmentFault: in the place of such an error.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if words := words_of_shortage(error):
            raise EnvironmentFault(f"{of}: {words}" if of else words) from error
        raise
