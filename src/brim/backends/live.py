"""A cluster of real processes as a `Backend`: what they do becomes a snapshot, decisions become
what they should do.

It writes down what it is about to do before it does it, and believes only what it sees: a job has
processes while a lock says so, and devices are free once nobody holds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from typing import assert_never

from brim.backends.picture import Picture
from brim.backends.presence import Presence
from brim.backends.processes import Processes, Seen
from brim.backends.questions import Questions
from brim.coordination.lifecycle import Happening
from brim.coordination.reconcile import (
    Action,
    ByNode,
    Force,
    Holding,
    Leave,
    Resize,
    Start,
    Suspend,
    most,
    reconcile,
    still_coming,
    within,
)
from brim.domain.cluster import ClusterSpec
from brim.domain.estimates import errors_of
from brim.domain.quantities import counted
from brim.domain.schedule import Admitted, Decision, JobState, Rejected, Snapshot, Standing, Verdict
from brim.errors import EnvironmentFault
from brim.interfaces import Clock
from brim.storage.book import Book, JobRecord

_KEPT = 200  # cycles and looks whose times are told
_LOOK = 0.2  # seconds between two looks at the processes
_REPLAN = 15.0  # seconds after which plans are made anew from measured progress
_RETRY = 1.0  # seconds after which a job that is to be measured asks for its next size again
_MOST_SETBACKS = 5  # ends of a job's processes in a row without a step, after which it has failed
_BACKOFF = 1.0  # seconds before the second of them is followed by another start; doubled each time
_LONGEST_BACKOFF = 60.0  # seconds before another start, where the environment allows none


class LiveBackend:
    """The jobs of `book`, on this cluster.

    Args:
        book: is kept up to date.
        processes: of the jobs.
        spec: of the cluster; may be replaced, see `reconfigure`.
        clock: its wall clock is the cluster's.

    Attributes:
        cycles, looks: seconds that the last ones took; what a cycle has written down is done by the
            look behind it.
    """

    def __init__(
        self, book: Book, processes: Processes, spec: ClusterSpec, *, clock: Clock
    ) -> None:
        self.book, self.spec = book, spec
        self.memory: object = None  # what the last cycle left
        self._processes, self._clock = processes, clock
        self._picture = Picture(book)
        self._questions = Questions(self._perform, clock)
        self._news = asyncio.Event()
        self._news.set()
        self._cycle_at = 0.0
        self._presence = Presence()
        self._woke: float | None = None
        self.cycles, self.looks = deque[float](maxlen=_KEPT), deque[float](maxlen=_KEPT)
        self._draining = self._killing = False

    # What people do -------------------------------------------------------------------------------

    def tell(self) -> None:
        """Something has changed: decide again."""
        self._news.set()

    def close(self) -> None:
        """Ask nobody anything more, and hear no answer."""
        self._questions.close()

    def reconfigure(self, spec: ClusterSpec) -> None:
        """Another policy, other rights, more or fewer devices: from the next cycle on."""
        self.spec = spec
        self.tell()

    def drain(self, *, kill: bool) -> None:
        """Suspend every job, decide nothing more, and end; with `kill`, at once instead of at a
        step boundary.
        """
        self._draining, self._killing = True, self._killing or kill
        self.tell()

    # Backend --------------------------------------------------------------------------------------

    async def wait(self, until: float | None) -> bool:
        """Look again and again, and do what is left to do, until there is something to decide."""
        there_is = await self._wait(until)
        self._woke = self._clock.now()
        return there_is

    async def _wait(self, until: float | None) -> bool:
        while True:
            await self.look()
            now = self._clock.wall()
            if self._draining:
                if not any(record.running for record in self.book.unfinished()):
                    return False
                await asyncio.sleep(_LOOK)
                continue
            due = self._due(until)
            if self._news.is_set() or now >= due:
                self._news.clear()
                return True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(_LOOK, due - now))

    def _due(self, until: float | None) -> float:
        """When to decide again even if nothing happens."""
        due = math.inf if until is None else until
        for record in self.book.unfinished():
            if record.running:
                waits = record.profile is not None and record.target < record.profile.size
                due = min(due, self._cycle_at + (_RETRY if waits else _REPLAN))
            elif record.not_before > self._cycle_at:  # the last cycle left it out
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
        return self._picture.snapshot(
            records, self.spec, lost=self._presence.lost, memory=self.memory, now=now
        )

    def state(self, record: JobRecord, now: float) -> JobState:
        """One job as a policy sees it."""
        return self._picture.state(record, self.spec, now)

    def is_known(self, record: JobRecord) -> bool:
        """Whether its deadline can be judged."""
        return self._picture.is_known(record)

    def is_measured(self, record: JobRecord) -> bool:
        """Whether anything can be said of its end."""
        return self._picture.is_measured(record)

    async def apply(self, decision: Decision) -> None:
        """Write down who should have what, and begin to bring it about."""
        self.memory = decision.memory
        with self.book.together():
            self._write_down(decision, self._clock.wall())
        if self._woke is not None:
            self.cycles.append(self._clock.now() - self._woke)
        await self.look()

    def _write_down(self, decision: Decision, now: float) -> None:
        for verdict in decision.verdicts:
            record = self.book.jobs.get(verdict.job)
            if (
                record is not None and record.life.may_run
            ):  # it may have been cancelled while this was decided
                self._judge(record, verdict, now)
        for record in self.book.unfinished():
            plan = dict(decision.nodes.get(record.id, {})) if record.life.may_run else {}
            if plan != record.plan:
                before, record.plan = record.workers, plan
                self._picture.want(record, now)
                self.book.save(record)
                if record.workers != before:
                    reason, detail = decision.reasons.get(record.id, ("", ""))
                    sizes = {"before": before, "after": record.workers}
                    self.book.note(
                        now, record, "workers", **sizes, reason=str(reason), detail=detail
                    )
                if len(self.spec.cluster.nodes) > 1 and plan:
                    where = ", ".join(f"{count} on {node}" for node, count in plan.items())
                    self.book.note(now, record, "placed", detail=where)

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
        event = (
            "promised"
            if record.promised
            else "refused"
            if isinstance(verdict, Rejected)
            else "accepted"
        )
        self.book.note(now, record, event, reason=record.verdict, detail=record.detail)
        if record.standing is not Standing.REFUSED:
            self.book.must(record, Happening.ADMIT, now=now)
        elif not self.book.happen(record, Happening.REFUSE, now=now, detail=record.detail):
            self.book.save(record)  # its processes end first

    # What is seen ---------------------------------------------------------------------------------

    async def look(self) -> None:
        """See what the processes do, write down what has become of them,
        and take the next steps.
        """
        began = self._clock.now()
        self._picture.look(self._clock.wall())
        with self.book.together():  # the disk is waited for once
            if self._presence.look(self.spec.cluster, self._processes):
                self.tell()
            for event, detail in self._presence.news:
                self.book.note_cluster(self._clock.wall(), event, detail)
            for record in self.book.unfinished():
                if record.running and not isinstance(self._questions.open(record.id), Start):
                    self._see(record)
        await self._questions.ask([*self._to_confirm(), *self._steps_to_take()])
        self.looks.append(self._clock.now() - began)

    @property
    def problem(self) -> str:
        """Which nodes are gone; empty where none is."""
        return self._presence.problem

    def _see(self, record: JobRecord) -> None:
        try:
            seen = self._processes.look(record)
        except OSError:
            return  # nobody can tell now whether it is alive: it is looked at again
        self._take(record, seen)

    def _take(self, record: JobRecord, seen: Seen) -> None:
        now, track = self._clock.wall(), self._picture.track(record)
        if track.looked is not None:
            record.attained += record.target * max(0.0, now - track.looked)
        sizes = frozenset(seen.measured.rates)
        news = bool(sizes - track.sizes) or (seen.steps is not None and record.steps is None)
        half = seen.steps is not None and record.step < seen.steps / 2 <= seen.step
        if news or now - track.learned > _REPLAN:
            track.sizes, track.learned = sizes, now
            self.book.learn(record.submission, seen.measured, seen.steps)
        self._picture.see(record, seen, now)
        waited, gone = now - record.changed, self._presence.gone
        record.coming = still_coming(
            record.coming, seen.workers, gone=gone, waited=waited, grace=self.spec.grace
        )
        record.step, record.steps = seen.step, seen.steps or record.steps
        record.started = record.started or seen.first_step
        self._picture.reckon(record)
        if self._profile(record, now) or news or half:
            self.tell()  # this job can be judged now, or others like it that wait
        self._note_memory(record, seen, now)
        if not seen.alive:
            self._settle(record, seen, now)

    def _note_memory(self, record: JobRecord, seen: Seen, now: float) -> None:
        news = seen.out_of_memory[record.out_of_memory :]
        if news:
            record.out_of_memory += len(news)
            self.book.save(record)
        for who in news:
            self.book.note(now, record, "out of memory", detail=who)

    def _profile(self, record: JobRecord, now: float) -> bool:
        """Whether the profile of a new model has got any further."""
        before, said = record.profile, self._picture.advance(record, self.spec, now)
        if record.profile != before:
            self.book.save(record)
        if said:
            self.book.note(now, record, "measured", detail=said)
        return record.profile != before

    def _settle(self, record: JobRecord, seen: Seen, now: float) -> None:
        """Its processes have ended: for good, or until it has workers again."""
        self.book.learn(record.submission, seen.measured, seen.steps)
        asked, record.told, record.coming = not record.told, {}, {}
        record.summary, record.problem = seen.summary, seen.problem
        begun = self._picture.end(record, now).begun
        if seen.outcome == "done":
            error = errors_of(record.first, record.half, now)
            self.book.must(record, Happening.FINISH, now=now, detail=error)
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
        detail = record.problem or self.problem or "its processes died"
        if record.setbacks < _MOST_SETBACKS:
            self.book.must(record, Happening.STOP, now=now, detail=detail)
            return
        record.problem = f"{record.setbacks} starts in a row came to nothing, the last: {detail}"
        self.book.must(record, Happening.FAIL, now=now, detail=record.problem)

    # What is done ---------------------------------------------------------------------------------

    def _steps_to_take(self) -> list[Action]:
        now = self._clock.wall()
        holdings, desired = [], {}
        for record in self.book.unfinished():
            seen, alive = self._picture.track(record).seen, record.running
            target, asked = record.told, self._questions.open(record.id)
            if isinstance(asked, Resize):
                target = most(
                    target, asked.workers
                )  # it may have heard: the devices are nobody else's
            there, since = (
                most(seen.workers, record.coming),
                record.asked if self._gives(record) else None,
            )
            silent = self._questions.unanswered(record.id)
            holdings.append(
                Holding(record.id, alive, there, target, since, record.home, seen.agents, silent)
            )
            startable = record.life.may_run and record.not_before <= now
            desired[record.id] = record.plan if startable and not self._draining else {}
        if self._killing:
            return [Force(one.job, {}) for one in holdings if one.alive]
        nodes = self._presence.devices(self.spec.cluster)
        capacity, grace = self.spec.capacity, self.spec.grace
        return reconcile(holdings, desired, nodes=nodes, capacity=capacity, now=now, grace=grace)

    def _gives(self, record: JobRecord) -> bool:
        """Whether it has more than it was asked to have."""
        return not record.told or not within(self._picture.track(record).seen.workers, record.told)

    async def _perform(self, action: Action) -> None:
        """One step; what comes to nothing is tried again at the next look."""
        record = self.book.jobs[action.job]
        launch = record.launches
        try:
            match action:
                case Start(workers=workers):
                    await self._start(record, workers)
                case Resize(workers=workers):
                    await self._processes.resize(record, workers)
                    self._asked(record, workers, launch)
                case Leave(node=node):
                    await self._processes.leave(record, node)
                case Suspend() if self._picture.has_stepped(record):
                    await self._processes.suspend(record)
                    self._asked(record, {}, launch)
                case Suspend():  # it warms up, and has nothing that a checkpoint could keep
                    self._asked(record, {}, launch)
                    await self._processes.force(record, {})
                case Force(workers=workers):
                    await self._force(record, workers)
                case _:
                    assert_never(action)
        except (EnvironmentFault, OSError):
            pass  # it is asked again

    async def _start(self, record: JobRecord, workers: ByNode) -> None:
        """Written down first: a scheduler that dies in between finds no processes, and starts them
        then.
        """
        if not record.life.may_run:
            return  # its owner has changed their mind while others were asked
        now = self._clock.wall()
        record.profile = record.profile or self._picture.profile(record, self.spec)
        record.launches += 1
        self._picture.begin(record, now)
        record.home = max(workers, key=lambda node: workers[node])
        self._retarget(record, workers, now)
        self.book.must(record, Happening.START, now=now, detail=counted(record.target, "worker"))
        try:
            await self._processes.start(record, workers)
        except EnvironmentFault as fault:
            self._started_in_vain(record, str(fault), now)
        else:
            record.vain = 0

    def _started_in_vain(self, record: JobRecord, why: str, now: float) -> None:
        """No fault of the job's: it is started again, for as long as that takes."""
        record.told, record.coming, record.problem = {}, {}, why
        self._picture.end(record, now)
        record.not_before = now + min(_LONGEST_BACKOFF, _BACKOFF * 2**record.vain)
        record.vain += 1
        self.book.must(record, Happening.STOP, now=now, detail=why)
        self.tell()

    def _asked(self, record: JobRecord, workers: ByNode, launch: int) -> None:
        """Its processes said yes, unless they have ended meanwhile."""
        if not record.running or record.launches != launch:
            return
        now, track = self._clock.wall(), self._picture.track(record)
        since = self._questions.answered(record.id)
        if not within(record.told, workers) and not self._gives(
            record
        ):  # else its time runs already
            record.asked, track.forced = since or now, None
        track.confirmed = True
        if workers != record.told:
            self._retarget(record, workers, now)
            self.book.save(record)

    def _retarget(self, record: JobRecord, workers: ByNode, now: float) -> None:
        cost = self._picture.change(record, workers, now)
        grown = {node: count for node, count in workers.items() if count > record.told.get(node, 0)}
        record.told, record.coming = dict(workers), most(record.coming, grown)
        record.changed, record.ready = now, now + cost

    def _to_confirm(self) -> list[Action]:
        """Processes of an earlier life are asked again: nobody knows whether they heard the last
        question.
        """
        return [
            Resize(record.id, record.told) if record.told else Suspend(record.id)
            for record in self.book.unfinished()
            if record.running and not self._picture.track(record).confirmed
        ]

    async def _force(self, record: JobRecord, workers: ByNode) -> None:
        track, now = self._picture.track(record), self._clock.wall()
        if self._killing:
            self._retarget(record, {}, now)  # nobody calls it a setback
        elif track.forced != workers:
            track.forced, left, asked = (
                workers,
                sum(workers.values()),
                self._questions.unanswered(record.id),
            )
            why = f"it had {self.spec.grace:g} s to go to {counted(left, 'worker')}"
            if asked is not None:
                why = f"its master did not answer for {now - asked:.1f} s, of {self.spec.grace:g}"
            self.book.note(now, record, "forced", after=left, detail=why)
        await self._processes.force(record, workers)
