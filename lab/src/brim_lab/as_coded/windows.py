"""The clock of the published artifact.

Its events are at least a slot apart, and overhead is charged at each of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from brim.domain.workload import Job


@dataclass(slots=True)
class Replayed:
    """One job inside a replay.

    Args:
        left: steps still to do.
        cap: the most workers that the policy gives it.
        end: when the policy expects it to end, on the slot grid where the policy uses one;
            `real_end` is the same before it was moved to the grid.
    """

    job: Job
    left: float
    cap: int
    deadline: float
    workers: int = 0
    overhead: float = 0.0
    end: float = 0.0
    real_end: float = 0.0
    plan: list[tuple[float, int]] = field(default_factory=list)
    started: float | None = None
    finished: float | None = None
    met: bool = False
    admitted: bool = False
    refused: bool = False

    def rate(self) -> float:
        """Steps per second on the workers that it has."""
        return self.job.curve.rates[self.workers]


@dataclass(slots=True)
class Event:
    """Arrivals and planned ends of one moment; both may be empty (a planned change of workers)."""

    time: float
    starts: list[Replayed] = field(default_factory=list)
    ends: list[Replayed] = field(default_factory=list)


class Events:
    """The artifact's event list, with its windows.

    An event that falls within a slot of now is moved to the slot's end.
    """

    def __init__(self, jobs: Iterable[Replayed]) -> None:
        self.list: list[Event] = []
        for job in jobs:
            self.at(job.job.submitted).starts.append(job)

    def __len__(self) -> int:
        return len(self.list)

    def at(self, time: float) -> Event:
        """The event at `time`, made if there is none."""
        place = bisect_left(self.list, time, key=lambda event: event.time)
        if place == len(self.list) or self.list[place].time != time:
            self.list.insert(place, Event(time))
        return self.list[place]

    def find(self, time: float) -> Event | None:
        """The event at `time`, or None."""
        place = bisect_left(self.list, time, key=lambda event: event.time)
        return (
            self.list[place] if place < len(self.list) and self.list[place].time == time else None
        )

    def move_end(self, job: Replayed, old_end: float, new_end: float) -> None:
        """Plan the end of `job` at `new_end` rather than at `old_end`."""
        if old_end == new_end:
            return
        event = self.find(old_end)
        if event is not None and job in event.ends:
            event.ends.remove(job)
            if not event.ends and not event.starts:
                self.list.remove(event)
        event = self.at(new_end)
        if job not in event.ends:
            event.ends.append(job)

    def next_after(self, now: float, slot: float) -> float:
        """Merge the events in the window after `now`; the time of the next event."""
        events = self.list
        next_time = events[0].time
        while int(next_time - now) <= slot and len(events) > 1:
            events[0].time = now + slot
            if events[1].time - now > slot:
                break
            next_time = events[1].time
            events[0].starts.extend(events[1].starts)
            events[0].ends.extend(events[1].ends)
            del events[1]
        return events[0].time


def align(start: float, time: float, slot: float) -> float:
    """`time` rounded up to whole slots after `start`."""
    return start + math.ceil((time - start) / slot) * slot


def overhead(workers: int, *, devices: int, restart: bool = False, cached: bool = False) -> float:
    """Seconds that the artifact charges a job of `workers` workers (section 3.9 of the reference).

    >>> overhead(8, devices=128), overhead(8, devices=256, restart=True)
    (10.0, 62.0)
    """
    large = devices >= 256
    seconds = 7.0 if large else 2.0
    if cached:
        return seconds
    if restart:
        seconds += 47.0 if large else 27.0
    return seconds + 2.0 * (math.log2(workers) + 1.0)


class Restarts:
    """The restart overhead that each job pays at an event.

    It is less on ranks that were used before, and more every `slot`-th time.
    """

    def __init__(self, *, devices: int, node: int, slot: float) -> None:
        self.devices, self.node, self.slot = devices, node, slot
        self.seen: set[tuple[int, int]] = set()
        self.count = 0

    def charge(self, jobs: Iterable[Replayed]) -> None:
        """Set the overhead of each job that has workers.

        `jobs` are in the order in which they are placed.
        """
        placed = [job for job in jobs if job.workers]
        ranks = self._first_ranks([job.workers for job in placed])
        cached = [(rank, job.workers) in self.seen for rank, job in zip(ranks, placed, strict=True)]
        self.seen.update((rank, job.workers) for rank, job in zip(ranks, placed, strict=True))
        restart = self.count > 0 and self.count % int(self.slot) == 0
        self.count += 1
        if restart:
            self.seen.clear()
        for job, cached_ranks in zip(placed, cached, strict=True):
            job.overhead = overhead(
                job.workers, devices=self.devices, restart=restart, cached=cached_ranks
            )

    def _first_ranks(self, sizes: list[int]) -> list[int]:
        """Return the first rank of each job, with whole nodes taken from the front.

        A size below a node goes into a hole of exactly that size, else into the largest hole, else
        onto a new node.
        """
        ranks, fresh = [], 0
        holes: dict[int, list[tuple[int, int]]] = {}
        for size in sizes:
            if size >= self.node:
                ranks.append(fresh * self.node)
                fresh += math.ceil(size / self.node)
                continue
            kind = next(
                (k for k in [size, *sorted(holes, reverse=True)] if k >= size and holes.get(k)), 0
            )
            if kind:
                host, used = holes[kind].pop(0)
            else:
                host, used, fresh = fresh, 0, fresh + 1
            ranks.append(host * self.node + used)
            unused = self.node - used - size
            if unused:
                holes.setdefault(unused & -unused, []).append((host, used + size))
        return ranks
