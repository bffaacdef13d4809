"""Memory of the workers of one agent: the sizes, the limit, and the kernel's kills.

The limit is kept by looking: that works on every Linux, for every account. A worker that takes much
at once between two looks can have more for a moment; what protects the host from that is the limit
of its control group, or of a service, and the kernel, which then ends workers first
(`brim.host.process.go_first_when_memory_is_short`).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from brim.domain.quantities import format_bytes
from brim.errors import SpecError
from brim.host.control_groups import files_about_us
from brim.host.process import children_of, memory_of, own_memory_of

_TO_TRUST = 10.0  # seconds that a part is known for: who shared the rest may have ended
_RECENT = 5.0  # seconds that a process which the kernel ends may take: it has much to give back


@dataclass(frozen=True, slots=True, kw_only=True)
class KillCounts:
    """Files in which the kernel counts the processes that it ended since memory ran out.

    Args:
        own_kills: of the control groups that this process is in.
        host: of all processes of this host.
    """

    own_kills: Sequence[Path]
    host: Path

    def read(self) -> tuple[int, int]:
        """Return the kill counts of our groups, and of the host; 0 where a file cannot be read."""
        return sum(map(_count_in, self.own_kills)), _count_in(self.host)


def kill_counts() -> KillCounts:
    """Return the files with the kill counts of this host."""
    counters = [*files_about_us("memory.events"), *files_about_us("memory.oom_control")]
    return KillCounts(own_kills=counters, host=Path("/proc/vmstat"))


def check_limit(limit: int | None) -> None:
    """Raises SpecError where a limit is wanted that cannot be kept on this host."""
    if limit is not None and memory_of(os.getpid()) is None:
        raise SpecError(
            "--memory",
            got=format_bytes(limit),
            need="a host whose kernel tells what processes have in memory, as Linux does in /proc",
            hint="leave it out, and limit the memory of all that brim starts, from outside",
        )


class _Part(NamedTuple):
    """The memory that a worker was found to have: shared pages in full, and in parts."""

    at: float
    size: int
    part: int


@dataclass(slots=True)
class Memory:
    """The memory of workers; one thread may look while another asks.

    Args:
        limit: bytes that each may have, with the processes that it started; None: as many as there
            are.
        counts: of the kernel's kills.
    """

    limit: int | None
    counts: KillCounts = field(default_factory=kill_counts)
    _had: dict[str, int] = field(default_factory=dict)  # when they were last seen to have any
    _parts: dict[str, _Part] = field(default_factory=dict)
    _seen: deque[tuple[float, tuple[int, int]]] = field(default_factory=deque)  # counts, and when
    _explained: list[int] = field(
        default_factory=lambda: [0, 0]
    )  # up to which count: no kill explains two ends
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, workers: Mapping[str, int], *, now: float) -> dict[str, str]:
        """Look at these workers' processes.

        Returns:
            Why workers are to be ended, for those that have too much.
        """
        had = {worker: _family_of(pid) for worker, pid in workers.items()}
        sizes = {
            worker: sum(memory_of(pid) or 0 for pid in family) for worker, family in had.items()
        }
        too_much = {}
        for worker, size in sizes.items():
            # What is shared is counted in full here, so that this is never too little; the exact
            # number is dearer.
            if self.limit is not None and size > self.limit:
                sizes[worker] = self._part_of(worker, had[worker], size, now=now)
                if sizes[worker] > self.limit:
                    too_much[worker] = (
                        f"out of memory: it had {format_bytes(sizes[worker])} of the "
                        f"{format_bytes(self.limit)} that --memory gives a worker"
                    )
        with self._lock:
            self._had |= {
                worker: size for worker, size in sizes.items() if size
            }  # who is gone had what it had
            self._note(now)
        return too_much

    def _part_of(self, worker: str, family: list[int], size: int, *, now: float) -> int:
        """Return the worker's memory with shared pages counted in parts.

        Where that is below the limit, the result is the most that the worker can have.
        """
        assert self.limit is not None
        measured = self._parts.get(worker)
        if measured is not None and now - measured.at < _TO_TRUST:
            upper_bound = measured.part + max(0, size - measured.size)
            if upper_bound <= self.limit:
                return upper_bound
        part = sum(own_memory_of(pid) or 0 for pid in family)
        self._parts[worker] = _Part(now, size, part)
        return part

    def why_killed(self, worker: str, *, now: float) -> str:
        """Return why a worker was killed (signal 9) by no process of ours.

        The result is empty where memory has no part in it.

        Args:
            worker: empty: the template.
        """
        with self._lock:
            self._note(now)
            unexplained, host = self._kills_to_explain()
            size = self._had.get(worker)
        size_text = f"; it had {format_bytes(size)}" if size else "; it had just begun"
        size_text = size_text if worker else ""
        if unexplained:
            return f"out of memory: the kernel ended it{size_text}"
        if host:
            return f"signal 9, while this host was out of memory{size_text}"
        return ""

    def _kills_to_explain(self) -> list[bool]:
        """Return whether a late kill by the kernel explains no known death yet.

        The first answer is of our groups, the second of the host.
        """
        found = []
        for index, (first_count, last_count) in enumerate(
            zip(self._seen[0][1], self._seen[-1][1], strict=True)
        ):
            explained = max(first_count, self._explained[index])
            found.append(last_count > explained)
            if last_count > explained:
                self._explained[index] = explained + 1
        return found

    def _note(self, now: float) -> None:
        """Keep the counts of the last seconds, and one reading before them."""
        self._seen.append((now, self.counts.read()))
        while len(self._seen) > 2 and self._seen[1][0] < now - _RECENT:
            self._seen.popleft()


def _family_of(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for child in found:
        found += children_of(child)
    return found


def _count_in(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
