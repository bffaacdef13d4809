"""The only module that reads a clock."""

from __future__ import annotations

import time

__all__ = ["SystemClock", "VirtualClock"]

# It goes on while the host sleeps, which the monotonic clock of Linux does not.
_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The host's clocks.

    The wall clock is read once and goes on by that of the host's life: somebody may set it while a run is under way,
    and what the run records must stay in order. Of a night's sleep it knows, as every process does that starts later;
    `now` does not, or all heartbeats would be late in the morning.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.clock_gettime(_BOOT)

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.clock_gettime(_BOOT) + self._offset

    def cpu(self) -> float:
        """Seconds of processor time that this process has used."""
        return time.process_time()


class VirtualClock:
    """A clock that moves only when told to: for tests and simulation.

    >>> clock = VirtualClock(start=100.0)
    >>> clock.advance(2.5)
    >>> clock.now()
    102.5
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, f"time does not run backwards: {seconds}"
        self._now += seconds
