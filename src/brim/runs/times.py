"""Times as people read them."""

from __future__ import annotations

from brim.host.clock import local_time, wall


def clock_time(timestamp: float) -> str:
    """The time, and the date where that is not today's."""
    moment = local_time(timestamp)
    return moment.strftime(
        "%H:%M:%S" if moment.date() == local_time(wall()).date() else "%Y-%m-%d %H:%M:%S"
    )


def time_left(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss.

    >>> time_left(12.4), time_left(3725)
    ('0:12', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
