"""What a deadline may cost to be promised on arrival: cheap ones are, dear ones wait until they are cheap. Pure.

A promise cannot be taken back, so each one that is made early may stand in the way of two cheaper ones to come. With
commitment on arrival no rule bounds what is lost so (Eberle, Megow, Schewior, ESA 2020, arXiv 1912.10769); but what
will come is like what came. A job is *cheap* if all jobs that were no dearer, together, never kept more than a part of
the devices busy, in any stretch of time that was as long as the job's own. A dear job is planned for all the same,
and becomes cheaper as it runs, for only what it still needs counts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import NamedTuple

import numpy as np

__all__ = ["NOBODY", "Arrivals", "Prices"]

_HISTORY = 30 * 86400.0  # seconds of arrivals that are remembered,
_MOST = 512  # and how many of them at most: they are written down with each cycle
_SHORTEST = 3600.0  # seconds of the shortest stretch that is looked at
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
        """With the jobs that arrive now, without those that are too long ago.

        >>> Arrivals((0.0, 9.0), (5.0, 6.0)).joined_by([7.0], now=_HISTORY + 1.0)
        Arrivals(times=(9.0, 2592001.0), costs=(6.0, 7.0))
        """
        if not costs:
            return self
        old = max(bisect_right(self.times, now - _HISTORY), len(self.times) + len(costs) - _MOST)
        times, before = self.times[max(old, 0) :], self.costs[max(old, 0) :]
        return Arrivals((*times, *(now for _ in costs))[-_MOST:], (*before, *costs)[-_MOST:])


NOBODY = Arrivals()


class Prices:
    """The highest cost that is cheap, by the length of the window that a job has.

    Args:
        devices: that promises may count on.

    >>> prices = Prices(Arrivals((0.0, 3600.0, 7200.0), (3e4, 3e4, 9e5)), now=7200.0, devices=20)
    >>> prices.highest(7200.0)
    30000.0
    """

    def __init__(self, seen: Arrivals, *, now: float, devices: int) -> None:
        self._devices = devices
        self._times, self._costs = np.array(seen.times), np.array(seen.costs)
        self._known = max(now - seen.times[0], _SHORTEST) if seen.times else _SHORTEST
        self._sorted = np.sort(self._costs)
        self._highest: dict[int, float] = {}

    def highest(self, window: float) -> float:
        """The most device-seconds that a job with such a `window` may need to be promised; infinite without limit."""
        # Windows that differ by less than a factor of two have one price, so that it is worked out a few times a cycle.
        size = math.ceil(math.log2(max(window, _SHORTEST) / _SHORTEST))
        highest = self._highest.get(size)
        if highest is None:
            highest = self._highest[size] = self._price(min(_SHORTEST * 2.0**size, self._known))
        return highest

    def _price(self, stretch: float) -> float:
        """The cost up to which jobs left enough devices free in their worst `stretch`: what is no dearer only rises."""
        low, high = 0, len(self._sorted)
        while low < high:
            middle = (low + high) // 2
            if self._worst(self._sorted[middle], stretch) <= _BUSY * self._devices * stretch:
                low = middle + 1
            else:
                high = middle
        return float(self._sorted[low]) if low < len(self._sorted) else math.inf

    def _worst(self, cost: float, stretch: float) -> float:
        """Device-seconds that jobs no dearer asked for in the stretch in which they asked for most."""
        cheap = self._costs <= cost
        times = self._times[cheap]
        total = np.concatenate([[0.0], np.cumsum(self._costs[cheap])])
        first = np.searchsorted(times, times - stretch, side="right")
        return float(np.max(total[1:] - total[first]))
