"""The simulated cluster: time jumps from event to event, jobs progress, a policy decides.

Jobs progress by their curves. A simulation runs the cluster from the first job to the last, a
forecast from what a live cluster is to a horizon. The clock is virtual: nothing here waits or reads
the time of day.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from brim.domain.cluster import Cluster
from brim.domain.course import Change
from brim.domain.promising import PromiseAt
from brim.domain.quantities import counted
from brim.domain.resizing import OVERHEADS, Overheads
from brim.domain.schedule import (
    UNJUDGED,
    Decision,
    JobState,
    Judgement,
    Policy,
    Rejected,
    Snapshot,
    Standing,
    Verdict,
    judge,
)
from brim.domain.submission import FARTHEST_DEADLINE
from brim.domain.tenancy import Tenant
from brim.domain.usage import RecentUse
from brim.domain.workload import Job
from brim.errors import InternalError
from brim.loop import run_cluster
from brim.policies.cycle import cycle
from brim.simulator.run import Outcome, SimulatedRun

# A job that would end within a microsecond has ended: floating-point time is no finer than that at
# 10^7 s.
_EPSILON = 1e-6
_FAR = 60  # cycles that are run ahead; who runs then is believed to go on as it is
_LOOK = 0.25  # of such a cycle: one in which no job has ended, where tenants take turns
_NOWHERE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The behaviour of the simulated world.

    Args:
        slot: least seconds between two cycles that arrivals call for, and from any cycle to one
            that a completion calls for (0: at once). No completion delays an arrival: the time by
            which a job is seen follows from the arrivals alone, so that it is the same under each
            policy. What a policy asked to be woken for always happens on time.
        overheads: seconds that a start, a resize or a migration costs.
        profile_error: each job's true speed is its curve's times a factor drawn from 1 ± this.
        failures: mean seconds between two failures of one worker (0: none); see
            `Overheads.recovery`.
        stragglers: probability that a job, at each change, lands on a slow node and runs at `slow`
            speed.
        capacity: (time, devices) steps of what training may use; empty: the whole cluster, always.
        placed: place workers on devices, and charge the migrations that this needs.
        record: keep every change with its reason (for decisions.jsonl and `explain`).
        recent: what tenants had borrowed lately at the start; None: only the present counts.
    """

    slot: float = 0.0
    overheads: Overheads = OVERHEADS["published"]
    seed: int = 0
    profile_error: float = 0.0
    failures: float = 0.0
    stragglers: float = 0.0
    slow: float = 0.7
    capacity: tuple[tuple[float, int], ...] = ()
    tenants: tuple[Tenant, ...] = ()
    promise: PromiseAt = PromiseAt.ARRIVAL
    placed: bool = False
    record: bool = False
    recent: RecentUse | None = None


