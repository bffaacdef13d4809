"""Outages of an API server: for how long its state was unobservable. Pure.

A clock that runs against somebody (a time to give way, a pause before another attempt) would run
against those whom nobody hears. So it counts seen time alone.
"""

from __future__ import annotations

import math

from brim.interfaces import Clock

_LONG = 30.0  # seconds; after such an outage a server may say of nodes that nobody hears of them
_TO_BE_HEARD = 40.0  # seconds behind it in which they are heard again, if they are there
_MOMENT = 1.0  # seconds in which what has happened meanwhile comes in
REQUESTS = "requests"  # what is missing where no request is answered


class Outages:
    """The outages of one API server, by its clients. Times are monotonic seconds.

    Several things can be missing at a time: answers to requests, and each watch. As long as one is,
    nobody sees all, and the time counts once.

    >>> outages = Outages()
    >>> outages.miss("pods", missing_since=10.0)
    >>> outages.miss("nodes", missing_since=12.0)
    >>> outages.find("pods", 15.0)
    >>> outages.unseen(20.0)
    10.0
    >>> outages.find("nodes", 21.0)
    >>> outages.unseen(30.0)  # with a second in which what has happened comes in
    12.0
    """

    def __init__(self) -> None:
        self._missing: dict[str, float] = {}  # since when
        self._counted_before = 0.0  # seconds that are counted
        self._counted = -math.inf  # until when
        self._outage_start = math.inf  # the outage that is under way
        self._doubted = -math.inf  # until when nodes that nobody hears of may be there
        self._answered = -math.inf

    def begin(self, now: float, *, before: float) -> None:
        """Begin to see, after so many unobserved seconds."""
        self._missing, self._counted_before, self._counted = {}, before, now
        self._end(now, lasted=before)

    def unseen(self, now: float) -> float:
        """Return the unobserved seconds so far."""
        missing_since = min(self._missing.values(), default=now)
        return self._counted_before + max(0.0, now - missing_since)

    def doubts(self, now: float) -> bool:
        """Return whether unheard nodes may be alive: they could not say so.

        The watcher counts the time of an outage against them.
        """
        return now - self._outage_start >= _LONG or now < self._doubted

    def miss(self, source: str, missing_since: float) -> None:
        """Know that something has been missing since then; again changes nothing."""
        self._missing.setdefault(source, max(missing_since, self._counted))
        self._outage_start = min(self._outage_start, self._missing[source])

    def find(self, source: str, now: float) -> None:
        """Know that something is not missing any more."""
        if source not in self._missing:
            return
        self._counted_before, self._counted = self.unseen(now), now
        del self._missing[source]
        self._missing = dict.fromkeys(self._missing, now)
        if not self._missing:
            self._counted_before += _MOMENT
            self._end(now, lasted=now - self._outage_start)

    def _end(self, now: float, *, lasted: float) -> None:
        self._outage_start = math.inf
        if lasted >= _LONG:
            self._doubted = now + _TO_BE_HEARD

    def answered(self, now: float) -> None:
        """Know that a request was answered."""
        self._answered = now
        self.find(REQUESTS, now)

    def unanswered(self, sent: float) -> None:
        """Know that a request came to nothing that was sent then.

        Where another was answered since, it was about that request alone.
        """
        if self._answered <= sent:
            self.miss(REQUESTS, sent)


class SeenClock:
    """A clock whose monotonic seconds stand still during outages.

    Args:
        clock: the clock of the process.
        outages: by `clock.now`.
    """

    def __init__(self, clock: Clock, outages: Outages) -> None:
        self._clock, self._outages = clock, outages
        self._last = -math.inf

    def now(self) -> float:
        """Seconds; an outage that is noticed late has it stand still that much longer."""
        now = self._clock.now()
        self._last = max(self._last, now - self._outages.unseen(now))
        return self._last

    def wall(self) -> float:
        return self._clock.wall()

    def set_by(self) -> float:
        return self._clock.set_by()
