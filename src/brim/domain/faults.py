"""Faults as a small language: `kill rank 1 at step 40; add 2 at step 60; stop rank 0 for 5s at step 80`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Fault", "FaultKind"]


class FaultKind(enum.StrEnum):
    KILL = "kill"
    TERM = "term"
    STOP = "stop"
    ADD = "add"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, performed once `step` steps have been committed.

    Args:
        rank: the victim of kill, term and stop.
        count: how many workers `add` adds.
        seconds: how long `stop` lasts.
    """

    kind: FaultKind
    step: int
    rank: int = 0
    count: int = 0
    seconds: float = 0.0
