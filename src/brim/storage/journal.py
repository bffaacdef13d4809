"""An append-only journal: decisions are in here before they are announced.

A frame is a length, the checksum of that length, the checksum of the payload, and the payload. One
append is one write, so a process that is killed leaves at most a prefix of the last frame, and that
is cut off when the journal is opened again. Anything else that does not fit is damage, and is said
to be.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path

from brim.errors import EnvironmentFault
from brim.host.untrusted import NotRegularError, read_regular
from brim.storage.files import is_locked, lock, write_whole

_HEADER = struct.Struct("<III")
_LENGTH = struct.Struct("<I")
_MAX_JOURNAL_BYTES = (
    1 << 28
)  # bytes that a journal may have: masters write theirs again long before


class Journal:
    """The journal of one writer, which holds a lock on it for as long as it lives.

    Args:
        path: the file; made if it is missing.

    `written` has the payloads that were there when it was opened, `size` counts its bytes.

    Raises:
        EnvironmentFault: another process writes it, it is damaged, or it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            lock_file = lock(_lock_of(path))
            if lock_file is None:
                raise EnvironmentFault(f"another process writes {path}", retryable=True)
            self._lock = lock_file
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EnvironmentFault(f"cannot open {path}: {error.strerror}") from error
        try:
            self.written, self.size = read_frames(path.read_bytes(), name=str(path))
        except EnvironmentFault:
            self.close()
            raise
        os.ftruncate(self._file, self.size)

    def append(self, *payloads: bytes) -> None:
        """Add payloads, all of them or none.

        They outlive this process from here on, and the host from the next `sync` on.

        Raises:
            OSError: the disk did not take it; nothing of it is left.
        """
        data = _frame(payloads[0]) if len(payloads) == 1 else b"".join(map(_frame, payloads))
        written = os.pwrite(self._file, data, self.size)
        if written != len(data):
            os.ftruncate(self._file, self.size)
            raise OSError(
                f"wrote {written} of {len(data)} bytes to {self._path}: is the disk full?"
            )
        self.size += written

    def sync(self) -> None:
        """Bring everything down to the disk."""
        os.fsync(self._file)

    def replace_with(self, *payloads: bytes) -> None:
        """Put these in place of everything there is, at once.

        Raises:
            OSError: the disk did not take them; the journal is as before.
        """
        content = b"".join(map(_frame, payloads))
        write_whole(self._path, content, mode=0o600, is_sole_writer=True)
        os.close(self._file)
        self._file, self.size = os.open(self._path, os.O_RDWR | os.O_CLOEXEC), len(content)

    def empty(self) -> None:
        """Remove everything, at once."""
        os.ftruncate(self._file, 0)
        self.size = 0

    def set_aside(self) -> Path:
        """Rename the file to make way for a new one, which `replace` begins.

        Return its new path.
        """
        return _set_aside(self._path)

    def close(self) -> None:
        os.close(self._file)
        os.close(self._lock)


def has_writer(path: Path) -> bool:
    """Return whether a process writes this journal now."""
    return is_locked(_lock_of(path))


def _lock_of(path: Path) -> Path:
    """A file of its own: the journal is replaced, and a lock stays with its file."""
    return path.with_name(f".{path.name}.lock")


def set_aside_if_damaged(path: Path) -> str:
    """Make way for a new journal where this one cannot be read.

    Return its problem, or nothing.
    """
    try:
        content = read_regular(path, at_most=_MAX_JOURNAL_BYTES)
        read_frames(content, name=str(path))
    except FileNotFoundError:
        return ""
    except OSError as error:
        if not isinstance(error, NotRegularError) and error.errno != errno.EFBIG:
            raise
        return f"{path} is damaged: {error.strerror}; it is {_set_aside(path)} now"
    except EnvironmentFault as fault:
        return f"{fault}; it is {_set_aside(path)} now"
    return ""


def _set_aside(path: Path) -> Path:
    return path.replace(path.with_name(f"{path.name}.damaged"))


def _frame(payload: bytes) -> bytes:
    length = _LENGTH.pack(len(payload))
    return _HEADER.pack(len(payload), zlib.crc32(length), zlib.crc32(payload)) + payload


def read_frames(content: bytes, *, name: str) -> tuple[list[bytes], int]:
    """The payloads of a journal, and where the last whole frame ends.

    Args:
        content: the bytes of the file.
        name: of the file, for the error.

    Raises:
        EnvironmentFault: it is damaged; a torn end is not damage.

    >>> read_frames(_frame(b"one") + _frame(b"two")[:-1], name="journal")
    ([b'one'], 15)
    """
    payloads, offset = [], 0
    while offset < len(content):
        header = content[offset : offset + _HEADER.size]
        if len(header) < _HEADER.size:
            break
        if not any(header) and not content[offset:].strip(
            b"\0"
        ):  # a host that went down may leave zeros
            break
        length, length_checksum, checksum = _HEADER.unpack(header)
        end = offset + _HEADER.size + length
        if zlib.crc32(header[: _LENGTH.size]) != length_checksum:
            raise EnvironmentFault(
                f"{name} is damaged at byte {offset}: a length without its checksum"
            )
        payload = content[offset + _HEADER.size : end]
        if len(payload) < length:
            break
        if zlib.crc32(payload) != checksum:
            raise EnvironmentFault(
                f"{name} is damaged at byte {offset}: an entry without its checksum"
            )
        payloads.append(payload)
        offset = end
    return payloads, offset
