"""Files of JSON lines that only grow: a run's `events.jsonl` and `steps.jsonl`.

They follow from the master's journal, and lines are written at the place that the journal gives
them: a master that takes over adds what is missing and repeats nothing. A process that is killed
leaves at most one torn line at the end, which readers leave alone.
"""

from __future__ import annotations

import heapq
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.step_records import StepRecord
from brim.errors import EnvironmentFault, InternalError
from brim.host.untrusted import NotRegularError, open_regular
from brim.telemetry.events import Event, Restored

RecordName = Literal["events.jsonl", "steps.jsonl"]
EVENTS: RecordName = "events.jsonl"
STEPS: RecordName = "steps.jsonl"
_BLOCK = 1 << 20
_COUNTED = 64 * _BLOCK  # bytes of lines that one call passes over: some hundredths of a second
_MAX_LINE_BYTES = 4 << 20  # bytes of a line; a longer one is none of ours
T = TypeVar("T")


class RecordFile:
    """A file of records that a writer may have to write again: every line has its place.

    Args:
        path: the file; made if it is missing. A torn last line of a writer that died is cut off.

    Raises:
        OSError: the file cannot be opened for writing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.size = _end_of_last_line(self._file, os.fstat(self._file).st_size)
        os.ftruncate(self._file, self.size)

    def put(self, place: int, *lines: bytes) -> int:
        """Add lines that follow each other, but for those that are there already.

        What is new is one write, so that a batch of commits costs little more than one.

        Args:
            place: how many bytes there are before the first.
            lines: records, each with the end of its line.

        Returns:
            How many of the lines, the last ones, were not there.

        Raises:
            InternalError: another line is there.
            EnvironmentFault: the file lost lines that were before it.
            OSError: the disk is full, usually; nothing of what is new is left.
        """
        if place > self.size:
            raise EnvironmentFault(
                f"{self._path} lost lines: it has {self.size} bytes, {place} were written"
            )
        found = 0
        while found < len(lines) and place < self.size:
            if os.pread(self._file, len(lines[found]), place) != lines[found]:
                raise InternalError(
                    f"{self._path} has another record at byte {place} than the journal led to"
                )
            place += len(lines[found])
            found += 1
        if data := b"".join(lines[found:]):
            written = os.pwrite(self._file, data, place)
            if written != len(data):
                os.ftruncate(self._file, place)
                raise OSError(f"wrote {written} of {len(data)} bytes of records: is the disk full?")
            self.size += written
        return len(lines) - found

    def read(self, place: int, size: int) -> bytes:
        """Return so many bytes from a place on, or as many as there are. Raises OSError."""
        return os.pread(self._file, size, place)

    def last_line(self) -> bytes:
        """The last record; nothing where there is none."""
        start = _end_of_last_line(self._file, self.size - 1)
        return os.pread(self._file, self.size - start, start)

    def count_lines(self) -> int:
        """The number of records."""
        return sum(
            os.pread(self._file, _BLOCK, start).count(b"\n")
            for start in range(0, self.size, _BLOCK)
        )

    def sync(self) -> None:
        """Bring everything down to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def _end_of_last_line(file: int, end: int) -> int:
    """The number of bytes, of the first `end` of a file, that are whole lines."""
    while end > 0:
        start = max(0, end - (1 << 16))
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


