"""Gandiva as the artifact has it: sets of nodes per job size, and time slicing.

The faults of its re-balancing are included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from brim.domain.cluster import Cluster
from brim.domain.workload import Job
from brim_lab.as_coded.windows import Events, Replayed, overhead

_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 88, 128, 256)


@dataclass(slots=True)
class _NodeSet:
    """Some whole nodes that host jobs of one size; more than `capacity` of them take turns."""

    nodes: int
    capacity: int
    jobs: list[Replayed] = field(default_factory=list)
    load: int = 0


def gandiva(jobs: Sequence[Job], cluster: Cluster, *, slot: float) -> list[Replayed]:
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
        self.slot, self.devices, self.node = slot, cluster.devices, cluster.node_size
        self.free = len(cluster.nodes)
        self.classes: dict[int, list[_NodeSet]] = {size: [] for size in _SIZES}
        self.running: list[Replayed] = []
        self.pending: list[Replayed] = []
        self.count = 0

    def run(self) -> list[Replayed]:
        now, passed = self.arrivals.list[0].time, 0.0
        while self.arrivals.list or self.running or self.pending:
            self._balance()
            released = self._execute(now, passed)
            event = self.arrivals.find(now)
            if event is not None:
                self.arrivals.list.remove(event)
                for job in event.starts:
                    self._start(job, now, self.pending)
            if released:
                waiting, self.pending = self.pending, []
                for job in waiting:
                    self._start(job, now, self.pending)
            if not self.arrivals.list:
                now, passed = now + self.slot, self.slot
                continue
            restart = self.count > 0 and self.count % int(self.slot) == 0
            self.count += 1
            for job in self.running:
                job.overhead = overhead(job.cap, devices=self.devices, restart=restart)
            next_time = self.arrivals.next_after(now, self.slot)
            now, passed = next_time, next_time - now
        return self.jobs

    def _start(self, job: Replayed, now: float, waiting_jobs: list[Replayed]) -> None:
        if self._place(job):
            job.started = now
            self.running.append(job)
        else:
            waiting_jobs.append(job)

    def _place(self, job: Replayed) -> bool:
        sets = self.classes[job.cap]
        if sets:
            first = sets.pop(0)
            sets.append(first)
            if first.load + 1 < first.capacity:
                self._join(sets, first, job)
                return True
        nodes = math.ceil(job.cap / self.node)
        if nodes <= self.free:
            self.free -= nodes
            fresh = _NodeSet(nodes, nodes * self.node // job.cap)
            sets.append(fresh)
            self._join(sets, fresh, job)
            return True
        if sets:
            first = sets.pop(0)
            sets.append(first)
            self._join(sets, first, job)
            return True
        return False

    @staticmethod
    def _join(sets: list[_NodeSet], chosen: _NodeSet, job: Replayed) -> None:
        chosen.jobs.append(job)
        chosen.load += 1
        sets.sort(key=lambda node_set: node_set.load)

    def _balance(self) -> None:
        """Share the nodes out by demand.

        The artifact does so before it credits the interval that has passed, which is a fault.
        """
        demand = {
            size: size * sum(len(node_set.jobs) for node_set in sets)
            for size, sets in self.classes.items()
        }
        loads = {
            size: self.node * sum(node_set.nodes for node_set in sets)
            for size, sets in self.classes.items()
        }
        total = sum(demand.values())
        for size, sets in self.classes.items():
            if demand[size]:
                target = min(math.floor(demand[size] / total * self.devices), demand[size])
                change = target - loads[size]
                # Devices that a job needs, where those of a set were meant: it gives up too many
                # sets.
                if change > 0:
                    self._expand(size, sets, math.ceil(change / size))
                elif change < 0:
                    self._shrink(sets, math.ceil(-change / size))

    def _expand(self, size: int, sets: list[_NodeSet], count: int) -> None:
        nodes = math.ceil(size / self.node)
        last = 0
        for last in range(1, count + 1):  # the artifact reads `last` after the loop
            if nodes <= self.free:
                self.free -= nodes
                sets.append(_NodeSet(nodes, nodes * self.node // size))
                last = nodes - 1  # its inner loop has the same variable
        if last > 0:
            jobs = [job for node_set in sets for job in node_set.jobs]
            for node_set in sets:
                node_set.jobs, node_set.load = [], 0
            for job in jobs:
                self._join(sets, sets[0], job)

    def _shrink(self, sets: list[_NodeSet], count: int) -> None:
        count = min(count, len(sets) - 1)
        moved: list[Replayed] = []
        for _ in range(count):
            removed = sets.pop(0)
            moved.extend(removed.jobs)
            self.free += removed.nodes
        for job in moved:
            self._join(sets, sets[0], job)

    def _execute(self, now: float, passed: float) -> bool:
        released = False
        for sets in self.classes.values():
            for node_set in list(sets):
                turn = node_set.jobs[: node_set.capacity]
                ended = []
                for job in turn:
                    job.left -= max(passed - job.overhead, 0.0)
                    job.overhead = 0.0
                    if job.left <= 0:
                        job.finished = now + job.left
                        job.met = job.finished <= job.deadline
                        ended.append(job)
                if int(now % 60) == 0 and len(node_set.jobs) > len(turn):
                    node_set.jobs = node_set.jobs[len(turn) :] + turn
                for job in ended:
                    self.running.remove(job)
                    node_set.jobs.remove(job)
                if not node_set.jobs:
                    self.free += node_set.nodes
                    sets.remove(node_set)
                    released = True
        for job in self.running:
            job.overhead = 0.0
        return released
