"""Finds workers that have been silent for too long. Pure: the caller brings the time.

A closed socket means lost at once and needs no clock; this is for those that are silent with their
socket open: stopped, hung, or cut off.
"""

from __future__ import annotations

import math


class Liveness:
    """Heartbeats of many members.

    Args:
        timeout: seconds of silence after which a member is lost; after half of it, it is suspect.

    >>> liveness = Liveness(timeout=4.0)
    >>> liveness.beat("w1", now=10.0)
    >>> liveness.suspect(now=12.5), liveness.lost(now=12.5), liveness.lost(now=14.5)
    (['w1'], [], ['w1'])
    """

    def __init__(self, *, timeout: float) -> None:
        self._timeout = timeout
        self._last: dict[str, float] = {}

    def beat(self, member: str, *, now: float) -> None:
        self._last[member] = now

    def forget(self, member: str) -> None:
        self._last.pop(member, None)

    def pause(self, seconds: float, *, now: float) -> None:
        """Add unobserved time: the observer was stopped itself, and what was said is still to be read.

        >>> liveness = Liveness(timeout=4.0)
        >>> liveness.beat("w1", now=10.0)
        >>> liveness.pause(20.0, now=31.0), liveness.lost(now=33.5), liveness.lost(now=34.5)
        (None, [], ['w1'])
        """
        for member, last in self._last.items():
            self._last[member] = max(last, min(now, last + seconds))

    def silence(self, member: str, *, now: float) -> float:
        """Seconds since its last word."""
        return now - self._last.get(member, now)

    def suspect(self, *, now: float) -> list[str]:
        return self._silent(now, self._timeout / 2)

    def lost(self, *, now: float) -> list[str]:
        return self._silent(now, self._timeout)

    def time_left(self, *, now: float) -> float:
        """Seconds until the first of them is lost, where all stay silent.

        Infinite where there is none.
        """
        return min((last + self._timeout - now for last in self._last.values()), default=math.inf)

    def _silent(self, now: float, seconds: float) -> list[str]:
        return sorted(member for member, last in self._last.items() if now - last > seconds)
