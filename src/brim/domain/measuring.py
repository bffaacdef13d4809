"""Measures the speed of a running job.

Seconds per step by number of workers, and the curve they make. Pure.

A job without measurements is believed to scale as its micro-batches divide, with a twentieth of
a step that no worker can share: hopeful, so that it is given more workers and measured there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from brim.domain.scaling import ScalingCurve, ThroughputModel

PRIOR_RATE = 1.0  # steps per second of one worker, where nothing is known: only ratios matter then
_SERIAL = 0.05  # the part of a step that no worker shares, where only one size was measured
# steps at a size before it counts as measured: five, of which the older have faded a little
_MEASURED_STEPS = 4.5
_EVERY_SIZE = 64  # workers up to which a curve has a point for each number
# usual steps that one step counts for at most: a longer one stood still for another reason
_STALL = 3.0
# Seconds of a step: a run says what it likes of itself, and beyond these no curve can be fitted.
_SHORTEST, _LONGEST = 1e-6, 1e7
_MEMORY = 500.0  # steps after which an older measurement counts for half


@dataclass(slots=True)
class Measured:
    """Steps and the seconds that they took, by number of workers; older ones fade.

    >>> measured = Measured()
    >>> for _ in range(10): measured.add(2, 0.5)
    >>> measured.rates
    {2: 2.0}
    """

    totals: dict[int, tuple[float, float]] = field(default_factory=dict)

    def add(self, workers: int, seconds: float) -> None:
        """One step on so many workers took so long.

        A process that was stopped for a while says nothing about a size. A lasting slowdown is
        believed soon.
        """
        seconds = min(max(seconds, _SHORTEST), _LONGEST)
        steps, total = self.totals.get(workers, (0.0, 0.0))
        if steps >= _MEASURED_STEPS:
            seconds = min(seconds, _STALL * total / steps)
        fade = 0.5 ** (1.0 / _MEMORY)
        self.totals[workers] = steps * fade + 1.0, total * fade + seconds

    @property
    def rates(self) -> dict[int, float]:
        """Steps per second by number of workers, where there is enough to tell."""
        found = {
            n: steps / seconds
            for n, (steps, seconds) in self.totals.items()
            if steps >= _MEASURED_STEPS and seconds
        }
        return dict(sorted(found.items()))

    def of_each(self, processes: int) -> Measured:
        """Return measurements by number of workers that have so many of these processes each."""
        if processes == 1:
            return self
        whole = {n: steps for n, steps in self.totals.items() if n % processes == 0}
        return Measured({n // processes: steps for n, steps in whole.items()})

    def merged(self, fallbacks: Iterable[Measured]) -> Measured:
        """Fill in unknown rates from the first of `fallbacks` that knows them.

        A handful of steps is no knowledge: it hides nothing that others know.
        """
        totals = dict(self.totals)
        for fallback in fallbacks:
            for workers, (steps, seconds) in fallback.totals.items():
                if totals.get(workers, (0.0, 0.0))[0] < min(steps, _MEASURED_STEPS):
                    totals[workers] = steps, seconds
        return Measured(totals)


def divides(parts: int, workers: int) -> float:
    """Return how many workers `workers` are worth if a step has `parts` that cannot be divided.

    `parts` is 0 where it can be.

    >>> divides(8, 4), divides(8, 5), divides(8, 8), divides(0, 5)
    (4.0, 4.0, 8.0, 5.0)
    """
    return parts / math.ceil(parts / workers) if parts else float(workers)


def curve_of(rates: Mapping[int, float], *, parts: int, minimum: int, maximum: int) -> ScalingCurve:
    """Return the curve of a job from measurements.

    It has the measured points, and a fitted model between and beyond them.

    Args:
        rates: steps per second by number of workers; may be empty.
        parts: micro-batches of a step where ranks take whole ones, else 0.
        minimum, maximum: the fewest and the most workers that it may have.

    >>> curve = curve_of({1: 10.0}, parts=8, minimum=1, maximum=8)
    >>> curve.rates[1], round(curve.rates[2], 1), curve.sizes
    (10.0, 19.0, (1, 2, 3, 4, 8))
    """
    known_rates = dict(rates)
    if not known_rates:
        known_rates = {1: PRIOR_RATE}
    points = [(divides(parts, n), rate) for n, rate in known_rates.items()]
    if len(known_rates) == 1:
        ((worth, rate),) = points
        seconds_alone = 1.0 / rate / (_SERIAL + (1.0 - _SERIAL) / worth)
        model = ThroughputModel(
            fixed=_SERIAL * seconds_alone,
            compute=(1.0 - _SERIAL) * seconds_alone,
            tree=0.0,
            ring=0.0,
        )
    else:
        model = ThroughputModel.fit(points)
    fastest, smallest = max(known_rates.values()), min(known_rates)

    def believed(n: int) -> float:
        rate = model.rate(divides(parts, n))
        # A job that more workers have only slowed down is not infinitely fast on fewer.
        return min(rate, fastest) if n < smallest or math.isinf(rate) else rate

    return ScalingCurve(
        points=tuple(
            (n, known_rates.get(n) or believed(n))
            for n in _sizes(known_rates, parts, minimum, maximum)
        ),
        stepped=bool(parts),
    )


def curve_of_service(minimum: int, maximum: int) -> ScalingCurve:
    """Return the curve of a service, which has a use for as many workers as it asks for.

    The first ones are worth a little more, so that of two services both get some.

    >>> curve_of_service(1, 3).peak, curve_of_service(2, 2).sizes
    (3, (2,))
    """
    sizes = range(minimum, maximum + 1)
    return ScalingCurve(points=tuple((n, n - 0.4 * n * n / (maximum + 1)) for n in sizes))


def gain_of_one_more(rates: Mapping[int, float], *, parts: int, workers: int) -> float | None:
    """Return the steps per second that one more worker would add; None where nothing was measured.

    Where steps divide no better on one more, it is the share of a worker in the gain of the next
    faster number.

    Args:
        rates, parts: as those of `curve_of`.
        workers: that it has, at least one; it may have more in any case.

    >>> gain_of_one_more({2: 10.0, 3: 14.0}, parts=0, workers=2)
    4.0
    >>> gain_of_one_more({4: 10.0, 8: 18.0}, parts=8, workers=4)
    2.0
    >>> gain_of_one_more({8: 18.0}, parts=8, workers=8)
    0.0
    """
    if not rates:
        return None
    limit = 2 * workers if parts else workers + 1
    (_, now), *further_points = curve_of(rates, parts=parts, minimum=workers, maximum=limit).points
    if not further_points:
        return 0.0
    count, next_rate = further_points[0]
    return max(0.0, (next_rate - now) / (count - workers))


def _sizes(known_rates: Mapping[int, float], parts: int, minimum: int, maximum: int) -> list[int]:
    """Return the sizes at which a curve has points.

    A size that divides no better than a smaller one is no faster.
    """
    if parts:
        useful = range(minimum + 1, min(maximum, parts) + 1)
        return [minimum, *(n for n in useful if divides(parts, n) > divides(parts, n - 1))]
    if maximum > _EVERY_SIZE:
        return sorted(
            {n for n in {*known_rates, *_powers(maximum), minimum} if minimum <= n <= maximum}
        )
    return list(range(minimum, maximum + 1))


def _powers(maximum: int) -> set[int]:
    return {2**k for k in range(maximum.bit_length())} | {maximum}
