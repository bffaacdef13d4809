"""A scheduled job as it is remembered: a few values, each of one thing. Pure.

Only `brim.coordination.cluster.scheduled_jobs` changes them while a scheduler runs, and
`brim.storage.book` keeps them on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from brim.domain.estimates import Estimates
from brim.domain.host_kind import HostKind
from brim.domain.lifecycle import Life, Phase
from brim.domain.profiling import Profile
from brim.domain.schedule import UNJUDGED, Judgement
from brim.domain.submission import Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The workers of a job by node: planned ones, and those its processes were asked to have.

    Args:
        plan: the workers that the last plan gives it.
        told: the workers that its processes were last asked to have, and said yes to.
        coming: that they were asked to have and have not been seen to have: as many may yet be
            forked, whatever they were asked for since.
        home: the node of the agent that keeps its master.
        changed: when `told` last changed.
        ready: until when that change costs it progress.
        asked: since when it has had more workers than it was asked to have; None: it has not.
    """

    plan: Mapping[str, int] = field(default_factory=dict)
    told: Mapping[str, int] = field(default_factory=dict)
    coming: Mapping[str, int] = field(default_factory=dict)
    home: str = ""
    changed: float = 0.0
    ready: float = 0.0
    asked: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """The progress of one job.

    Args:
        step: that it has committed.
        steps: that it will have; None until it has said so.
        started: when its first step was made.
        attained: worker-seconds that it has had.
    """

    step: int = 0
    steps: int | None = None
    started: float | None = None
    attained: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """The starts of one job's processes, and their outcomes.

    Args:
        launches: starts in all.
        setbacks: ends of its processes in a row that nobody asked for and that brought no step.
        vain: starts in a row that the environment did not allow.
        unheard: starts in a row of which no scheduler lived to see whether they worked.
        unused: starts in a row that plans took back before a step was made.
        not_before: no processes are started before this.
        out_of_memory: its workers that were lost for memory and stand in its story.
        retries: of those that its owner allows after a failure.
        failures: of its processes in all, where somebody counts them (see `Seen.failed`).
        failed: of those, the ones of processes that were still to be seen, by their ids.
    """

    launches: int = 0
    setbacks: int = 0
    vain: int = 0
    unheard: int = 0
    unused: int = 0
    not_before: float = 0.0
    out_of_memory: int = 0
    retries: int = 0
    failures: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)

    def with_failures(self, failed: Mapping[str, int]) -> Starts:
        """Return these starts once so many failures are seen, each of which counts once.

        >>> starts = Starts().with_failures({"a": 1}).with_failures({"a": 3, "b": 1})
        >>> starts.failures, starts.with_failures({}).with_failures({"c": 1}).failures
        (4, 5)
        """
        new = sum(max(0, count - self.failed.get(id, 0)) for id, count in failed.items())
        return replace(self, failures=self.failures + new, failed=dict(failed))


@dataclass(slots=True, kw_only=True)
class ScheduledJob:
    """One job and all that the scheduler remembers of it; times are seconds since 1970.

    Jobs are kept for years: a new field, here or in anything below (`Submission`, `JobSpec` …), has
    a default that is right for the jobs of before. A field that goes, or gets another name or type,
    takes a step in `brim.storage.migrations`.

    Args:
        key: what its owner submitted it with, see `brim.wire.cluster.Submit`.
        user: the account that its processes are of, and its directory; empty: the scheduler's.
        profile: how far its model was measured, while it is.
        problem: why its processes ended last, where that was one.
        summary: as `brim train --json` prints it, once it has ended.
        kind: of the nodes on which it began, as `to_remember` has it, where it is exact: it goes on
            on such nodes only. None: nobody knows it, or it is not to matter any more.
        warned: since its deadline was promised, people were notified that it is at risk.
    """

    number: int
    id: str
    submission: Submission
    submitted: float
    key: str = ""
    user: str = ""
    life: Life = field(default_factory=Life)
    ended: float | None = None
    judgement: Judgement = UNJUDGED
    allocation: Allocation = field(default_factory=Allocation)
    progress: JobProgress = field(default_factory=JobProgress)
    starts: Starts = field(default_factory=Starts)
    estimates: Estimates = field(default_factory=Estimates)
    profile: Profile | None = None
    problem: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    kind: HostKind | None = None
    warned: bool = False

    @property
    def running(self) -> bool:
        """True while it has processes."""
        return self.life.phase is Phase.RUNNING

    @property
    def promised(self) -> bool:
        """True while its deadline is promised."""
        return self.judgement.promised

    @property
    def workers(self) -> int:
        """The workers that the last plan gives it."""
        return sum(self.allocation.plan.values())

    @property
    def held(self) -> dict[str, int]:
        """The workers that its processes were last asked to have, by node, its home first."""
        allocation = self.allocation
        return dict(sorted(allocation.told.items(), key=lambda entry: entry[0] != allocation.home))

    @property
    def target(self) -> int:
        """The number of those workers."""
        return sum(self.allocation.told.values())
