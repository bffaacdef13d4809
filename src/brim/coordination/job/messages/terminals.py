"""Messages between a person at a terminal and the program of an interactive job."""

from __future__ import annotations

from brim.coordination.job.messages.workers import Message


class Sized(Message, frozen=True):
    """The size of the terminal's window, in characters; the first message of a person."""

    rows: int
    columns: int


class Typed(Message, frozen=True):
    """Bytes that were typed."""

    data: bytes


class Shown(Message, frozen=True):
    """Bytes that the program has printed."""

    data: bytes


class Exited(Message, frozen=True):
    """The program has ended, with an exit status, negative where a signal ended it."""

    status: int


FromPerson = Sized | Typed
FromProgram = Shown | Exited
