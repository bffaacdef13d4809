"""The scheduler's book: every job that was ever submitted, in memory and, before anybody hears of
it, on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from brim.coordination.lifecycle import Happening, Life, Phase, after
from brim.decoding import UNDECODABLE
from brim.domain.estimates import Estimate
from brim.domain.measuring import Measured
from brim.domain.profiling import Profile
from brim.domain.schedule import Standing
from brim.domain.submission import Submission
from brim.errors import BrimError, InternalError
from brim.storage.database import Database

_COSTS = "costs"  # the name of a setting in the database
_COSTS_KEPT = 100  # of each kind
_CLUSTER = ""  # in place of a job's id, in the history
_FORETOLD = 15.0  # seconds between two expectations of a job that are on disk


class Change(NamedTuple):
    """Something that happened to a job, with its reason; `before` and `after` are workers."""

    at: float
    job: str
    event: str
    before: int
    after: int
    reason: str
    detail: str


class JobRecord(msgspec.Struct, kw_only=True):
    """What the scheduler knows of one job; times are seconds since 1970.

    Records are kept for years: a new field, here or in anything below (`Submission`, `JobSpec` …),
    has a default that is right for the jobs of before. A field that goes, or gets another name or
    type, takes a step in `brim.storage.migrations`.

    Args:
        plan: the workers that the last plan gives it, by node.
        told: the workers that its processes were last asked to have, and said yes to, by node.
        coming: that they were asked to have and have not been seen to have: as many may yet be
            forked, whatever they were asked for since.
        home: the node of the agent that keeps its master.
        promised: its deadline is.
        judged: the policy has said yes or no.
        verdict, detail: the policy's reason, and its sentence with the numbers.
        earliest: the earliest deadline that could have been promised, where the policy said so.
        estimate: when its plan was done, at its promise.
        expected, first, half: when it is expected to end; as it was first, and once half of its
            steps were done.
        foretold: when that was last put on disk.
        attained: worker-seconds that it has had.
        changed: when its target last changed.
        ready: until when its last change costs it progress.
        asked: when it was last asked for fewer workers.
        profile: how far its model was measured, while it is.
        launches: how often its processes were started.
        setbacks: ends of its processes in a row that brought no step.
        vain: starts in a row that the environment did not allow.
        out_of_memory: its workers that were lost for it and stand in its story.
        not_before: no processes are started before this.
        summary: as `brim train --json` prints it, once it has ended.
        key: what its owner submitted it with, see `brim.wire.cluster.Submit`.
        user: the account that its processes are of, and its directory; empty: the scheduler's.
    """

    number: int
    id: str
    submission: Submission
    submitted: float
    key: str = ""
    user: str = ""
    life: Life = Life()
    standing: Standing = Standing.WAITING
    plan: dict[str, int] = {}
    told: dict[str, int] = {}
    coming: dict[str, int] = {}
    home: str = ""
    promised: bool = False
    judged: bool = False
    verdict: str = ""
    detail: str = ""
    earliest: float | None = None
    estimate: float | None = None
    expected: Estimate | None = None
    first: Estimate | None = None
    half: Estimate | None = None
    foretold: float = 0.0
    started: float | None = None
    ended: float | None = None
    attained: float = 0.0
    changed: float = 0.0
    ready: float = 0.0
    asked: float = 0.0
    profile: Profile | None = None
    launches: int = 0
    setbacks: int = 0
    vain: int = 0
    out_of_memory: int = 0
    not_before: float = 0.0
    step: int = 0
    steps: int | None = None
    problem: str = ""
    summary: dict[str, Any] = {}

    @property
    def running(self) -> bool:
        return self.life.phase is Phase.RUNNING

    @property
    def workers(self) -> int:
        """What the last plan gives it."""
        return sum(self.plan.values())

    @property
    def held(self) -> dict[str, int]:
        """What its processes were last asked to have, by node, its home first."""
        return dict(sorted(self.told.items(), key=lambda each: each[0] != self.home))

    @property
    def target(self) -> int:
        """What its processes were last asked to have."""
        return sum(self.told.values())


_decode = msgspec.msgpack.Decoder(JobRecord).decode


class Records(Mapping[str, JobRecord]):
    """Records by id, in the order of submission; those of ended jobs are packed, and unpacked for
    whoever asks.

    Attributes:
        unfinished: the others.
    """

    def __init__(self) -> None:
        self.unfinished: dict[str, JobRecord] = {}
        self._packed: dict[str, bytes] = {}  # of all; empty where the job has not ended
        self._ended: dict[str, float] = {}  # when

    def keep(self, record: JobRecord, content: bytes) -> None:
        """Add a record, or know that it was written down as `content`, which may be empty if the
        job has not ended.
        """
        if record.life.ended:
            self._packed[record.id] = content
            self._ended[record.id] = record.submitted if record.ended is None else record.ended
            self.unfinished.pop(record.id, None)
        else:
            self._packed[record.id] = b""
            self.unfinished[record.id] = record

    def forget(self, id: str) -> None:
        """Remove the record of a job that has ended."""
        del self._packed[id], self._ended[id]

    def ended_before(self, at: float) -> list[str]:
        """The jobs that ended before that time."""
        return [id for id, ended in self._ended.items() if ended < at]

    def behind(self, id: str) -> Iterator[JobRecord]:
        """The records behind this one; nothing before them is unpacked."""
        ids = iter(self._packed)
        for each in ids:
            if each == id:
                break
        return (self[each] for each in ids)

    def __getitem__(self, id: str) -> JobRecord:
        return self.unfinished[id] if id in self.unfinished else _decode(self._packed[id])

    def __contains__(self, id: object) -> bool:
        return id in self._packed

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


def _nobody(_: str) -> None:
    pass


class Book:
    """All jobs of one scheduler.

    Args:
        database: where they are kept.

    Attributes:
        jobs: by id, in the order of their submission.
        damaged: jobs whose records cannot be decoded, with the reason.
        unreadable: what could not be read and is not needed, in words.
        tell: is called with the id of each job that is written down.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tell: Callable[[str], None] = _nobody
        self.jobs = Records()
        self.damaged: dict[str, str] = {}
        self._keys: dict[str, str] = {}
        self.unreadable: list[str] = []
        for number, id, content in database.jobs():
            try:
                record = _decode(content)
            except (BrimError, *UNDECODABLE) as error:  # a spec in it checks itself
                self.damaged[id] = str(error)
                continue
            if (record.number, record.id) == (number, id):
                self._keep(record, content)
            else:
                self.damaged[id] = f"it is that of {record.id}, number {record.number}"
        self._costs = self._read_costs()
        # Nobody else writes these, and every cycle asks for each job.
        self._measured: dict[str, Measured] = {}
        self._amounts: dict[str, int | None] = {}

    def _read_costs(self) -> dict[str, list[float]]:
        """What changes cost; it is learned anew where that cannot be read."""
        costs = self._database.get(_COSTS)
        try:
            return msgspec.json.decode(costs, type=dict[str, list[float]]) if costs else {}
        except UNDECODABLE as error:
            self.unreadable.append(
                f"what starts and changes of jobs cost cannot be decoded ({error}) and is learned "
                "anew"
            )
            return {}

    def submit(
        self,
        submission: Submission,
        *,
        name: str,
        now: float,
        key: str = "",
        by: str = "",
        user: str = "",
    ) -> JobRecord:
        """Write a new job down.

        Args:
            name: what its id begins with.
            key: by which it is found again, see `keyed`; empty where it has none.
            by: who wants it, for its story.
            user: the account that its processes are to be of.
        """
        number = self._database.next_number()
        record = JobRecord(
            number=number,
            id=f"{name}-{number}",
            submission=submission,
            submitted=now,
            key=key,
            user=user,
        )
        with self.together():
            self.save(record)
            self.note(now, record, "submitted", detail=f"by {by}" if by else "")
        self._keep(record, b"")
        return record

    def _keep(self, record: JobRecord, content: bytes) -> None:
        self.jobs.keep(record, content)
        if record.key:
            self._keys[record.key] = record.id

    def forget(self, record: JobRecord) -> None:
        """Know nothing any more of a job that has ended; its directory is among `leavings` until it
        is gone.
        """
        if not record.life.ended:
            raise InternalError(
                f"{record.id} is {record.life.phase.value}, and cannot be forgotten"
            )
        self._database.forget_job(record.id, record.user)
        self.jobs.forget(record.id)
        if record.key:
            self._keys.pop(record.key, None)
        self.tell(record.id)

    def leavings(self) -> dict[str, str]:
        """The forgotten jobs whose run directories may still be there, with the accounts that own
        these.
        """
        return self._database.leavings()

    def cleared(self, id: str) -> None:
        """The run directory of a job that was forgotten is gone."""
        self._database.cleared(id)

    def keyed(self, key: str) -> JobRecord | None:
        """The job that was submitted with this key."""
        return self.jobs.get(self._keys.get(key, ""))

    def happen(
        self, record: JobRecord, happening: Happening, *, now: float, detail: str = ""
    ) -> bool:
        """Take a step of the job's life; False where that cannot happen to it."""
        life = after(record.life, happening)
        if life is None:
            return False
        before, record.life = record.life, life
        if life.ended:
            record.ended, record.plan = now, {}
        with self.together():
            self.save(record)
            if life.phase is not before.phase:
                self.note(now, record, life.phase.value, detail=detail)
            elif life.wish is not before.wish:
                self.note(now, record, happening.value, detail=detail)
        return True

    def must(
        self, record: JobRecord, happening: Happening, *, now: float, detail: str = ""
    ) -> None:
        """As `happen`, where nothing else would make sense."""
        if not self.happen(record, happening, now=now, detail=detail):
            raise InternalError(
                f"{record.id} is {record.life.phase.value}: {happening.value} cannot happen to it"
            )

    def together(self) -> contextlib.AbstractContextManager[None]:
        """What is written within is kept as a whole or not at all; nobody may wait for anything
        within.
        """
        return self._database.together()

    def save(self, record: JobRecord) -> None:
        content = msgspec.msgpack.encode(record)
        self._database.put_job(record.number, record.id, content)
        if record.id in self.jobs:
            self.jobs.keep(record, content)
        self.tell(record.id)

    def note(
        self,
        at: float,
        record: JobRecord,
        event: str,
        *,
        before: int = 0,
        after: int = 0,
        reason: str = "",
        detail: str = "",
    ) -> None:
        """Add a line to the job's story."""
        self._database.add_history((at, record.id, event, before, after, reason, detail))

    def note_cluster(self, at: float, event: str, detail: str = "") -> None:
        """Add a line to the story of the cluster itself."""
        self._database.add_history((at, _CLUSTER, event, 0, 0, "", detail))

    def cluster_story(self) -> list[Change]:
        """When schedulers came and went, and when the cluster was described anew."""
        return [Change(*row) for row in self._database.history(_CLUSTER)]

    def expect(self, record: JobRecord, estimate: Estimate) -> None:
        """A job is expected to end then; on disk from time to time, in place of what was expected
        before.
        """
        record.expected = estimate
        first = record.first is None
        half = (
            record.half is None and record.steps is not None and 2 * estimate.step >= record.steps
        )
        if not (first or half or estimate.at - record.foretold >= _FORETOLD):
            return
        record.first = record.first or estimate
        record.half = estimate if half else record.half
        record.foretold = estimate.at
        self.save(record)

    def story(self, record: JobRecord) -> list[Change]:
        """Everything that happened to a job, with the reasons."""
        return [Change(*row) for row in self._database.history(record.id)]

    def stories(self) -> dict[str, list[Change]]:
        """Those of all jobs, by id; of one of which nothing is written down, an empty one."""
        told: dict[str, list[Change]] = {job: [] for job in self.jobs}
        for row in self._database.histories():
            if row[1] in told:
                told[row[1]].append(Change(*row))
        return told

    def unfinished(self) -> list[JobRecord]:
        """Jobs that have not ended, by order of submission."""
        return list(self.jobs.unfinished.values())

    @property
    def costs(self) -> Mapping[str, list[float]]:
        """What starts, resizes and ends were seen to cost, in seconds."""
        return self._costs

    def learn_cost(self, kind: str, seconds: float) -> None:
        """Keep what a change cost."""
        self._costs[kind] = [*self._costs.get(kind, []), seconds][-_COSTS_KEPT:]
        self._database.put(_COSTS, msgspec.json.encode(self._costs))

    # What jobs taught -----------------------------------------------------------------------------

    def measured(self, fingerprint: str) -> Measured:
        """What jobs with this fingerprint have taught about their speed."""
        if fingerprint not in self._measured:
            self._measured[fingerprint] = Measured(self._database.measurements(fingerprint))
        return self._measured[fingerprint]

    def steps_of(self, submission: Submission) -> int | None:
        """The steps that a job will have; None where nobody can know yet."""
        name = submission.fingerprint
        if name not in self._amounts:
            self._amounts[name] = self._database.amount(name)
        per_epoch = self._amounts[name]
        return per_epoch * max(1, submission.spec.epochs) if per_epoch else None

    def learn(self, submission: Submission, measured: Measured, steps: int | None) -> None:
        """Keep what a job has taught, for the next one like it."""
        name = submission.fingerprint
        if measured.totals:
            known = self._measured[name] = measured.merged([self.measured(name)])
            self._database.put_measurements(name, known.totals)
        if steps:
            per_epoch = self._amounts[name] = max(1, steps // max(1, submission.spec.epochs))
            self._database.put_amount(name, per_epoch)