@dataclass(slots=True)
class _SimulatedJob:
    """One unfinished job, as the cluster knows it.

    Args:
        factor: its true speed over that of its curve.
        caution: what plans count on, over what was measured.
        unsaved: seconds since its last checkpoint, where nothing says how far apart these are.
        restart: seconds that a change takes, where that is more than the overheads say.
    """

    job: Job
    factor: float
    remaining: float
    caution: float = 1.0
    unsaved: float = 0.0
    unmeasured: bool = False
    restart: float = 0.0
    workers: int = 0
    judgement: Judgement = UNJUDGED
    attained: float = 0.0
    since: float = 0.0
    ready: float = 0.0
    changed: float = 0.0
    rate: float = 0.0
    slowed: float = 1.0
    pace: float = 1.0
    started: float | None = None
    finish: float = math.inf
    breaks: float = math.inf
    changes: int = 0
    verdict: Verdict | None = None


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    settings: Settings | None = None,
    progress: Callable[[int], None] | None = None,
) -> SimulatedRun:
    """Run `jobs` to the end under `policy`.

    Args:
        jobs: by time of submission.
        progress: told the number of jobs done so far.

    Raises:
        InternalError: the policy used more devices than there are, named an unknown job, or left
            jobs waiting for ever.
    """
    settings = settings or Settings()
    world = _World(jobs, cluster, settings, progress)
    whole = settings.placed or settings.tenants
    decide = partial(cycle, policy=policy, placed=settings.placed) if whole else policy
    _at_once(run_cluster(world, decide))
    return world.run()


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The future of a cluster's jobs if nothing new happened, on the snapshot's clock.

    Args:
        ends: when each job would end, by id. Jobs that would not run within the cycles that are
            looked ahead, or only once an online service has ended, are not in it. Where recent use
            counts, the turns of tenants are longer the farther ahead they are, and an end may be
            off by one of them (see `_from_afar`).
        changes: of workers, with the reasons, in order.
    """

    ends: dict[str, float]
    changes: list[Change]


def foresee(snapshot: Snapshot, decision: Decision, decide: Policy) -> dict[str, float]:
    """Return when every job would end, see `Foreseen`."""
    return foresee_changes(snapshot, decision, decide).ends


def foresee_changes(snapshot: Snapshot, decision: Decision, decide: Policy) -> Foreseen:
    """Return the future of every job that `snapshot` has.

    Args:
        decision: what was decided on `snapshot`.
        decide: decides from then on, each time that a job ends or a decision is due again.
    """
    world = _World.ahead_of(snapshot)
    _at_once(_run_ahead(world, decision, decide))
    ends = {
        outcome.job.id: outcome.finished
        for outcome in world.outcomes
        if outcome.finished is not None
    }
    ends |= {id: job.finish for id, job in world.jobs.items()}
    horizon = snapshot.now + FARTHEST_DEADLINE  # behind it lie the ends of online services
    return Foreseen(
        {id: end for id, end in ends.items() if end < horizon},
        [change for change in world.changes if change.at < horizon],
    )


async def _run_ahead(world: _World, decision: Decision, decide: Policy) -> None:
    begin, remaining = world.now, float(_FAR)
    await world.apply(decision)
    while remaining > 0.0:
        due = decision.wake is not None and decision.wake > world.now
        ended = len(world.outcomes)
        if not await world.wait(decision.wake if due else None):
            return
        takes_turns = world.recent is not None and len(world.outcomes) == ended
        remaining -= _LOOK if takes_turns else 1.0
        decision = decide(_from_afar(world, await world.observe(), world.now - begin))
        await world.apply(decision)


def _from_afar(world: _World, snapshot: Snapshot, ahead: float) -> Snapshot:
    """Have tenants take longer turns the farther ahead they are, so that few cycles reach far.

    What each has in the long run is the same with any half-life.

    Args:
        ahead: seconds from the present.
    """
    recent, settings = world.recent, world.settings
    if recent is None or settings.recent is None:
        return snapshot
    usual = settings.recent.half_life
    world.recent = replace(recent, half_life=max(usual, ahead / 8.0))
    # A policy asks to be woken 32 times in the half-life that it sees.
    return replace(snapshot, recent=replace(recent, half_life=max(usual, 2.0 * ahead)))


def _at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that awaits only this module: its clock jumps, so it is never resumed."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise InternalError("the simulation waited for something real")


class _World:
    """The state of one simulation: a `Backend` whose `wait` goes from one event to the next."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: Cluster,
        settings: Settings,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.queue = sorted(jobs, key=lambda job: (job.submitted, job.id))
        self.cluster, self.settings = cluster, settings
        self.seen_by = _seen_by(self.queue, settings.slot)
        self.progress = progress
        self.rng = random.Random(settings.seed)  # nosec: a simulation, not a secret
        self.jobs: dict[str, _SimulatedJob] = {}
        self.outcomes: list[Outcome] = []
        self.changes: list[Change] = []
        self.verdicts: list[tuple[float, Verdict]] = []
        self.usage: list[tuple[float, int, int]] = []
        self.memory: object = None
        self.arrived: tuple[str, ...] = ()
        self.next = 0
        self.capacity = cluster.devices
        self.overheads = settings.overheads.paid_ahead  # as policies see them
        self.is_ahead = False  # of a live cluster, of which not all is known
        self.steps = list(settings.capacity)
        self.cycles = 0
        self.last = -math.inf
        self.recent = settings.recent
        self.now = self.queue[0].submitted if self.queue else 0.0

    @classmethod
    def ahead_of(cls, snapshot: Snapshot) -> _World:
        """Make the world that a snapshot shows, without arrivals."""
        settings = Settings(
            overheads=snapshot.overheads.paid_behind,
            tenants=snapshot.tenants,
            promise=snapshot.promise,
            record=True,
            recent=snapshot.recent,
        )
        world = cls((), snapshot.cluster, settings)
        world.is_ahead = True
        world.now = snapshot.now
        world.overheads = snapshot.overheads
        world.capacity = snapshot.capacity
        for state in snapshot.jobs:
            world.jobs[state.job.id] = world.going_on(state)
        return world

    def going_on(self, state: JobState) -> _SimulatedJob:
        """Make a job of one that a policy sees, where its end is put before its progress."""
        simulated = _SimulatedJob(
            job=state.job,
            factor=1.0,
            remaining=state.remaining,
            caution=state.pace,
            unsaved=state.unsaved,
            unmeasured=state.unmeasured,
            restart=state.restart,
            workers=state.workers,
            judgement=Judgement(standing=state.standing),
            attained=state.attained,
            since=self.now,
            ready=state.ready - self.settings.overheads.end if state.workers else state.ready,
            changed=state.changed,
            pace=state.pace,
        )
        self._schedule(simulated)
        return simulated

    def busy(self) -> bool:
        return bool(self.jobs) or self.next < len(self.queue)

    async def wait(self, deadline: float | None) -> bool:
        """Go to the next event, and do the due work, until there is a job to decide about."""
        wake = math.inf if deadline is None else deadline
        while self.busy():
            before = self.now
            self.now = self._next_event(wake)
            if self.now == math.inf and self.is_ahead:
                return False
            if self.now == math.inf:
                idle = ", ".join(list(self.jobs)[:3])
                raise InternalError(
                    f"the policy left {counted(len(self.jobs), 'job')} waiting for ever, such as {idle}"
                )
            while self.steps and self.steps[0][0] <= self.now + _EPSILON:
                self.capacity = self.steps.pop(0)[1]
            self._count_recent(self.now - before)
            self._advance()
            self.arrived = self._arrivals()
            if self.progress is not None:
                self.progress(len(self.outcomes))
            if self.jobs:
                return True
            self.last = self.now
            self.usage.append((self.now, 0, 0))
            wake = math.inf  # who asked to be woken is done
        return False

    def _next_event(self, wake: float) -> float:
        next_finish = min((job.finish for job in self.jobs.values()), default=math.inf)
        if self.settings.failures:
            next_finish = min(
                next_finish, min((job.breaks for job in self.jobs.values()), default=math.inf)
            )
        next_event = max(next_finish, self.last + self.settings.slot)
        if self.next < len(self.queue):
            next_event = min(next_event, self.seen_by[self.next])
        if self.steps:
            next_event = min(next_event, self.steps[0][0])
        return max(min(next_event, wake), self.now)

    def _count_recent(self, seconds: float) -> None:
        if self.recent is not None:
            holds = Counter[str]()
            for job in self.jobs.values():
                holds[job.job.tenant] += job.workers
            self.recent = self.recent.advanced(seconds, holds, self.settings.tenants)

    def _advance(self) -> None:
        now, done = self.now, []
        for job in self.jobs.values():
            if job.workers:
                start = job.since if job.since > job.ready else job.ready
                worked_until = min(now, job.finish)
                job.attained += job.workers * (worked_until - job.since)
                worked_until = min(worked_until, job.finish - self.settings.overheads.end)
                if worked_until > start:
                    job.remaining = max(job.remaining - job.rate * (worked_until - start), _EPSILON)
                    job.pace = job.caution * job.factor * job.slowed
                if job.finish <= now + _EPSILON:
                    done.append(job)
                elif job.breaks <= now:
                    self._fail(job)
            job.since = now
        for job in done:
            del self.jobs[job.job.id]
            self.outcomes.append(_outcome(job, job.finish))
            if self.settings.record:
                self.changes.append(
                    Change(job.finish, job.job.id, "workers", job.workers, 0, "finished", "")
                )

    def _fail(self, job: _SimulatedJob) -> None:
        undone = min(job.job.work - job.remaining, job.rate * self.settings.overheads.lost)
        job.remaining += undone
        job.ready = self.now + self.settings.overheads.recovery
        job.since = self.now
        self._schedule(job)
        if self.settings.record:
            text = f"a worker died: {counted(round(undone), 'step')} to redo"
            self.changes.append(
                Change(self.now, job.job.id, "workers", job.workers, job.workers, "failed", text)
            )

    def _arrivals(self) -> tuple[str, ...]:
        arrived = []
        while (
            self.next < len(self.queue) and self.queue[self.next].submitted <= self.now + _EPSILON
        ):
            job = self.queue[self.next]
            self.next += 1
            error = self.settings.profile_error
            factor = 1.0 + self.rng.uniform(-error, error) if error else 1.0
            self.jobs[job.id] = _SimulatedJob(
                job=job, factor=factor, remaining=job.work, since=self.now
            )
            arrived.append(job.id)
        return tuple(arrived)

    async def observe(self) -> Snapshot:
        """Show the policy's view of this world."""
        rights = bool(self.settings.tenants)
        states = tuple(
            [
                JobState(
                    job.job, job.remaining, job.workers, job.judgement.standing, job.attained, self._ready(job),
                    job.changed, job.pace, self._unsaved(job) if rights else 0.0, _NOWHERE, job.unmeasured,
                    restart=job.restart,
                )
                for job in self.jobs.values()
            ]
        )  # fmt: skip
        return Snapshot(
            now=self.now,
            cluster=self.cluster,
            capacity=self.capacity,
            jobs=states,
            arrived=self.arrived,
            overheads=self.overheads,
            tenants=self.settings.tenants,
            promise=self.settings.promise,
            recent=self.recent,
            memory=self.memory,
        )

    def _ready(self, job: _SimulatedJob) -> float:
        """Return the time from which a job makes progress, with its end's overhead put before.

        A job that only has to end makes no progress before its end.
        """
        if job.workers and self.settings.overheads.end:
            return max(job.ready, job.finish - job.remaining / job.rate)
        return job.ready

    def _unsaved(self, job: _SimulatedJob) -> float:
        """Seconds since the last checkpoint.

        Checkpoints are written at each change and as far apart as `lost` says.
        """
        interval = 2.0 * self.settings.overheads.lost
        worked = max(self.now - max(job.changed, job.ready), 0.0)
        return worked % interval if interval and job.workers else job.unsaved

    async def apply(self, decision: Decision) -> None:
        """Give the jobs their decided workers, at the cost of that."""
        self.cycles += 1
        self.last, self.arrived = self.now, ()
        self.memory = decision.memory
        for verdict in decision.verdicts:
            self._judge(verdict)
        used = active = 0
        moved = decision.moved
        for name, job in self.jobs.items():
            workers = decision.workers.get(name, 0)
            used += workers
            active += workers > 0
            if workers != job.workers or name in moved:
                self._resize(job, workers, moved=name in moved, decision=decision)
        if used > self.capacity and not self.is_ahead:
            raise InternalError(
                f"the policy used {used} of {self.capacity} devices at {self.now:.0f}"
            )
        if not self.usage or self.usage[-1][1:] != (used, len(self.jobs) - active):
            self.usage.append((self.now, used, len(self.jobs) - active))
        if decision.wake is not None and decision.wake <= self.now and not self.is_ahead:
            raise InternalError(
                f"the policy asked to be woken at {decision.wake}, which is not after {self.now}"
            )

    def _judge(self, verdict: Verdict) -> None:
        job = self.jobs[verdict.job]
        job.verdict = verdict
        job.judgement = judge(verdict, job.job.deadline)
        self.verdicts.append((self.now, verdict))
        if job.judgement.standing is Standing.REFUSED:
            del self.jobs[verdict.job]
            self.outcomes.append(_outcome(job, None))

    def _resize(self, job: _SimulatedJob, workers: int, *, moved: bool, decision: Decision) -> None:
        settings, now = self.settings, self.now
        if settings.record:
            reason, detail = decision.reasons.get(job.job.id, ("", ""))
            self.changes.append(
                Change(now, job.job.id, "workers", job.workers, workers, str(reason), detail)
            )
        if workers:
            cost = settings.overheads.cost(job.workers, workers, moved=moved)
            job.ready = now + (max(cost, job.restart) if cost else 0.0)
            if job.started is None:
                job.started = now
            if settings.stragglers:
                job.slowed = settings.slow if self.rng.random() < settings.stragglers else 1.0
        if workers != job.workers:
            job.changed = now
        job.changes += 1
        job.workers = workers
        self._schedule(job)

    def _schedule(self, job: _SimulatedJob) -> None:
        """Reckon when it will finish, and when it will next break, if nothing changes."""
        job.rate = job.job.curve.rate(job.workers) * job.factor * job.slowed if job.workers else 0.0
        start = max(self.now, job.ready)
        end = self.settings.overheads.end
        job.finish = start + job.remaining / job.rate + end if job.rate > 0 else math.inf
        if self.settings.failures and job.workers:
            job.breaks = start + self.rng.expovariate(job.workers / self.settings.failures)
        else:
            job.breaks = math.inf

    def run(self) -> SimulatedRun:
        return SimulatedRun(
            outcomes=tuple(sorted(self.outcomes, key=lambda outcome: outcome.job.id)),
            devices=self.cluster.devices,
            usage=tuple(self.usage),
            changes=tuple(self.changes),
            verdicts=tuple(self.verdicts),
            cycles=self.cycles,
        )


def _seen_by(queue: Sequence[Job], slot: float) -> list[float]:
    """Return the times by which jobs are seen: those of cycles that their arrivals call for."""
    times: list[float] = []
    called = -math.inf
    for job in queue:
        if job.submitted > called:
            called = max(job.submitted, called + slot)
        times.append(called)
    return times


def _outcome(job: _SimulatedJob, finish: float | None) -> Outcome:
    return Outcome(
        job=job.job,
        started=job.started,
        finished=finish,
        admitted=job.judgement.promised,
        refused=isinstance(job.verdict, Rejected),
        attained=job.attained,
        changes=job.changes,
    )
