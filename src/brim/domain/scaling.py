"""The speed of a job on n workers.

Measured points, a fitted model between and beyond them, the envelope.

Pure: reading a profile from a file happens in `brim.simulator.profiles`.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from brim.errors import SpecError

MOST_WORKERS = 1 << 20  # a curve has a number for each count up to its largest


def concave_envelope(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the corners of the smallest concave function above `points`.

    It starts at the origin and never falls.

    Args:
        points: (workers, steps per second), in any order.

    >>> concave_envelope([(1, 1.0), (2, 3.0), (4, 4.0), (8, 3.5)])
    ((0.0, 0.0), (2.0, 3.0), (4.0, 4.0))

    Source: the greedy step of ElasticFlow (section 4.2) is optimal only on concave curves; some
    measured ones are not.
    """
    hull: list[tuple[float, float]] = [(0.0, 0.0)]
    for x, y in sorted((float(x), float(y)) for x, y in points):
        if y <= hull[-1][1]:  # at or past the peak so far: more workers for no more speed
            continue
        while len(hull) >= 2:
            (ax, ay), (bx, last_y) = hull[-2], hull[-1]
            if (last_y - ay) * (x - bx) > (y - last_y) * (bx - ax):
                break
            hull.pop()
        hull.append((x, y))
    return tuple(hull)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputModel:
    """Seconds per step = `fixed` + `compute` / n + `tree` log2 n + `ring` n, with no term negative.

    The terms: what no worker can share, the work that is divided, an all-reduce over a tree, and
    what grows with every member (stragglers, all-to-all).
    """

    fixed: float
    compute: float
    tree: float
    ring: float

    @classmethod
    def fit(cls, points: Iterable[tuple[float, float]]) -> ThroughputModel:
        """Least squares of relative step time over every subset of the four terms.

        The best without a negative.

        Args:
            points: (workers, steps per second), rates above zero; at least one. Workers may be what
                they are worth where work cannot be divided evenly, see `brim.domain.measuring`.

        Raises:
            SpecError: no usable point.

        >>> model = ThroughputModel.fit([(1, 1.0), (2, 2.0), (4, 4.0)])
        >>> round(model.rate(8), 6)
        8.0
        """
        usable = sorted((n, 1.0 / rate) for n, rate in points if rate > 0 and n > 0)
        if not usable:
            raise SpecError(
                "scaling curve", got="no point with a positive rate", need="at least one"
            )
        workers = np.array([n for n, _ in usable], dtype=float)
        seconds = np.array([s for _, s in usable])
        terms = (
            np.stack([np.ones_like(workers), 1 / workers, np.log2(workers), workers - 1]) / seconds
        )
        best: tuple[float, tuple[float, ...]] | None = None
        for size in range(1, 5):
            for chosen in itertools.combinations(range(4), size):
                if size > len(usable):
                    continue
                weights, *_ = np.linalg.lstsq(
                    terms[list(chosen)].T, np.ones_like(seconds), rcond=None
                )
                if np.any(weights < 0):
                    continue
                error = float(np.sum((terms[list(chosen)].T @ weights - 1) ** 2))
                # A further term must earn its place, or noise would choose it.
                if best is None or error < best[0] - 1e-9:
                    full = [0.0] * 4
                    for place, weight in zip(chosen, weights, strict=True):
                        full[place] = float(weight)
                    best = (error, tuple(full))
        assert best is not None, "one constant always fits"
        fixed, compute, tree, ring = best[1]
        return cls(fixed=fixed, compute=compute, tree=tree, ring=ring)

    def rate(self, workers: float) -> float:
        """Steps per second on `workers` workers; infinite where no term takes any time."""
        if workers <= 0:
            return 0.0
        seconds = self.fixed + self.compute / workers + self.tree * math.log2(workers)
        seconds += self.ring * (workers - 1)
        return 1.0 / seconds if seconds > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCurve:
    """Throughput against workers, for one model at one global batch size.

    Args:
        points: (workers, steps per second) as measured, ascending in workers, rates above zero.
        stepped: between two points it is as fast as at the lower one (work that is only shared out
            in whole parts).

    Attributes:
        rates: steps per second by number of workers, `rates[0] == 0`, up to the largest measured
            one; between two measured points the straight line, a lower bound wherever the curve is
            concave, unless it is `stepped`.
        sizes: the measured counts up to the peak, the ones a policy of the paper may use.
        floor: the largest of `sizes` that is at most n, by n; 0 below the smallest.
        peak: the fewest workers that reach the highest measured rate.
        envelope: as `rates`, on the concave envelope; constant beyond the peak.
        best: the highest rate with at most n workers, by n: an allocation never needs to slow a job
            down.

    >>> curve = ScalingCurve(points=((1, 1.0), (2, 1.5), (4, 2.5), (8, 2.0)))
    >>> curve.peak, curve.sizes, curve.rates[3], curve.share_for(1.2)
    (4, (1, 2, 4), 2.0, 2)
    """

    points: tuple[tuple[int, float], ...]
    stepped: bool = False
    rates: tuple[float, ...] = field(init=False, repr=False, compare=False)
    sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    floor: tuple[int, ...] = field(init=False, repr=False, compare=False)
    peak: int = field(init=False, repr=False, compare=False)
    envelope: tuple[float, ...] = field(init=False, repr=False, compare=False)
    best: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        counts = [n for n, _ in self.points]
        if (
            not counts
            or counts != sorted(set(counts))
            or not 1 <= counts[0] <= counts[-1] <= MOST_WORKERS
            or min(r for _, r in self.points) <= 0
        ):
            raise SpecError(
                "scaling curve",
                got=repr(self.points),
                need=f"ascending worker counts from 1 to {MOST_WORKERS:,} with rates above 0",
            )
        top = counts[-1]
        grid = np.arange(top + 1)
        values = [r for _, r in self.points]
        # Below the smallest measured count the job cannot run (its batch does not fit).
        lower = np.array(values)[np.searchsorted(counts, grid, side="right") - 1]
        line = np.where(
            grid >= counts[0], lower if self.stepped else np.interp(grid, counts, values), 0.0
        )
        corners = concave_envelope(self.points)
        hull = np.interp(grid, [x for x, _ in corners], [y for _, y in corners])
        peak = max(self.points, key=lambda point: (point[1], -point[0]))[0]
        for name, value in (
            ("rates", tuple(line.tolist())),
            ("envelope", tuple(hull.tolist())),
            ("best", tuple(np.maximum.accumulate(line).tolist())),
            ("peak", peak),
            ("sizes", sizes := tuple(n for n in counts if n <= peak)),
            (
                "floor",
                tuple(
                    max((size for size in sizes if size <= n), default=0) for n in range(top + 1)
                ),
            ),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def linear(cls, *, rate: float, maximum: int) -> ScalingCurve:
        """A job whose workers do not wait for each other.

        `rate` steps/s each, up to `maximum` workers.
        """
        return cls(points=tuple((n, rate * n) for n in sorted({1, maximum})))

    def rate(self, workers: int) -> float:
        """Steps per second on `workers` workers.

        Beyond the last measured count, its speed.
        """
        return self.rates[min(workers, len(self.rates) - 1)]

    @property
    def maximum_rate(self) -> float:
        """Steps per second at the peak."""
        return self.rates[self.peak]

    def share_for(self, rate: float) -> int | None:
        """The fewest workers that run at `rate` steps per second or faster.

        None where no count does.
        """
        if rate > self.rates[self.peak]:
            return None
        return bisect_left(self.best, rate)
