"""Entries of a master's journal: everything that its decisions follow from, in order. Pure.

`at` is seconds since 1970, for people; `now` is the host's monotonic clock, for spans of time: it
goes on where a master dies and another takes its place, and does not jump.
"""

from __future__ import annotations

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.host_kind import HostKind
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault
from brim.wire.messages import AgentMessage, Ask


class _Entry(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    at: float
    now: float


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """The records of the attempts before this one.

    Args:
        sizes: their bytes, by name.
        commits: how many steps were committed, those that were undone and redone among them.
        step: the last of them; 0 for the first attempt.
    """

    sizes: dict[str, int] = {}
    commits: int = 0
    step: int = 0


class Began(_Entry, frozen=True):
    """The first entry.

    Args:
        attempt: names this start of the job among those of its run; a master that takes over has
            the same.
        life: counts the masters of a run.
        started: seconds since 1970 when the user typed the command.
        note: a warning for followers of the run, or nothing.
        places: workers by agent; empty where it does not matter on which they are.
        stands_alone: the master is no agent's child, and outlives all of them.
        origin: names the directory in which the journal begins, where another master of this attempt
            may begin one elsewhere; empty: the attempt does.
    """

    attempt: str
    life: int
    spec: JobSpec
    run: str
    started: float
    before: Before
    note: str = ""
    places: dict[str, int] = {}
    stands_alone: bool = False
    origin: str = ""


class Restated(_Entry, frozen=True):
    """A state in place of a beginning: all that followed from the entries before this one."""

    attempt: str
    state: bytes


class TookOver(_Entry, frozen=True):
    """The master is gone, and another one goes on with its journal.

    Args:
        origin: names the directory in which the journal goes on, where that is another one, or may
            be; the master there is no agent's child. Empty: it is where it was.
        run: that directory.
        note: more about it for followers of the run, or nothing.
    """

    life: int
    origin: str = ""
    run: str = ""
    note: str = ""


class Joined(_Entry, frozen=True):
    """An agent has come.

    Args:
        room: workers that it takes at most, or None.
        keeps: it keeps a copy of the journal.
        kind: of its host, where it takes any.
        machine: see `JoinJob`.
    """

    agent: str
    session: str
    host: str
    room: int | None = None
    keeps: bool = False
    kind: HostKind | None = None
    machine: str = ""


class Heard(_Entry, frozen=True):
    """An agent said something; `number` is its place in the session."""

    agent: str
    number: int
    message: AgentMessage


class Lost(_Entry, frozen=True):
    """An agent is gone for good, and its workers with it; or one that is not in the job has no place."""

    agent: str
    reason: str


class Replaced(_Entry, frozen=True):
    """An agent was killed, and its workers with it; another process of its name has joined."""

    agent: str
    session: str
    host: str
    kind: HostKind | None = None


class Asked(_Entry, frozen=True):
    """People want something that can be done."""

    question: Ask


class Overstayed(_Entry, frozen=True):
    """Workers that were dismissed have taken their time to go."""


class GraceOver(_Entry, frozen=True):
    """A run that is to end has waited for its next boundary."""


class OthersLate(_Entry, frozen=True):
    """The newcomers of this round have waited for others that were started with them."""

    round: int


Entry = (
    Began
    | Restated
    | TookOver
    | Joined
    | Heard
    | Lost
    | Replaced
    | Asked
    | Overstayed
    | GraceOver
    | OthersLate
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    return _encoder.encode(entry)


def decode(data: bytes) -> Entry:
    """Raises EnvironmentFault where the bytes are no entry of this version."""
    try:
        entry: Entry = _decoder.decode(data)
    except UNDECODABLE as error:
        raise EnvironmentFault(f"not a journal entry of this version: {error}") from error
    return entry
