"""The scheduler's book: every job that was ever submitted.

The book is in memory and, before anybody hears of a change, on disk.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.channels import Notification
from brim.domain.course import Change
from brim.domain.measuring import Measured
from brim.domain.resizing import Overheads, measured_overheads, measured_restart
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission, kind_of_start
from brim.domain.usage import RecentUse, Shares
from brim.errors import BrimError, InternalError, StorageFault
from brim.storage.database import Database

_COSTS = "costs"  # the name of a setting in the database
_RESTARTS = "restarts"  # and of the one with what commands lose where they are started again
_RESTARTS_KEPT, _KINDS_KEPT = 5, 500  # of a kind of command, and kinds: the newest
_COUNTED = "counted"  # and of another
_RECENT = "recent-use"  # and of another
_COSTS_KEPT = 100  # of each kind
_MOST_NOTIFICATIONS = 200  # that wait of a tenant for a channel
_CLUSTER = ""  # in place of a job's id, in the history


_log = logging.getLogger(__name__)
_decode = msgspec.msgpack.Decoder(ScheduledJob).decode


class JobRecords(Mapping[str, ScheduledJob]):
    """Records by id, in the order of submission; those of ended jobs are packed until read.

    Attributes:
        unfinished: the records of jobs that have not ended, by id.
    """

    def __init__(self) -> None:
        self.unfinished: dict[str, ScheduledJob] = {}
        self._packed: dict[str, bytes] = {}  # of all; empty where the job has not ended
        self._ended: dict[str, float] = {}  # when

    def keep(self, record: ScheduledJob, content: bytes) -> None:
        """Add a record, or know that it was written down as `content`.

        The content may be empty if the job has not ended.
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

    def ended_before(self, moment: float) -> list[str]:
        """The jobs that ended before that time."""
        return [id for id, ended in self._ended.items() if ended < moment]

    def records_after(self, id: str) -> Iterator[ScheduledJob]:
        """The records behind this one; nothing before them is unpacked."""
        ids = iter(self._packed)
        for job in ids:
            if job == id:
                break
        return (self[job] for job in ids)

    def __getitem__(self, id: str) -> ScheduledJob:
        return self.unfinished[id] if id in self.unfinished else _decode(self._packed[id])

    def __contains__(self, id: object) -> bool:
        return id in self._packed

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


