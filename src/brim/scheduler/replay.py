"""Decides the journal of a live cluster again.

The same policy must give the same decisions; another one may differ.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from brim.domain.course import (
    Change,
    Course,
    JobCourse,
    Origin,
    Supply,
    holdings_of,
    reason_of,
)
from brim.domain.schedule import Admitted, Decision, Rejected, Snapshot, Verdict
from brim.domain.workload import Job
from brim.errors import EnvironmentFault
from brim.loop import run_cluster
from brim.policies.cycle import CycleMemory
from brim.scheduler.cycles import decode_cycle, decode_memory
from brim.scheduler.loop import decide
from brim.storage.database import CycleRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A cycle that was decided otherwise this time.

    Args:
        cycle: its number in the journal, from 1.
        at: seconds since 1970.
        what: one sentence for each thing that differs, the decision of that time first.
    """

    cycle: int
    at: float
    policy: str
    what: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of deciding again.

    Args:
        cycles: that were decided again.
        policies: that decided then, in their order.
        first, last: when the first and the last of these cycles were, seconds since 1970; None
            without cycles.
        then, again: the workers that the cycles gave to jobs, as they were decided and as they are
            now.
    """

    cycles: int
    policies: tuple[str, ...]
    first: float | None
    last: float | None
    differences: tuple[Difference, ...]
    then: Course
    again: Course


def replay(
    rows: Iterable[CycleRow],
    *,
    policy: str | None = None,
    subject: str = "",
    states: Mapping[str, str] = MappingProxyType({}),
) -> Replay:
    """Decide every cycle of a journal again, by the loop that decided it.

    Args:
        rows: in order. Where the first is not number 1, what came before is forgotten: it only says
            what it left.
        policy: decides instead of those that did, with a memory of its own, on the true state at
            each cycle; only workers and verdicts are compared then.
        subject: where the cluster's state is.
        states: the fate of jobs, by id; of others, only that they ended is known.
    """
    journal = _Journal(iter(rows), policy)
    asyncio.run(run_cluster(journal, journal.decide))
    policies = tuple(dict.fromkeys(journal.policies))
    decided = ", ".join(policies)
    return Replay(
        cycles=len(journal.times),
        policies=policies,
        first=min(journal.times, default=None),
        last=max(journal.times, default=None),
        differences=tuple(journal.differences),
        then=journal.then.course(Origin.LIVE, subject=subject, policy=decided, states=states),
        again=journal.again.course(
            Origin.REPLAYED, subject=subject, policy=policy or decided, states=states
        ),
    )


@dataclass(slots=True)
class CourseOfDecisions:
    """Makes a course of decisions, cycle by cycle.

    A job ends in it when the cycles saw it end.
    """

    _jobs: dict[str, Job] = field(default_factory=dict)
    _workers: dict[str, int] = field(default_factory=dict)
    _ended: dict[str, float] = field(default_factory=dict)
    _promised: set[str] = field(default_factory=set)
    _stories: defaultdict[str, list[Change]] = field(default_factory=lambda: defaultdict(list))
    _supply: list[Supply] = field(default_factory=list)
    _now: float = 0.0

    def take(self, snapshot: Snapshot, decision: Decision) -> None:
        """Add a cycle."""
        self._now = snapshot.now
        for state in snapshot.jobs:
            if state.job.id not in self._jobs:
                self._jobs[state.job.id] = state.job
                self._note(state.job.id, "submitted", timestamp=state.job.submitted)
        present = {state.job.id for state in snapshot.jobs}
        for job in present & self._ended.keys():  # it was held, or waited for its next start
            del self._ended[job]
        for job in self._jobs.keys() - self._ended.keys() - present:
            self._ended[job] = snapshot.now
            self._give(job, 0, "left out", "")
        for verdict in decision.verdicts:
            promises = isinstance(verdict, Admitted) and verdict.promises
            (self._promised.add if promises else self._promised.discard)(verdict.job)
            event = "admitted" if isinstance(verdict, Admitted) else "refused"
            self._note(verdict.job, event, reason=str(verdict.reason), detail=verdict.detail)
        for job in sorted(present):
            reason, detail = decision.reasons.get(job, ("", ""))
            self._give(job, decision.workers.get(job, 0), str(reason), detail)
        guaranteed = {tenant.id: tenant.guaranteed for tenant in snapshot.tenants}
        supply = Supply(snapshot.now, snapshot.cluster.devices, guaranteed)
        if not self._supply or self._supply[-1][1:] != supply[1:]:
            self._supply.append(supply)

    def _give(self, job: str, workers: int, reason: str, detail: str) -> None:
        previous = self._workers.get(job, 0)
        if workers != previous:
            self._workers[job] = workers
            change = Change(self._now, job, "workers", previous, workers, reason, detail)
            self._stories[job].append(change)

    def _note(
        self,
        job: str,
        event: str,
        *,
        timestamp: float | None = None,
        reason: str = "",
        detail: str = "",
    ) -> None:
        moment = self._now if timestamp is None else timestamp
        self._stories[job].append(Change(moment, job, event, 0, 0, reason, detail))

    def course(
        self, origin: Origin, *, subject: str, policy: str, states: Mapping[str, str]
    ) -> Course:
        """The course of these decisions."""
        supply = self._supply or [Supply(0.0, 0, {})]
        start = min((job.submitted for job in self._jobs.values()), default=supply[0].at)
        return Course(
            origin=origin,
            subject=subject,
            policy=policy,
            start=start,
            end=max(self._now, start + 1e-3),
            jobs=[self._job(job, states) for job in self._jobs.values()],
            supply=[supply[0]._replace(at=start), *supply[1:]],
        )

    def _job(self, job: Job, states: Mapping[str, str]) -> JobCourse:
        story = self._stories[job.id]
        ended = self._ended.get(job.id)
        worker_changes = [
            (change.at, change.after, reason_of(change))
            for change in story
            if change.event == "workers"
        ]
        return JobCourse(
            job=job.id,
            tenant=job.tenant,
            state=states.get(job.id, "done") if ended is not None else "unfinished",
            submitted=job.submitted,
            ended=ended,
            deadline=job.deadline,
            promised=job.id in self._promised,
            holdings=holdings_of(
                worker_changes, start=job.submitted, end=self._now if ended is None else ended
            ),
            story=story,
        )


class _Journal:
    """A `Backend` whose world is a journal: decisions about it are compared, not done."""

    def __init__(self, rows: Iterator[CycleRow], policy: str | None) -> None:
        self._rows, self._replayed_policy = rows, policy
        self._memory: object = None
        self._left_by = ""
        self._snapshot: Snapshot
        self._decided: Decision
        self._row: CycleRow
        self.times: list[float] = []
        self.policies: list[str] = []
        self.differences: list[Difference] = []
        self.then = CourseOfDecisions()
        self.again = CourseOfDecisions()

    async def wait(self, deadline: float | None) -> bool:
        for row in self._rows:
            if row.number > 1 and not self._left_by:
                self._leave(row.policy, _left_by(row))
                continue
            self._row = row
            return True
        return False

    def _leave(self, policy: str, memory: object) -> None:
        self._left_by, self._memory = policy, memory

    async def observe(self) -> Snapshot:
        seen, self._decided = decode_cycle(self._row.content)
        self._snapshot = replace(seen, memory=self._memory)
        self.times.append(seen.now)
        self.policies.append(self._row.policy)
        return self._snapshot

    def decide(self, snapshot: Snapshot) -> Decision:
        return decide(snapshot, self._replayed_policy or self._row.policy, left_by=self._left_by)

    async def apply(self, decision: Decision) -> None:
        row = self._row
        other_policy = self._replayed_policy
        self.then.take(self._snapshot, self._decided)
        self.again.take(self._snapshot, decision)
        # Where its memory is damaged, the scheduler went on without it as well.
        unreadable = other_policy is None and _left_by(row) is None
        self._leave(other_policy or row.policy, None if unreadable else decision.memory)
        facts = _outcome if other_policy else _parts_of
        recorded, now = facts(self._decided), facts(decision)
        differing = tuple(
            f"{name}: {recorded.get(name, 'none')}, this time {now.get(name, 'none')}"
            for name in sorted(recorded.keys() | now.keys())
            if recorded.get(name) != now.get(name)
        )
        if differing:
            moment = self._snapshot.now
            self.differences.append(
                Difference(cycle=row.number, at=moment, policy=row.policy, what=differing)
            )


def _left_by(row: CycleRow) -> CycleMemory | None:
    """The memory that a cycle left to the next; None where that is damaged."""
    try:
        return decode_memory(row.memory, policy=row.policy)
    except EnvironmentFault:
        return None


def _outcome(decision: Decision) -> dict[str, str]:
    """The part that jobs notice: verdicts and workers."""
    found = {f"verdict on {verdict.job}": _word(verdict) for verdict in decision.verdicts}
    return found | {
        f"workers of {job}": str(count) for job, count in decision.workers.items() if count
    }


def _word(verdict: Verdict) -> str:
    if isinstance(verdict, Rejected):
        return "refused"
    return "promised" if verdict.promises else "accepted"


def _parts_of(decision: Decision) -> dict[str, str]:
    """Return all that a decision says, each part under a name.

    Numbers are in full, so that nothing is rounded away.
    """
    found = _outcome(decision) | {"wake": str(decision.wake)}
    for verdict in decision.verdicts:
        promise_time = verdict.finish if isinstance(verdict, Admitted) else verdict.earliest
        size = verdict.share if isinstance(verdict, Admitted) else verdict.runs
        found[f"verdict on {verdict.job}"] += (
            f" ({verdict.reason}: {verdict.detail}; {size}, {promise_time})"
        )
    for job, (reason, detail) in decision.reasons.items():
        found[f"reason of {job}"] = f"{reason}: {detail}"
    needed = {"needed": "unknown"} if decision.needed is None else {}
    needed |= {f"needed by {job}": str(count) for job, count in (decision.needed or {}).items()}
    found |= {f"place of {job}": str(dict(nodes)) for job, nodes in decision.nodes.items()}
    names = {"pinned": decision.pinned, "moved": decision.moved}
    return found | needed | {name: " ".join(sorted(jobs)) for name, jobs in names.items()}
