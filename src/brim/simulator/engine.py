"""The simulated cluster: time jumps from event to event, jobs progress by their curves, a policy
decides.

The clock is virtual: nothing here waits or reads the time of day.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from brim.domain.cluster import Cluster
from brim.domain.promising import PromiseAt
from brim.domain.resizing import OVERHEADS, Overheads
from brim.domain.schedule import (
    Admitted,
    Decision,
    JobState,
    Policy,
    Rejected,
    Snapshot,
    Standing,
    Verdict,
)
from brim.domain.tenancy import Tenant
from brim.domain.workload import Job
from brim.errors import InternalError
from brim.loop import run_cluster
from brim.policies.cycle import cycle
from brim.simulator.run import Change, Outcome, Run

# A job that would end within a microsecond has ended: floating-point time is no finer than that at
# 10^7 s.
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the simulated world behaves.

    Args:
        slot: least seconds between two cycles that an arrival or a completion calls for (0: at
            once). What a policy asked to be woken for always happens on time.
        overheads: seconds that a start, a resize or a migration costs.
        profile_error: each job's true speed is its curve's times a factor drawn from 1 ± this.
        failures: mean seconds between two failures of one worker (0: none); see
            `Overheads.recovery`.
        stragglers: probability that a job, at each change, lands on a slow node and runs at `slow`
            speed.
        capacity: (time, devices) steps of what training may use; empty: the whole cluster, always.
        placed: place workers on devices, and charge the migrations that this needs.
        record: keep every change with its reason (for decisions.jsonl and `explain`).
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


@dataclass(slots=True)
class _Live:
    """One unfinished job, as the cluster knows it."""

    job: Job
    factor: float
    remaining: float
    workers: int = 0
    standing: Standing = Standing.WAITING
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
    promised: bool = False
    changes: int = 0
    verdict: Verdict | None = None


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    settings: Settings | None = None,
    progress: Callable[[int], None] | None = None,
) -> Run:
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


def _at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run what awaits nothing but this module: its clock jumps, so it never has to be resumed."""
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
        self.progress = progress
        self.rng = random.Random(settings.seed)  # nosec: a simulation, not a secret
        self.live: dict[str, _Live] = {}
        self.outcomes: list[Outcome] = []
        self.changes: list[Change] = []
        self.verdicts: list[tuple[float, Verdict]] = []
        self.usage: list[tuple[float, int, int]] = []
        self.memory: object = None
        self.arrived: tuple[str, ...] = ()
        self.next = 0
        self.capacity = cluster.devices
        self.steps = list(settings.capacity)
        self.cycles = 0
        self.last = -math.inf
        self.now = self.queue[0].submitted if self.queue else 0.0

    def busy(self) -> bool:
        return bool(self.live) or self.next < len(self.queue)

    async def wait(self, until: float | None) -> bool:
        """Go to the next event, and let what is due happen,
        until there is a job to decide about.
        """
        wake = math.inf if until is None else until
        while self.busy():
            self.now = self._next_event(wake)
            if self.now == math.inf:
                idle = ", ".join(list(self.live)[:3])
                raise InternalError(
                    f"the policy left {len(self.live)} jobs waiting for ever, such as {idle}"
                )
            while self.steps and self.steps[0][0] <= self.now + _EPSILON:
                self.capacity = self.steps.pop(0)[1]
            self._advance()
            self.arrived = self._arrivals()
            if self.progress is not None:
                self.progress(len(self.outcomes))
            if self.live:
                return True
            self.last = self.now
            self.usage.append((self.now, 0, 0))
            wake = math.inf  # who asked to be woken is done
        return False

    def _next_event(self, wake: float) -> float:
        soon = min((live.finish for live in self.live.values()), default=math.inf)
        if self.settings.failures:
            soon = min(soon, min((live.breaks for live in self.live.values()), default=math.inf))
        if self.next < len(self.queue):
            soon = min(soon, self.queue[self.next].submitted)
        soon = max(soon, self.last + self.settings.slot)
        if self.steps:
            soon = min(soon, self.steps[0][0])
        return max(min(soon, wake), self.now)

    def _advance(self) -> None:
        now, done = self.now, []
        for live in self.live.values():
            if live.workers:
                start = live.since if live.since > live.ready else live.ready
                until = min(now, live.finish)
                live.attained += live.workers * (until - live.since)
                until = min(until, live.finish - self.settings.overheads.end)
                if until > start:
                    live.remaining = max(live.remaining - live.rate * (until - start), _EPSILON)
                    live.pace = live.factor * live.slowed
                if live.finish <= now + _EPSILON:
                    done.append(live)
                elif live.breaks <= now:
                    self._fail(live)
            live.since = now
        for live in done:
            del self.live[live.job.id]
            self.outcomes.append(_outcome(live, live.finish))
            if self.settings.record:
                self.changes.append(
                    Change(live.finish, live.job.id, live.workers, 0, "finished", "")
                )

    def _fail(self, live: _Live) -> None:
        undone = min(live.job.work - live.remaining, live.rate * self.settings.overheads.lost)
        live.remaining += undone
        live.ready = self.now + self.settings.overheads.recovery
        live.since = self.now
        self._schedule(live)
        if self.settings.record:
            text = f"a worker died: {undone:.0f} steps to redo"
            self.changes.append(
                Change(self.now, live.job.id, live.workers, live.workers, "failed", text)
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
            self.live[job.id] = _Live(job=job, factor=factor, remaining=job.work, since=self.now)
            arrived.append(job.id)
        return tuple(arrived)

    async def observe(self) -> Snapshot:
        """What the policy may see of this world."""
        rights = bool(self.settings.tenants)
        states = tuple(
            [
                JobState(
                    live.job, live.remaining, live.workers, live.standing, live.attained, self._ready(live),
                    live.changed, live.pace, self._unsaved(live) if rights else 0.0,
                )
                for live in self.live.values()
            ]
        )  # fmt: skip
        return Snapshot(
            now=self.now,
            cluster=self.cluster,
            capacity=self.capacity,
            jobs=states,
            arrived=self.arrived,
            overheads=self.settings.overheads.paid_ahead,
            tenants=self.settings.tenants,
            promise=self.settings.promise,
            memory=self.memory,
        )

    def _ready(self, live: _Live) -> float:
        """From when on it makes progress, its end put before it; one that only has to end makes
        none before that.
        """
        if live.workers and self.settings.overheads.end:
            return max(live.ready, live.finish - live.remaining / live.rate)
        return live.ready

    def _unsaved(self, live: _Live) -> float:
        """Seconds since the last checkpoint: they are written at each change and as far apart as
        `lost` says.
        """
        interval = 2.0 * self.settings.overheads.lost
        worked = max(self.now - max(live.changed, live.ready), 0.0)
        return worked % interval if interval and live.workers else 0.0

    async def apply(self, decision: Decision) -> None:
        """Give the jobs the workers that were decided, at what that costs them."""
        self.cycles += 1
        self.last, self.arrived = self.now, ()
        self.memory = decision.memory
        for verdict in decision.verdicts:
            self._judge(verdict)
        used = active = 0
        moved = decision.moved
        for name, live in self.live.items():
            workers = decision.workers.get(name, 0)
            used += workers
            active += workers > 0
            if workers != live.workers or name in moved:
                self._resize(live, workers, moved=name in moved, decision=decision)
        if used > self.capacity:
            raise InternalError(
                f"the policy used {used} of {self.capacity} devices at {self.now:.0f}"
            )
        if not self.usage or self.usage[-1][1:] != (used, len(self.live) - active):
            self.usage.append((self.now, used, len(self.live) - active))
        if decision.wake is not None and decision.wake <= self.now:
            raise InternalError(
                f"the policy asked to be woken at {decision.wake}, which is not after {self.now}"
            )

    def _judge(self, verdict: Verdict) -> None:
        live = self.live[verdict.job]
        live.verdict = verdict
        self.verdicts.append((self.now, verdict))
        if isinstance(verdict, Admitted):
            live.standing = (
                Standing.ADMITTED if live.job.deadline is not None else Standing.BEST_EFFORT
            )
            live.promised = live.job.deadline is not None and verdict.promises
        elif verdict.runs:
            live.standing = Standing.BEST_EFFORT
        else:
            del self.live[verdict.job]
            self.outcomes.append(_outcome(live, None))

    def _resize(self, live: _Live, workers: int, *, moved: bool, decision: Decision) -> None:
        settings, now = self.settings, self.now
        if settings.record:
            reason, detail = decision.reasons.get(live.job.id, ("", ""))
            self.changes.append(
                Change(now, live.job.id, live.workers, workers, str(reason), detail)
            )
        if workers:
            live.ready = now + settings.overheads.cost(live.workers, workers, moved=moved)
            if live.started is None:
                live.started = now
            if settings.stragglers:
                live.slowed = settings.slow if self.rng.random() < settings.stragglers else 1.0
        if workers != live.workers:
            live.changed = now
        live.changes += 1
        live.workers = workers
        self._schedule(live)

    def _schedule(self, live: _Live) -> None:
        """When it will finish, and when it will next break, if nothing changes."""
        live.rate = (
            live.job.curve.rate(live.workers) * live.factor * live.slowed if live.workers else 0.0
        )
        start = max(self.now, live.ready)
        end = self.settings.overheads.end
        live.finish = start + live.remaining / live.rate + end if live.rate > 0 else math.inf
        if self.settings.failures and live.workers:
            live.breaks = start + self.rng.expovariate(live.workers / self.settings.failures)
        else:
            live.breaks = math.inf

    def run(self) -> Run:
        return Run(
            outcomes=tuple(sorted(self.outcomes, key=lambda outcome: outcome.job.id)),
            devices=self.cluster.devices,
            usage=tuple(self.usage),
            changes=tuple(self.changes),
            verdicts=tuple(self.verdicts),
            cycles=self.cycles,
        )


def _outcome(live: _Live, finish: float | None) -> Outcome:
    return Outcome(
        job=live.job,
        started=live.started,
        finished=finish,
        admitted=live.promised,
        refused=isinstance(live.verdict, Rejected),
        attained=live.attained,
        changes=live.changes,
    )
