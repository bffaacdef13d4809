"""The past load of a service, and the load that is expected next. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

_WIDTH = 5.0  # seconds of a bucket
_MOST_BUCKETS = 7 * 17_280  # buckets: a week


class Past:
    """The loads that a service has had: the mean of each bucket of time, a week at most.

    Args:
        width: seconds of a bucket.
    """

    def __init__(self, *, width: float = _WIDTH) -> None:
        self.width = width
        self._loads: dict[int, tuple[float, int]] = {}

    def add(self, time: float, load: float) -> None:
        """Take in a load as it was measured; one that is not finite, or negative, is none."""
        if not (math.isfinite(load) and load >= 0.0):
            return
        bucket = int(time // self.width)
        mean, count = self._loads.get(bucket, (0.0, 0))
        self._loads[bucket] = mean + (load - mean) / (count + 1), count + 1
        if len(self._loads) > _MOST_BUCKETS:
            del self._loads[next(iter(self._loads))]

    def buckets(self) -> Iterator[tuple[float, float]]:
        """Yield (seconds since 1970 at which a bucket begins, its mean load), in order."""
        for bucket, (load, _) in sorted(self._loads.items()):
            yield bucket * self.width, load


def foresee(past: Past, now: float, ahead: float) -> float | None:
    """Return the highest load that is expected from now on, in the unit of the past's loads.

    None: nothing was measured lately, so nobody can tell.

    Args:
        now: seconds since 1970.
        ahead: seconds within which the load is to be borne.
    """
    recent = [load for start, load in past.buckets() if now - start <= 2 * past.width]
    return max(recent, default=None)
