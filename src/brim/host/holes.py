"""Holes at the front of files that others write on: their disk space is given back."""

from __future__ import annotations

import ctypes
import errno
import os

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
_NO_HOLES = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # what disks say that know none
_ANEW = 4 << 20  # bytes that are kept of a file where disks know no holes


def free_front(file: int, begin: int) -> None:
    """Give the bytes of a file before `begin` back to the disk; its length stays.

    Args:
        begin: a multiple of the disk's blocks.

    Raises:
        OSError: the disk cannot do it now.
    """
    try:
        _punch(file, begin)
    except AttributeError:
        _write_anew(file, begin)
    except OSError as error:
        if error.errno not in _NO_HOLES:
            raise  # a disk that has failed for now, say: the next call can keep more
        _write_anew(file, begin)


def hole_of(seen: os.stat_result, file: int) -> int:
    """Return the length of the hole at the front of a file: 0 where there is none, or none is told.

    Args:
        seen: of the file.
    """
    if seen.st_blocks * 512 >= seen.st_size or not hasattr(os, "SEEK_DATA"):
        return 0
    try:
        return os.lseek(file, 0, os.SEEK_DATA)
    except OSError as error:  # there is nothing else; else the disk knows no holes
        return seen.st_size if error.errno == errno.ENXIO else 0


def _punch(file: int, begin: int) -> None:
    """Raises OSError, or AttributeError where the system has no such call."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(file, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(begin)):
        raise OSError(ctypes.get_errno(), "no hole can be made")


def _write_anew(file: int, begin: int) -> None:
    """Cut a file where no hole can be made.

    Less is kept, and where another process writes meanwhile, nothing.
    """
    size = os.fstat(file).st_size
    begin = max(begin, size - _ANEW)
    end = os.pread(file, size - begin, begin)
    os.ftruncate(file, 0)
    os.ftruncate(file, size)
    if os.pread(file, 1, 0) == b"\0":
        os.pwrite(file, end, begin)
    else:  # somebody wrote at this very moment: older lines must not come behind newer ones
        os.ftruncate(file, 0)
