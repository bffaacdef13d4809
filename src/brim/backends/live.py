"""A cluster of real processes as a `Backend`: what they do becomes a snapshot, decisions become what they should do.

It writes down what it is about to do before it does it, and believes only what it sees: a job has processes while a
lock says so, and devices are free once nobody holds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass, field
from typing import Any, Protocol, assert_never

from brim.coordination.lifecycle import Happening
from brim.coordination.reconcile import Action, Force, Holding, Resize, Start, Suspend, reconcile
from brim.domain.cluster import ClusterSpec
from brim.domain.measuring import Measured, curve_of
from brim.domain.resizing import OVERHEADS, Overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Admitted, Decision, JobState, Rejected, Snapshot, Standing, Verdict
from brim.domain.workload import Job
from brim.errors import EnvironmentFault
from brim.interfaces import Clock
from brim.storage.book import Book, JobRecord

__all__ = ["LiveBackend", "Processes", "Seen"]

_LOOK = 0.2  # seconds between two looks at the processes
_REPLAN = 15.0  # seconds after which plans are made anew from measured progress
_UNKNOWN_WORK = 600.0  # steps that a job is believed to have until it says how many
_MOST_SETBACKS = 5  # ends of a job's processes in a row without a step, after which it has failed
_BACKOFF = 1.0  # seconds before the second of them is followed by another start; doubled each time


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is so of one job's processes.

    Args:
        alive: it has some.
        workers: worker processes among them.
        step, steps: committed, and planned in all (None: it has not said so yet).
        saved: when its last checkpoint was written.
        outcome: `done`, `failed`, something else that says that it can go on, or empty.
        who: must act, where it failed.
    """

    alive: bool
    workers: int = 0
    step: int = 0
    steps: int | None = None
    saved: float = 0.0
    first_step: float | None = None
    outcome: str = ""
    who: str = ""
    problem: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    measured: Measured = field(default_factory=Measured)


class Processes(Protocol):
    """Starts, asks and ends the processes of jobs. What it is asked may come to nothing: it is looked at again."""

    def look(self, record: JobRecord) -> Seen: ...

    async def start(self, record: JobRecord, workers: int) -> None:
        """Raises EnvironmentFault where it cannot; returns before they are up."""
        ...

    async def resize(self, record: JobRecord, workers: int) -> None:
        """Raises EnvironmentFault where they do not say yes."""
        ...

    async def suspend(self, record: JobRecord) -> None:
        """Raises EnvironmentFault where they do not say yes."""
        ...

    async def force(self, record: JobRecord, workers: int) -> None:
        """End what is beyond so many workers, at once; 0 ends all processes."""
        ...


@dataclass(slots=True)
class _Track:
    """What this life of the scheduler knows of a job beyond the book.

    Args:
        seen: at the last look.
        looked: when that was.
        confirmed: its processes have said yes to their target; those of an earlier life are asked again.
        begun: the step at which its processes were started.
        forced: it was told on that its grace period is over.
    """

    seen: Seen = field(default_factory=lambda: Seen(alive=False))
    looked: float | None = None
    confirmed: bool = False
    begun: int = 0
    forced: bool = False
    rates: dict[int, float] = field(default_factory=dict)
    curve: ScalingCurve | None = None


