"""A file with an agent's messages that its master may not have received.

Where the agent is killed, the next agent says it.

A commit is in there before any worker hears of it: so whatever state a worker can come to is on
record in the end. The file is not synced: it is for the death of a process, and a power cut ends
the workers as well.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from brim.errors import EnvironmentFault, ProtocolError
from brim.storage.journal import Journal, set_aside_if_damaged
from brim.wire.messages import AgentMessage, Codec, Commits, Unheard

_MAX_JOURNAL_BYTES = (
    256 << 10
)  # bytes beyond which the file is written again, without what was heard


class UnheardFile:
    """The file of an agent.

    Args:
        path: where it is.
        session: of this agent.

    `left` has what agents before this one have left there.

    Raises:
        EnvironmentFault: it cannot be opened, or another process writes it.
        ProtocolError: an agent of another version wrote it.
    """

    def __init__(self, path: Path, session: str) -> None:
        self._path, self._session = path, session
        self._codec: Codec[Unheard] = Codec(Unheard)
        set_aside_if_damaged(path)
        self._journal: Journal | None = Journal(path)
        self._notes: deque[tuple[int, bytes]] = deque()
        self.pending = _whole(map(self._codec.decode, self._journal.written))

    def note(self, number: int, message: AgentMessage) -> None:
        """Write down the content of the message of this number, or a part of it."""
        note = self._codec.encode(Unheard(session=self._session, number=number, message=message))
        self._notes.append((number, note))
        self._write(note)

    def acknowledge(self, number: int) -> None:
        """Note that the master has everything up to this message of this session.

        The master knows nothing of earlier sessions.
        """
        while self._notes and self._notes[0][0] <= number:
            self._notes.popleft()
        if self._journal is not None and (self.pending or self._journal.size > _MAX_JOURNAL_BYTES):
            self.pending = []
            self._journal.empty()
            for _, note in self._notes:
                self._write(note)

    def _write(self, note: bytes) -> None:
        if self._journal is None:
            return
        try:
            self._journal.append(note)
        except OSError:  # behind a gap nothing is of use
            self.remove()

    def remove(self) -> None:
        """Leave nothing: the run has ended, or nothing more can be written."""
        if self._journal is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._journal.close()
            self._journal = None


def _whole(notes: Iterable[Unheard]) -> list[Unheard]:
    """Return the messages that were said, or would have been.

    Commits were noted one by one, and are said together.
    """
    whole: list[Unheard] = []
    for note in notes:
        last = whole[-1] if whole else None
        if last and note.number and (last.session, last.number) == (note.session, note.number):
            assert isinstance(last.message, Commits)
            assert isinstance(note.message, Commits)
            merged = Commits(records=[*last.message.records, *note.message.records])
            whole[-1] = Unheard(session=note.session, number=note.number, message=merged)
        else:
            whole.append(note)
    return whole


def open_unheard(path: Path, session: str) -> UnheardFile | None:
    """The file, or None where there can be none: the run can do without it."""
    try:
        return UnheardFile(path, session)
    except (EnvironmentFault, ProtocolError):
        return None
