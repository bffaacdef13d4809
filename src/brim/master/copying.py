"""Sends agents the missing parts of their copies of journal and records.

Agents keep copies on hosts of their own, so that a run outlives its master's host. A part of a copy
goes with a message that is said anyway, and before it: whatever an agent is told, its own copy has
what that follows from. So nothing waits for a copy.
"""

from __future__ import annotations

from brim.master.decisions import Decisions
from brim.master.entries import Restated, encode
from brim.master.records import Records
from brim.master.state import freeze
from brim.telemetry.record_files import EVENTS, STEPS, RecordName
from brim.wire.messages import CopyPart, RecordBytes

_CHUNK = 256 << 10  # bytes of records at a time: messages must not wait behind many
_MAX_COPY_BYTES = 16 << 20  # bytes of entries before a copy's journal is put more briefly


class CopyFeed:
    """The parts of one agent's copy, as they are sent.

    Args:
        records: the journal and the records.
        decisions: where these have led to.
        copied_entries: entries that the agent's copy has; None where it has none that can go on.
    """

    def __init__(self, records: Records, decisions: Decisions, copied_entries: int | None) -> None:
        self._records, self._decisions = records, decisions
        self._position = copied_entries
        self._is_complete = False
        self._places: dict[RecordName, int] = {EVENTS: 0, STEPS: 0}
        self._size = 0

    @property
    def is_behind(self) -> bool:
        """The copy is not whole yet: there is more to send than new entries."""
        return self._position is None

    @property
    def is_current(self) -> bool:
        """The copy has everything, or is sent it."""
        return self._position == self._decisions.state.entries

    def part(self) -> CopyPart | None:
        """Return the next part; None where the copy has everything."""
        state = self._decisions.state
        if self._position == state.entries:
            return None
        oldest = self._records.recent[0].number if self._records.recent else state.entries + 1
        if self._position is not None and self._position + 1 < oldest:
            self._position, self._is_complete = None, False
        return self._base() if self._position is None else self._news(self._position)

    def _base(self) -> CopyPart:
        """The records from their beginning on, and behind them the state in place of a journal."""
        state, begins, self._is_complete = self._decisions.state, not self._is_complete, True
        if begins:
            self._places = {EVENTS: 0, STEPS: 0}
        records, room = [], _CHUNK
        for file, place in self._places.items():
            data = self._records.read(file, place, min(room, state.sizes.get(file, 0) - place))
            if data:
                records.append(RecordBytes(file, place, data))
                self._places[file] += len(data)
                room -= len(data)
        if any(self._places[file] < state.sizes.get(file, 0) for file in self._places):
            return CopyPart(number=0, begins=begins, records=records)
        return self._restated(records, begins=begins)

    def _restated(self, records: list[RecordBytes], *, begins: bool = False) -> CopyPart:
        state = self._decisions.state
        entry = Restated(
            at=state.at, now=state.now, attempt=state.began.attempt, state=freeze(state)
        )
        self._position, self._size = state.entries, 0
        return CopyPart(
            number=state.entries,
            begins=begins,
            restates=True,
            holders=state.holders,
            entries=[encode(entry)],
            records=records,
        )

    def _news(self, copied_entries: int) -> CopyPart:
        """The entries that the copy lacks, and the lines of records that follow from them."""
        state = self._decisions.state
        new = []
        for written in reversed(self._records.recent):
            if written.number <= copied_entries:
                break
            new.append(written)
        new.reverse()
        records = [
            RecordBytes(line.file, line.place, line.line) for entry in new for line in entry.lines
        ]
        entries = [written.entry for written in new]
        self._size += sum(map(len, entries))
        if self._size > _MAX_COPY_BYTES:
            return self._restated(records)
        self._position = state.entries
        return CopyPart(
            number=state.entries, holders=state.holders, entries=entries, records=records
        )