class LiveBackend:
    """The jobs of `book`, on this cluster.

    Args:
        book: is kept up to date.
        processes: of the jobs.
        spec: of the cluster; may be replaced, see `reconfigure`.
        clock: its wall clock is the cluster's.
        memory: what the last cycle of an earlier life left.
        overheads: what changes are believed to cost.
    """

    def __init__(
        self,
        book: Book,
        processes: Processes,
        spec: ClusterSpec,
        *,
        clock: Clock,
        memory: object = None,
        overheads: Overheads = OVERHEADS["brim"],
    ) -> None:
        self.book, self.spec, self.memory = book, spec, memory
        self._processes, self._clock, self._overheads = processes, clock, overheads
        self._tracks: dict[str, _Track] = {}
        self._news = asyncio.Event()
        self._news.set()
        self._cycle_at = 0.0
        self._draining = self._killing = False

    # What people do ----------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Something has changed: decide again."""
        self._news.set()

    def reconfigure(self, spec: ClusterSpec) -> None:
        """Another policy, other rights, more or fewer devices: from the next cycle on."""
        if spec.policy != self.spec.policy:
            self.memory = None
        self.spec = spec
        self.tell()

    def drain(self, *, kill: bool) -> None:
        """Suspend every job, decide nothing more, and end; with `kill`, at once instead of at a step boundary."""
        self._draining, self._killing = True, self._killing or kill
        self.tell()

    # Backend -----------------------------------------------------------------------------------------------

    async def wait(self, until: float | None) -> bool:
        """Look again and again, and do what is left to do, until there is something to decide."""
        while True:
            await self.look()
            now = self._clock.wall()
            if self._draining:
                if not any(record.running for record in self.book.unfinished()):
                    return False
                await asyncio.sleep(_LOOK)
                continue
            due = self._due(until, now)
            if self._news.is_set() or now >= due:
                self._news.clear()
                return True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(_LOOK, due - now))

    def _due(self, until: float | None, now: float) -> float:
        """When to decide again even if nothing happens."""
        due = math.inf if until is None else until
        for record in self.book.unfinished():
            if record.running:
                due = min(due, self._cycle_at + _REPLAN)
            elif record.not_before > now:
                due = min(due, record.not_before)
        return due

    async def observe(self) -> Snapshot:
        """The jobs that may run, as they are."""
        now = self._cycle_at = self._clock.wall()
        records = [
            record
            for record in self.book.unfinished()
            if record.life.may_run and (record.running or record.not_before <= now)
        ]
        return self.snapshot(records, now)

    def snapshot(self, records: list[JobRecord], now: float) -> Snapshot:
        """These jobs as a policy sees them."""
        return Snapshot(
            now=now,
            cluster=self.spec.cluster,
            capacity=self.spec.capacity,
            jobs=tuple(self.state(record, now) for record in records),
            arrived=tuple(record.id for record in records if not record.judged and self.is_known(record)),
            overheads=self._overheads,
            tenants=self.spec.tenants,
            memory=self.memory,
        )

    async def apply(self, decision: Decision) -> None:
        """Write down who should have what, and begin to bring it about."""
        self.memory = decision.memory
        now = self._clock.wall()
        for verdict in decision.verdicts:
            self._judge(self.book.jobs[verdict.job], verdict, now)
        for record in self.book.unfinished():
            wanted = decision.workers.get(record.id, 0) if record.life.may_run else 0
            if wanted != record.workers:
                before, record.workers = record.workers, wanted
                self.book.save(record)
                reason, detail = decision.reasons.get(record.id, ("", ""))
                self.book.note(
                    now, record, "workers", before=before, after=wanted, reason=str(reason), detail=detail
                )
        await self.look()

    def _judge(self, record: JobRecord, verdict: Verdict, now: float) -> None:
        record.judged, record.verdict, record.detail = True, str(verdict.reason), verdict.detail
        if isinstance(verdict, Admitted):
            deadline = record.submission.deadline
            record.standing = Standing.ADMITTED if deadline is not None else Standing.BEST_EFFORT
            record.promised = deadline is not None and verdict.promises
            record.estimate, record.earliest = verdict.finish, None
        else:
            record.standing = Standing.BEST_EFFORT if verdict.runs else Standing.REFUSED
            record.promised, record.earliest = False, verdict.earliest
        event = "promised" if record.promised else "refused" if isinstance(verdict, Rejected) else "accepted"
        self.book.note(now, record, event, reason=record.verdict, detail=record.detail)
        if record.standing is not Standing.REFUSED:
            self.book.must(record, Happening.ADMIT, now=now)
        elif not self.book.happen(record, Happening.REFUSE, now=now, detail=record.detail):
            self.book.save(record)  # its processes end first

    # Jobs as a policy sees them ----------------------------------------------------------------------------

    def _track(self, record: JobRecord) -> _Track:
        return self._tracks.setdefault(record.id, _Track())

    def _rates(self, record: JobRecord) -> dict[int, float]:
        earlier = self.book.measured(record.submission.fingerprint)
        return self._track(record).seen.measured.merged([earlier]).rates

    def _steps(self, record: JobRecord) -> int | None:
        return record.steps or self.book.steps_of(record.submission)

    def is_known(self, record: JobRecord) -> bool:
        """Whether it can be judged: a deadline can be promised only to what was measured."""
        return record.submission.deadline is None or bool(self._rates(record) and self._steps(record))

    def _curve(self, record: JobRecord) -> ScalingCurve:
        track, rates, spec = self._track(record), self._rates(record), record.submission.spec
        if track.curve is None or _differ(rates, track.rates):
            track.rates, track.curve = (
                rates,
                curve_of(
                    rates,
                    parts=spec.micro_batches if spec.exact else 0,
                    minimum=spec.workers.minimum,
                    maximum=min(spec.workers.maximum, max(self.spec.capacity, spec.workers.minimum)),
                ),
            )
        return track.curve

    def state(self, record: JobRecord, now: float) -> JobState:
        """One job as a policy sees it."""
        submission, workers = record.submission, record.submission.spec.workers
        curve, known = self._curve(record), self.is_known(record)
        work = float(self._steps(record) or _UNKNOWN_WORK)
        job = Job(
            id=record.id,
            submitted=record.submitted,
            work=work,
            curve=curve,
            deadline=submission.deadline if known else None,
            requested=workers.maximum,
            duration=work / curve.best[min(workers.maximum, len(curve.best) - 1)],
            minimum=workers.minimum,
            maximum=workers.maximum,
            tenant=submission.tenant,
            priority=submission.priority,
        )
        saved = self._track(record).seen.saved
        return JobState(
            job=job,
            remaining=max(work - record.step, 1.0),
            workers=record.target if record.running else 0,
            standing=record.standing if known else Standing.BEST_EFFORT,
            attained=record.attained,
            ready=record.ready,
            changed=record.changed,
            unsaved=max(0.0, now - saved) if record.running and saved else 0.0,
        )

    # What is seen ------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """See what the processes do, write down what has become of them, and take the next steps."""
        for record in self.book.unfinished():
            if record.running:
                self._take(record, self._processes.look(record))
        for record in self.book.unfinished():
            if record.running and not self._track(record).confirmed:
                await self._confirm(record)
        for action in self._steps_to_take():
            await self._perform(action)

    def _take(self, record: JobRecord, seen: Seen) -> None:
        now, track = self._clock.wall(), self._track(record)
        if track.looked is not None:
            record.attained += record.target * max(0.0, now - track.looked)
        if seen.measured.rates.keys() != track.seen.measured.rates.keys():
            self.tell()  # a number of workers was measured for the first time
        if seen.steps is not None and record.steps is None:
            self.tell()
        track.seen, track.looked = seen, now
        record.step, record.steps = seen.step, seen.steps or record.steps
        record.started = record.started or seen.first_step
        if not seen.alive:
            self._settle(record, seen, now)

    def _settle(self, record: JobRecord, seen: Seen, now: float) -> None:
        """Its processes have ended: for good, or until it has workers again."""
        self.book.learn(record.submission, seen.measured, seen.steps)
        asked, record.target = record.target == 0, 0
        record.summary, record.problem = seen.summary, seen.problem
        begun = self._tracks.pop(record.id).begun
        if seen.outcome == "done":
            self.book.must(record, Happening.FINISH, now=now)
        elif seen.outcome == "failed" and seen.who != "environment":
            self.book.must(record, Happening.FAIL, now=now, detail=seen.problem)
        elif asked:
            record.setbacks = 0
            self.book.must(record, Happening.STOP, now=now)
        else:
            self._set_back(record, now, stepped=seen.step > begun)
        if not record.life.ended and record.standing is Standing.REFUSED:
            self.book.must(record, Happening.REFUSE, now=now, detail=record.detail)
        self.tell()

    def _set_back(self, record: JobRecord, now: float, *, stepped: bool) -> None:
        """Nobody asked for this end: it starts again, later each time, but not for ever."""
        record.setbacks = 1 if stepped else record.setbacks + 1
        record.not_before = now + _BACKOFF * (2 ** (record.setbacks - 1) - 1)
        detail = record.problem or "its processes died"
        if record.setbacks < _MOST_SETBACKS:
            self.book.must(record, Happening.STOP, now=now, detail=detail)
            return
        record.problem = f"{record.setbacks} starts in a row came to nothing, the last: {detail}"
        self.book.must(record, Happening.FAIL, now=now, detail=record.problem)

    # What is done ------------------------------------------------------------------------------------------

    def _steps_to_take(self) -> list[Action]:
        now = self._clock.wall()
        holdings, desired = [], {}
        for record in self.book.unfinished():
            seen, alive = self._track(record).seen, record.running
            gives = record.target == 0 or seen.workers > record.target
            holdings.append(
                Holding(record.id, alive, seen.workers, record.target, record.asked if gives else None)
            )
            startable = record.life.may_run and record.not_before <= now
            desired[record.id] = record.workers if startable and not self._draining else 0
        if self._killing:
            return [Force(one.job, 0) for one in holdings if one.alive]
        return reconcile(holdings, desired, capacity=self.spec.capacity, now=now, grace=self.spec.grace)

    async def _perform(self, action: Action) -> None:
        """One step; what comes to nothing is tried again at the next look."""
        record = self.book.jobs[action.job]
        with contextlib.suppress(EnvironmentFault):
            match action:
                case Start(workers=workers):
                    await self._start(record, workers)
                case Resize(workers=workers):
                    await self._processes.resize(record, workers)
                    self._asked(record, workers)
                case Suspend():
                    await self._processes.suspend(record)
                    self._asked(record, 0)
                case Force(workers=workers):
                    await self._force(record, workers)
                case _:
                    assert_never(action)

    async def _start(self, record: JobRecord, workers: int) -> None:
        """Written down first: a scheduler that dies in between finds no processes, and starts them then."""
        now = self._clock.wall()
        record.launches += 1
        self._tracks[record.id] = _Track(confirmed=True, begun=record.step, looked=now)
        self._retarget(record, workers, now)
        self.book.must(record, Happening.START, now=now, detail=_workers(workers))
        try:
            await self._processes.start(record, workers)
        except EnvironmentFault as fault:
            self._settle(record, Seen(alive=False, step=record.step, problem=str(fault)), now)

    def _asked(self, record: JobRecord, workers: int) -> None:
        """Its processes said yes."""
        now, track = self._clock.wall(), self._track(record)
        if workers < record.target:
            record.asked, track.forced = now, False
        track.confirmed = True
        self._retarget(record, workers, now)
        self.book.save(record)

    def _retarget(self, record: JobRecord, workers: int, now: float) -> None:
        cost = self._overheads.cost(record.target, workers)
        record.target, record.changed, record.ready = workers, now, now + cost

    async def _confirm(self, record: JobRecord) -> None:
        """Ask processes of an earlier life again: nobody knows whether they heard the last question."""
        with contextlib.suppress(EnvironmentFault):
            if record.target:
                await self._processes.resize(record, record.target)
            else:
                await self._processes.suspend(record)
            self._track(record).confirmed = True

    async def _force(self, record: JobRecord, workers: int) -> None:
        track = self._track(record)
        if not track.forced:
            track.forced = True
            text = f"it had {self.spec.grace:.0f} s to go to {_workers(workers)}"
            self.book.note(self._clock.wall(), record, "forced", after=workers, detail=text)
        await self._processes.force(record, workers)


def _differ(rates: dict[int, float], others: dict[int, float]) -> bool:
    """Whether a curve through one is another than through the other, by more than a fiftieth."""
    return rates.keys() != others.keys() or any(
        abs(rate / others[n] - 1.0) > 0.02 for n, rate in rates.items()
    )


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
