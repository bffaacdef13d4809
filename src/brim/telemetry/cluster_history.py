"""What a cluster did with its jobs over time: values for its report, and what follows from them
alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from brim.clock import local_time

_MOST_SHOWN = 60  # jobs, one by one


class Change(Protocol):
    """A line of a job's story: what happened to it at a moment, and why."""

    @property
    def at(self) -> float: ...
    @property
    def event(self) -> str: ...
    @property
    def before(self) -> int: ...
    @property
    def after(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def detail(self) -> str: ...


def sentence_of(change: Change) -> str:
    """A line of a job's story, without its time."""
    why = ": ".join(part for part in (change.reason, change.detail) if part)
    what = (
        f"workers {change.before} -> {change.after}" if change.event == "workers" else change.event
    )
    return f"{what} ({why})" if why else what


class Span(NamedTuple):
    """A job had so many workers from `start` to `end`, for a reason; without any, it waited."""

    start: float
    end: float
    workers: int
    why: str = ""


class Happening(NamedTuple):
    """Something that a reader should see beside the curves; `kind` is that of
    `brim.telemetry.charts.Mark`.
    """

    at: float
    kind: str
    text: str


class Rights(NamedTuple):
    """What there was from `at` on, and who owned how many devices of it."""

    at: float
    devices: int
    guaranteed: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """One job; times are seconds since 1970.

    Args:
        state: what it is now.
        maximum: of its workers.
        deadline: None where it has none; `promised` where the policy said yes.
        spans: from its submission to its end, or to the end of the history.
    """

    job: str
    tenant: str
    state: str
    step: int
    steps: int | None
    maximum: int
    submitted: float
    ended: float | None
    deadline: float | None
    promised: bool
    spans: Sequence[Span]
    story: Sequence[Change]

    @property
    def first_worker(self) -> float | None:
        return next((span.start for span in self.spans if span.workers), None)

    @property
    def attained(self) -> float:
        """Worker-seconds."""
        return sum((span.end - span.start) * span.workers for span in self.spans)

    def kept(self, now: float) -> bool | None:
        """Whether its deadline was; None where it has none, may yet be, or nobody wants it any
        more.
        """
        if self.deadline is None or self.state == "cancelled":
            return None
        if self.ended is not None and self.state == "done":
            return self.ended <= self.deadline
        return False if now > self.deadline or self.ended is not None else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterHistory:
    """All jobs of a cluster.

    Args:
        subject: where its state is.
        start, end: what is shown.
        rights: in order, the first from `start` on.
        happenings: in order.
        lives: of the scheduler.
    """

    subject: str
    policy: str
    running: bool
    start: float
    end: float
    jobs: Sequence[JobHistory]
    rights: Sequence[Rights]
    happenings: Sequence[Happening]
    lives: int

    @property
    def is_long(self) -> bool:
        """There are more jobs than anybody could tell apart in a chart."""
        return len(self.jobs) > _MOST_SHOWN

    @property
    def newest(self) -> Sequence[JobHistory]:
        """The jobs that are shown one by one: those that ended last, or not yet, by order of
        submission.
        """
        if not self.is_long:
            return self.jobs
        last = sorted(self.jobs, key=lambda job: math.inf if job.ended is None else job.ended)[
            -_MOST_SHOWN:
        ]
        return sorted(last, key=lambda job: job.submitted)

    @property
    def when(self) -> str:
        """From when to when."""
        start, end = (local_time(at) for at in (self.start, self.end))
        until = end.strftime("%H:%M" if start.date() == end.date() else "%-d %B %Y, %H:%M")
        return f"{start.strftime('%-d %B %Y, %H:%M')} to {until}"

    @property
    def capacity(self) -> float:
        """Device-seconds that there were."""
        ends = [*(each.at for each in self.rights[1:]), self.end]
        return sum(
            each.devices * max(0.0, end - max(self.start, each.at))
            for each, end in zip(self.rights, ends, strict=True)
        )

    @property
    def tenants(self) -> list[str]:
        """Those that own something or have jobs."""
        return sorted(
            {job.tenant for job in self.jobs}.union(*(each.guaranteed for each in self.rights))
        )

    def times(self) -> list[float]:
        """Where anything changes, in order."""
        inside = {at for job in self.jobs for span in job.spans for at in span[:2]}
        return sorted(
            {self.start, self.end, *(at for at in inside if self.start <= at <= self.end)}
        )

    def held(self, tenant: str) -> list[tuple[float, int]]:
        """(time, workers of a tenant's jobs) at each change."""
        changes: dict[float, int] = {self.start: 0}
        for job in self.jobs:
            for span in job.spans if job.tenant == tenant else ():
                changes[span.start] = changes.get(span.start, 0) + span.workers
                changes[span.end] = changes.get(span.end, 0) - span.workers
        total, points = 0, []
        for at, by in sorted(changes.items()):
            total += by
            points.append((at, total))
        return [
            (max(at, self.start), n)
            for (at, n), (until, _) in pairwise([*points, (self.end + 1, 0)])
            if until > self.start
        ]
