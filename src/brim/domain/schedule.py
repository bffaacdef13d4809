"""The values that pass between a cluster and a policy: snapshot in, decision out. Pure, frozen."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from brim.domain.cluster import Cluster
from brim.domain.promising import PromiseAt
from brim.domain.resizing import Overheads
from brim.domain.tenancy import Tenant
from brim.domain.usage import RecentUse
from brim.domain.workload import Job


class Standing(enum.IntEnum):
    """The standing of a job, by its last verdict."""

    WAITING = 0
    """Submitted; no policy has judged it yet."""
    ADMITTED = 1
    """Its deadline is promised (or it needs none and runs by the policy's order)."""
    BEST_EFFORT = 2
    """Runs on what others leave: it has no deadline, or its deadline could not be promised."""
    REFUSED = 3
    """Will not run."""


class Reason(enum.StrEnum):
    """The reason of a decision; shown to users, counted in metrics."""

    FITS = "fits"
    NO_DEADLINE = "no-deadline"
    TOO_LATE = "too-late-even-alone"
    NO_CAPACITY = "not-enough-capacity-before-the-deadline"
    BREAKS_PROMISE = "would-break-an-earlier-promise"
    LEAVES_ROOM = "room-is-left-for-cheaper-jobs"
    NO_ADMISSION = "policy-admits-everything"
    MINIMUM_SHARE = "minimum-share"
    HOPE = "planned-but-not-promised"
    TO_MEASURE = "measured-before-its-deadline-is-judged"
    SURPLUS = "surplus-by-marginal-return"
    ORDER = "its-turn-in-the-policy-order"
    ONLINE = "online-first"
    CLUSTER_FULL = "cluster-full"
    AHEAD_OF_PLAN = "not-needed-yet"
    OVER_QUOTA = "over-quota"
    RECLAIMED = "reclaimed-by-owner"
    PREEMPTED = "preempted-by-priority"
    NODE_DRAINED = "node-drained"
    NODE_LEAVING = "node-leaving"
    NODE_LOST = "node-lost"
    GANG_INCOMPLETE = "gang-does-not-fit"
    ONE_KIND = "exact-on-nodes-of-one-kind"
    ITS_NODES = "on-nodes-that-its-owner-has-chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Yes: `share` workers keep the promise.

    Args:
        finish: when the plan has it finished; None where there is no plan.
        promises: whether the deadline is now promised; policies without admission promise nothing.
    """

    job: str
    reason: Reason
    share: int = 0
    finish: float | None = None
    detail: str = ""
    promises: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A refusal: the deadline cannot be promised.

    Args:
        earliest: the earliest deadline that could have been, None where the policy does not know.
        runs: whether the job is kept as best effort.
    """

    job: str
    reason: Reason
    detail: str
    earliest: float | None = None
    runs: bool = False


Verdict = Admitted | Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A job's verdict as it stands: the last decision about it, and its consequences.

    Args:
        promised: its deadline is.
        reason, detail: the policy's reason, and its sentence with the numbers.
        finish: when its plan was done, where it was admitted by one.
        earliest: the earliest deadline that could have been promised, where the policy said so.
    """

    standing: Standing = Standing.WAITING
    promised: bool = False
    reason: str = ""
    detail: str = ""
    finish: float | None = None
    earliest: float | None = None

    @property
    def judged(self) -> bool:
        """True once a policy has said yes or no."""
        return self.standing is not Standing.WAITING

    def withdrawn(self) -> Judgement:
        """The same words, of a job that is to be judged again."""
        return replace(self, standing=Standing.WAITING, promised=False)


UNJUDGED = Judgement()


def judge(verdict: Verdict, deadline: float | None) -> Judgement:
    """Say how a verdict leaves a job: live, simulated or foreseen.

    Args:
        deadline: of the job; without one there is nothing to promise.
    """
    if isinstance(verdict, Rejected):
        return Judgement(
            standing=Standing.BEST_EFFORT if verdict.runs else Standing.REFUSED,
            reason=str(verdict.reason),
            detail=verdict.detail,
            earliest=verdict.earliest,
        )
    due = deadline is not None
    return Judgement(
        standing=Standing.ADMITTED if due else Standing.BEST_EFFORT,
        promised=due and verdict.promises,
        reason=str(verdict.reason),
        detail=verdict.detail,
        finish=verdict.finish,
    )


class JobState(NamedTuple):
    """One unfinished job as it is now.

    Attributes:
        remaining: steps still to do.
        workers: workers that it holds.
        attained: worker-seconds that it has had.
        ready: when its last change is over; it makes no progress before.
        changed: when its number of workers last changed.
        pace: measured speed over the speed that its curve says; 1 until something was measured.
        unsaved: seconds of work since its last checkpoint.
        nodes: the workers by node id, where they are placed.
        unmeasured: its deadline will be judged once a few steps of it were measured.
        anywhere: nobody here decides where its workers are: they are not moved.
        restart: seconds that a change of workers takes this job, where that is more than the
            overheads say.
        profiled: its speed is measured now: until that is done, it may have no more workers.
    """

    job: Job
    remaining: float
    workers: int = 0
    standing: Standing = Standing.WAITING
    attained: float = 0.0
    ready: float = 0.0
    changed: float = 0.0
    pace: float = 1.0
    unsaved: float = 0.0
    nodes: Mapping[str, int] = MappingProxyType({})
    unmeasured: bool = False
    anywhere: bool = False
    restart: float = 0.0
    profiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The frozen input of a policy.

    Args:
        now: seconds on the cluster's clock.
        cluster: all nodes, in an order that stays; one that is lost has no devices.
        capacity: devices that training may use now.
        assured: devices that promises may count on, where that is not `capacity`: what is borrowed
            is not.
        jobs: every unfinished job that was not refused, by order of submission then id.
        arrived: ids of the jobs to judge in this cycle, in order of submission then id.
        tenants: with their quotas; empty where there are none.
        promise: when deadlines are promised, by a policy that can wait with that.
        recent: what tenants have borrowed lately; None where that does not count.
        unavailable: why nodes have no devices now, by their ids: `drained`, `leaving` or `lost`.
        memory: the policy's last one; None at first.
    """

    now: float
    cluster: Cluster
    capacity: int
    jobs: tuple[JobState, ...]
    arrived: tuple[str, ...] = ()
    overheads: Overheads
    tenants: tuple[Tenant, ...] = ()
    assured: int | None = None
    promise: PromiseAt = PromiseAt.ARRIVAL
    recent: RecentUse | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    memory: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision of a policy.

    Args:
        workers: workers by job id; a job that is not named gets none.
        verdicts: one for each job that arrived.
        wake: when to ask again even if nothing happens; None if only events matter.
        reasons: why a job has what it has, by job id, where the policy says.
        pinned: ids of jobs that cannot afford a migration now.
        needed: workers by job that today's promises take, for a policy that can shrink what it
            gives beyond them; None where sizes are fixed, and the policy alone picks who gives way.
        moved: ids of jobs that keep their number of workers but go to other devices.
        nodes: workers by node id, by job, where they are placed.
        memory: handed back in the next snapshot.
    """

    workers: Mapping[str, int]
    verdicts: tuple[Verdict, ...] = ()
    wake: float | None = None
    reasons: Mapping[str, tuple[Reason, str]] = field(default_factory=dict)
    pinned: frozenset[str] = frozenset()
    needed: Mapping[str, int] | None = None
    moved: frozenset[str] = frozenset()
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    memory: Any = None


Policy = Callable[[Snapshot], Decision]
"""A policy is a function: snapshot in, decision out."""
