"""ElasticFlow as its artifact has it: admission by batch, planned ends, overhead at each event."""

from __future__ import annotations

import math
from collections.abc import Sequence

from brim.domain.cluster import Cluster
from brim.domain.workload import Job
from brim_lab.as_coded.filling import Free, fill, grant_surplus
from brim_lab.as_coded.windows import Events, Replayed, Restarts

# The artifact's own table of most workers, where it is not the curve's peak (3.2 of the reference).
_CAPS = {"bert-384": 16, "cifar10-2048": 16, "cifar10-4096": 16, "yolov3-64": 4, "ncf-32768": 1}


def elasticflow(
    jobs: Sequence[Job], cluster: Cluster, *, slot: float, admission: bool = True
) -> list[Replayed]:
    """Replay `jobs`; without `admission` this is the paper's "EDF + elastic scaling" of Fig 9.

    A job has met its deadline if its planned end, without the last interval's overhead, does;
    without admission if the end on the slot grid with overhead does (3.10 of the reference).
    """
    return _Replay(jobs, cluster, slot, admission).run()


class _Replay:
    def __init__(self, jobs: Sequence[Job], cluster: Cluster, slot: float, admission: bool) -> None:
        self.jobs = [
            Replayed(
                job=job,
                left=job.work,
                cap=_CAPS.get(job.label, job.curve.peak),
                deadline=math.inf if job.deadline is None else job.deadline,
            )
            for job in jobs
        ]
        self.events = Events(self.jobs)
        self.devices, self.slot, self.admission = cluster.devices, slot, admission
        self.runnable: list[Replayed] = []
        self.free: Free = ([0.0], [self.devices])
        self.restarts = Restarts(devices=cluster.devices, node=cluster.node_size, slot=slot)

    def run(self) -> list[Replayed]:
        previous = now = self.events.list[0].time
        while self.events.list or self.runnable:
            self._advance(previous, now)
            event = self.events.find(now)
            if event is not None:
                self.events.list.remove(event)
                self._finish(event.ends, now)
                self._admit(event.starts, now)
            self.runnable = grant_surplus(
                self.runnable, now, self.free, devices=self.devices, slot=self.slot
            )
            for job in self.runnable:
                if job.workers and job.started is None:
                    job.started = now
                self.events.move_end(job, -1.0, job.end)
            self._plan_changes(now)
            self._charge()
            previous = now
            now = self.events.next_after(now, self.slot) if self.events.list else now + 10
        return self.jobs

    def _advance(self, previous: float, now: float) -> None:
        for job in self.runnable:
            if not job.workers:
                continue
            seconds = max(now - previous - max(now - job.real_end, 0.0), 0.0)
            steps = max(seconds - job.overhead, 0.0) * job.rate()
            if job.left <= steps and job.end > now:
                self.events.move_end(job, job.end, now)
                job.end = now
            job.left -= steps
            job.overhead = 0.0

    def _finish(self, ended: list[Replayed], now: float) -> None:
        for job in ended:
            if job.workers and job in self.runnable:
                self.runnable.remove(job)
                job.finished = job.real_end if self.admission else job.end
                job.met = job.finished <= job.deadline
                self._forget(job)

    def _forget(self, job: Replayed) -> None:
        for event in [event for event in self.events.list if job in event.ends]:
            event.ends.remove(job)
            if not event.ends and not event.starts:
                self.events.list.remove(event)

    def _admit(self, arrived: list[Replayed], now: float) -> None:
        is_kept = True
        if arrived:
            is_kept = self._plan(sorted(self.runnable + arrived, key=lambda job: job.deadline), now)
        for job in arrived:
            if is_kept or not self.admission or job.deadline == math.inf:
                self.runnable.append(job)
                job.admitted = self.admission and job.deadline < math.inf
            else:
                job.refused = True
        self.runnable.sort(key=lambda job: job.deadline)
        if not arrived or len(self.runnable) == 0 or not is_kept:
            self._plan(self.runnable, now)

    def _plan(self, jobs: Sequence[Replayed], now: float) -> bool:
        self.free = ([now], [self.devices])
        is_kept = True
        for job in jobs:
            if job.left <= 0:
                job.left = 1e-9
            plan = fill(job, now, self.free, devices=self.devices, slot=self.slot)
            self._forget(job)
            self.free = plan.free
            job.plan, job.end, job.real_end, job.workers = (
                plan.plan,
                plan.end,
                plan.real_end,
                plan.plan[0][1],
            )
            is_kept &= plan.kept
        return is_kept

    def _plan_changes(self, now: float) -> None:
        changes = [time for job in self.runnable for time, _ in job.plan if time > now]
        first = min(changes, default=math.inf)
        if first < math.inf and (not self.events.list or first < self.events.list[0].time):
            self.events.at(first)

    def _charge(self) -> None:
        self.restarts.charge(self.runnable)
        for job in self.runnable:
            if job.workers:
                self.events.move_end(job, job.end, job.end + job.overhead)
                job.end += job.overhead
