"""Progressive filling and the greedy step as ElasticFlow's artifact has them.

They are 3.5 and 3.7 of the reference.

Kept apart from `brim.policies`, which has them as the paper means them: shares are tail-heavy here,
the greedy key has the other sign, and overheads are not in the plan.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from itertools import pairwise

from brim_lab.as_coded.windows import Replayed, align

Free = tuple[list[float], list[int]]
"""Free devices from each time on: (times, devices), both ascending in time,
the last value for ever.
"""


@dataclass(slots=True)
class Filled:
    """A plan for one job and the rest after it."""

    plan: list[tuple[float, int]]
    end: float
    real_end: float
    free: Free
    kept: bool

    def device_time(self) -> float:
        """Device-seconds until the planned end."""
        total = 0.0
        for (start, workers), (stop, _) in zip(
            self.plan, [*self.plan[1:], (self.end, 0)], strict=True
        ):
            total += workers * (stop - start)
        return total


def largest(levels: tuple[int, ...], limit: int) -> int:
    """The largest level that is at most `limit`, 0 where none is."""
    place = bisect_right(levels, limit)
    return levels[place - 1] if place else 0


def _merged(times: list[float], values: list[int]) -> Free:
    keep = [k for k in range(len(times)) if k == 0 or values[k] != values[k - 1]]
    return [times[k] for k in keep], [values[k] for k in keep]


class _Filling:
    """One job being planned: the state that the steps below share."""

    def __init__(self, job: Replayed, now: float, free: Free, devices: int, slot: float) -> None:
        self.job, self.now, self.devices, self.slot = job, now, devices, slot
        self.free_before = free
        self.times, self.values = list(free[0]), list(free[1])
        self.levels = tuple(n for n, _ in job.job.curve.points if n <= min(job.cap, devices))
        self.remaining = job.left
        self.allocation: dict[float, int] = {now: 0}
        self.due = align(now, job.deadline, slot) if job.deadline < math.inf else math.inf
        if self.due >= now and self.due < math.inf:
            self._break(self.due)

    def _break(self, time: float, value: int | None = None) -> None:
        place = bisect_left(self.times, time)
        if place < len(self.times) and self.times[place] == time:
            return
        insort(self.times, time)
        self.values.insert(place, self.values[place - 1] if value is None else value)

    def _length(self, start: float, stop: float) -> float:
        return (self.job.deadline if stop == self.due else stop) - start

    def _before_at(self, time: float) -> int:
        """Free devices just before `time`, as they were before this job."""
        place = bisect_left(self.free_before[0], time) - 1
        return self.free_before[1][place] if place >= 0 else self.devices

    def _done(self, end: float, real_end: float) -> Filled:
        plan = [(t, n) for t, n in sorted(self.allocation.items())]
        merged = [plan[k] for k in range(len(plan)) if k == 0 or plan[k][1] != plan[k - 1][1]]
        free = _merged(self.times, self.values)
        return Filled(merged, end, real_end, free, real_end <= self.job.deadline)

    def force_first(self, workers: int) -> Filled | float:
        """Give the first segment `workers`.

        Returns the whole plan if the job ends in that segment, else the time to go on from.
        """
        rate = self.job.job.curve.rates[workers]
        place = bisect_right(self.free_before[0], self.now)
        nxt = self.free_before[0][place] if place < len(self.free_before[0]) else self.due
        self.allocation[self.now] = workers
        real_end = math.ceil(self.now + self.remaining / rate)
        end = align(self.now, real_end, self.slot)
        if nxt >= end and self.job.deadline >= real_end:
            free_before = self._before_at(end)
            self._break(end, free_before)
            for k, time in enumerate(self.times):
                if self.now <= time < end:
                    self.values[k] -= workers
            return self._done(end, real_end)
        self.remaining -= self._length(self.now, nxt) * rate
        self.values[bisect_left(self.times, self.now)] -= workers
        self.allocation[nxt] = 0
        return nxt

    def fit(self, start: float) -> Filled | None:
        """Find the smallest level that finishes in time.

        The level is needed only from some moment on; before it, the next smaller one is enough.
        """
        rates, previous = self.job.job.curve.rates, 0
        stop = bisect_left(self.times, self.due)
        first = bisect_left(self.times, start)
        # The artifact leaves a zero at every later breakpoint; they count in its device time and
        # wake it.
        for time in self.times[:stop]:
            self.allocation.setdefault(time, 0)
        for level in self.levels:
            work, fill_end = 0.0, self.due
            for k in range(stop - 1, first - 1, -1):
                begin = self.times[k]
                workers = min(level, largest(self.levels, self.values[k]))
                if workers:
                    work += self._length(begin, fill_end) * rates[workers]
                    if work >= self.remaining:
                        return self._forward(first, k, level, previous)
                fill_end = begin
            previous = level
        return None

    def _forward(self, first: int, point: int, level: int, previous: int) -> Filled:
        rates = self.job.job.curve.rates
        k, real_end, end = first, 0.0, 0.0
        while True:
            begin = self.times[k]
            workers = min(level if k >= point else previous, largest(self.levels, self.values[k]))
            self.allocation[begin] = workers
            self.values[k] -= workers
            stop = self.times[k + 1] if k + 1 < len(self.times) else math.inf
            steps = self._length(begin, stop) * rates[workers] if workers else 0.0
            last = k + 1 >= len(self.times) or begin >= self.due
            if workers and ((k >= point and steps >= self.remaining) or last):
                seconds = math.ceil(self.remaining / rates[workers])
                end = begin + math.ceil(seconds / self.slot) * self.slot
                real_end = begin + seconds
                break
            self.remaining -= steps
            k += 1
        self._break(end, self._before_at(end))
        return self._done(end, real_end)

    def overrun(self, start: float, forced: int) -> Filled:
        """Plan a job that cannot be in time.

        It gets all that is free until its deadline, and after it until it is done.
        """
        rates, job = self.job.job.curve.rates, self.job
        top = self.levels[-1]
        for k in range(bisect_left(self.times, start), bisect_left(self.times, self.due)):
            begin, workers = self.times[k], largest(self.levels, self.values[k])
            self.allocation[begin] = workers
            self.values[k] -= workers
            self.remaining -= self._length(begin, self.times[k + 1]) * rates[workers]
        begin = max(self.due, start)
        for stop in [time for time in self.times if time > self.due]:
            place = bisect_right(self.times, begin) - 1
            workers = min(largest(self.levels, self.values[place]), job.cap)
            self.allocation[begin] = workers
            if workers:
                steps = (stop - begin) * rates[workers]
                if steps >= self.remaining:
                    real_end = math.ceil(begin + self.remaining / rates[workers])
                    end = align(self.now, real_end, self.slot)
                    self._break(begin)
                    self._break(end, self._before_at(end))
                    self._take(begin, end, workers)
                    return self._done(end, real_end)
                self.remaining -= steps
                self._break(begin)
                self._take(begin, stop, workers)
            begin = stop
        workers = forced or min(self.devices, top)
        self.allocation[begin] = workers
        real_end = math.ceil(begin + max(self.remaining, 0.0) / rates[workers])
        end = max(align(self.now, real_end, self.slot), begin + self.slot)
        self._break(begin, self.devices)
        self.values[bisect_left(self.times, begin)] = self.devices - workers
        self._break(end, self.devices)
        return self._done(end, real_end)

    def _take(self, start: float, stop: float, workers: int) -> None:
        for k in range(bisect_left(self.times, start), bisect_left(self.times, stop)):
            self.values[k] -= workers


def fill(
    job: Replayed, now: float, free: Free, *, devices: int, slot: float, first: int = 0
) -> Filled:
    """Plan `job` on free devices; `first` workers in the first segment if that is not 0."""
    filling = _Filling(job, now, free, devices, slot)
    start = now
    if first:
        reached = filling.force_first(first)
        if isinstance(reached, Filled):
            return reached
        start = reached
    return filling.fit(start) or filling.overrun(start, first)


def _given_back(job: Replayed, now: float, free: Free) -> Free:
    """The free timeline without the reservation of `job`."""
    times, values = list(free[0]), list(free[1])
    for time in [start for start, _ in job.plan] + [job.end]:
        place = bisect_left(times, time)
        if place == len(times) or times[place] != time:
            insort(times, time)
            values.insert(place, values[place - 1])
    steps = [*job.plan, (job.end, 0)]
    for (start, workers), (stop, _) in pairwise(steps):
        if workers:
            for k in range(bisect_left(times, start), bisect_left(times, min(stop, job.end))):
                values[k] += workers
    return _merged(times, values)


def grant_surplus(
    jobs: list[Replayed], now: float, free: Free, *, devices: int, slot: float
) -> list[Replayed]:
    """Give free devices, level by level, to the job whose device time grows most by them.

    That the device time grows and does not shrink is the artifact's sign fault.

    Returns:
        The jobs in the order that the artifact goes on with, which breaks its ties.
    """
    surplus = devices - sum(job.workers for job in jobs)
    order = list(jobs)
    while surplus > 0:
        keys: dict[int, float] = {}
        plans: dict[int, Filled] = {}
        for job in order:
            step = _next_level(job)
            if not 0 < step - job.workers <= surplus:
                keys[id(job)] = -math.inf
                continue
            own_free = _given_back(job, now, free)
            plan = fill(job, now, own_free, devices=devices, slot=slot, first=step)
            plans[id(job)] = plan
            current_time = Filled(job.plan, job.end, job.real_end, free, True).device_time()
            keys[id(job)] = (
                (plan.device_time() - current_time) / (step - job.workers)
                if job.workers
                else math.inf
            )
        order.sort(key=lambda job: -keys[id(job)])
        chosen = next((job for job in order if id(job) in plans), None)
        if chosen is None:
            break
        plan, step = plans[id(chosen)], _next_level(chosen)
        surplus -= step - chosen.workers
        chosen.workers, chosen.plan, chosen.end, chosen.real_end = (
            step,
            plan.plan,
            plan.end,
            plan.real_end,
        )
        free = plan.free
    return sorted(order, key=lambda job: -job.workers)


def _next_level(job: Replayed) -> int:
    return next((n for n, _ in job.job.curve.points if job.workers < n <= job.cap), job.workers)
