"""The lives of a cluster's jobs as one automaton: events in, commands out. Pure.

```
 Submitted, Wished, RangeChanged, KindFreed,             people          ─┐            ┌─▶ Save, Change
 Described, Drained                                                       │            │
 Decided, Foretold                                       the policy       ├▶ handle() ─┼─▶ LearnSpeed, LearnCost
 Looked                                                  nodes, processes │            ├─▶ Charge, Notify, Decide
 Answered, Unanswered, Faulted                           masters of jobs ─┘            └─▶ Start, Resize, Leave,
                                                                                           Suspend, Force
```

Its driver reads the clock, looks at processes, writes down all it is told to before it carries out
anything, and asks. A job is changed here and nowhere else. A plan is a desired state: `Decided`
only notes it, and each `Looked` returns the steps towards it that are possible now (see
`brim.coordination.cluster.reconcile`).

`Resize` and `Suspend` are questions to a job's master: each is followed by `Answered` or
`Unanswered`, sooner or later, and a job owes one answer at a time. The other steps are carried out
at once; the outcome of a `Start` is reported by `Answered` or `Unanswered` too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from brim.coordination.cluster.beginnings import (
    describe_wait,
    list_dependants,
    list_ready,
    next_beginning,
)
from brim.coordination.cluster.metering import Charge, Meter
from brim.coordination.cluster.reconcile import (
    Action,
    ByNode,
    Force,
    Leave,
    ObservedJob,
    Resize,
    Start,
    Suspend,
    as_placed,
    fits_in,
    larger_of,
    reconcile,
    staying,
    still_coming,
)
from brim.coordination.cluster.shortages import (
    ExpectedStart,
    describe_holders,
    describe_shortage,
    describe_start,
    short_of_devices,
)
from brim.coordination.cluster.sightings import NodeSeen, NodesSeen, Seen
from brim.coordination.cluster.tracking import Lessons, Tracking
from brim.domain.channels import Notification, Occasion, channels_for
from brim.domain.cluster import ClusterSpec
from brim.domain.course import Change
from brim.domain.demand import DAY
from brim.domain.estimates import Estimate, errors_of
from brim.domain.host_kind import HostKind, differences, to_remember
from brim.domain.job import WorkerRange
from brim.domain.lifecycle import Happening, Phase, next_life
from brim.domain.measuring import Measured
from brim.domain.quantities import counted
from brim.domain.schedule import (
    Decision,
    JobState,
    Reason,
    Rejected,
    Snapshot,
    Standing,
    Verdict,
    judge,
)
from brim.domain.scheduled_job import Allocation, ScheduledJob
from brim.domain.services import ServiceReplica
from brim.domain.submission import Submission
from brim.domain.usage import RecentUse
from brim.errors import InternalError

REPLAN = 15.0  # seconds after which plans are made again from measured progress
_RETRY = 1.0  # seconds after which a job that is to be measured asks for its next size again
_MOST_SETBACKS = 5  # ends of a job's processes in a row without a step, after which it has failed
_BACKOFF = 1.0  # seconds before the second of them is followed by another start; doubled each time
_LONGEST_BACKOFF = 60.0  # seconds before another start, where the environment allows none
_LONGEST_DETAIL = 1_000  # characters of a job's own words that a notification has
_TOLD_ENDS = {Phase.DONE: Occasion.DONE, Phase.FAILED: Occasion.FAILED}
_MOST_FATAL = 2  # starts in a row in which the scheduler itself ended, after which a job has failed


# Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job has been taken in.

    Args:
        detail: the caller, as recorded in the job's story; the same for the other events.
    """

    job: ScheduledJob
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Wished:
    """The owner of a job holds, releases or cancels it."""

    job: str
    wish: Happening
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RangeChanged:
    """A job may have other numbers of workers.

    Args:
        scaled: by the load of a service, within the range that its owner has given.
    """

    job: str
    workers: WorkerRange
    detail: str = ""
    scaled: bool = False


@dataclass(frozen=True, slots=True)
class KindFreed:
    """A job that waits may go on on nodes of another kind than it began on."""

    job: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Described:
    """The cluster has another policy, other rights, more or fewer devices."""

    spec: ClusterSpec


@dataclass(frozen=True, slots=True)
class Drained:
    """Every job is to be suspended; with `kill`, at once instead of at a step boundary."""

    kill: bool


@dataclass(frozen=True, slots=True)
class Decided:
    """A policy has decided the workers of each job."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Foretold:
    """Jobs are expected to end, and others to begin, by the knowledge at a time.

    Args:
        ends: seconds since 1970, by job.
        at: that time.
        starts: of jobs that wait for devices.
    """

    ends: Mapping[str, float]
    at: float
    starts: Mapping[str, ExpectedStart] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Looked:
    """The nodes and the processes of jobs were looked at.

    Args:
        seen: by job, of those that `ScheduledJobs.to_look_at` names; who could not be looked at is
            left out.
        room: how many jobs can be started now; the others are at a later look.
        unseen: seconds since the last look without sight; before the first look, since the last
            sight. They are charged to no job.
        deciding: a decision is under way that was observed for. Jobs get back what they have lost,
            and no other step is taken: it would be towards a plan that is about to be another.
        set_by: seconds by which the host's clock, whose months count, was set ahead.
    """

    nodes: Mapping[str, NodeSeen]
    seen: Mapping[str, Seen]
    room: float = math.inf
    unseen: float = 0.0
    deciding: bool = False
    set_by: float = 0.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The processes of a job said yes to a request, or have been started."""

    action: Start | Resize | Suspend


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A request to the processes of a job was refused or not answered, or a start failed.

    Of force: it was not used.
    """

    action: Start | Resize | Suspend | Force
    why: str = ""


@dataclass(frozen=True, slots=True)
class Faulted:
    """An unforeseen error at one job, whose processes were ended."""

    job: str
    why: str


Event = (
    Submitted
    | Wished
    | RangeChanged
    | KindFreed
    | Described
    | Drained
    | Decided
    | Foretold
    | Looked
    | Answered
    | Unanswered
    | Faulted
)


# Commands -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Save:
    """Write a job down as it is now."""

    job: ScheduledJob


@dataclass(frozen=True, slots=True)
class LearnSpeed:
    """Keep the lessons of a job, for the next one like it."""

    submission: Submission
    measured: Measured
    steps: int | None


@dataclass(frozen=True, slots=True)
class LearnCost:
    """Keep the cost of a change."""

    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LearnRestart:
    """Keep the cost of a command's restart, for jobs that start alike."""

    submission: Submission
    seconds: float


