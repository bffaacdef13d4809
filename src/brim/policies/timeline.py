"""Devices that are free from now on, and how a job is fitted into them. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

# A timeline of more steps than this merges steps closer together than this part of their distance
# from now.
_MAX_EXACT_STEPS = 64
_COARSE = 0.03  # of a time: the distance to the next
_STEP = math.log(1.0 + _COARSE)


class Piece(NamedTuple):
    """`workers` workers from `start` to `stop`."""

    start: float
    stop: float
    workers: int


class Need(NamedTuple):
    """The remaining work of a job, as the planner sees it.

    Attributes:
        best: steps per second with at most n workers, by n (`ScalingCurve.best`).
        left: steps to do, at the curve's speed.
        begin: when it can make progress first (its last change may not be over).
        due: when it has to be done, margin already taken off.
        holds: workers that it has now.
        change: seconds that any change of its workers costs; an upper bound.
        minimum: its gang.
        ceiling: the most workers worth giving.
        floor: the largest size allowed by number of workers; None allows every number.
    """

    best: tuple[float, ...]
    left: float
    begin: float
    due: float
    holds: int
    change: float
    minimum: int
    ceiling: int
    floor: tuple[int, ...] | None = None

    def disturbed(self, delay: float, slower: float) -> Need:
        """Return the need if the job loses seconds first, and takes so many times as long."""
        best, left, begin, due, holds, change, minimum, ceiling, floor = self
        return Need(best, left * slower, begin + delay, due, holds, change, minimum, ceiling, floor)

    def share(self, delay: float = 0.0, slower: float = 1.0) -> int | None:
        """The fewest workers, the same until the end, that finish in time.

        No other job counts here. It is the share of `disturbed(delay, slower)`, without making it.
        """
        best, left, begin, due, holds, change, minimum, ceiling, _ = self
        window = due - (begin + delay)
        remaining = left * slower
        if window <= 0:
            return None
        moved = window - change
        move = max(bisect_left(best, remaining / moved), minimum) if moved > 0 else ceiling + 1
        if holds and holds <= ceiling and best[holds] * window >= remaining:
            return min(holds, move)  # staying as it is costs nothing
        return move if move <= ceiling else None

    def finish(self, workers: int, delay: float = 0.0, slower: float = 1.0) -> float:
        """Return the time at which `disturbed(delay, slower)` is done on `workers` workers."""
        start = self.begin + delay if workers == self.holds else self.begin + delay + self.change
        return start + self.left * slower / self.best[workers]


class Timeline:
    """Free devices as a step function of time, for ever after its last step.

    Attributes:
        times: when each step begins, ascending; the first is now.
        free: devices that are free from then on, by step: an array, for one job may take from
            hundreds of steps.

    >>> timeline = Timeline(now=0.0, devices=8)
    >>> timeline.take([Piece(0.0, 10.0, 6)])
    >>> timeline.fewest_free(0.0, 0.0), timeline.fewest_free(10.0, 10.0), timeline.fewest_free(0.0, 10.0)
    (2, 8, 2)
    """

    __slots__ = ("_grows", "free", "times")

    def __init__(self, *, now: float, devices: int) -> None:
        self.times = [now]
        self.free = np.array([devices])
        self._grows = True  # no step has fewer free devices than one before

    def fewest_free(self, start: float, stop: float) -> int:
        """The fewest free devices between `start` and `stop`."""
        first = bisect_right(self.times, start) - 1
        return int(self.free[max(first, 0) : max(bisect_left(self.times, stop), first + 1)].min())

    def overdrawn(self, rounding: float) -> bool:
        """Return whether more than there is was taken.

        Stretches of at most `rounding` seconds are allowed.
        """
        overdrawn_since = None
        for time, free in zip(self.times, self.free.tolist(), strict=True):
            if overdrawn_since is not None and time - overdrawn_since > rounding:
                return True
            if free >= 0:
                overdrawn_since = None
            elif overdrawn_since is None:
                overdrawn_since = time
        return overdrawn_since is not None

    @classmethod
    def without_pieces(cls, pieces: Sequence[Piece], *, now: float, devices: int) -> Timeline:
        """Return the rest of `devices` without `pieces`.

        Where pieces are many, each may last a little longer here.
        """
        is_large = len(pieces) > _MAX_EXACT_STEPS
        changes = {now: devices}
        for start, stop, workers in pieces:
            first = start if start > now else now
            last = _rounded_up(stop - now) + now if is_large else stop
            changes[first] = changes.get(first, 0) - workers
            changes[last] = changes.get(last, 0) + workers
        line = cls(now=now, devices=devices)
        line.times = sorted(changes)
        line._grows = not pieces
        line.free = np.cumsum([changes[time] for time in line.times])
        return line

    def give_back(self, pieces: Iterable[Piece]) -> None:
        """Undo a reservation; rounding stays reserved."""
        self._grows = False
        for piece in pieces:
            first = self._break(piece.start)
            last = self._break(piece.stop)
            self.free[first:last] += piece.workers

    def take(self, pieces: Iterable[Piece], *, exact: bool = False) -> None:
        """Reserve `pieces`.

        Unless `exact`, in a long timeline perhaps a little longer than they last.
        """
        for start, stop, workers in pieces:
            first = self._break(start)
            last = self._break(stop) if exact else self._end(stop)
            taken = self.free[first:last]
            taken -= workers  # in place; of a slice it would be copied back
            if first:
                self._grows = False

    def _end(self, stop: float) -> int:
        """Return the step that ends a reservation.

        In a long timeline, one that is there already, a little later.

        Without this a thousand jobs would make a thousand steps and a cycle would take their
        square.
        """
        place = bisect_left(self.times, stop)
        if _MAX_EXACT_STEPS < len(self.times) > place:
            now = self.times[0]
            if self.times[place] - stop <= _COARSE * (stop - now):
                return place
        return self._break(stop)

    def _break(self, time: float) -> int:
        place = bisect_left(self.times, time)
        if place == len(self.times) or self.times[place] != time:
            self.times.insert(place, time)
            self.free = np.concatenate((self.free[:place], self.free[place - 1 :]))
        return place

    def fit(self, need: Need, *, last_plan: Iterable[Piece] = ()) -> tuple[Piece, ...] | None:
        """Find the smallest share that is done by `need.due`.

        It is cut to the free devices where fewer are. None if none is enough.

        Args:
            last_plan: the job's; where its share still is the smallest, two looks are enough.

        Source: progressive filling, ElasticFlow section 4.1; sizes need not be powers of two here,
        and every change of workers costs `need.change` seconds in the plan.
        """
        share = need.share()
        return None if share is None else self.fit_from(share, need, last_plan=last_plan)

    def fit_from(
        self,
        share: int,
        need: Need,
        *,
        delay: float = 0.0,
        slower: float = 1.0,
        last_plan: Iterable[Piece] = (),
    ) -> tuple[Piece, ...] | None:
        """Do what `fit` does for `need.disturbed(delay, slower)`, made only where time is walked.

        Args:
            share: `need.share(delay, slower)`.
        """
        now = self.times[0]
        if self.free[0] >= share:
            stop = need.finish(share, delay, slower)
            if self._grows or self.fewest_free(now, stop) >= share:
                return (Piece(now, stop, share),)
        if len(self.times) > _MAX_EXACT_STEPS:
            piece = self._in_one_piece(need, share, delay, slower)
            if piece is not None:
                return (piece,)
        need = need.disturbed(delay, slower)
        last = bisect_left(self.times, need.due)
        maximum = min(need.ceiling, int(self.free[:last].max(initial=0)))
        if need.floor is not None:
            maximum = need.floor[maximum]
        if maximum < need.minimum:
            return None
        steps = self._usable(max(need.minimum, 1), last)
        guess = max((piece.workers for piece in last_plan), default=None)
        found = _smallest(need, share, maximum, steps, now, guess)
        return None if found is None else _walk(need, found, steps, now)

    def _in_one_piece(
        self, need: Need, minimum_share: int, delay: float, slower: float
    ) -> Piece | None:
        """Find the smallest share that finishes in time in one piece.

        None if it is not that simple.

        Where many jobs are planned, each as early as it can, nearly all are: those before have
        taken everything up to some moment, and behind it more and more is free.
        """
        times, free = self.times, self.free
        best, left, ready, due, holds, change, minimum, ceiling, floor = need
        left *= slower
        ready += delay
        size = max(minimum_share, minimum, 1)
        while size <= ceiling:
            place = (free < size).tobytes().rfind(1) + 1  # behind the last step with too few
            if place == len(times):
                return None
            start = times[place]
            begin = start if start > ready else ready
            if place or size != holds:
                begin += change
            stop = begin + left / best[size]
            if stop <= due and (floor is None or floor[size] == size):
                return Piece(start, stop, size)
            size += 1 + size // 16
        return None

    def _usable(self, minimum_share: int, last: int) -> list[_Step]:
        """The first `last` steps, without those that have fewer than `minimum_share` devices free."""
        times = [*self.times[: last + 1], math.inf]
        return [
            (start, stop, free)
            for start, stop, free in zip(
                times[:last], times[1:], self.free[:last].tolist(), strict=False
            )
            if free >= minimum_share
        ]


_Step = tuple[float, float, int]
"""From when to when so many devices are free."""


def _smallest(
    need: Need, lowest: int, highest: int, steps: list[_Step], now: float, guess: int | None
) -> int | None:
    """The smallest share from `lowest` to `highest` that reaches; None where not even `highest` does."""
    low, high = (
        lowest - 1,
        highest + 1,
    )  # `low` does not reach; `high` does, once it is not above `most`
    tries = [highest] if guess is None else [guess, guess - 1, highest]
    for size in tries:
        if low < size < high:
            low, high = (low, size) if _reaches(need, size, steps, now) else (size, high)
    if high > highest:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        size = middle if need.floor is None else need.floor[middle]
        if size <= low:  # no size between low and middle
            low = middle
        elif _reaches(need, size, steps, now):
            high = size
        else:
            low = middle
    return high


def _rounded_up(seconds: float) -> float:
    """Round up to one of a few lengths of time, which lie `_COARSE` of themselves apart."""
    if seconds <= 1.0:
        return 1.0
    return (1.0 + _COARSE) ** math.ceil(math.log(seconds) / _STEP)


def _reaches(need: Need, share: int, steps: list[_Step], now: float) -> bool:
    """Return whether `_walk` would find a plan.

    The same steps, without writing it down.

    Most of a cycle is spent here.
    """
    best, remaining, floor = need.best, need.left, need.floor
    workers_busy, busy, change, minimum = need.holds, need.begin, need.change, max(need.minimum, 1)
    previous = now
    for start, stop, free in steps:
        workers = free if free < share else share
        if floor is not None:
            workers = floor[workers]
            if workers < minimum:
                continue
        if (
            workers != workers_busy or start != previous
        ):  # a step without enough devices in between: it was suspended
            busy = (start if start > busy else busy) + change
            workers_busy = workers
        previous = stop
        begin = start if start > busy else busy
        if begin >= stop:
            continue
        rate = best[workers]
        done = begin + remaining / rate
        if done <= stop:
            return done <= need.due
        remaining -= rate * (stop - begin)
    return False


def _walk(need: Need, share: int, steps: list[_Step], now: float) -> tuple[Piece, ...] | None:
    """Plan at most `share` workers wherever they are free, from now until done."""
    best, remaining, floor = need.best, need.left, need.floor
    workers_busy, busy, minimum = need.holds, need.begin, max(need.minimum, 1)
    previous = piece_start = now
    pieces: list[Piece] = []
    for start, stop, free in steps:
        workers = free if free < share else share
        if floor is not None:
            workers = floor[workers]
            if workers < minimum:
                continue
        if workers != workers_busy or start != previous:
            busy = (start if start > busy else busy) + need.change
            if piece_start < previous:
                pieces.append(Piece(piece_start, previous, workers_busy))
            workers_busy, piece_start = workers, start
        previous = stop
        begin = start if start > busy else busy
        rate = best[workers]
        done = begin + remaining / rate
        if done <= stop:
            pieces.append(Piece(piece_start, done, workers))
            return tuple(pieces) if done <= need.due else None
        if begin < stop:
            remaining -= rate * (stop - begin)
    return None
