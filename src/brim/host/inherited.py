"""Open files and connections that a fork inherits, made its own.

A fork shares the position of each open file with its parent and siblings: two that read one file at
once get each other's records, without an error. So a child opens each file again, in place, under
the same number and at the same position, and whatever library reads it notices nothing. A
connection cannot be opened again: in the child it is closed as if the other side had ended it, so
that a client connects again or fails with an error, and never reads another's answer. LMDB counts
its readers by process in a lock file: an environment that locks is of no use in a fork.

Memory maps, pipes and write-only files stay as they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brim.errors import SpecError

_STANDARD = 3  # descriptors below it are input and output of the process
_DESCRIPTORS = "/proc/self/fd"
# others say how the file was found or made: O_NOFOLLOW, as SQLite says, or O_TMPFILE
_FLAGS_KEPT = os.O_ACCMODE | os.O_APPEND | os.O_DIRECT | os.O_SYNC
_OF_THE_KERNEL = ("/proc/", "/sys/", "/memfd:")
_LOCKS_OF_LMDB = ("/lock.mdb", "-lock")


@dataclass(frozen=True, slots=True)
class _File:
    descriptor: int
    path: str
    identity: tuple[int, int]  # device and inode
    flags: int
    position: int


@dataclass(frozen=True, slots=True)
class Inherited:
    """The descriptors that a child of this process must not share with it.

    Attributes:
        files: regular files that are open for reading.
        connections: connected sockets, by descriptor, with their identities.
    """

    files: Sequence[_File]
    connections: Mapping[int, tuple[int, int]]

    @property
    def unforkable(self) -> str:
        """Return the path of an open file whose reader does not survive a fork; empty if none."""
        locks = (
            file.path
            for file in self.files
            if file.path.endswith(_LOCKS_OF_LMDB) and file.flags & os.O_ACCMODE == os.O_RDWR
        )
        return next(locks, "")

    def make_own(self) -> None:
        """Replace these descriptors, in the child, before anything is read there.

        Raises:
            OSError: the limit of open files is reached.
        """
        for file in self.files:
            if _identity(file.descriptor) == file.identity:
                self._open_again(file)
        for descriptor, identity in self.connections.items():
            if _identity(descriptor) != identity:
                continue  # a thread has closed it before the fork: its number is free, or another's
            own_end, child_end = socket.socketpair()
            child_end.close()
            _replace(descriptor, own_end.detach())

    @staticmethod
    def _open_again(file: _File) -> None:
        reopened = os.open(f"{_DESCRIPTORS}/{file.descriptor}", file.flags)
        os.lseek(reopened, file.position, os.SEEK_SET)
        _replace(file.descriptor, reopened)


def inherited_by_forks() -> Inherited:
    """Return the descriptors that forks of this process would share; called just before a fork.

    Raises:
        SpecError: a file is open that this process may not open again.
    """
    files: list[_File] = []
    connections: dict[int, tuple[int, int]] = {}
    for name in os.listdir(_DESCRIPTORS):
        descriptor = int(name)
        with contextlib.suppress(OSError):  # it was the listing's own
            mode = os.fstat(descriptor).st_mode
            if descriptor >= _STANDARD and stat.S_ISREG(mode):
                files += _file_of(descriptor)
            elif stat.S_ISSOCK(mode) and _is_connection(descriptor):
                connections[descriptor] = _identity(descriptor)
    return Inherited(files, connections)


def _file_of(descriptor: int) -> list[_File]:
    """Return the file of a descriptor, if it is one that somebody may read.

    Raises:
        OSError: it was closed meanwhile.
        SpecError: it cannot be opened again.
    """
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    path = os.readlink(f"{_DESCRIPTORS}/{descriptor}")
    if flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_PATH or path.startswith(_OF_THE_KERNEL):
        return []
    needed = os.R_OK | (os.W_OK if flags & os.O_ACCMODE == os.O_RDWR else 0)
    if not os.access(f"{_DESCRIPTORS}/{descriptor}", needed, effective_ids=True):
        raise SpecError(
            f"open file {path}",
            got="a file that this account may not open again",
            need="files that each process that reads data can open for itself: forks would share "
            "one position in it",
            hint="open it in the first call of __getitem__, or change its permissions",
        )
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    return [_File(descriptor, path, _identity(descriptor), flags & _FLAGS_KEPT, position)]


def _identity(descriptor: int) -> tuple[int, int]:
    """Return the device and inode of a descriptor; (0, 0) where it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _is_connection(descriptor: int) -> bool:
    """Return whether a socket is connected to something with an address.

    A pair of sockets within a process has none.
    """
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        try:
            return duplicate.type == socket.SOCK_STREAM and bool(duplicate.getpeername())
        except OSError:
            return False


def _replace(descriptor: int, other: int) -> None:
    """Put another descriptor in the place of one."""
    os.dup2(other, descriptor, inheritable=os.get_inheritable(descriptor))
    os.close(other)
