"""EDF as the artifact has it, with or without admission.

A job gets up to 64 workers, however slow that makes it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence

from brim.domain.cluster import Cluster
from brim.domain.workload import Job
from brim_lab.as_coded.filling import Free, largest
from brim_lab.as_coded.windows import Events, Replayed, Restarts, align


def edf(
    jobs: Sequence[Job], cluster: Cluster, *, slot: float, admission: bool = False
) -> list[Replayed]:
    """Replay `jobs` under EDF.

    With `admission`, a newcomer is refused if any planned end, its own or another's, is late.
    """
    return _Replay(jobs, cluster, slot, admission).run()


def _fill(
    job: Replayed, now: float, free: Free, devices: int, slot: float
) -> tuple[Free, float, int, bool]:
    """Plan `job`: its cap where that is free, else the largest measured count.

    (free, end, workers, kept).
    """
    times, values = list(free[0]), list(free[1])
    curve, remaining, is_kept = job.job.curve, job.left, True
    levels = tuple(n for n, _ in curve.points)
    cap = min(job.cap, devices)
    begin, first = now, -1
    for stop in [*free[0][1:], math.inf]:
        place = bisect_left(times, begin)
        if stop == math.inf:
            values[place] = devices
        workers = cap if values[place] >= cap else largest(levels, values[place])
        first = workers if first < 0 else first
        end = math.ceil(begin + remaining / curve.rates[workers]) if workers else math.inf
        if end <= stop:
            last = align(now, end, slot)
            index = bisect_left(times, last)
            if index == len(times) or times[index] != last:
                insort(times, last)
                values.insert(index, values[place])
            elif end < last:
                values[index] = values[
                    place
                ]  # what was free after it is overwritten by what was free before
            for k in range(place, bisect_left(times, end)):
                values[k] -= workers
            return (times, values), end, first, is_kept and end <= job.deadline
        remaining -= (stop - begin) * curve.rates[workers]
        values[place] -= workers
        begin = stop
        is_kept &= begin <= job.deadline
    raise AssertionError("the last segment is open and free")


class _Replay:
    def __init__(self, jobs: Sequence[Job], cluster: Cluster, slot: float, admission: bool) -> None:
        self.jobs = [
            Replayed(
                job=job,
                left=job.work,
                cap=job.curve.points[-1][0],
                deadline=math.inf if job.deadline is None else job.deadline,
            )
            for job in jobs
        ]
        self.events = Events(self.jobs)
        self.devices, self.slot, self.admission = cluster.devices, slot, admission
        self.runnable: list[Replayed] = []
        self.restarts = Restarts(devices=cluster.devices, node=cluster.node_size, slot=slot)

    def run(self) -> list[Replayed]:
        previous = now = self.events.list[0].time
        while self.events.list:
            self._advance(previous, now)
            event = self.events.list.pop(0)
            for job in event.ends:
                if job in self.runnable:
                    self.runnable.remove(job)
                    job.finished, job.met = job.end, job.end <= job.deadline
            fresh = False
            for job in event.starts:
                fresh |= self._judge(job, now)
            if event.starts and not self.admission:
                self.runnable.extend(event.starts)
            if not fresh:
                self.runnable.sort(key=lambda job: job.deadline)
                self._commit(self._plan(self.runnable, now)[0], now, stale=self.admission)
            if not self.events.list:
                break
            if self.admission:
                self._charge()
            previous, now = now, self.events.next_after(now, self.slot)
        return self.jobs

    def _advance(self, previous: float, now: float) -> None:
        for job in self.runnable:
            if job.workers:
                seconds = now - previous - max(now - job.end, 0.0)
                steps = max(seconds - job.overhead, 0.0) * job.rate()
                if job.left <= steps and job.end > now:
                    # It kept workers longer than planned (only ends and arrivals are events) and is
                    # done.
                    self.events.move_end(job, job.end, now)
                    job.end = previous + math.ceil(job.left / job.rate())
                job.left -= steps
            job.overhead = 0.0

    def _judge(self, job: Replayed, now: float) -> bool:
        if not self.admission:
            return False
        plans, is_kept = self._plan([*self.runnable, job], now)
        if not is_kept:
            job.refused = True
            return False
        job.admitted = True
        self.runnable.append(job)
        self._commit(plans, now)
        return True

    def _plan(
        self, jobs: list[Replayed], now: float
    ) -> tuple[list[tuple[Replayed, float, int]], bool]:
        free: Free = ([now], [self.devices])
        plans, is_kept = [], True
        for job in sorted(jobs, key=lambda job: job.deadline):
            free, end, workers, good = _fill(job, now, free, self.devices, self.slot)
            plans.append((job, end, workers))
            is_kept &= good
        return plans, is_kept

    def _commit(
        self, plans: list[tuple[Replayed, float, int]], now: float, *, stale: bool = False
    ) -> None:
        for job, end, workers in plans:
            job.workers = workers
            # `stale`: with admission a job that is paused keeps its old end, and ends then, done or
            # not.
            if workers or (job.started is not None and not stale):
                self.events.move_end(job, job.end if job.started is not None else -1.0, end)
                job.end = end
                job.started = now if job.started is None else job.started

    def _charge(self) -> None:
        self.restarts.charge(self.runnable)
        for job in self.runnable:
            if job.workers:
                self.events.move_end(job, job.end, job.end + job.overhead)
                job.end += job.overhead
