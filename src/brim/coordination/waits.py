"""Who is waited for, since when, and when to say so or to give it up. Pure: the caller brings the time.

Whoever is to do the next thing is waited for: a worker that was forked, named in a round or released from a barrier. It
may be slow, and that is said once and then at growing distances; behind the limit it hangs, and waiting for it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Doing", "Hangs", "Hung", "Late", "Waits"]

_FIRST = 8.0  # seconds until a wait is spoken of: with what it takes to ask for a stack, people hear of it within 10
_AS_USUAL = (
    2.0  # a wait is not spoken of before it is so many times as long as any of its kind that ended well
)
_NEXT = 2.0  # and again when it is so many times as long as when it was spoken of


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """What someone is at.

    Args:
        kind: what it is like, so that one wait can be compared with those before it.
        words: for people, behind "has been".
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
class Late:
    """It takes longer than usual: people should hear of it, and after how many seconds it is given up (None: never)."""

    who: str
    doing: Doing
    seconds: float
    limit: float | None


@dataclass(frozen=True, slots=True)
class Hung:
    """It takes longer than anything may."""

    who: str
    doing: Doing
    seconds: float


@dataclass(slots=True)
class _Wait:
    doing: Doing
    since: float
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

    def expect(self, who: str, doing: Doing, *, now: float) -> bool:
        """Wait for someone from now on, and no longer for what it was at; as `done`."""
        was_late = self.done(who, now=now)
        self._waits[who] = _Wait(doing, now)
        return was_late

    def moved(self, who: str, *, now: float) -> bool:
        """It is still at it, and comes on; whether it had been spoken of."""
        wait = self._waits.get(who)
        return self.expect(who, wait.doing, now=now) if wait else False

    def done(self, who: str, *, now: float) -> bool:
        """It is where it was waited for; whether it had been spoken of."""
        wait = self._waits.pop(who, None)
        if wait is None:
            return False
        kind = wait.doing.kind
        self._longest[kind] = max(self._longest.get(kind, 0.0), now - wait.since)
        return wait.said_at is not None

    def forget(self, who: str) -> None:
        """It is gone."""
        self._waits.pop(who, None)

    def pause(self, seconds: float) -> None:
        """Nobody looked for so long, since whoever does was stopped itself: this time is not held against anyone."""
        for wait in self._waits.values():
            wait.since += seconds

    def is_late(self, who: str) -> bool:
        """Whether it has been spoken of, and has not come on since."""
        return who in self._waits and self._waits[who].said_at is not None

    def look(self, *, now: float) -> list[Late | Hung]:
        """What is to be said, or done, now. Who hangs is not waited for any more."""
        found: list[Late | Hung] = []
        for who, wait in sorted(self._waits.items()):
            seconds = now - wait.since
            limit = None if self._limit is None else max(self._limit, wait.doing.at_least)
            if limit is not None and seconds >= limit:
                self.forget(who)
                found.append(Hung(who, wait.doing, seconds))
            elif seconds >= self._worth_saying(wait):
                wait.said_at = seconds
                found.append(Late(who, wait.doing, seconds, limit))
        return found

    def _worth_saying(self, wait: _Wait) -> float:
        if wait.said_at is not None:
            return _NEXT * wait.said_at
        return max(_FIRST, _AS_USUAL * self._longest.get(wait.doing.kind, 0.0))


@dataclass(slots=True)
class Hangs:
    """Whose fault it is that workers hang: once may be anything, twice in the same step is the user's code.

    Workers that hang in one round hang together, and count once.

    >>> hangs = Hangs()
    >>> hangs.again(step=12, round=1), hangs.again(step=12, round=1), hangs.again(step=12, round=2)
    (False, False, True)
    """

    _rounds: dict[int, int] = field(default_factory=dict)  # step -> round in which somebody hung there

    def again(self, *, step: int, round: int) -> bool:
        """Somebody hung; whether somebody had hung there before."""
        return self._rounds.setdefault(step, round) != round
