"""A mirror of a run's records: the same files, as far as received, for their readers.

Steps that were left out are empty lines in it, which count as lines do: the commits before a step are
what they were, and what reads records passes them over. A log has a hole at its front.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.followed import (
    EVENTS,
    MOST_LOGS,
    STEPS,
    TAIL,
    Mark,
    Part,
    digest_of_tail,
    is_followed,
)
from brim.domain.kept_run import LIVENESS_FILE
from brim.errors import EnvironmentFault, ProtocolError
from brim.host.holes import free_front
from brim.storage.files import lock, write_whole

_RECORDS = (EVENTS, STEPS)
_PLACES = ".places.json"  # where what was left out last ends: in the run's files, and in these
_LOCK = ".mirror.lock"
_LIMIT = 4 << 30  # bytes of records that a run may bring
_LONGEST_LOG = 2 << 20  # bytes of a log, of which the last half is kept
_PAUSE_OF_EMPTY = 1 << 20  # empty lines that are written at once


@dataclass(slots=True)
class _Copied:
    """One file.

    Args:
        place: bytes of the run's file up to its end here.
        size: bytes here.
        exact: of these so many last ones are those of the run's file.
    """

    place: int = 0
    size: int = 0
    exact: int = 0


class RecordsMirror:
    """The mirror of one run in a directory, of one process.

    Args:
        directory: the directory; made where it is missing.
        limit: bytes of records that it may have.

    Attributes:
        restarts: how often a file of records was begun again, since the run's is another: who has
            read it so far begins again, too.

    Raises:
        EnvironmentFault: it cannot be written, or another process has it.
    """

    def __init__(self, directory: Path, *, limit: int = _LIMIT) -> None:
        self._directory, self._limit = directory, limit
        self.restarts = 0
        self._files: dict[str, _Copied] = {}
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (directory / "logs").mkdir(mode=0o700, exist_ok=True)
            lock_file = lock(directory / _LOCK)
            if lock_file is None:
                raise EnvironmentFault(
                    f"another process follows a run into {directory}", retryable=True
                )
            self._lock = lock_file
            left_out = self._read_places()
            for name in (
                *_RECORDS,
                *sorted(f"logs/{log}" for log in os.listdir(directory / "logs")),
            ):
                if is_followed(name):
                    self._files[name] = self._found(name, *left_out.get(name, (0, 0)))
        except OSError as error:
            raise EnvironmentFault(f"cannot write the mirror {directory}: {error}") from error

    def _found(self, name: str, place: int, size: int) -> _Copied:
        """Take up a file as it was left: a torn line is cut off."""
        path = self._directory / name
        if not path.exists():
            return _Copied()
        with path.open("r+b") as file:
            size_here = os.fstat(file.fileno()).st_size
            if name in _RECORDS:
                size_here = _end_of_lines(file.fileno(), size_here)
            if size_here < size:
                size_here, place, size = 0, 0, 0
            file.truncate(size_here)
        return _Copied(place + size_here - size, size_here, size_here - size)

    def marks(self, *, proved: bool) -> dict[str, Mark]:
        """Return the received place of each file.

        Args:
            proved: that these are the run's files was shown on this connection.

        Raises:
            OSError: the disk does not answer.
        """
        if proved:
            return {name: Mark(copied.place) for name, copied in self._files.items()}
        for name, copied in self._files.items():
            if copied.place and not copied.exact:  # nothing tells it from another file
                self._files[name] = _Copied()
                self.restarts += name in _RECORDS
        return {name: self._proof(name, copied) for name, copied in self._files.items()}

    def _proof(self, name: str, copied: _Copied) -> Mark:
        tail = min(TAIL, copied.exact)
        if not tail:
            return Mark(copied.place)
        with (self._directory / name).open("rb") as file:
            data = os.pread(file.fileno(), tail, copied.size - tail)
        return Mark(copied.place, tail, digest_of_tail(data))

    def add(self, parts: Sequence[Part], data: bytes) -> None:
        """Write new parts, in this order.

        Args:
            data: of all parts, one behind the other.

        Raises:
            ProtocolError: it does not follow what is here.
            EnvironmentFault: the disk does not take it, or it is more than a run may bring.
        """
        begin = 0
        for part in parts:
            copied = self._files.get(part.name)
            if copied is None:
                if not is_followed(part.name) or len(self._files) >= MOST_LOGS + len(_RECORDS):
                    raise ProtocolError(f"{part.name[:80]!r} is not a file of a run")
                copied = self._files[part.name] = _Copied()
            content = data[begin : begin + part.size]
            begin += part.size
            if len(content) != part.size:
                raise ProtocolError("less came than was said")
            try:
                self._write(part, content, copied)
            except OSError as error:
                raise EnvironmentFault(
                    f"cannot write the mirror {self._directory}: {error}", retryable=True
                ) from error

    def _write(self, part: Part, content: bytes, copied: _Copied) -> None:
        is_record = part.name in _RECORDS
        if part.again:
            copied.place = copied.size = copied.exact = 0
            self.restarts += is_record
        is_next = part.place == copied.place
        if not (is_next or (part.place > copied.place and (part.lines or not is_record))):
            raise ProtocolError(f"{part.name} has a gap at {copied.place}")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._directory / part.name, flags, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            os.ftruncate(descriptor, copied.size)
            if is_record:
                self._check_room(part)
                self._leave_out(part, descriptor, copied)
            elif not is_next:
                copied.size, copied.exact = part.place, 0
            file.seek(copied.size)
            file.write(content)
            copied.place = part.place + len(content)
            copied.size += len(content)
            copied.exact += len(content)
            if not is_record and copied.size - _LONGEST_LOG > 0:
                file.flush()
                _cut_front(descriptor, copied.size)

    def _check_room(self, part: Part) -> None:
        size = sum(self._files[name].size for name in _RECORDS if name in self._files)
        if size + part.size + part.lines > self._limit:
            raise EnvironmentFault(
                f"the records of this run are larger than {self._limit:,} bytes: they are not "
                "followed any more"
            )

    def _leave_out(self, part: Part, descriptor: int, copied: _Copied) -> None:
        """Put empty lines in the place of those that did not come."""
        lines_left = part.lines
        while lines_left:
            lines = min(lines_left, _PAUSE_OF_EMPTY)
            copied.size += os.pwrite(descriptor, b"\n" * lines, copied.size)
            lines_left -= lines
        if part.lines or part.again:
            copied.place, copied.exact = part.place, 0
            self._write_places(part.name, copied)

    def _read_places(self) -> dict[str, tuple[int, int]]:
        try:
            data = (self._directory / _PLACES).read_bytes()
            return msgspec.json.decode(data, type=dict[str, tuple[int, int]])
        except (FileNotFoundError, *UNDECODABLE):
            return {}

    def _write_places(self, name: str, copied: _Copied) -> None:
        places = self._read_places() | {name: (copied.place, copied.size)}
        write_whole(
            self._directory / _PLACES, msgspec.json.encode(places), mode=0o600, is_sole_writer=True
        )

    def note_alive(self, now: float) -> None:
        """Tell readers that it is kept up to date.

        Args:
            now: seconds since 1970.
        """
        with contextlib.suppress(OSError):
            (self._directory / LIVENESS_FILE).write_text(f"{now:.0f}")

    def close(self) -> None:
        """Leave it, telling readers that nothing more comes."""
        with contextlib.suppress(OSError):
            (self._directory / LIVENESS_FILE).unlink(missing_ok=True)
        os.close(self._lock)


def _end_of_lines(file: int, size: int) -> int:
    """Return how many bytes of a file are whole lines."""
    end = size
    while end > 0:
        start = max(0, end - TAIL)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _cut_front(file: int, size: int) -> None:
    begin = (size - _LONGEST_LOG // 2) // 4096 * 4096
    with contextlib.suppress(OSError):
        free_front(file, begin)
