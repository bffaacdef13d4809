"""The rate at which a client sends requests. Pure: time is an argument."""

from __future__ import annotations


class RateLimit:
    """Sends a burst at once, and then so many requests a second; in the order of their coming.

    Args:
        per_second: requests a second in the long run, above 0.
        burst: requests that may go at once, from 1, where none went for a while.

    >>> limit = RateLimit(per_second=10, burst=2)
    >>> [round(limit.turn(now=5.0), 3) for _ in range(4)]
    [5.0, 5.0, 5.1, 5.2]
    >>> limit.turn(now=9.0)
    9.0
    """

    def __init__(self, *, per_second: float, burst: int) -> None:
        assert per_second > 0, f"a rate of {per_second} sends nothing"
        assert burst >= 1, f"a burst of {burst} sends nothing"
        self._gap = 1.0 / per_second
        self._burst_span = (burst - 1) * self._gap
        self._next = float("-inf")  # when the next request would go if there were no bursts

    def turn(self, now: float) -> float:
        """Take a place in the line.

        Returns:
            When to send, in seconds of the clock of `now`; not before it.
        """
        turn_at = max(self._next, now - self._burst_span)
        self._next = turn_at + self._gap
        return max(turn_at, now)
