"""The course of a cluster: workers by time with reasons, and the promises.

Pure. A scheduler's book, a simulation and a journal that was decided again all give this one value,
and `brim.report` draws it. Times are seconds on one axis: since 1970 where a cluster is real, since
the beginning of its trace where it is simulated, or where a trace tells what happened.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

_MOST_SHOWN = 60  # jobs, one by one
_FORGIVEN = 1e-6  # seconds: floating-point time is no finer than that at 10^7 s


class Origin(enum.StrEnum):
    """The way in which a course came to be."""

    LIVE = "live"
    SIMULATED = "simulated"
    RECORDED = "as it happened"
    REPLAYED = "decided again"


@dataclass(frozen=True, slots=True)
class Change:
    """An event of a job, or of the cluster where `job` is empty, with its reason.

    `before` and `after` are workers where `event` is `workers`.
    """

    at: float
    job: str = ""
    event: str = ""
    before: int = 0
    after: int = 0
    reason: str = ""
    detail: str = ""


def sentence_of(line: Change) -> str:
    """A line of a job's story, without its time.

    >>> sentence_of(Change(0.0, "a-1", "workers", 1, 3, "surplus"))
    'workers 1 -> 3 (surplus)'
    """
    reason = reason_of(line)
    title = f"workers {line.before} -> {line.after}" if line.event == "workers" else line.event
    return f"{title} ({reason})" if reason else title


def reason_of(line: Change) -> str:
    """The reason, and its sentence."""
    return ": ".join(part for part in (line.reason, line.detail) if part)


class Holding(NamedTuple):
    """A job had so many workers from `start` to `end`, for a reason; without any, it waited."""

    start: float
    end: float
    workers: int
    why: str = ""


class Incident(NamedTuple):
    """An event that a reader should see beside the curves.

    `kind` is that of a mark of `brim.report.drawing`.
    """

    at: float
    kind: str
    text: str


class Supply(NamedTuple):
    """The devices that there were from `at` on, and how many of them each tenant owned."""

    at: float
    devices: int
    guaranteed: Mapping[str, int]


def deadline_kept(
    deadline: float | None, ended: float | None, *, state: str = "done", now: float = math.inf
) -> bool | None:
    """Say if a job kept its deadline.

    Args:
        ended: when; None: it has not.
        state: `done`, `cancelled`, or another one: then it does not keep it any more once it ended.
        now: judges a job that has not ended. The default is after all deadlines: it has missed its
            own, as at the end of a simulation.

    Returns:
        None where it has no deadline, may yet keep it, or is cancelled.

    >>> deadline_kept(9.0, 8.0), deadline_kept(9.0, None, now=8.0), deadline_kept(9.0, None)
    (True, None, False)
    >>> deadline_kept(9.0, 8.0, state="failed"), deadline_kept(9.0, 8.0, state="cancelled")
    (False, None)
    """
    if deadline is None or state == "cancelled":
        return None
    if ended is not None:
        return state == "done" and ended <= deadline + _FORGIVEN
    return False if now > deadline else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCourse:
    """One job's.

    Args:
        state: its state at the end of the course.
        step, steps: that were done, and that there are; None where unknown.
        ended: None: not yet.
        deadline: None where it has none; `promised` where the policy said yes.
        holdings: from its submission to its end, or to the end of the course, without a gap.
        story: all that happened to it.
    """

    job: str
    tenant: str
    state: str
    submitted: float
    ended: float | None
    deadline: float | None
    promised: bool
    holdings: Sequence[Holding]
    story: Sequence[Change] = ()
    step: int | None = None
    steps: int | None = None

    @property
    def first_worker(self) -> float | None:
        """The time at which it first had one."""
        return next((holding.start for holding in self.holdings if holding.workers), None)

    @property
    def attained(self) -> float:
        """Worker-seconds."""
        return sum((holding.end - holding.start) * holding.workers for holding in self.holdings)

    def kept(self, now: float) -> bool | None:
        """Say if it kept its deadline; see `deadline_kept`."""
        return deadline_kept(self.deadline, self.ended, state=self.state, now=now)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """All jobs of a cluster.

    Args:
        subject: where its state is, or its trace.
        running: a scheduler goes on with it.
        start, end: the period shown.
        supply: in order, the first from `start` on.
        incidents: in order.
        schedulers: that there were, one after the other.
    """

    origin: Origin
    subject: str
    policy: str
    start: float
    end: float
    jobs: Sequence[JobCourse]
    supply: Sequence[Supply]
    incidents: Sequence[Incident] = ()
    running: bool = False
    schedulers: int = 0

    @property
    def is_long(self) -> bool:
        """True if there are more jobs than a reader could tell apart in a chart."""
        return len(self.jobs) > _MOST_SHOWN

    @property
    def newest(self) -> Sequence[JobCourse]:
        """The jobs that are shown one by one.

        Those that ended last, or not yet, by order of submission.
        """
        if not self.is_long:
            return self.jobs
        last = sorted(self.jobs, key=lambda job: math.inf if job.ended is None else job.ended)
        return sorted(last[-_MOST_SHOWN:], key=lambda job: job.submitted)

    @property
    def capacity(self) -> float:
        """Device-seconds that there were."""
        ends = [*(supply.at for supply in self.supply[1:]), self.end]
        return sum(
            supply.devices * max(0.0, end - max(self.start, supply.at))
            for supply, end in zip(self.supply, ends, strict=True)
        )

    @property
    def makespan(self) -> float:
        """Seconds from the first submission to the last end, or to the end of the course."""
        first = min((job.submitted for job in self.jobs), default=self.start)
        ends = [self.end if job.ended is None else job.ended for job in self.jobs]
        return max(ends, default=first) - first

    @property
    def tenants(self) -> list[str]:
        """All tenants that own something or have jobs."""
        return sorted(
            {job.tenant for job in self.jobs}.union(*(supply.guaranteed for supply in self.supply))
        )

    def times(self) -> list[float]:
        """All times at which anything changes, in order."""
        moments = {
            moment for job in self.jobs for holding in job.holdings for moment in holding[:2]
        }
        return sorted(
            {
                self.start,
                self.end,
                *(moment for moment in moments if self.start <= moment <= self.end),
            }
        )

    def held(self, tenant: str | None = None) -> list[tuple[float, int]]:
        """(time, workers of a tenant's jobs, or of all) at each change."""
        jobs = [job for job in self.jobs if tenant in (None, job.tenant)]
        holdings = [
            (holding.start, holding.end, holding.workers)
            for job in jobs
            for holding in job.holdings
        ]
        return self._summed(holdings)

    def waiting(self) -> list[tuple[float, int]]:
        """(time, jobs without workers) at each change."""
        return self._summed(
            [
                (holding.start, holding.end, 1)
                for job in self.jobs
                for holding in job.holdings
                if not holding[2]
            ]
        )

    def _summed(self, parts: Iterable[tuple[float, float, int]]) -> list[tuple[float, int]]:
        changes: dict[float, int] = {self.start: 0}
        for start, end, count in parts:
            changes[start] = changes.get(start, 0) + count
            changes[end] = changes.get(end, 0) - count
        total = 0
        points = []
        for moment, change in sorted(changes.items()):
            total += change
            points.append((moment, total))
        return [
            (max(moment, self.start), count)
            for (moment, count), (next_moment, _) in pairwise([*points, (self.end + 1, 0)])
            if next_moment > self.start
        ]


def holdings_of(
    changes: Iterable[tuple[float, int, str]], *, start: float, end: float
) -> list[Holding]:
    """The workers that a job had from `start` to `end`, without a gap.

    Args:
        changes: (time, workers from then on, reason), in order; an empty reason is the last one.

    >>> holdings_of([(1.0, 2, "first"), (3.0, 0, "reclaimed")], start=0.0, end=4.0)
    ... # doctest: +NORMALIZE_WHITESPACE
    [Holding(start=0.0, end=1.0, workers=0, why=''),
     Holding(start=1.0, end=3.0, workers=2, why='first'),
     Holding(start=3.0, end=4.0, workers=0, why='reclaimed')]
    """
    found: list[Holding] = []
    held_since = start
    workers = 0
    last_reason = ""
    for moment, count, reason in changes:
        if count != workers:
            found.append(Holding(held_since, moment, workers, last_reason))
            held_since = moment
            workers = count
        last_reason = reason or last_reason
    found.append(Holding(held_since, end, workers, last_reason))
    return [holding for holding in found if holding.end > holding.start]
