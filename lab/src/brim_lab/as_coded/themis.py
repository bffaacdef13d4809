"""Themis as the artifact has it: a min-max share in each slot, then gangs.

Gangs are served in descending order of that share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from brim.domain.cluster import Cluster
from brim.domain.workload import Job
from brim_lab.as_coded.windows import Events, Replayed

Vector = NDArray[np.float64]


def themis(jobs: Sequence[Job], cluster: Cluster, *, slot: float) -> list[Replayed]:
    """Replay `jobs`; each ends after its duration or after its steps, whichever is first."""
    return _Replay(jobs, cluster, slot).run()


def interior_shares(
    waited: Vector, needs: Vector, isolated: Vector, sizes: Vector, devices: int
) -> Vector:
    """Shares that minimise the worst `(waited + needs / x) / isolated`.

    They keep `sizes . x <= devices` and x <= 1.

    Where many shares are optimal the published code takes what its interior-point solver ends in;
    here that is the analytic centre of the optimal set.
    """
    floor = float(np.max((waited + needs) / isolated))

    def smallest_shares(rho: float) -> Vector:
        return np.minimum(needs / np.maximum(rho * isolated - waited, 1e-12), 1.0)

    low, high = floor, floor
    while float(sizes @ smallest_shares(high)) > devices:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if float(sizes @ smallest_shares(middle)) > devices else (low, middle)
        )
    lower = smallest_shares(high)
    if high > floor * (1 + 1e-9):
        return lower  # the capacity binds: no freedom is left
    span = 1.0 - lower
    slack = devices - float(sizes @ lower)

    def centre(price: float) -> Vector:
        # 1.5/y - 1/(span - y) = price size. The 1.5: one for the bound on rho and a half for the
        # cone that holds 1/x, once its own variable is eliminated.
        push = price * sizes
        total = push * span + 2.5
        return np.asarray(3.0 * span / (total + np.sqrt(total**2 - 6.0 * push * span)))

    low, high = 0.0, 1.0
    while high * (slack - float(sizes @ centre(high))) < 1.0:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2
        excess = middle * (slack - float(sizes @ centre(middle)))
        low, high = (middle, high) if excess < 1.0 else (low, middle)
    return np.asarray(lower + centre(high))


class _Replay:
    def __init__(self, jobs: Sequence[Job], cluster: Cluster, slot: float) -> None:
        self.jobs = [
            Replayed(
                job=job, left=job.work, cap=job.requested, deadline=_deadline(job), end=job.duration
            )
            for job in jobs
        ]
        self.arrivals = Events(self.jobs)
        self.devices, self.slot = cluster.devices, slot
        self.runnable: list[Replayed] = []
        self.isolated: dict[str, float] = {}
        self.previous_shares: dict[str, tuple[float, float]] = {}

    def run(self) -> list[Replayed]:
        now = self.arrivals.list[0].time
        while self.arrivals.list or self.runnable:
            event = self.arrivals.find(now)
            if event is not None:
                self.arrivals.list.remove(event)
                self.runnable.extend(event.starts)
            running = self._choose(now) if self.runnable else []
            if self.arrivals.list:
                next_arrival = self.arrivals.next_after(now, self.slot)
                if next_arrival - now < self.slot:
                    self.arrivals.list[0].time = now + self.slot
                elif not self.runnable:  # nothing to do for whole slots
                    now += max(math.ceil((next_arrival - now) / self.slot) - 1, 0) * self.slot
                    if next_arrival - now < self.slot:
                        self.arrivals.list[0].time = now + self.slot
            self._advance(running, now)
            now += self.slot
        return self.jobs

    def _choose(self, now: float) -> list[Replayed]:
        jobs = self.runnable
        sizes = np.array([job.cap for job in jobs], dtype=float)
        rates = np.array([job.job.curve.rates[job.cap] for job in jobs])
        # The function meant to return isolated throughputs returns shares of time instead (a
        # fault).
        isolated = np.minimum(math.ceil(self.devices / len(jobs)) / sizes, 1.0)
        for job, share in zip(jobs, isolated.tolist(), strict=True):
            remaining, previous = self.previous_shares.get(job.job.id, (job.left, 1.0))
            self.isolated[job.job.id] = (
                self.isolated.get(job.job.id, 0.0) + (remaining - job.left) / previous
            )
            self.previous_shares[job.job.id] = (job.left, share)
        if float(sizes.sum()) > self.devices:
            undone = np.array([job.left for job in jobs])
            waited = now - np.array([job.job.submitted for job in jobs])
            so_far = np.array([self.isolated[job.job.id] for job in jobs])
            x = interior_shares(
                waited, undone / rates, so_far + undone / isolated, sizes, self.devices
            )
            order = np.argsort(-x, kind="stable").tolist()
            jobs = self.runnable = [jobs[k] for k in order]
        free, chosen = self.devices, []
        for job in jobs:
            if job.cap <= free:
                chosen.append(job)
                free -= job.cap
                job.started = now if job.started is None else job.started
        return chosen

    def _advance(self, running: list[Replayed], now: float) -> None:
        slot_end = now + self.slot
        for job in running:
            end = now + job.end
            job.end = max(0.0, job.end - self.slot)
            job.left -= self.slot * job.job.curve.rates[job.cap]
            if job.left <= 0:
                end = slot_end
            if end <= slot_end:
                job.finished, job.met = end, end <= job.deadline
                self.runnable.remove(job)


def _deadline(job: Job) -> float:
    return math.inf if job.deadline is None else job.deadline