def _no_user(_: str) -> None:
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
        waiting: notifications that are to be sent, by channel.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tell: Callable[[str], None] = _no_user
        self.jobs = JobRecords()
        self.damaged: dict[str, str] = {}
        self._keys: dict[str, str] = {}
        self._users = defaultdict[str, set[str]](set)  # of bundles: the jobs with this code
        self._sizes = database.bundles()  # bytes of code, by its sha256
        self._records: dict[str, int] = {}  # bytes of what was submitted, by job
        self._code = defaultdict[str, Counter[str]](Counter)  # by tenant: jobs by their bundle
        self._bytes = Counter[str]()  # of submitted records, by tenant
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
        self.waiting = Counter(database.waiting_notifications())
        self._costs = self._read_costs(_COSTS)
        self._restarts = self._read_costs(_RESTARTS)
        self._overheads = measured_overheads(self._costs)
        # Nobody else writes these, and every cycle asks for each job.
        self._measured: dict[str, Measured] = {}
        self._amounts: dict[str, int | None] = {}

    def _read_costs(self, setting: str) -> dict[str, list[float]]:
        """Read the costs of changes; they are learned from scratch where that fails."""
        costs = self._database.get(setting)
        try:
            return msgspec.json.decode(costs, type=dict[str, list[float]]) if costs else {}
        except UNDECODABLE as error:
            self.unreadable.append(
                f"what starts and changes of jobs cost cannot be decoded ({error}) and is learned "
                "again"
            )
            return {}

    def new_job(
        self,
        submission: Submission,
        *,
        name: str,
        now: float,
        key: str = "",
        user: str = "",
    ) -> ScheduledJob:
        """Make a job with a number of its own, which counts once it is saved.

        Args:
            name: what its id begins with.
            key: by which it is found again, see `keyed`; empty where it has none.
            user: the account that its processes are to be of.
        """
        number = self._database.next_number()
        return ScheduledJob(
            number=number,
            id=f"{name}-{number}",
            submission=submission,
            submitted=now,
            key=key,
            user=user,
        )

    def _keep(self, record: ScheduledJob, content: bytes) -> None:
        tenant, bundle = record.submission.tenant, record.submission.spec.bundle
        if record.id not in self._records:
            self._records[record.id] = len(content)
            self._bytes[tenant] += len(content)
            self._code[tenant][bundle] += 1
        self.jobs.keep(record, content)
        if bundle:
            self._users[bundle].add(record.id)
        if record.key:
            self._keys[record.key] = record.id

    def forget(self, record: ScheduledJob) -> None:
        """Drop all that is known of a job that has ended.

        Its directory is among `leavings` until it is gone.
        """
        if not record.life.ended:
            raise InternalError(
                f"{record.id} is {record.life.phase.value}, and cannot be forgotten"
            )
        self._database.forget_job(record.id, record.user)
        self.jobs.forget(record.id)
        tenant, bundle = record.submission.tenant, record.submission.spec.bundle
        self._bytes[tenant] -= self._records.pop(record.id)
        self._code[tenant] -= Counter({bundle: 1})
        if bundle:
            self._users[bundle].discard(record.id)
            self._forget_bundles([bundle])
        if record.key:
            self._keys.pop(record.key, None)
        self.tell(record.id)

    def keep_bundle(self, bundle: bytes, sha256: str) -> None:
        """Keep the code of a job that is about to be saved, for as long as one has it."""
        self._database.put_bundle(sha256, bundle)
        self._sizes[sha256] = len(bundle)

    def bytes_of(self, tenant: str) -> int:
        """The stored bytes of a tenant's jobs: their code, once, and their submissions."""
        code = sum(self._sizes.get(sha256, 0) for sha256 in self._code[tenant])
        return self._bytes[tenant] + code

    def has_code(self, tenant: str, sha256: str) -> bool:
        """Return whether a job of a tenant has this code."""
        return sha256 in self._code[tenant]

    def bundle(self, sha256: str) -> bytes:
        """Return the code of jobs.

        Raises:
            StorageFault: it is not there, or cannot be read.
        """
        content = self._database.bundle(sha256)
        if content is None:
            raise StorageFault(f"the code of a job, bundle {sha256}, is not in the database")
        return content

    def forget_unused_bundles(self) -> None:
        """Drop the code of jobs that were never saved.

        Only the intake of jobs may do so, when it begins.
        """
        self._forget_bundles(self._database.bundles())

    def _forget_bundles(self, bundles: Iterable[str]) -> None:
        """Drop the code that no job has."""
        if self.damaged:
            return  # nobody knows which code those need
        for sha256 in bundles:
            if not self._users.get(sha256):
                self._database.forget_bundle(sha256)
                self._sizes.pop(sha256, None)

    def give_back(self) -> None:
        """Give some of the forgotten jobs' room back to the disk."""
        self._database.give_back()

    def leavings(self) -> dict[str, str]:
        """The forgotten jobs whose run directories may still be there.

        Each has the account that owns its directory.
        """
        return self._database.leavings()

    def cleared(self, id: str) -> None:
        """The run directory of a job that was forgotten is gone."""
        self._database.cleared(id)

    def keyed(self, key: str) -> ScheduledJob | None:
        """The job that was submitted with this key."""
        return self.jobs.get(self._keys.get(key, ""))

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Keep the writes within as a whole or not at all; nothing within may wait."""
        return self._database.transaction()

    def save(self, record: ScheduledJob) -> None:
        content = msgspec.msgpack.encode(record)
        self._database.put_job(record.number, record.id, content)
        self._keep(record, content)
        self.tell(record.id)

    def note(self, change: Change) -> None:
        """Add a line to the story of its job, or of the cluster itself."""
        self._database.add_history(astuple(change))

    # Usage ----------------------------------------------------------------------------------------

    @property
    def counted(self) -> float | None:
        """The time up to which usage is counted, by the host's clock; None: it never was."""
        content = self._database.get(_COUNTED)
        try:
            return msgspec.json.decode(content, type=float) if content else None
        except UNDECODABLE:  # then it is counted from now on
            return None

    @property
    def recent(self) -> RecentUse | None:
        """The recent use of tenants when usage was last counted; None: it was not."""
        content = self._database.get(_RECENT)
        try:
            return msgspec.json.decode(content, type=RecentUse | None) if content else None
        except UNDECODABLE:  # then it is counted from now on
            return None

    def charge(
        self,
        used: Mapping[tuple[str, str, str, str], float],
        shares: Mapping[tuple[str, str], Shares],
        *,
        counted: float,
        recent: RecentUse | None = None,
    ) -> None:
        """Add usage: see `brim.coordination.cluster.metering.Charge`."""
        with self.transaction():
            self._database.add_usage(
                ((*key, seconds) for key, seconds in used.items()),
                ((*key, *each) for key, each in shares.items()),
            )
            self._database.put(_COUNTED, msgspec.json.encode(counted))
            self._database.put(_RECENT, msgspec.json.encode(recent))

    # Notifications --------------------------------------------------------------------------------

    def keep_notification(self, channel: str, notification: Notification) -> None:
        """Keep a notification until it is sent; a tenant's oldest make way where there are many."""
        content = msgspec.json.encode(notification)
        row = notification.at, channel, notification.tenant, notification.job, content
        self._database.add_notification(row, _MOST_NOTIFICATIONS)
        self.waiting[channel] += 1

    def notifications(self, channel: str, limit: int) -> dict[int, Notification]:
        """Return the notifications that are next on a channel, by their numbers.

        Those that cannot be decoded are forgotten, since the others would wait for them for ever.
        """
        rows = self._database.notifications(channel, limit)
        if not rows:  # some have made way
            self.waiting[channel] = 0
        found = {}
        for number, _, job, content in rows:
            try:
                found[number] = msgspec.json.decode(content, type=Notification)
            except UNDECODABLE as error:
                _log.warning("a notification of %s is dropped: %s", job, error)
                self.drop_notification(channel, number)
        return found

    def notification_failed(self, number: int) -> None:
        """Let others on its channel go first next time."""
        self._database.notification_failed(number)

    def drop_notification(self, channel: str, number: int) -> None:
        """Forget a notification that was sent, or given up."""
        self._database.drop_notification(number)
        self.waiting[channel] -= 1

    def drop_channel(self, channel: str) -> None:
        """Forget all notifications on a channel that the cluster no longer has."""
        self._database.drop_notifications(channel)
        self.waiting.pop(channel, None)

    def cluster_story(self) -> list[Change]:
        """The history of the cluster: schedulers that came and went, and its new descriptions."""
        return [Change(*row) for row in self._database.history(_CLUSTER)]

    def story(self, record: ScheduledJob) -> list[Change]:
        """The history of a job, with the reasons."""
        return [Change(*row) for row in self._database.history(record.id)]

    def stories(self) -> dict[str, list[Change]]:
        """The histories of all jobs, by id; empty for a job of which nothing is written down."""
        histories: dict[str, list[Change]] = {job: [] for job in self.jobs}
        for row in self._database.histories():
            if row[1] in histories:
                histories[row[1]].append(Change(*row))
        return histories

    def story_after(self, number: int, limit: int) -> list[tuple[int, Change]]:
        """List the lines behind a number, each with its own: the newest, in order."""
        return [(place, Change(*row)) for place, row in self._database.history_after(number, limit)]

    def unfinished(self) -> list[ScheduledJob]:
        """Jobs that have not ended, by order of submission."""
        return list(self.jobs.unfinished.values())

    @property
    def costs(self) -> Mapping[str, list[float]]:
        """Seconds that starts, resizes and ends were seen to cost."""
        return self._costs

    @property
    def overheads(self) -> Overheads:
        """The costs of changes here, as far as they were seen."""
        return self._overheads

    def learn_cost(self, kind: str, seconds: float) -> None:
        """Keep the cost of a change."""
        self._costs[kind] = [*self._costs.get(kind, []), seconds][-_COSTS_KEPT:]
        self._overheads = measured_overheads(self._costs)
        self._database.put(_COSTS, msgspec.json.encode(self._costs))

    def restart_of(self, submission: Submission) -> float | None:
        """Return the seconds that commands like this one lost at a restart; None: none was seen."""
        return measured_restart(self._restarts.get(kind_of_start(submission), ()))

    def learn_restart(self, submission: Submission, seconds: float) -> None:
        """Keep the cost of a command's restart, for jobs that start alike."""
        kind = kind_of_start(submission)
        known = self._restarts.pop(kind, [])
        self._restarts[kind] = [*known, seconds][-_RESTARTS_KEPT:]
        for oldest in list(self._restarts)[:-_KINDS_KEPT]:
            del self._restarts[oldest]
        self._database.put(_RESTARTS, msgspec.json.encode(self._restarts))

    # What jobs taught -----------------------------------------------------------------------------

    def measured(self, fingerprint: str) -> Measured:
        """Return the speeds that jobs with this fingerprint have taught."""
        if fingerprint not in self._measured:
            self._measured[fingerprint] = Measured(self._database.measurements(fingerprint))
        return self._measured[fingerprint]

    def steps_of(self, submission: Submission) -> int | None:
        """The number of steps of a job; None where still unknown."""
        name = submission.fingerprint
        if name not in self._amounts:
            self._amounts[name] = self._database.amount(name)
        per_epoch = self._amounts[name]
        return per_epoch * max(1, submission.spec.epochs) if per_epoch else None

    def learn(self, submission: Submission, measured: Measured, steps: int | None) -> None:
        """Keep the lessons of a job, for the next one like it."""
        name = submission.fingerprint
        if measured.totals:
            merged = self._measured[name] = measured.merged([self.measured(name)])
            self._database.put_measurements(name, merged.totals)
        if steps:
            per_epoch = self._amounts[name] = max(1, steps // max(1, submission.spec.epochs))
            self._database.put_amount(name, per_epoch)