class LineReader(Generic[T]):
    """Reads the growth of a file of JSON lines since the last time, by offset.

    Args:
        path: the file; it need not exist yet.
        decoder: makes a record of a line. Lines that it refuses (torn, or of another version) are
            counted in `skipped` and passed over.
        at_most: bytes that one call takes in, for who needs to know how things are and not each
            record: where more is new, the first record and the last ones.

    Attributes:
        lines: how many were passed so far, those among them of which no record was made.
    """

    def __init__(
        self, path: Path, decoder: msgspec.json.Decoder[T], *, at_most: int | None = None
    ) -> None:
        self._path = path
        self._decoder = decoder
        self._at_most = at_most
        self._offset = 0
        self.lines = 0
        self.skipped = 0
        self.has_more = False
        self.damage = ""  # what is wrong from here on, as it was at the last call

    def poll(self, *, at_once: int | None = None) -> list[T]:
        """The records of all lines that were completed since the last call.

        Args:
            at_once: about how many bytes to read; `has_more` says whether there was more.
        """
        return [record for _, record in self.poll_numbered(at_once=at_once)]

    def poll_numbered(self, *, at_once: int | None = None) -> list[tuple[int, T]]:
        """Read as `poll` does; each record comes with the number of its line, from 1."""
        records = self._next(at_once or _BLOCK)
        while self.has_more and at_once is None:
            records += self._next(_BLOCK)
        return records

    def _next(self, at_once: int) -> list[tuple[int, T]]:
        self.has_more, self.damage = False, ""
        try:
            file = open_regular(self._path)
        except FileNotFoundError:
            return []
        except NotRegularError as error:
            self.damage = f"{self._path} cannot be read: {error.strerror}"
            return []
        try:
            records = self._skip(file)
            if not self.damage and not self.has_more:
                records += self._decoded(self._lines(file, at_once))
            return records
        finally:
            os.close(file)

    def _skip(self, file: int) -> list[tuple[int, T]]:
        """The first record, where lines behind it are left out: these are counted, and not read.

        Of a job of a week there are gigabytes, so one call counts a part; `has_more` says so.
        """
        size = os.fstat(file).st_size
        if self._at_most is None or size - self._offset <= self._at_most:
            return []
        first = self._decoded(self._lines(file, 1))
        self.has_more = False  # of the line alone
        if self.damage:
            return first
        last = size - self._at_most
        found = os.pread(file, self._at_most, last).find(b"\n") + 1
        if not found:  # a long line, or one that is not complete: it begins before
            last = max(self._offset, last - _MAX_LINE_BYTES)
            found = os.pread(file, max(size - self._at_most - last, 0), last).rfind(b"\n") + 1
        self._count_up_to(file, last + found)
        return first

    def _count_up_to(self, file: int, end: int) -> None:
        """Pass over the lines before `end`, or over as many as one call may count."""
        limit = self._offset + _COUNTED
        while self._offset < min(end, limit):
            block = os.pread(file, min(_BLOCK, end - self._offset), self._offset)
            whole = block.rfind(b"\n") + 1
            self.lines += block.count(b"\n")
            self._offset += whole or len(block)
            if not block:
                break  # the file was cut while it was read
        self.has_more = self._offset < end

    def _lines(self, file: int, at_once: int) -> bytes:
        """The next whole lines, or the next one where that is longer."""
        chunk = os.pread(file, at_once, self._offset)
        self.has_more = len(chunk) == at_once
        end = chunk.rfind(b"\n") + 1
        if self.has_more and not end:
            chunk = os.pread(file, _MAX_LINE_BYTES, self._offset)
            end = chunk.find(b"\n") + 1
        if not end and len(chunk) == _MAX_LINE_BYTES:
            self.has_more = False
            self.damage = (
                f"{self._path} is damaged at byte {self._offset}: a line of more than "
                f"{_MAX_LINE_BYTES >> 20} MiB"
            )
        elif not end:
            self.has_more = False  # a line that is not complete
        self._offset += end
        return chunk[:end]

    def _decoded(self, whole: bytes) -> list[tuple[int, T]]:
        records = []
        for line in whole.split(b"\n")[:-1]:
            self.lines += 1
            if line and (record := self._decode(line)) is not None:
                records.append((self.lines, record))
        return records

    def _decode(self, line: bytes) -> T | None:
        try:
            return self._decoder.decode(line)
        except UNDECODABLE:
            self.skipped += 1
            return None


def follow_events(run_dir: Path) -> LineReader[Any]:
    """A reader of the run's events, as the types of `brim.telemetry.events`."""
    return LineReader(run_dir / EVENTS, msgspec.json.Decoder(Event))


def follow_steps(run_dir: Path, *, at_most: int | None = None) -> LineReader[StepRecord]:
    """A reader of the run's committed steps; `at_most` as in `LineReader`."""
    return LineReader(run_dir / STEPS, msgspec.json.Decoder(StepRecord), at_most=at_most)


Numbered = tuple[int, Event | StepRecord]
"""A record, and which commit it is; 0 for an event."""


def in_order(
    events: Iterable[Event], steps: Iterable[tuple[int, StepRecord]]
) -> Iterator[Numbered]:
    """Merge the growth of both files of a run.

    Each file stays in its own order. A restore stands behind the commits that it counts; between
    two restores the wall clock decides. It cannot decide about restores: it may have been set back
    between two lives of the run.

    Args:
        events: read before the steps, so that the commits which a restore counts are among these.
        steps: each with its number.
    """
    waiting = deque(steps)
    stretch: list[Event] = []
    for event in events:
        stretch.append(event)
        if isinstance(event, Restored):
            earlier_events = []
            while waiting and waiting[0][0] <= event.commits:
                earlier_events.append(waiting.popleft())
            yield from _by_time(stretch[:-1], earlier_events)
            yield 0, event
            stretch = []
    yield from _by_time(stretch, waiting)


def _by_time(
    events: Iterable[Event], steps: Iterable[tuple[int, StepRecord]]
) -> Iterator[Numbered]:
    merged = heapq.merge(_rising((0, event) for event in events), _rising(steps), key=_time_of)
    return (record for _, record in merged)


def _time_of(timed: tuple[float, Numbered]) -> float:
    return timed[0]


def _rising(records: Iterable[Numbered]) -> Iterator[tuple[float, Numbered]]:
    """Pair each record with its time, or with the latest before it."""
    latest = -math.inf
    for number, record in records:
        latest = max(latest, record.at)
        yield latest, (number, record)
