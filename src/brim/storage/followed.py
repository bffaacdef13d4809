"""Records of a run for followers on other hosts, which may lack any part of them.

A follower says up to which place it has a file, and proves at first by the bytes before it that it
is this file: a master that went on from a copy may lack what the last one wrote. What was followed
on one connection need not be proved again, as long as the file is the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from brim.domain.followed import EVENTS, MOST_LOGS, STEPS, Mark, Part, digest_of_tail, is_followed
from brim.host.clock import monotonic
from brim.host.holes import hole_of
from brim.host.untrusted import NotRegularError, open_regular

_CHUNK = 1 << 20  # bytes of a file at once
_MAX_LINE_BYTES = 4 << 20  # bytes of a line; a longer one is none of ours
_LOG = 256 << 10  # bytes of a log at once; where there are more, the last
_LOGS_AT_ONCE = 16 << 20  # bytes of all logs; the others come with the next answer
_POLL_INTERVAL = 1.0  # seconds between two looks for logs
_NO_MARK = Mark()


class FollowedRecords:
    """The records and logs of one run, for one follower.

    Args:
        run_dir: where they are; they need not be there yet.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._proved: dict[str, int] = {}  # the file of each name, as the disk numbers it
        self._logs: list[str] = []
        self._looked = -_POLL_INTERVAL

    def sizes(self, marks: Mapping[str, Mark]) -> dict[str, int]:
        """Return the bytes of each file that is followed, events before steps.

        Args:
            marks: of a follower, by name.
        """
        found = {}
        for name in (EVENTS, STEPS, *self._names_of_logs(marks)):
            with contextlib.suppress(OSError):
                found[name] = (self._run_dir / name).stat().st_size
        return found

    def read(
        self, marks: Mapping[str, Mark], *, steps_at_most: int | None
    ) -> list[tuple[Part, bytes]]:
        """Return the missing parts of a follower, up to a limit; steps before events.

        An event may count the steps before it, so that it comes with them or later.

        Args:
            marks: what it has, by name.
            steps_at_most: bytes of steps; where it lacks more, older ones are left out.

        Raises:
            OSError: the disk does not answer; or a file is another than before, which ends the call.
        """
        ends = self.sizes(marks)
        steps, waits = self._lines(STEPS, marks, ends.get(STEPS, 0), at_most=steps_at_most)
        events = [] if waits else self._lines(EVENTS, marks, ends.get(EVENTS, 0))[0]
        logs, size = [], 0
        for name in self._names_of_logs(marks):
            if size < _LOGS_AT_ONCE:
                found = list(self._log(name, marks))
                logs += found
                size += sum(part.size for part, _ in found)
        return [*steps, *events, *logs]

    def _names_of_logs(self, marks: Mapping[str, Mark]) -> list[str]:
        """Return the logs that a follower has, and others as far as it takes more."""
        if monotonic() - self._looked >= _POLL_INTERVAL:
            self._looked = monotonic()
            with contextlib.suppress(OSError):
                names = sorted(f"logs/{log}" for log in os.listdir(self._run_dir / "logs"))
                self._logs = [name for name in names if is_followed(name)]
        had = [name for name in self._logs if name in marks]
        room = MOST_LOGS - len(marks.keys() - {EVENTS, STEPS})
        other_logs = [name for name in self._logs if name not in marks]
        return [*had[:MOST_LOGS], *other_logs[: max(0, room)]]

    @contextlib.contextmanager
    def _opened(self, name: str, mark: Mark) -> Iterator[tuple[int, int, bool]]:
        """Open a file; yield it, its size, and whether it goes on behind a mark. Raises OSError."""
        file = open_regular(self._run_dir / name)
        try:
            found = os.fstat(file)
            if self._proved.setdefault(name, found.st_ino) != found.st_ino:
                raise OSError(errno.ESTALE, "another file has taken its place", name)
            tail = os.pread(file, mark.tail, max(0, mark.place - mark.tail)) if mark.tail else b""
            is_same = not mark.tail or digest_of_tail(tail) == mark.digest
            yield file, found.st_size, is_same and mark.place <= found.st_size
        finally:
            os.close(file)

    def _lines(
        self, name: str, marks: Mapping[str, Mark], end: int, *, at_most: int | None = None
    ) -> tuple[list[tuple[Part, bytes]], bool]:
        """Return whole lines up to an end, and whether there are more."""
        mark, first, lines = marks.get(name, _NO_MARK), b"", 0
        try:
            with self._opened(name, mark) as (file, _, goes_on):
                place = mark.place if goes_on else 0
                if at_most is not None and end - place > at_most:
                    first = b"" if place else _first_line(file)  # when the run began
                    begin = place + len(first)
                    place, lines = _left_out(file, begin, max(begin, end - at_most))
                data = _whole_lines(file, place, end)
        except (FileNotFoundError, NotRegularError):
            return ([(Part(name, 0, 0, again=True), b"")], False) if mark.place else ([], False)
        found = [(Part(name, 0, len(first), again=not goes_on), first)] if first else []
        if data or lines or not goes_on:
            is_behind = not (goes_on or first)
            found.append((Part(name, place, len(data), lines, again=is_behind), data))
        return found, bool(data) and place + len(data) < end

    def _log(self, name: str, marks: Mapping[str, Mark]) -> Iterator[tuple[Part, bytes]]:
        """Yield the bytes of a log, the last where there are many: it is cut at its front."""
        mark = marks.get(name, _NO_MARK)
        with (
            contextlib.suppress(FileNotFoundError, NotRegularError),
            self._opened(name, mark) as (file, size, goes_on),
        ):
            place = max(mark.place if goes_on else 0, size - _LOG, hole_of(os.fstat(file), file))
            data = os.pread(file, _LOG, place)
            if data or not goes_on:
                yield Part(name, place, len(data), again=not goes_on), data


def _whole_lines(file: int, place: int, end: int) -> bytes:
    data = os.pread(file, min(_CHUNK, max(0, end - place)), place)
    whole = data.rfind(b"\n") + 1
    if not whole and len(data) == _CHUNK:
        data = os.pread(file, min(_MAX_LINE_BYTES, end - place), place)
        whole = data.find(b"\n") + 1 or (len(data) if len(data) == _MAX_LINE_BYTES else 0)
    return data[:whole]


def _first_line(file: int) -> bytes:
    data = os.pread(file, _MAX_LINE_BYTES, 0)
    return data[: data.find(b"\n") + 1]


def _left_out(file: int, place: int, end: int) -> tuple[int, int]:
    """Return where the first line behind `end` begins, and how many lines are before it."""
    lines = 0
    while place < end:
        block = os.pread(file, min(_CHUNK, end - place), place)
        if not block:
            return place, lines
        lines += block.count(b"\n")
        place += len(block)
    if not lines and os.pread(file, 1, place - 1) == b"\n":
        return place, 0
    rest = os.pread(file, _MAX_LINE_BYTES, place)
    found = rest.find(b"\n") + 1
    return place + found, lines + bool(found)
