"""Tracks which workers are waited for, since when, and when to report or end a wait.

Pure: the caller brings the time.

A worker is waited for if it has to act next: it was forked, named in a round or released from a
barrier. A slow one is reported once, and again at growing intervals; after the limit it counts as
hanging, and the wait for it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

# seconds until a wait is spoken of: with what it takes to ask for a stack, people hear of it within
# 10
_FIRST = 8.0
# a wait is not spoken of before it is so many times as long as any of its kind that ended well
_AS_USUAL = 2.0
_NEXT = 2.0  # and again when it is so many times as long as when it was spoken of


class Doing(msgspec.Struct, frozen=True, kw_only=True):
    """The work that a worker is waited for.

    Args:
        kind: groups similar work, so that a wait can be compared with earlier ones.
        words: for people, after "has been".
        step: the number of the step; 0 before the first round.
        round: its number.
        at_least: seconds that this may take, however short the limit is.
    """

    kind: str
    words: str
    step: int = 0
    round: int = 0
    at_least: float = 0.0


@dataclass(frozen=True, slots=True)
class Overdue:
    """The answer that a wait takes longer than usual and should be reported.

    `limit` is the seconds after which it is given up (None: never).
    """

    who: str
    doing: Doing
    seconds: float
    limit: float | None


@dataclass(frozen=True, slots=True)
class Hung:
    """The answer that a wait takes longer than its limit."""

    who: str
    doing: Doing
    seconds: float


@dataclass(slots=True)
class _Wait:
    doing: Doing
    start: float
    said_at: float | None = None  # seconds of waiting when it was last spoken of


class Waits:
    """All that one agent waits for.

    Args:
        limit: seconds without progress after which someone hangs; None: never.

    >>> waits = Waits(limit=60.0)
    >>> told = waits.expect("w1", Doing(kind="step", words="in step 3"), now=0.0)
    >>> [len(waits.look(now=now)) for now in (5.0, 8.0, 9.0, 16.0)], waits.look(now=60.0)[0].seconds
    ([0, 1, 0, 1], 60.0)
    """

    def __init__(self, *, limit: float | None) -> None:
        self._limit = limit
        self._waits: dict[str, _Wait] = {}
        self._longest: dict[str, float] = {}

    def expect(self, worker: str, doing: Doing, *, now: float) -> bool:
        """Wait for someone from now on, instead of its previous activity; as `done`."""
        was_late = self.done(worker, now=now)
        self._waits[worker] = _Wait(doing, now)
        return was_late

    def moved(self, worker: str, *, now: float) -> bool:
        """Note that a worker makes progress; return whether it had been reported as late."""
        wait = self._waits.get(worker)
        return self.expect(worker, wait.doing, now=now) if wait else False

    def done(self, worker: str, *, now: float) -> bool:
        """Note that a worker has arrived; return whether it had been reported as late."""
        wait = self._waits.pop(worker, None)
        if wait is None:
            return False
        kind, seconds = wait.doing.kind, now - wait.start
        if seconds > self._longest.get(kind, 0.0):
            self._longest[kind] = seconds
        return wait.said_at is not None

    def forget(self, worker: str) -> None:
        """Forget a worker that is gone."""
        self._waits.pop(worker, None)

    def pause(self, seconds: float) -> None:
        """Add unobserved time.

        The observer was stopped itself, so this time is held against no worker.
        """
        for wait in self._waits.values():
            wait.start += seconds

    def is_late(self, worker: str) -> bool:
        """Return whether it was reported and has made no progress since."""
        return worker in self._waits and self._waits[worker].said_at is not None

    def look(self, *, now: float) -> list[Overdue | Hung]:
        """Return late and hanging workers. Workers that hang are no longer waited for."""
        found: list[Overdue | Hung] = []
        for worker, wait in sorted(self._waits.items()):
            seconds = now - wait.start
            limit = None if self._limit is None else max(self._limit, wait.doing.at_least)
            if limit is not None and seconds >= limit:
                self.forget(worker)
                found.append(Hung(worker, wait.doing, seconds))
            elif seconds >= self._worth_saying(wait):
                wait.said_at = seconds
                found.append(Overdue(worker, wait.doing, seconds, limit))
        return found

    def _worth_saying(self, wait: _Wait) -> float:
        if wait.said_at is not None:
            return _NEXT * wait.said_at
        return max(_FIRST, _AS_USUAL * self._longest.get(wait.doing.kind, 0.0))


@dataclass(slots=True)
class Hangs:
    """Decides whose fault a hang is.

    The first can have any cause, a second in the same step is the user's code.

    Workers that hang in one round hang together, and count once.

    >>> hangs = Hangs()
    >>> hangs.is_second(step=12, round=1), hangs.is_second(step=12, round=1), hangs.is_second(step=12, round=2)
    (False, False, True)
    """

    _rounds: dict[int, int] = field(
        default_factory=dict
    )  # step -> round in which somebody hung there

    def is_second(self, *, step: int, round: int) -> bool:
        """Note that a worker hung; return whether one had hung there before."""
        return self._rounds.setdefault(step, round) != round
