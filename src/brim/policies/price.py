"""Prices of promises.

A cheap deadline is promised on arrival, a dear one waits until it is cheap. Pure.

A promise cannot be taken back, so each one that is made early may stand in the way of two cheaper
ones to come. With commitment on arrival no rule bounds what is lost so (Eberle, Megow, Schewior,
ESA 2020, arXiv 1912.10769); but what will come is like what came. A job is *cheap* if all jobs that
were no dearer, together, never kept more than a part of the devices busy, in any stretch of time
that was as long as the job's own. A dear job is planned for all the same, and becomes cheaper as it
runs, for only what it still needs counts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_HISTORY = 30 * 86400.0  # seconds of arrivals that are remembered,
_MAX_ARRIVALS = 512  # and how many of them at most: they are written down with each cycle
_MIN_STRETCH = 3600.0  # seconds of the shortest stretch that is looked at
_BUSY = 1.0 / 3.0  # of the devices, which jobs as cheap may have kept busy


class Arrivals(NamedTuple):
    """Jobs that could have been in time when they arrived, in the order in which they did.

    Attributes:
        times: when.
        costs: the device-seconds of their smallest sufficient share.
    """

    times: tuple[float, ...] = ()
    costs: tuple[float, ...] = ()

    def joined_by(self, costs: list[float], *, now: float) -> Arrivals:
        """Add the jobs that arrive now, and drop those that are too old.

        >>> Arrivals((0.0, 9.0), (5.0, 6.0)).joined_by([7.0], now=_HISTORY + 1.0)
        Arrivals(times=(9.0, 2592001.0), costs=(6.0, 7.0))
        """
        if not costs:
            return self
        old = max(
            bisect_right(self.times, now - _HISTORY), len(self.times) + len(costs) - _MAX_ARRIVALS
        )
        times, costs_before = self.times[max(old, 0) :], self.costs[max(old, 0) :]
        return Arrivals(
            (*times, *(now for _ in costs))[-_MAX_ARRIVALS:],
            (*costs_before, *costs)[-_MAX_ARRIVALS:],
        )


NO_ARRIVALS = Arrivals()


class Prices:
    """The highest cost that is cheap, by the length of the window that a job has.

    Args:
        devices: that promises may count on.

    >>> prices = Prices(Arrivals((0.0, 3600.0, 7200.0), (3e4, 3e4, 9e5)), now=7200.0, devices=20)
    >>> prices.highest(7200.0)
    30000.0
    """

    def __init__(self, seen: Arrivals, *, now: float, devices: int) -> None:
        self._seen, self._devices = seen, devices
        self._known_span = max(now - seen.times[0], _MIN_STRETCH) if seen.times else _MIN_STRETCH
        self._highest: dict[int, float] = {}

    def highest(self, window: float) -> float:
        """The most device-seconds that a job with such a `window` may need to be promised.

        Infinite without limit.
        """
        # Windows that differ by less than a factor of two have one price, so that it is worked out
        # a few times a cycle.
        size = math.ceil(math.log2(max(window, _MIN_STRETCH) / _MIN_STRETCH))
        highest = self._highest.get(size)
        if highest is None:
            stretch = min(_MIN_STRETCH * 2.0**size, self._known_span)
            highest = self._highest[size] = _price(
                self._seen, stretch, _BUSY * self._devices * stretch
            )
        return highest


@lru_cache(maxsize=64)  # most cycles see no new arrivals, and the same stretches
def _price(seen: Arrivals, stretch: float, limit: float) -> float:
    """The cost up to which jobs asked for no more than `limit` in their worst `stretch`."""
    times, costs = np.array(seen.times), np.array(seen.costs)
    ascending = np.sort(costs)  # the dearer the jobs that count, the more they asked for
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        cheap = costs <= ascending[middle]
        if _worst(times[cheap], costs[cheap], stretch) <= limit:
            low = middle + 1
        else:
            high = middle
    return float(ascending[low]) if low < len(ascending) else math.inf


def _worst(times: npt.NDArray[np.float64], costs: npt.NDArray[np.float64], stretch: float) -> float:
    """Device-seconds that these jobs asked for in the stretch in which they asked for most."""
    total = np.zeros(len(costs) + 1)
    costs.cumsum(out=total[1:])
    first = times.searchsorted(times - stretch, side="right")
    return float((total[1:] - total[first]).max())
