"""Tiresias as the artifact has it: three queues by attained service, and first fit.

Gangs have a fixed size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from brim.domain.cluster import Cluster
from brim.domain.workload import Job
from brim_lab.as_coded.windows import Events, Replayed, overhead

_LIMITS = (3250, 7200)  # device-seconds at which a job leaves the first and the second queue


@dataclass(slots=True)
class _Service:
    """The policy's memory of one job."""

    job: Replayed
    total: int = 0
    seen: float = 0.0
    queue: int = 0
    running: bool = False
    overhead: float = 0.0
    end: float = 0.0


def tiresias(jobs: Sequence[Job], cluster: Cluster, *, slot: float) -> list[Replayed]:
    """Replay `jobs` with the workers and the duration that they asked for."""
    return _Replay(jobs, cluster, slot).run()


class _Replay:
    def __init__(self, jobs: Sequence[Job], cluster: Cluster, slot: float) -> None:
        self.jobs = [
            Replayed(
                job=job,
                left=job.duration,
                cap=job.requested,
                deadline=math.inf if job.deadline is None else job.deadline,
            )
            for job in jobs
        ]
        self.arrivals = Events(self.jobs)
        self.devices, self.slot = cluster.devices, slot
        self.queues: tuple[list[_Service], ...] = ([], [], [])
        self.count = 0

    def run(self) -> list[Replayed]:
        end_time, jump = math.inf, math.inf
        ending: list[_Service] = []
        while True:
            arrival = self.arrivals.list[0].time if self.arrivals.list else math.inf
            now = min(arrival, end_time)
            if now == math.inf:
                return self.jobs
            happens = now <= jump
            now = min(now, jump)
            if happens and end_time == now:
                for service in ending:
                    job = service.job
                    job.finished, job.met = service.end, service.end <= job.deadline
                    self.queues[service.queue].remove(service)
            if happens and arrival == now:
                for job in self.arrivals.list.pop(0).starts:
                    self.queues[0].append(_Service(job, seen=now))
            self._credit(now)
            restart = self.count > 0 and self.count % int(self.slot) == 0
            self.count += 1
            self._choose(now, restart)
            end_time, ending = self._next_end(now, restart)
            jump = max(self._next_demotion(now), now + self.slot)
            if self.arrivals.list:
                self.arrivals.next_after(now, self.slot)

    def _credit(self, now: float) -> None:
        demoted = []
        for service in [service for queue in self.queues for service in queue]:
            if service.running:
                ran = max(int(now - service.seen) - service.overhead, 0.0)
                service.total = int(service.total + ran)
                service.overhead = 0.0
                limit = _LIMITS[service.queue] if service.queue < 2 else math.inf
                if service.total * service.job.cap >= limit:
                    demoted.append(service)
            service.seen = now
        for service in sorted(demoted, key=lambda service: service.job.job.id):
            self.queues[service.queue].remove(service)
            service.queue += 1
            self.queues[service.queue].append(service)

    def _choose(self, now: float, restart: bool) -> None:
        free = self.devices
        for queue in self.queues:
            for service in queue:
                fits = free >= service.job.cap
                if fits:
                    free -= service.job.cap
                    if not service.running:
                        service.overhead = overhead(
                            service.job.cap, devices=self.devices, restart=restart
                        )
                        service.job.started = (
                            now if service.job.started is None else service.job.started
                        )
                service.running = fits
            queue.sort(key=lambda service: not service.running)

    def _next_end(self, now: float, restart: bool) -> tuple[float, list[_Service]]:
        soonest = math.inf
        ending: list[_Service] = []
        for queue in self.queues:
            for service in queue:
                if not service.running:
                    continue
                remaining = service.job.job.duration - service.total
                if restart:
                    service.overhead = overhead(service.job.cap, devices=self.devices, restart=True)
                    remaining += service.overhead
                end = int(now + remaining)
                event = max(now + self.slot, end)
                if event < soonest:
                    soonest, ending = event, []
                if event == soonest:
                    service.end = end
                    ending.append(service)
        return soonest, ending

    def _next_demotion(self, now: float) -> float:
        # The published code divides what is left of the limit in seconds by the workers, so it
        # looks late.
        return min(
            (
                math.ceil((_LIMITS[service.queue] - service.total) / service.job.cap) + now
                for queue in self.queues[:2]
                for service in queue
                if service.running
            ),
            default=math.inf,
        )
