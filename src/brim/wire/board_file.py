"""The board of one host in memory: notes in one order, the members' reports, and their wakers.

The notes lie in a file without a name to which all append. The kernel puts one behind the other,
and none in part: they are of one size, of which a page has a whole number. A report is written
before its note, into the writer's own part of another file.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable
from typing import Any

from brim.coordination.job.board import PHASES, Note, NoteKind
from brim.errors import ProtocolError
from brim.host.anonymous import anonymous_file

_NOTE = struct.Struct(
    "<BBHIQdII"
)  # kind, phase, member, generation, step, time, report: start, size
_KINDS = {int(kind): kind for kind in NoteKind}
_MOST_BYTES = 1 << 20  # of notes; then the agent empties the board
_ROOM = 1 << 20  # bytes of each member's reports
_MOST_WAKERS = 64  # descriptors that every worker has
_SPARE_WAKERS = 4  # for workers beyond those that are wanted


def open_wakers(workers: int) -> list[int]:
    """Return descriptors by which workers wake each other.

    Args:
        workers: that may meet on a board; those that are spare come beside them.

    Returns:
        None of them where this system has no such descriptors, or there would be too many.
    """
    count = workers + _SPARE_WAKERS
    if workers < 2 or count > _MOST_WAKERS or not hasattr(os, "eventfd"):
        return []
    return [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(count)]


def open_board() -> list[int]:
    """Return descriptors of an empty board: of the notes, and of the reports."""
    import fcntl  # not on every system, and who has no wakers has no board

    notes, reports = anonymous_file("brim-board"), anonymous_file("brim-reports")
    fcntl.fcntl(notes, fcntl.F_SETFL, fcntl.fcntl(notes, fcntl.F_GETFL) | os.O_APPEND)
    return [notes, reports]


def wake(wakers: Iterable[int]) -> None:
    """Wake the workers that wait for these descriptors, now or soon, and let them go first.

    Who always comes last would otherwise never rest, and have to wait for all other programs once
    its slice of the processor is used up, with the workers that wait for it.
    """
    for waker in wakers:
        with contextlib.suppress(OSError):  # it is awake
            os.eventfd_write(waker, 1)
    os.sched_yield()


def fall_asleep(waker: int) -> None:
    """Forget that somebody has woken this worker; it looks at the board behind this."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(waker)


class BoardFile:
    """One process's view of the board.

    Args:
        notes: descriptor of the notes.
        reports: descriptor of the reports.
    """

    def __init__(self, notes: int, reports: int) -> None:
        self._notes, self._reports = notes, reports
        self._generation = 0
        self._read = 0  # bytes of the notes
        self._used = 0  # bytes of this member's part of the reports

    def clear(self, generation: int) -> None:
        """Begin a board, at which nobody looks yet."""
        os.ftruncate(self._notes, 0)
        os.ftruncate(self._reports, 0)
        self._turn_to(generation)

    def _turn_to(self, generation: int) -> None:
        if generation != self._generation:
            self._generation, self._read, self._used = generation, 0, 0

    def pin(self, note: Note) -> bool:
        """Put up a note; return whether there was room for it.

        Raises:
            OSError: the system has no memory for it.
        """
        self._turn_to(note.generation)
        start, size = note.member * _ROOM + self._used, len(note.report)
        is_arrival = note.kind is NoteKind.ARRIVE
        if is_arrival and (self._used + size > _ROOM or self._read > _MOST_BYTES):
            return False
        if size and os.pwrite(self._reports, note.report, start) != size:
            return False
        self._used += size
        phase = PHASES.index(note.phase) if is_arrival else 0
        where = (note.member, note.generation, note.step, note.time)
        data = _NOTE.pack(note.kind, phase, *where, start if size else 0, size)
        if os.write(self._notes, data) != _NOTE.size:
            raise ProtocolError("a part of a note is on the board")
        return True

    def look(
        self, generation: int, *, whole: bool = False, with_reports: bool = False
    ) -> list[Note]:
        """Return the notes that this process has not read yet.

        Args:
            generation: of the board.
            whole: those that it has read, too.
            with_reports: read the reports as well.

        Raises:
            ProtocolError: something else than notes is there.
        """
        self._turn_to(generation)
        if whole:
            self._read = 0
        data = os.pread(self._notes, 2 * _MOST_BYTES, self._read)
        found: list[Note] = []
        for values in _NOTE.iter_unpack(data[: len(data) // _NOTE.size * _NOTE.size]):
            if not values[0]:  # not to be seen yet on this processor
                break
            found.append(self._note(values, with_reports=with_reports))
        self._read += len(found) * _NOTE.size
        return found

    def _note(self, values: tuple[Any, ...], *, with_reports: bool) -> Note:
        kind, phase, member, generation, step, time, start, size = values
        if kind not in _KINDS or phase >= len(PHASES) or size > _ROOM:
            raise ProtocolError("something else than a note is on the board")
        report = os.pread(self._reports, size, start) if size and with_reports else b""
        if with_reports and len(report) != size:
            raise ProtocolError("a report is missing behind a note of the board")
        return Note(
            kind=_KINDS[kind],
            generation=generation,
            member=member,
            step=step,
            phase=PHASES[phase] if kind == NoteKind.ARRIVE else "",
            time=time,
            report=report,
        )