@dataclass(frozen=True, slots=True)
class Decide:
    """Ask the policy for a decision."""


@dataclass(frozen=True, slots=True)
class Lose:
    """Have a job go on without its agent on a node that is lost."""

    job: str
    node: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Send a notification on a channel, some time soon: nothing waits for it."""

    channel: str
    notification: Notification


Command = (
    Save | Change | LearnSpeed | LearnCost | LearnRestart | Charge | Notify | Decide | Lose | Action
)


@dataclass(frozen=True, slots=True)
class _Question:
    """A question to the processes of one start of a job that is not answered yet."""

    action: Resize | Suspend
    launch: int


class ScheduledJobs:
    """The jobs that have not ended, on one cluster.

    Args:
        jobs: as they were written down; they are changed in place.
        spec: of the cluster.
        lessons: lessons of earlier jobs.
        counted: the time up to which usage was counted, by the host's clock; None: it never was.
        recent: what tenants had borrowed lately at that time; None: it was not counted.

    Attributes:
        jobs: by id, in the order of submission.
        nodes: as they were seen last.
        draining: every job is to be suspended, and nothing more is decided.
        ended: jobs that have ended, by tenant and state.
    """

    def __init__(
        self,
        jobs: Iterable[ScheduledJob],
        spec: ClusterSpec,
        lessons: Lessons,
        *,
        counted: float | None = None,
        recent: RecentUse | None = None,
    ) -> None:
        self.jobs = {job.id: job for job in jobs}
        arrays = (job.submission.conditions.array for job in self.jobs.values())
        self._arrays = Counter(filter(None, arrays))  # jobs that have not ended
        self.spec = spec
        self.nodes = NodesSeen({})
        self._present: ClusterSpec | None = None
        self._capacity = 0  # of it: each job asks
        self.draining = False
        self.ended = Counter[tuple[str, str]]()
        self._killing = False
        self._tracking = Tracking(lessons, self._learn_cost, self._learn_restart)
        self._meter = Meter(counted, recent)
        self._questions: dict[str, _Question] = {}
        self._asked_at: dict[str, float] = {}  # since when each owes an answer
        self._starting: set[str] = set()  # jobs whose starts are under way
        self._now = 0.0  # of the event that is taken in
        self._commands: list[Command] = []
        self._steps: list[Action] = []
        self._ended: list[ScheduledJob] = []  # by the event that is taken in
        self._waits: dict[str, str] = {}  # by job that waits for nodes of its kind, why
        # By job that waits for anything else of a policy, why, and the reasons that its story has.
        self._shortages: dict[str, tuple[Reason, str]] = {}
        self._noted_shortages: dict[str, set[Reason]] = {}
        self._starts: dict[str, ExpectedStart] = {}  # of jobs, as they were foreseen last
        # What `_use_for` has found since the last event.
        self._use: dict[tuple[str, bool], tuple[int, str]] = {}
        self._preemptions: dict[str, str] = {}  # by job that gives all its workers, why
        self._places: dict[str, str] = {}  # by job, where its story says that it is placed
        self._short: tuple[str, ...] | None = (
            None  # jobs that wait for devices, by the last decision
        )

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event in.

        Returns:
            The commands that follow, in this order: entries to write down, as a whole or not at
                all, come before every step.
        """
        self._now = now
        self._commands = []
        self._steps = []
        self._use.clear()
        match event:
            case Submitted():
                self._submitted(event)
            case Wished():
                self._wished(event, now)
            case RangeChanged():
                self._range_changed(event)
            case KindFreed():
                self._kind_freed(event)
            case Described(spec=spec):
                self.spec, self._present = spec, None
                self._decide()
            case Drained(kill=kill):
                self.draining = True
                self._killing = self._killing or kill
                self._decide()
            case Decided(decision=decision):
                self._decided(decision, now)
            case Foretold():
                self._foretold(event)
            case Looked():
                self._looked(event, now)
            case Answered(action=action):
                self._answered(action, now)
            case Unanswered(action=action, why=reason):
                self._unanswered(action, reason, now)
            case Faulted():
                self._faulted(event, now)
            case _:
                assert_never(event)
        self._cancel_forsaken(now)
        self._use.clear()
        return [*self._commands, *self._steps]

    # What others may ask --------------------------------------------------------------------------

    @property
    def present(self) -> ClusterSpec:
        """The description of the cluster, with all nodes that are known: those that joined, too."""
        if self._present is None:
            cluster = self.nodes.cluster(self.spec.cluster)
            # One that has lost nodes may have less than its headroom.
            headroom = min(self.spec.headroom, max(0, cluster.devices - 1))
            self._present = replace(self.spec, cluster=cluster, headroom=headroom)
            self._capacity = self._present.capacity
        return self._present

    @property
    def capacity(self) -> int:
        """The devices for training of all nodes that are known."""
        return self._capacity if self._present is not None else self.present.capacity

    @property
    def unavailable(self) -> dict[str, str]:
        """The states of nodes that have no devices for plans: they are lost, leaving or drained."""
        return {
            **dict.fromkeys(self.nodes.lost, "lost"),
            **dict.fromkeys(self.nodes.leaving, "leaving"),
            **dict.fromkeys(self.spec.drained, "drained"),
        }

    @property
    def recent(self) -> RecentUse | None:
        """The recent use of tenants; None where the cluster does not ask for it."""
        return self._meter.recent

    def to_look_at(self) -> list[ScheduledJob]:
        """List the jobs that have processes, as far as anybody knows."""
        return [job for job in self.jobs.values() if job.running]

    def snapshot(
        self, now: float, *, memory: object, newcomer: ScheduledJob | None = None
    ) -> Snapshot:
        """Show the jobs that may run as a policy sees them.

        Args:
            memory: left by the last cycle.
            newcomer: a job that is not submitted yet, to forecast its fate; jobs that only wait for
                their next start (in back-off) are then included.
        """
        jobs = [job for job in list_ready(self.jobs, self._arrays, now) if job.life.may_run]
        if newcomer is None:
            jobs = [job for job in jobs if job.running or job.starts.not_before <= now]
        else:
            jobs.append(newcomer)
        try:
            return self._tracking.snapshot(
                jobs,
                self.present,
                unavailable=self.unavailable,
                kinds=self._kinds_for(jobs),
                nodes=self.nodes.chosen(),
                recent=self.recent,
                memory=memory,
                now=now,
            )
        finally:
            if newcomer is not None:
                self._tracking.forget(newcomer)

    def state(self, job: ScheduledJob, now: float) -> JobState:
        """Show one job as a policy sees it."""
        return self._tracking.state(job, self.capacity, now)

    def speed(self, job: ScheduledJob) -> tuple[float | None, float | None]:
        """Return the steps per second of a running job, and the gain of one more worker."""
        return self._tracking.speed(job)

    def replicas_of(self, job: ScheduledJob) -> tuple[ServiceReplica, ...]:
        """Return the replicas of a service, as they were seen last."""
        return self._tracking.track(job).seen.replicas

    def seen_nodes(self) -> Mapping[str, NodeSeen]:
        """Return all nodes by name, as they were seen last."""
        return self.nodes.seen

    def waits_for(self, job: ScheduledJob) -> str:
        """Say what a job without workers waits for; empty where it waits for nothing."""
        waiting = self._waits.get(job.id, "")
        waiting = waiting or describe_wait(job, self.jobs, self._arrays, self._now)
        if waiting or job.id not in self._shortages or job.running or not job.life.may_run:
            return waiting
        return self._describe_shortage(job)

    def _describe_shortage(self, job: ScheduledJob) -> str:
        """Say which devices a job waits for, and who holds them."""
        reason, detail = self._shortages[job.id]
        tenant, start = job.submission.tenant, self._starts.get(job.id)
        giver = ""
        if start is not None and start.giver in self.jobs:
            giver = self._name_for(tenant, start.giver)
            giver = giver if giver == start.giver else f"a job of {giver}"
        # Over its quota, a tenant waits for its own jobs.
        free, holders = self._use_for(tenant, own_alone=reason is Reason.OVER_QUOTA)
        return describe_shortage(
            reason,
            detail,
            need=job.submission.spec.workers.minimum,
            free=free,
            in_all=self.present.cluster.devices - self.present.headroom,
            holders=holders,
            start=describe_start(start, giver, self._now),
        )

    def _use_for(self, tenant: str, *, own_alone: bool) -> tuple[int, str]:
        """Return the number of free devices, and who holds the others, as a tenant may know it.

        Args:
            own_alone: only its own jobs are named.
        """
        key = tenant, own_alone
        if key not in self._use:  # many jobs wait for the same
            cluster, unavailable = self.present.cluster, self.unavailable
            running = [job for job in self.jobs.values() if job.running and job.target]
            holders = Counter[str]()
            for job in running:
                if not own_alone or job.submission.tenant == tenant:
                    holders[self._name_for(tenant, job.id)] += job.target
            usable = cluster.with_lost(unavailable).devices - self.present.headroom
            gone = {
                n.id: unavailable[n.id] for n in cluster.nodes if n.devices and n.id in unavailable
            }
            free = max(0, usable - sum(job.target for job in running))
            self._use[key] = free, describe_holders(holders, gone)
        return self._use[key]

    def _name_for(self, tenant: str, id: str) -> str:
        """Return the name of a job that a tenant may know: of another's, that tenant's."""
        owner = self.jobs[id].submission.tenant
        return id if owner == tenant else f"tenant {owner}"

    def short_of_devices(self) -> list[ScheduledJob] | None:
        """List the jobs that have no processes for lack of devices alone, in the order of their right.

        Returns:
            None: nothing has been decided yet.
        """
        if self._short is None:
            return None
        found = [self.jobs[id] for id in self._short if id in self.jobs]
        return [job for job in found if job.life.may_run and not job.running]

    def is_known(self, job: ScheduledJob) -> bool:
        """True if its deadline can be judged."""
        return self._tracking.is_known(job)

    @property
    def has_measured(self) -> bool:
        """True where the end of at least one job can be foretold."""
        return any(self._tracking.is_measured(job) for job in self.jobs.values())

    def wake_at(self, decided: float) -> float:
        """Return when to decide again even if nothing happens.

        Args:
            decided: when it was decided last.
        """
        due = min(next_beginning(self.jobs.values(), decided), default=math.inf)
        for job in self.jobs.values():
            if job.running:
                waits = job.profile is not None and job.target < job.profile.size
                due = min(due, decided + (_RETRY if waits else REPLAN))
        return due

    def rest(self, now: float) -> bool:
        """Go without a look where nothing goes by the clock until `wake_at`, as far as jobs go.

        Then none is about to be started, owes an answer, or has other workers than it should have.

        Returns:
            Whether that is so. Its time counts as that of a look.
        """
        if self.draining or self._questions or self._asked_at:
            return False
        if not all(self._is_as_planned(job) for job in self.jobs.values()):
            return False
        self._tracking.look(now)
        return True

    def _is_as_planned(self, job: ScheduledJob) -> bool:
        allocation, track = job.allocation, self._tracking.track(job)
        if not job.running:
            return not allocation.plan
        is_there = (
            allocation.told == allocation.plan == track.seen.workers and not allocation.coming
        )
        return is_there and track.confirmed and track.seen.alive

    # What is to be written down -------------------------------------------------------------------

    def _save(self, job: ScheduledJob) -> None:
        self._commands.append(Save(job))

    def _note(
        self,
        job: ScheduledJob,
        event: str,
        *,
        previous_count: int = 0,
        new_count: int = 0,
        reason: str = "",
        detail: str = "",
    ) -> None:
        self._commands.append(
            Change(self._now, job.id, event, previous_count, new_count, reason, detail)
        )

    def _learn_cost(self, kind: str, seconds: float) -> None:
        self._commands.append(LearnCost(kind, max(0.0, seconds)))

    def _learn_restart(self, submission: Submission, seconds: float) -> None:
        self._commands.append(LearnRestart(submission, max(0.0, seconds)))

    def _notify(self, job: ScheduledJob, occasion: Occasion, *, detail: str = "") -> None:
        submission = job.submission
        names = channels_for(
            self.spec.channels, submission.notify, tenant=submission.tenant, occasion=occasion
        )
        if not names:
            return
        last = job.estimates.last
        notification = Notification(
            id=f"{job.id}/{occasion}/{self._now:.3f}",
            event=occasion,
            at=self._now,
            job=job.id,
            tenant=submission.tenant,
            detail=detail[:_LONGEST_DETAIL],
            deadline=submission.deadline,
            finish=job.ended if job.ended is not None or last is None else last.finish,
            step=job.progress.step,
            steps=job.progress.steps,
        )
        self._commands += [Notify(name, notification) for name in names]

    def _decide(self) -> None:
        self._commands.append(Decide())

    def _happen(
        self, job: ScheduledJob, happening: Happening, *, now: float, detail: str = ""
    ) -> bool:
        """Take a step of the job's life; False where that cannot happen to it."""
        life = next_life(job.life, happening)
        if life is None:
            return False
        previous = job.life
        job.life = life
        if life.ended:
            job.ended = now
            job.allocation = replace(job.allocation, plan={})
            del self.jobs[job.id]
            if array := job.submission.conditions.array:
                self._arrays[array] -= 1
                if not self._arrays[array]:
                    del self._arrays[array]
            self._forget_wait(job)
            self._places.pop(job.id, None)
            self._preemptions.pop(job.id, None)
            self._starting.discard(job.id)
            self._tracking.forget(job)
            self._ended.append(job)
            self.ended[job.submission.tenant, life.phase.value] += 1
        self._save(job)
        if life.phase is not previous.phase:
            self._note(job, life.phase.value, detail=detail)
            if life.phase in _TOLD_ENDS:
                self._notify(job, _TOLD_ENDS[life.phase], detail=detail)
        elif life.wish is not previous.wish:
            self._note(job, happening.value, detail=detail)
        return True

    def _require(
        self, job: ScheduledJob, happening: Happening, *, now: float, detail: str = ""
    ) -> None:
        """Do as `_happen`, but raise InternalError if the transition is impossible."""
        if not self._happen(job, happening, now=now, detail=detail):
            raise InternalError(
                f"{job.id} is {job.life.phase.value}: {happening.value} cannot happen to it"
            )

    # What people want -----------------------------------------------------------------------------

    def _submitted(self, event: Submitted) -> None:
        job = event.job
        self.jobs[job.id] = job
        if array := job.submission.conditions.array:
            self._arrays[array] += 1
        self._save(job)
        self._note(job, "submitted", detail=event.detail)
        waits = describe_wait(job, self.jobs, self._arrays, self._now)
        if waits:
            self._note(job, "waits", detail=waits)
        self._decide()

    def _cancel_forsaken(self, now: float) -> None:
        """Cancel the jobs that were to begin only once a job is done which has ended otherwise."""
        failures = [job for job in self._ended if job.life.phase is not Phase.DONE]
        self._ended.clear()
        dependants = list_dependants(self.jobs.values()) if failures else {}
        while failures:
            ended = failures.pop()
            verb = "has" if ended.life.phase is Phase.FAILED else "was"
            detail = f"{ended.id}, which is needed first, {verb} {ended.life.phase.value}"
            for id in {ended.id: 0, ended.submission.conditions.array: 0}:
                for job in dependants.pop(id, []):
                    self._happen(job, Happening.CANCEL, now=now, detail=detail)
            failures += self._ended
            self._ended.clear()

    def _wished(self, event: Wished, now: float) -> None:
        job = self.jobs.get(event.job)
        if job is None:
            return
        changed = self._happen(job, event.wish, now=now, detail=event.detail)
        # A job on hold has no plan; it is judged again when it is released. A repeated request does
        # not withdraw the promise.
        if changed and event.wish is not Happening.CANCEL:
            job.judgement = job.judgement.withdrawn()
            self._save(job)
        self._decide()

    def _range_changed(self, event: RangeChanged) -> None:
        job = self.jobs.get(event.job)
        if job is None:
            return
        submission = job.submission
        if event.scaled:
            submission = submission.scaled(event.workers.maximum)
        else:
            submission = submission.with_workers(event.workers)
        if submission != job.submission:
            job.submission = submission
            self._save(job)
            self._note(job, "scaled" if event.scaled else "resized", detail=event.detail)
        self._decide()

    def _kind_freed(self, event: KindFreed) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.running or job.kind is None:
            return
        job.kind = None
        self._save(job)
        self._note(job, "any kind", detail=event.detail)
        self._decide()

    # What the policy says -------------------------------------------------------------------------

    def _decided(self, decision: Decision, now: float) -> None:
        for verdict in decision.verdicts:
            job = self.jobs.get(verdict.job)
            # It may have been cancelled while this was decided.
            if job is not None and job.life.may_run:
                self._judged(job, verdict, now)
        for job in self.jobs.values():
            plan = dict(decision.nodes.get(job.id, {})) if job.life.may_run else {}
            if job.submission.anywhere:
                plan = self._where_it_is(job, plan)
            if plan or not job.life.may_run:
                self._forget_wait(job)
            if plan != job.allocation.plan:
                self._planned(job, plan, decision, now)
            elif not plan:
                self._kept_waiting(job, decision)
        self._short = short_of_devices(self.jobs.values(), decision, self.present.tenants)

    def _judged(self, job: ScheduledJob, verdict: Verdict, now: float) -> None:
        was_promised = job.promised
        job.judgement = judge(verdict, job.submission.deadline)
        if job.promised and not was_promised:
            job.warned = False
            self._notify(job, Occasion.PROMISED, detail=verdict.detail)
        verdict_word = "refused" if isinstance(verdict, Rejected) else "accepted"
        self._note(
            job,
            "promised" if job.promised else verdict_word,
            reason=job.judgement.reason,
            detail=verdict.detail,
        )
        if job.judgement.standing is not Standing.REFUSED:
            self._require(job, Happening.ADMIT, now=now)
        elif self._happen(job, Happening.REFUSE, now=now, detail=verdict.detail):
            self._decide()  # others may begin behind it
        else:
            self._save(job)  # its processes end first

    def _planned(self, job: ScheduledJob, plan: ByNode, decision: Decision, now: float) -> None:
        previous = job.workers
        job.allocation = replace(job.allocation, plan=plan)
        self._tracking.want(job, now)
        self._save(job)
        if job.workers != previous:
            reason, detail = decision.reasons.get(job.id, ("", ""))
            after_it = job.workers
            self._note(
                job,
                "workers",
                previous_count=previous,
                new_count=after_it,
                reason=str(reason),
                detail=detail,
            )
        if not plan:
            self._places.pop(job.id, None)
            self._preemptions[job.id] = decision.reasons.get(job.id, ("", ""))[1]
        elif job.running:  # another plan of a job in line moves nobody yet
            self._note_place(job)

    def _note_place(self, job: ScheduledJob) -> None:
        """Tell once where the workers of a job are to be."""
        plan = job.allocation.plan
        if len(self.present.cluster.nodes) > 1 and plan and not job.submission.anywhere:
            places = ", ".join(f"{count} on {node}" for node, count in plan.items())
            if places != self._places.get(job.id):
                self._places[job.id] = places
                self._note(job, "placed", detail=places)

    def _kept_waiting(self, job: ScheduledJob, decision: Decision) -> None:
        """Tell once why a job has no workers."""
        reason, detail = decision.reasons.get(job.id, ("", ""))
        if isinstance(reason, Reason) and reason not in (Reason.ONE_KIND, Reason.ITS_NODES):
            self._note_shortage(job, reason, detail)
        else:
            self._shortages.pop(job.id, None)
        waiting_reason = ""
        if reason == Reason.ONE_KIND:
            unlike = self._unlike(job)
            waiting_reason = f"{detail}: {unlike}" if unlike else detail
        elif reason == Reason.ITS_NODES:
            waiting_reason = detail
        if waiting_reason != self._waits.get(job.id, ""):
            self._waits[job.id] = waiting_reason
            if waiting_reason:
                self._note(job, "waits", reason=str(reason), detail=waiting_reason)

    def _note_shortage(self, job: ScheduledJob, reason: Reason, detail: str) -> None:
        self._shortages[job.id] = reason, detail
        noted = self._noted_shortages.setdefault(job.id, set())
        if not job.running and reason not in noted:
            noted.add(reason)
            self._note(job, "waits", reason=str(reason), detail=self._describe_shortage(job))

    def _forget_wait(self, job: ScheduledJob) -> None:
        for waits in (self._waits, self._shortages, self._noted_shortages, self._starts):
            waits.pop(job.id, None)

    def _foretold(self, event: Foretold) -> None:
        self._starts = {
            id: start
            for id, start in event.starts.items()
            if start.giver not in self.jobs or self._tracking.is_measured(self.jobs[start.giver])
        }
        for id, end in event.ends.items():
            job = self.jobs.get(id)  # it may have ended meanwhile
            if job is not None and self._tracking.is_measured(job):
                estimate = Estimate(at=event.at, finish=end, step=job.progress.step)
                previous = job.estimates
                job.estimates = previous.updated(estimate, job.progress.steps)
                is_late = self._warn(job, end)
                if is_late or job.estimates.saved != previous.saved:
                    self._save(job)

    def _warn(self, job: ScheduledJob, end: float) -> bool:
        """Tell, once for each promise, that a job is expected to miss its deadline."""
        deadline = job.submission.deadline
        if job.warned or not job.promised or deadline is None or end <= deadline:
            return False
        job.warned = True
        detail = f"expected {end - deadline:.0f} s after its deadline"
        self._note(job, "at risk", detail=detail)
        self._notify(job, Occasion.AT_RISK, detail=detail)
        return True

    # What is seen ---------------------------------------------------------------------------------

    def _looked(self, event: Looked, now: float) -> None:
        if event.unseen > 0.0:
            self._pass_over(event, now)
        self._tracking.look(now, unseen=event.unseen)
        alive = [id for id, seen in event.seen.items() if seen.alive]
        absence = self._meter.count(
            self.to_look_at(),
            alive,
            self.present,
            now=now,
            unseen=event.unseen,
            set_by=event.set_by,
        )
        if absence:
            detail = f"{absence / DAY:,.0f} days without a scheduler: was the clock wrong?"
            self._commands.append(Change(now, event="usage not counted", detail=detail))
        nodes = NodesSeen(event.nodes)
        for event_name, detail in nodes.news(self.nodes):
            self._commands.append(Change(now, event=event_name, detail=detail))
        present, absent = self.present, self.unavailable
        silent = nodes.silent - self.nodes.silent
        is_useful = not nodes.refuse_as(self.nodes)  # jobs can be on other nodes than before
        self.nodes = nodes
        if nodes.cluster(self.spec.cluster) != present.cluster:
            self._present = None
        if self._present is None or self.unavailable != absent or is_useful:
            self._decide()
        for id, seen in event.seen.items():
            job = self.jobs.get(id)
            if job is not None and job.running:
                self._see(job, seen, now)
        self._pass_on_silence(silent)
        if event.deciding:
            self._give_back(now)
        else:
            self._take_steps(now, event.room)
        charge = self._meter.take(now, at_once=bool(self._ended) or self.draining)
        if charge is not None:
            self._commands.append(charge)

    def _pass_over(self, event: Looked, now: float) -> None:
        """Shift the starts of everything under way by an unobserved time."""
        unseen = event.unseen

        def shifted(start: float) -> float:
            return max(start, min(start + unseen, now))

        self._asked_at = {job: shifted(start) for job, start in self._asked_at.items()}
        for job in self.jobs.values():
            allocation, starts = job.allocation, job.starts
            if job.running:
                seen = event.seen.get(job.id) or self._tracking.track(job).seen
                if allocation.coming or _gives(allocation, seen):
                    job.allocation = replace(
                        allocation,
                        asked=None if allocation.asked is None else shifted(allocation.asked),
                        changed=shifted(allocation.changed),
                    )
            elif starts.not_before > now - unseen:
                job.starts = replace(starts, not_before=starts.not_before + unseen)
            if (allocation, starts) != (job.allocation, job.starts):
                self._save(job)

    def _pass_on_silence(self, silent: frozenset[str]) -> None:
        """Have the masters of jobs go on without nodes of which they may hear much later."""
        for job in self.jobs.values():
            allocation = job.allocation
            for node in sorted(
                silent
                & {*allocation.told, *allocation.coming, *self._tracking.track(job).seen.workers}
            ):
                if job.running:
                    self._commands.append(Lose(job.id, node))

    def _see(self, job: ScheduledJob, seen: Seen, now: float) -> None:
        tracking = self._tracking
        looked = tracking.track(job).looked
        previous = job.progress
        attained = previous.attained
        if looked is not None:
            attained += job.target * max(0.0, now - looked)
        news = tracking.has_news(job, seen)
        half = seen.steps is not None and previous.step < seen.steps / 2 <= seen.step
        if news or tracking.is_due_to_teach(job, now, interval=REPLAN):
            tracking.has_taught(job, seen, now)
            self._commands.append(LearnSpeed(job.submission, seen.measured, seen.steps))
        tracking.see(job, seen, now)
        self._note_surplus(job, now)
        if job.submission.anywhere:
            self._follow_placement(job)
        job.allocation = replace(
            job.allocation,
            coming=still_coming(
                job.allocation.coming,
                seen.workers,
                gone_nodes=self.nodes.gone,
                waited=now - job.allocation.changed,
                grace=self.spec.grace,
            ),
        )
        job.progress = replace(
            previous,
            attained=attained,
            step=seen.step,
            steps=seen.steps or previous.steps,
            started=previous.started or seen.first_step,
        )
        tracking.reckon(job)
        if self._profiled(job, now) or news or half:
            self._decide()  # this job can be judged now, or others like it that wait
        self._note_memory(job, seen)
        if seen.failed != job.starts.failed:
            job.starts = job.starts.with_failures(seen.failed)
            self._save(job)
        if job.kind is None and seen.alive and self._note_kind(job, seen.workers):
            self._save(job)  # it was started by a scheduler that did not remember it
        if job.starts.unheard and seen.workers:  # the scheduler that started it ended later
            job.starts = replace(job.starts, unheard=0)
            self._save(job)
        if not seen.alive:
            self._settle(job, seen, now)

    def _follow_placement(self, job: ScheduledJob) -> None:
        """Count the workers of a job that others place on the nodes where they are."""
        allocation = job.allocation
        plan = self._where_it_is(job, allocation.plan)
        targets = self._where_it_is(job, allocation.told, rest=plan)
        job.allocation = replace(
            allocation, plan=plan, told=targets, coming=as_placed(allocation.coming, targets)
        )

    def _where_it_is(
        self, job: ScheduledJob, workers: ByNode, *, rest: ByNode | None = None
    ) -> dict[str, int]:
        """Return as many workers of a job that others place, on the nodes where they are.

        Workers on a node to be left, except those that may stay, count elsewhere.

        Args:
            rest: see `as_placed`.
        """
        seen_workers = self._tracking.track(job).seen.workers
        return as_placed(
            workers, staying(seen_workers, workers, leaving_nodes=self.unavailable), rest
        )

    def _note_memory(self, job: ScheduledJob, seen: Seen) -> None:
        reported = job.starts.out_of_memory
        news = seen.out_of_memory[reported:]
        if news:
            job.starts = replace(job.starts, out_of_memory=reported + len(news))
            self._save(job)
        for worker in news:
            self._note(job, "out of memory", detail=worker)

    def _profiled(self, job: ScheduledJob, now: float) -> bool:
        """Go on with the profile of a new model; True if it has got any further."""
        previous = job.profile
        note = self._tracking.advance(job, self.capacity, now)
        if job.profile != previous:
            self._save(job)
        if note is not None:
            self._note(job, note.event, detail=note.detail)
        return job.profile != previous

    def _settle(self, job: ScheduledJob, seen: Seen, now: float) -> None:
        """Decide whether a job whose processes ended is done, failed, or to be started again."""
        self._commands.append(LearnSpeed(job.submission, seen.measured, seen.steps))
        was_suspended = not job.allocation.told
        job.allocation = replace(job.allocation, told={}, coming={})
        job.summary = seen.summary
        job.problem = seen.problem
        track_ended = self._tracking.end(job, now).begun
        self._questions.pop(job.id, None)  # what it owed ends with its processes
        if job.id in self._starting:  # this scheduler has lived to see what it came to
            self._starting.discard(job.id)
            job.starts = replace(job.starts, unheard=0)
        if seen.outcome == "done":
            error = errors_of(job.estimates.first, job.estimates.half, now)
            self._require(job, Happening.FINISH, now=now, detail=error)
        elif seen.outcome == "failed" and seen.who != "environment":
            self._fail(job, now, seen.problem)
        elif was_suspended:
            self._give_way(job, now, stepped=seen.step > track_ended)
        else:
            self._set_back(job, now, stepped=seen.step > track_ended)
        if not job.life.ended and job.judgement.standing is Standing.REFUSED:
            self._require(job, Happening.REFUSE, now=now, detail=job.judgement.detail)
        self._decide()

    def _fail(self, job: ScheduledJob, now: float, problem: str) -> None:
        """End a job for good, or start it again where its owner allows one more try."""
        starts, allowed = job.starts, job.submission.retries
        if starts.retries >= allowed:
            self._require(job, Happening.FAIL, now=now, detail=problem)
            return
        wait = min(_LONGEST_BACKOFF, _BACKOFF * 2**starts.retries)
        job.starts = replace(starts, retries=starts.retries + 1, not_before=now + wait)
        detail = f"{problem}; tried again, {job.starts.retries} of {allowed}"
        self._require(job, Happening.STOP, now=now, detail=detail)

    def _give_way(self, job: ScheduledJob, now: float, *, stepped: bool) -> None:
        """Let a job wait that has given way; longer each time where it came to nothing before.

        The room without its processes may be too little for them: it would be started without end.
        """
        unused = 0 if stepped or not job.life.may_run else job.starts.unused + 1
        wait = min(_LONGEST_BACKOFF, _BACKOFF * (2 ** (max(1, unused) - 1) - 1))
        job.starts = replace(job.starts, setbacks=0, unused=unused, not_before=now + wait)
        self._require(job, Happening.STOP, now=now)
        if job.life.may_run and not self.draining and not job.allocation.plan:
            detail = self._preemptions.get(job.id) or "its workers were taken for other jobs"
            self._notify(job, Occasion.PREEMPTED, detail=detail)

    def _set_back(self, job: ScheduledJob, now: float, *, stepped: bool) -> None:
        """Start a job again after an unwanted end: later each time, but not for ever."""
        if job.starts.unheard >= _MOST_FATAL:
            job.problem = (
                f"the scheduler ended {job.starts.unheard} times while it was starting this job, and "
                "does not start it again"
            )
            self._require(job, Happening.FAIL, now=now, detail=job.problem)
            return
        setbacks = 1 if stepped else job.starts.setbacks + 1
        wait = _BACKOFF * (2 ** (setbacks - 1) - 1)
        job.starts = replace(job.starts, setbacks=setbacks, not_before=now + wait)
        detail = job.problem or self.nodes.problem or "its processes died"
        if setbacks < _MOST_SETBACKS:
            self._require(job, Happening.STOP, now=now, detail=detail)
            return
        job.starts = replace(job.starts, setbacks=0)
        job.problem = f"{setbacks} starts in a row made no progress; the last: {detail}"
        self._fail(job, now, job.problem)

    # What is done ---------------------------------------------------------------------------------

    def _take_steps(self, now: float, room: float) -> None:
        towards = self._towards_the_plan(now)
        addressed = {step.job for step in towards if not isinstance(step, Leave)}
        steps = [*self._to_confirm(addressed), *towards]
        self._remember(steps, now)
        for action in steps:
            job = self.jobs[action.job]
            match action:
                case Start(workers=workers):
                    if room > 0 and self._may_be_started(job):
                        self._start(job, workers, now)
                    room -= 1
                case Force(workers=workers):
                    self._force(job, workers, now)
                case _ if job.id in self._questions:
                    pass  # one at a time
                case Leave():
                    self._steps.append(action)
                case Suspend() if not self._tracking.has_stepped(job):
                    # It warms up, and has nothing that a checkpoint could keep.
                    self._agreed(job, {}, now)
                    self._steps.append(Force(job.id, {}))
                case Resize() | Suspend():
                    self._questions[job.id] = _Question(action, job.starts.launches)
                    self._steps.append(action)
                case _:
                    assert_never(action)

    def _give_back(self, now: float) -> None:
        """Ask jobs once more for workers that they were told to have, and have lost."""
        for step in self._towards_the_plan(now):
            if isinstance(step, Resize) and step.job not in self._questions:
                job = self.jobs[step.job]
                if step.workers == job.allocation.told and self._tracking.track(job).confirmed:
                    self._asked_at.setdefault(job.id, now)
                    self._questions[job.id] = _Question(step, job.starts.launches)
                    self._steps.append(step)

    def _to_confirm(self, addressed: Collection[str]) -> list[Action]:
        """Ask processes of an earlier life again.

        Whether they heard the last question is unknown. Jobs asked for the present plan are not
        asked before for workers that they may have given, or got, long ago.

        Args:
            addressed: jobs that are asked for the plan's workers.
        """
        return [
            Resize(job.id, job.allocation.told) if job.allocation.told else Suspend(job.id)
            for job in self.jobs.values()
            if job.running and not self._tracking.track(job).confirmed and job.id not in addressed
        ]

    def _towards_the_plan(self, now: float) -> list[Action]:
        holdings: list[ObservedJob] = []
        desired: dict[str, ByNode] = {}
        for job in self.jobs.values():
            seen = self._tracking.track(job).seen
            allocation = job.allocation
            target = allocation.told
            question = self._questions.get(job.id)
            if question is not None and isinstance(question.action, Resize):
                # It may have heard: the devices are nobody else's.
                target = larger_of(target, question.action.workers)
            holdings.append(
                ObservedJob(
                    job.id,
                    job.running,
                    larger_of(seen.workers, allocation.coming),
                    target,
                    allocation.asked
                    if not allocation.told or not fits_in(seen.workers, target)
                    else None,
                    allocation.home,
                    seen.agents,
                    self._asked_at.get(job.id),
                )
            )
            may_start = job.life.may_run and job.starts.not_before <= now
            may_start = may_start and not self._leaves_its_kind(job)
            desired[job.id] = allocation.plan if may_start and not self.draining else {}
        if self._killing:
            return [Force(holding.job, {}) for holding in holdings if holding.alive]
        running = {id: job.starts.launches for id, job in self.jobs.items() if job.running}
        left_over = self.nodes.left_over(running)
        closed = self.spec.drained | self.nodes.leaving
        nodes = {
            node: 0 if node in closed else max(0, count - left_over.get(node, 0))
            for node, count in self.nodes.devices(self.present.cluster).items()
        }
        return reconcile(
            holdings,
            desired,
            nodes=nodes,
            capacity=self.capacity,
            now=now,
            grace=self.spec.grace,
        )

    def _bound_to(self, job: ScheduledJob) -> HostKind | None:
        """Return the kind that a job's nodes have to be of; None where it can be on any."""
        goes_on = job.running or job.progress.step
        return job.kind if job.submission.spec.exact and goes_on else None

    def _how_unlike(self, job: ScheduledJob, node: str, kind: HostKind) -> list[str]:
        """Say how a host differs from the one on which a job began, as far as its bits go."""
        first_kind, now = self._bound_to(job), to_remember(kind)
        if first_kind is None or first_kind == now:
            return []
        spec = job.submission.spec
        hosts = "the nodes where it began", node
        return differences((first_kind, now), hosts, device=spec.device, ignored=spec.env)

    def _kinds_for(self, jobs: Iterable[ScheduledJob]) -> dict[str, tuple[str, ...]]:
        """Return the kinds of nodes, by their labels, by job that can go on on these only."""
        kinds = self.nodes.kinds(self.present.cluster)
        return {
            job.id: tuple(
                node for node, kind in kinds.items() if not self._how_unlike(job, node, kind)
            )
            for job in jobs
            if self._bound_to(job) is not None
        }

    def _unlike(self, job: ScheduledJob) -> str:
        """Say how each other node differs from those on which a job began, once for each kind."""
        cluster = self.present.cluster.with_lost(self.unavailable)
        kinds = self.nodes.kinds(cluster)
        nodes = {node.kind: node.id for node in reversed(cluster.nodes) if node.devices}
        found = [
            "; ".join(self._how_unlike(job, nodes[label], kind))
            for label, kind in kinds.items()
            if label in nodes
        ]
        return "; ".join(found) if all(found) else ""

    def _note_kind(self, job: ScheduledJob, workers: ByNode) -> bool:
        """Remember the kind of the nodes on which an exact job begins; True where that is news."""
        nodes = [node for node, count in workers.items() if count and node in self.nodes.seen]
        seen = [self.nodes.seen[node].kind for node in nodes]
        kind = next((to_remember(kind) for kind in seen if kind is not None), None)
        if not job.submission.spec.exact or kind in (None, job.kind):
            return False
        job.kind = kind
        return True

    def _leaves_its_kind(self, job: ScheduledJob) -> bool:
        """Return whether an exact job that runs is to go where agents cannot join those it has.

        Hosts of another kind take no part beside them: it has to end first, with a checkpoint.
        """
        current_nodes, plan = job.allocation.told, job.allocation.plan
        if not (job.running and job.submission.spec.exact) or current_nodes.keys() & plan.keys():
            return False
        kinds = {node.id: node.kind for node in self.present.cluster.nodes}
        kinds_before, kinds_after = (
            {kinds[node] for node in nodes_of if node in kinds}
            for nodes_of in (current_nodes, plan)
        )
        return bool(kinds_before and kinds_after) and kinds_before != kinds_after

    def _note_surplus(self, job: ScheduledJob, now: float) -> None:
        """Note since when a job has more workers than it was asked to have.

        Without a request it has them for a moment: those that have come in the place of others, which
        are still on their way out.
        """
        has_surplus = self._gives(job)
        if has_surplus != (job.allocation.asked is not None):
            job.allocation = replace(job.allocation, asked=now if has_surplus else None)
            self._save(job)

    def _gives(self, job: ScheduledJob) -> bool:
        return _gives(job.allocation, self._tracking.track(job).seen)

    def _remember(self, steps: Sequence[Action], now: float) -> None:
        """Note since when a job that is asked has not answered.

        One that starts from scratch, or is to do nothing more, owes no answer.
        """
        addressed = [step.job for step in steps if isinstance(step, Resize | Suspend)]
        forced = {step.job for step in steps if isinstance(step, Force)}
        starting = {step.job for step in steps if isinstance(step, Start)}
        unanswered_jobs = [job for job in self._asked_at if job in forced or job in self._questions]
        owing = [*addressed, *(job for job in unanswered_jobs if job not in starting)]
        self._asked_at = {job: self._asked_at.get(job, now) for job in owing}

    def _may_be_started(self, job: ScheduledJob) -> bool:
        """Return whether a job may be started beside those whose starts are under way.

        A job in whose last start a scheduler ended is started alone: if the next one ends as well,
        no other job is blamed.
        """
        blamed = any(self.jobs[id].starts.unheard > 1 for id in self._starting)
        return not blamed and not (self._starting and job.starts.unheard)

    def _start(self, job: ScheduledJob, workers: ByNode, now: float) -> None:
        """Write the start down, before it is done.

        A scheduler that dies in between finds no processes, and starts them then.
        """
        job.profile = job.profile or self._tracking.profile(job, self.capacity)
        starts = job.starts
        job.starts = replace(starts, launches=starts.launches + 1, unheard=starts.unheard + 1)
        self._starting.add(job.id)
        self._tracking.begin(job, now)
        job.allocation = replace(job.allocation, home=self._home_for(workers))
        if job.kind is None or not job.progress.step:
            self._note_kind(job, workers)
        self._retarget(job, workers, now)
        self._note_place(job)
        self._require(job, Happening.START, now=now, detail=counted(job.target, "worker"))
        self._steps.append(Start(job.id, workers))

    def _home_for(self, workers: ByNode) -> str:
        """Return the node for the master: one of the scheduler's host, where the records are.

        It is the one with the most workers; without any, the first that is up.
        """
        own_nodes = [node.id for node in self.spec.cluster.nodes]
        seen = self.nodes.seen
        up = [node for node in own_nodes if node in seen and seen[node].up] or own_nodes
        with_workers = [node for node in workers if node in own_nodes]
        return max(with_workers or up, key=lambda node: workers.get(node, 0))

    def _force(self, job: ScheduledJob, workers: ByNode, now: float) -> None:
        track = self._tracking.track(job)
        if self._killing:
            self._retarget(job, {}, now)  # nobody calls it a setback
        elif track.forced != workers:
            track.forced = workers
            remaining = sum(workers.values())
            grace = self.spec.grace
            since_when = self._asked_at.get(job.id)
            reason = f"it had {grace:g} s to go to {counted(remaining, 'worker')}"
            if since_when is not None:
                reason = f"its master did not answer for {now - since_when:.1f} s, of {grace:g}"
            self._note(job, "forced", new_count=remaining, detail=reason)
        self._steps.append(Force(job.id, workers))

    def _retarget(self, job: ScheduledJob, workers: ByNode, now: float) -> None:
        cost = self._tracking.change(job, workers, now)
        previous = job.allocation.told
        grown = {node: count for node, count in workers.items() if count > previous.get(node, 0)}
        job.allocation = replace(
            job.allocation,
            told=dict(workers),
            coming=larger_of(job.allocation.coming, grown),
            changed=now,
            ready=now + cost,
        )

    # What processes say ---------------------------------------------------------------------------

    def _answered(self, action: Start | Resize | Suspend, now: float) -> None:
        job = self.jobs.get(action.job)
        if isinstance(action, Start):
            self._starting.discard(action.job)
            if job is not None:
                job.starts = replace(job.starts, vain=0, unheard=0)
                self._save(job)
            return
        question = self._questions.pop(action.job, None)
        if job is not None and question is not None:
            workers = action.workers if isinstance(action, Resize) else {}
            if job.running and job.starts.launches == question.launch:
                self._agreed(job, workers, now)

    def _agreed(self, job: ScheduledJob, workers: ByNode, now: float) -> None:
        """Note that its processes said yes."""
        track = self._tracking.track(job)
        first_request = self._asked_at.pop(job.id, None)
        # Else its time runs already.
        if not fits_in(job.allocation.told, workers) and not self._gives(job):
            job.allocation = replace(
                job.allocation, asked=now if first_request is None else first_request
            )
            track.forced = None
        track.confirmed = True
        if workers != job.allocation.told:
            self._retarget(job, workers, now)
            self._save(job)

    def _unanswered(
        self, action: Start | Resize | Suspend | Force, reason: str, now: float
    ) -> None:
        """Try again, at a later look, an action that failed.

        A start that the environment does not allow is no fault of the job's, and is tried for as
        long as that takes.
        """
        job = self.jobs.get(action.job)
        if isinstance(action, Resize | Suspend):
            self._questions.pop(action.job, None)
            return
        if isinstance(action, Start):
            self._starting.discard(action.job)
        if job is None or not job.running:
            return
        if isinstance(action, Force):
            track = self._tracking.track(job)
            if track.forced is not None:
                self._note(job, "not forced", detail=reason)
            track.confirmed, track.forced = False, None  # it is asked once more
            return
        vain = job.starts.vain
        wait = min(_LONGEST_BACKOFF, _BACKOFF * 2**vain)
        job.allocation = replace(job.allocation, told={}, coming={})
        job.problem = reason
        self._tracking.end(job, now)
        job.starts = replace(job.starts, vain=vain + 1, unheard=0, not_before=now + wait)
        self._require(job, Happening.STOP, now=now, detail=reason)
        self._decide()

    def _faulted(self, event: Faulted, now: float) -> None:
        """Fail a job after an unexpected error; the others go on."""
        job = self.jobs.get(event.job)
        if job is None or not job.running:
            return
        seen = self._tracking.track(job).seen
        end = replace(seen, alive=False, outcome="failed", who="internal", problem=event.why)
        self._settle(job, end, now)


def _gives(allocation: Allocation, seen: Seen) -> bool:
    """Return whether a job has more than it was asked to have."""
    return not allocation.told or not fits_in(seen.workers, allocation.told)
