"""The demand of an online service in the near future, foreseen from its own past. Pure.

A replica takes seconds to start, and training takes seconds to give way. So a service has to be given its
replicas for the load that it will have by then. What is foreseen is the highest of two values:

- the present load and its trend go on as they are, and the rest goes as wrong as it went in the last
  hour or so: a forecast has errors, and their upper end is added. Loads are mostly counts, whose noise
  grows as their square root, so errors count in units of that;
- it goes on as at the same time of the days before: by the same factor above what the trend alone said
  then, since a load that doubles at nine o'clock does so each day, on busy days and on calm ones.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator

DAY = 86_400.0  # seconds of a season, unless a service has another
_WIDTHS = 1.0, 5.0  # seconds of a bucket, at least and at most
_BUCKETS = 120  # of a season at least, as far as the former allows
_SEASONS = 7  # that are remembered
_FEWEST = 6  # buckets that make a trend
_ERRORS = 120  # latest forecasts whose errors count
_ERROR_SHARE = 0.9  # of these errors are no larger than what is added
_LARGEST_FACTOR = 4.0  # that a season before can have
_LARGEST = 1e15  # load: sums of more have no use, and too few digits
_SEASONS_USED = 2  # the latest: what was so last month is no news


class Past:
    """The loads that a service has had: the mean of each bucket of time, at most seven seasons back.

    Times are seconds since 1970, which a clock may repeat: what is measured for a bucket before the
    newest one is left out.

    Args:
        season: seconds after which the load is expected to repeat itself.
        width: seconds of a bucket; None: as suits the season.

    >>> past = Past(width=10.0)
    >>> for time, load in ((100.0, 3.0), (105.0, 5.0), (131.0, 8.0)):
    ...     past.add(time, load)
    >>> list(past.buckets())
    [(100.0, 4.0), (130.0, 8.0)]
    """

    def __init__(self, *, season: float = DAY, width: float | None = None) -> None:
        low, high = _WIDTHS
        self.width = width or min(high, max(low, season / _BUCKETS))
        self.season = max(1, round(season / self.width))  # in buckets
        self._first = 0  # the number of the first bucket that is kept
        self._loads = array("d")  # of each bucket since then; not a number: nobody has measured
        self._count = 0  # measurements in the newest bucket

    def add(self, time: float, load: float) -> None:
        """Take in a load as it was measured; one that no service can have, or negative, is none."""
        if not 0.0 <= load <= _LARGEST:
            return
        bucket, longest = int(time // self.width), _SEASONS * self.season
        newest = self._first + len(self._loads) - 1
        if bucket - newest > longest or not self._loads:
            self._first, self._loads, newest = bucket, array("d"), bucket - 1
        if bucket < newest:
            return
        if bucket > newest:
            self._loads.extend([math.nan] * (bucket - newest))
            self._count = 0
        self._count += 1
        mean = self._loads[-1] if self._count > 1 else 0.0
        self._loads[-1] = mean + (load - mean) / self._count
        if len(self._loads) > longest + self.season:  # seldom, since all that is kept is moved
            surplus = len(self._loads) - longest
            del self._loads[:surplus]
            self._first += surplus

    def buckets(self) -> Iterator[tuple[float, float]]:
        """Yield (seconds since 1970 at which a bucket begins, its mean load), in order."""
        for number, load in enumerate(self._loads, self._first):
            if not math.isnan(load):
                yield number * self.width, load

    def loads_of(self, first: int, end: int) -> array[float]:
        """Return the loads of buckets by their numbers; what was not measured is left out."""
        span = slice(max(0, first - self._first), max(0, end - self._first))
        return array("d", (load for load in self._loads[span] if not math.isnan(load)))

    def number_of(self, time: float) -> int:
        """Return the number of the bucket of a time."""
        return int(time // self.width)


def foresee(past: Past, now: float, horizon: float) -> float | None:
    """Return the highest load that is expected from now on, in the unit of the past's loads.

    None: nothing was measured lately, so nobody can tell.

    Args:
        now: seconds since 1970.
        horizon: seconds within which the load is to be borne.

    >>> past = Past(width=1.0)
    >>> for second in range(60):
    ...     past.add(second, 100.0 + 2.0 * second)
    >>> round(foresee(past, 60.0, 10.0) or 0.0)
    238
    """
    steps, bucket = max(1, math.ceil(horizon / past.width)), past.number_of(now)
    trend = _trend(past, bucket, steps)
    if trend is None:
        return None
    return max(
        trend + _usual_error(past, bucket, steps) * math.sqrt(trend),
        trend * _seasonal_factor(past, bucket, steps),
    )


def _trend(past: Past, bucket: int, steps: int) -> float | None:
    """Return the highest load of the next buckets if the trend of the last ones goes on.

    The bucket itself counts, as far as it was measured. None: nothing was.
    """
    span = max(_FEWEST, steps)
    loads = past.loads_of(bucket - span + 1, bucket + 1)
    if not loads:
        return None
    count = len(loads)
    level = math.fsum(loads[-3:]) / len(loads[-3:])
    if count < _FEWEST:
        return level
    middle, mean = (count - 1) / 2.0, math.fsum(loads) / count
    spread = math.fsum((place - middle) ** 2 for place in range(count))
    slope = math.fsum((place - middle) * load for place, load in enumerate(loads)) / spread
    return max(level, mean + slope * (count - 1 - middle + steps))


def _usual_error(past: Past, bucket: int, steps: int) -> float:
    """Return the upper end of the trend's latest errors, in square roots of the trend."""
    errors = []
    for start in range(bucket - steps - _ERRORS, bucket - steps):
        trend = _trend(past, start, steps)
        following = past.loads_of(start + 1, start + 1 + steps)
        if trend and following:
            errors.append((max(following) - trend) / math.sqrt(trend))
    if not errors:
        return 0.0
    return max(0.0, sorted(errors)[math.ceil(_ERROR_SHARE * len(errors)) - 1])


def _seasonal_factor(past: Past, bucket: int, steps: int) -> float:
    """Return by how much the load was above its trend at this time of the latest seasons; at least 1.

    It looks a little further, since no day is like the other to the second.
    """
    factors = [1.0]
    for season in range(1, _SEASONS_USED + 1):
        start = bucket - season * past.season
        trend = _trend(past, start, steps)
        following = past.loads_of(start + 1, start + 1 + 2 * steps)
        if trend and following:
            factors.append(max(following) / trend)
    return min(_LARGEST_FACTOR, max(factors))
