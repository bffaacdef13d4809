"""Places up to which a run's records are followed from another host, and the parts behind them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated

import msgspec

from brim.domain.kept_run import grows

EVENTS, STEPS = "events.jsonl", "steps.jsonl"
TAIL = 64 << 10  # bytes before a place by which it is known that the same was written before it
MOST_LOGS = 256  # that are followed of one run
_LONGEST_NAME = 200

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


@dataclass(frozen=True, slots=True)
class Mark:
    """The place in a file up to which a follower has it.

    Args:
        place: bytes of the file.
        tail: so many bytes before the place are proved by the digest; 0: it was proved before, on
            this connection.
        digest: of these bytes.
    """

    place: _Count = 0
    tail: _Count = 0
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file that its follower lacks.

    Args:
        name: of the file, in the run's directory.
        place: of the first of them in the file.
        size: bytes.
        lines: that were left out before them, of which only the number counts.
        again: what the follower has is of another file: this one begins.
    """

    name: str
    place: _Count
    size: _Count
    lines: _Count = 0
    again: bool = False


def digest_of_tail(tail: bytes) -> bytes:
    """Return a digest of the bytes before a place: a record has the time of its making."""
    return hashlib.sha256(tail).digest()


def is_followed(name: str) -> bool:
    """Return whether a name is that of a file that is followed.

    >>> is_followed("steps.jsonl"), is_followed("logs/w1.log"), is_followed("logs/../master.json")
    (True, True, False)
    """
    return len(name) <= _LONGEST_NAME and grows(name)
