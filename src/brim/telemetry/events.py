"""Append-only files of JSON lines: a run's `events.jsonl` and `steps.jsonl`.

One line is one `os.write` to a file opened for appending, so lines of several processes do not mix, and a
process that is killed leaves at most one torn line at the end, which readers leave alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from brim.domain.accounting import StepRecord
from brim.interfaces import Clock
from brim.telemetry.records import Event

__all__ = ["EVENTS", "STEPS", "EventLog", "LineReader", "follow_events", "follow_steps"]

EVENTS, STEPS = "events.jsonl", "steps.jsonl"
T = TypeVar("T")


class EventLog:
    """Appends records, each stamped with the wall clock as `at`.

    Args:
        path: the file; made if it is missing. A torn last line of an earlier life is closed off first.
        clock: gives `at`.

    Raises:
        OSError: the file cannot be opened for appending.
    """

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._clock = clock
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")
        self._torn = False

    def append(self, kind: str, /, **fields: object) -> None:
        """Add an event of this kind; fields and kinds are those of `brim.telemetry.records`."""
        self.write({"at": self._clock.wall(), "kind": kind, **fields})

    def append_step(self, **fields: object) -> None:
        """Add a committed step; fields are those of `brim.domain.accounting.StepRecord` without `at`."""
        self.write({"at": self._clock.wall(), **fields})

    def write(self, record: Mapping[str, object]) -> None:
        """Add a record that already has its `at`.

        Raises:
            OSError: the disk is full, usually. A record that was cut short is closed off before the next one.
        """
        line = (b"\n" if self._torn else b"") + msgspec.json.encode(record) + b"\n"
        written = os.write(self._file, line)
        self._torn = written != len(line)
        if self._torn:
            raise OSError(f"wrote {written} of {len(line)} bytes of a record: is the disk full?")

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LineReader(Generic[T]):
    """Reads what was added to a file of JSON lines since the last time, by offset.

    Args:
        path: the file; it need not exist yet.
        decoder: makes a record of a line. Lines that it refuses (torn, or of another version) are counted in
            `skipped` and passed over.
    """

    def __init__(self, path: Path, decoder: msgspec.json.Decoder[T]) -> None:
        self._path, self._decoder = path, decoder
        self._offset = 0
        self.skipped = 0

    def poll(self) -> list[T]:
        """The records of all lines that were completed since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                fresh = file.read()
        except FileNotFoundError:
            return []
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._offset += len(whole)
        # Who opens a file while another writes to it may take the line for a torn one, and close it off again.
        lines = [line for line in whole.splitlines() if line]
        return [record for line in lines if (record := self._decode(line)) is not None]

    def _decode(self, line: bytes) -> T | None:
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.skipped += 1
            return None


def follow_events(run_dir: Path) -> LineReader[Any]:
    """A reader of the run's events, as the types of `brim.telemetry.records`."""
    return LineReader(run_dir / EVENTS, msgspec.json.Decoder(Event))


def follow_steps(run_dir: Path) -> LineReader[StepRecord]:
    """A reader of the run's committed steps."""
    return LineReader(run_dir / STEPS, msgspec.json.Decoder(StepRecord))
