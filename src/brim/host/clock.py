"""The only module that reads a clock: contracts in pyproject.toml keep it so.

What orders events is handed a `Clock` and can be tried with a virtual one; what only waits for
something outside, or measures how long its own work takes, calls the functions.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

# It goes on while the host sleeps, which the monotonic clock of Linux does not.
_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_A_STEP = 1.0  # seconds; what is less may be the work of a time server, which sets no clock for it
_FIRST, _LAST = -62_135_500_000.0, 253_402_200_000.0  # of years 1 to 9999, in any time zone


# Seconds of a steady clock: for deadlines and durations. A step reads it dozens of times.
monotonic = time.monotonic


def wall() -> float:
    """Seconds since 1970 as the host's clock says now, which may be set: for single moments."""
    return time.time()


def sleep(seconds: float) -> None:
    """Wait: only between two looks at something that has a deadline."""
    time.sleep(seconds)


def local_time(timestamp: float) -> datetime:
    """Convert seconds since 1970 to the host's time zone.

    A time behind the last day that the calendar has becomes that day.

    >>> local_time(1e300).year, local_time(float("nan")).year
    (9999, 9999)
    """
    return datetime.fromtimestamp(_in_calendar(timestamp))


def utc_time(timestamp: float) -> datetime:
    """Convert seconds since 1970 to UTC, those beyond the calendar as `local_time` does."""
    return datetime.fromtimestamp(_in_calendar(timestamp), UTC)


def _in_calendar(timestamp: float) -> float:
    return max(_FIRST, timestamp) if timestamp < _LAST else _LAST


class SystemClock:
    """The host's clocks.

    The wall clock is read once and goes on by that of the host's life: somebody may set it while a
    run is under way, and what the run records must stay in order. Of a night's sleep it knows, as
    every process does that starts later; `now` does not, or all heartbeats would be late in the
    morning.

    Args:
        offset: that of an earlier clock of this host's life, which this one continues; None reads
            the wall clock.
        offset_ahead: seconds by which `now` is ahead of this host's life, to go on behind another host's.

    Attributes:
        offset: from the seconds of the host's life to those since 1970.
    """

    def __init__(self, *, offset: float | None = None, offset_ahead: float = 0.0) -> None:
        self.ahead = offset_ahead
        self.offset = time.time() - time.clock_gettime(_BOOT) if offset is None else offset
        self._set_by = 0.0

    def now(self) -> float:
        return time.monotonic() + self.ahead

    def wall(self) -> float:
        return time.clock_gettime(_BOOT) + self.offset

    def set_by(self) -> float:
        """Seconds by which the host's clock was set ahead of this one.

        0 for up to a second.
        """
        lead = time.time() - self.wall()
        if abs(lead - self._set_by) > _A_STEP:
            self._set_by = lead if abs(lead) > _A_STEP else 0.0
        return self._set_by

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

    def set_by(self) -> float:
        return 0.0

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, f"time does not run backwards: {seconds}"
        self._now += seconds
