"""The record of a cluster's jobs on its API server, and the book that is filled from it.

A job's record is in the status of its object, and what the last cycle left is in one ConfigMap. The
book on disk is a working copy: it is filled when an operator comes up, and nothing is done about what
it has before that is on the server.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.cluster import ClusterSpec
from brim.domain.resizing import BELIEVED
from brim.domain.schedule import Decision, Snapshot
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.usage import RecentUse
from brim.errors import EnvironmentFault, StorageFault
from brim.interfaces import Clock
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.refusals import Invalid, NotFound, Refusal
from brim.kubernetes.client.resources import PlainObject, Resource
from brim.kubernetes.install.manifests import MEMORY
from brim.kubernetes.kinds import ForeignObjects, Records
from brim.kubernetes.objects.identities import (
    GROUP,
    JOB,
    MANAGED_BY,
    OPERATOR,
    ROLE,
    VERSION,
    WORKER,
    KubeJob,
)
from brim.kubernetes.objects.record_text import unpack_record
from brim.kubernetes.objects.status import (
    Stall,
    can_wait,
    records_the_same,
    says_the_same,
    status_of,
)
from brim.kubernetes.pods.pod_requests import CONFIG_MAPS
from brim.scheduler.cycles import encode_cycle
from brim.storage.book import Book
from brim.storage.database import Database, Taught
from brim.storage.migrations import migrate

ELASTIC_JOBS = Resource(f"{GROUP}/{VERSION}", "elasticjobs", PlainObject)
_MEMORY_KEY, _POLICY_KEY, _LESSONS_KEY = "memory", "policy", "lessons"
_USE_KEY = "recent-use"
_LESSONS_KEPT = 3_000  # of each kind, the latest
_ROOM = 1_000_000  # characters: the server takes a megabyte of what these encode
_TEACH_EVERY = 60.0  # seconds, at least, between two writes of what jobs have taught
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before what could not be written is tried again
LASTING_REFUSALS = frozenset({400, 413, 422})  # answers that another attempt gets as well
_TICK = 0.5  # seconds between two looks for what nobody waits for
_PROGRESS = 5.0  # seconds after which the mere progress of a job is written
_AT_ONCE = 8  # statuses that nobody waits for: requests that somebody waits for find a way past
_log = logging.getLogger(__name__)


class _Use(msgspec.Struct, frozen=True):
    """The recent use of tenants, as it was counted last.

    Args:
        counted: up to when, by the clocks of hosts.
    """

    counted: float
    recent: RecentUse


class RecordKeeper:
    """Writes the records of a book to the objects of its jobs, and their statuses with them.

    Args:
        database: of the book.
        objects: the object of a job as the server tells of it; None: there is none.
        ready: counts the workers of a job that train.
        failed: pods of a job that have failed, as its status has them.
        foreign: the objects of other kinds than brim's own, by the words of these kinds.
        stall: why nothing comes of a job; None: there is no reason.
        namespace: of the ConfigMap for remains of cycles.
    """

    def __init__(
        self,
        server: ApiServer,
        book: Book,
        database: Database,
        *,
        objects: Callable[[str], PlainObject | None],
        ready: Callable[[str], int],
        failed: Callable[[str], Sequence[Mapping[str, Any]]],
        foreign: Mapping[str, ForeignObjects],
        stall: Callable[[str], Stall | None],
        namespace: str,
        clock: Clock,
    ) -> None:
        self._server, self._book, self._database = server, book, database
        self._objects, self._ready, self._namespace = objects, ready, namespace
        self._failed, self._stall, self._foreign = failed, stall, foreign
        self._clock = clock
        self._due: set[str] = set(book.jobs)  # an earlier operator may not have written all
        self._moved: set[str] = set(book.jobs)
        self._locks: dict[str, asyncio.Lock] = {}
        self._memory_lock = asyncio.Lock()
        self._written: dict[str, tuple[dict[str, Any], float]] = {}  # statuses, and when
        self._cycle = 0  # the number of the last one whose memory is written
        self._memory, self._use = b"", ""
        self._lessons, self._taught = "", (-1, -math.inf)  # as written: packed, which, and when

    def tell(self, job: str) -> None:
        """Hear that there is news of a job, which is to be written."""
        self._due.add(job)

    def moved(self, job: str) -> None:
        """Hear that a pod of a job has changed: another number of its workers may train."""
        self._moved.add(job)

    async def settled(self, jobs: Collection[str]) -> None:
        """Wait until what the book has of these jobs and of the last cycle is on the server.

        While the server does not take it, nothing is done about them. What else there is to write
        is written beside (see `run`): it holds up nothing.
        """
        rest, pause = set(jobs), _FIRST_PAUSE
        while True:
            rest, memory = await self._write_all(rest, records_only=True)
            if not rest and memory:
                return
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    async def run(self) -> None:
        """Write texts that nothing waits for, now and then, until cancelled."""
        pause = _TICK
        while True:
            await asyncio.sleep(pause)
            self._due |= self._late()
            due = sorted(job for job in self._due if not self._can_wait(job))
            rest: set[str] = set()
            for start in range(0, len(due) or 1, _AT_ONCE):  # once at least, for the cycles' memory
                batch = due[start : start + _AT_ONCE]
                batch_due = [job for job in batch if job in self._due and not self._can_wait(job)]
                not_taken, _ = await self._write_all(batch_due)
                rest |= not_taken
            pause = min(_LONGEST_PAUSE, 2 * pause) if rest else _TICK

    def _can_wait(self, job: str) -> bool:
        record = self._book.jobs.get(job)
        now = self._clock.wall() + self._clock.set_by()
        return record is not None and not self._stall(job) and can_wait(record, now)

    def _late(self) -> set[str]:
        """Return the jobs whose statuses have been out of date for too long."""
        found: set[str] = set()
        moved, self._moved = self._moved, set()
        for record in self._book.unfinished():
            status, written_at = self._written.get(record.id, ({}, 0.0))
            late = self._clock.now() - written_at > _PROGRESS
            if late and record.progress.step != status.get("step", 0):
                found.add(record.id)
            elif record.id in moved:
                ready = self._ready(record.id)
                if ready == status.get("workers", {}).get("ready", 0):
                    continue
                if late or ready >= record.workers:  # else more of them are about to be ready
                    found.add(record.id)
                else:
                    self._moved.add(record.id)
        return found

    async def _write_all(
        self, jobs: Iterable[str], *, records_only: bool = False
    ) -> tuple[set[str], bool]:
        """Write the statuses of jobs, and the remains of the last cycle.

        Args:
            records_only: leave statuses for later whose records are on the server.

        Returns:
            The jobs that are to be written again later, and whether the memory is on the server.
        """
        rest: set[str] = set()
        batch = list(jobs)
        self._due -= set(batch)
        writing = [self._write(job, record_only=records_only) for job in batch]
        writing.append(self._write_memory())
        results = await asyncio.gather(*writing, return_exceptions=True)
        for job, result in zip([*batch, ""], results, strict=True):
            if job and isinstance(result, Exception) and _is_for_ever(result):
                # One job's record must not keep those of all others.
                _log.error("the record of %s is not written: %s", job, result, exc_info=result)
            elif isinstance(result, EnvironmentFault) and not isinstance(result, StorageFault):
                _log.warning("the record of %s is not written yet: %s", job or "cycles", result)
                rest |= {job} - {""}
            elif isinstance(result, BaseException):
                raise result
        self._due |= rest
        return rest, not isinstance(results[-1], BaseException)

    async def _write(self, job: str, *, record_only: bool) -> None:
        """Write the status of a job where it is another one.

        One at a time of a job, or what is written last would not be what is so.
        """
        async with self._locks.setdefault(job, asyncio.Lock()):
            thing, record = self._objects(job), self._book.jobs.get(job)
            if record is None or thing is None or thing["metadata"]["uid"] != record.key:
                self._written.pop(job, None)
                return  # what is gone needs no record
            name = KubeJob.parse(job)
            if name.kind:
                objects = self._foreign[name.kind]
                await objects.write(thing, record, self._book.story(record), self._stall(job))
                self._written[job] = {}, self._clock.now()
                return
            last, _ = self._written.get(job, (thing.get("status"), 0.0))
            status = status_of(
                record,
                generation=thing["metadata"].get("generation", 0),
                before=last,
                now=self._clock.wall() + self._clock.set_by(),
                story=self._book.story(record),
                ready=self._ready(job),
                selector=f"{MANAGED_BY}={OPERATOR},{JOB}={name.name},{ROLE}={WORKER}",
                failed=self._failed(job),
                stall=self._stall(job),
            )
            if record_only and records_the_same(last, status, uid=record.key):
                self._due.add(job)
                return
            if says_the_same(last, status, uid=record.key):
                status = last or status
            else:
                await write_status(self._server, thing, status)
            self._written[job] = status, self._clock.now()

    async def _write_memory(self) -> None:
        """Write the remains of the last cycle and recent use, and now and then the lessons of jobs."""
        async with self._memory_lock:
            learned, use = self._has_lessons(), packed_use(self._book)
            has_cycle = self._database.last_cycle_number() != self._cycle
            if not (has_cycle or learned or use != self._use):
                return
            last = self._database.last_cycle()
            if last is None:
                return
            lessons, taught = self._lessons, self._taught
            memory = _packed(last.memory)
            room = _ROOM - len(memory) - len(use)
            if learned or len(lessons) > room:
                taught = self._database.times_taught, self._clock.now()
                lessons = packed_lessons(self._database, room=room)
            if (last.memory, use, lessons) != (self._memory, self._use, self._lessons):
                body = {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": MEMORY, "namespace": self._namespace},
                    "data": {_POLICY_KEY: last.policy, **({_USE_KEY: use} if use else {})},
                    "binaryData": {_MEMORY_KEY: memory, _LESSONS_KEY: lessons},
                }
                await self._server.apply(CONFIG_MAPS, MEMORY, body, namespace=self._namespace)
            self._cycle, self._memory, self._use = last.number, last.memory, use
            self._lessons, self._taught = lessons, taught

    def _has_lessons(self) -> bool:
        """Return whether jobs have taught something that is to be written."""
        times, taught_at = self._taught
        return times != self._database.times_taught and self._clock.now() - taught_at > _TEACH_EVERY


def packed_lessons(database: Database, *, room: int) -> str:
    """Return the latest lessons of jobs, as many of them as there is room for, in characters."""
    count = _LESSONS_KEPT
    while len(packed := _packed(msgspec.json.encode(database.lessons(count)))) > room:
        if count == 0:
            return ""
        count //= 2
    return packed


def packed_use(book: Book) -> str:
    """Return the recent use of tenants as a text; empty where that does not count."""
    counted, recent = book.counted, book.recent
    if counted is None or recent is None:
        return ""
    return msgspec.json.encode(_Use(counted, recent)).decode()


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text, validate=True))


def _is_for_ever(error: Exception) -> bool:
    """Return whether a record could not be written, and another attempt would not help."""
    if isinstance(error, Refusal):
        return error.code in LASTING_REFUSALS
    return not isinstance(error, EnvironmentFault)


async def write_status(server: ApiServer, thing: PlainObject, status: dict[str, Any]) -> None:
    """Have the object of a job have this status; one that is gone, or another by now, has none.

    It is written as a whole, if the object is still that one.

    Raises:
        EnvironmentFault: the server does not take it.
    """
    meta = thing["metadata"]
    change = [
        {"op": "test", "path": "/metadata/uid", "value": meta["uid"]},
        {"op": "add", "path": "/status", "value": status},
    ]
    name, namespace = meta["name"], meta["namespace"]
    try:
        await server.json_patch(
            ELASTIC_JOBS, name, change, namespace=namespace, subresource="status"
        )
    except NotFound:
        _log.info("%s/%s is gone, with its status", namespace, name)
    except Invalid:
        with contextlib.suppress(NotFound):
            present = await server.get(ELASTIC_JOBS, name, namespace=namespace)
            if present["metadata"]["uid"] == meta["uid"]:
                raise


# When an operator comes up ------------------------------------------------------------------------


def read_records(
    objects: Iterable[PlainObject],
) -> Records:
    """Return the records that objects have, and why others cannot be read, by job."""
    found: list[ScheduledJob] = []
    unreadable: dict[str, EnvironmentFault] = {}
    for thing in objects:
        meta, status = thing["metadata"], thing.get("status") or {}
        text = status.get("record")
        if text is None:
            continue
        id = KubeJob(meta["namespace"], meta["name"]).id
        try:
            record = unpack_record(text, uid=meta["uid"])
            if record.id != id:
                raise EnvironmentFault(f"the record of this job is that of {record.id}")
            found.append(record)
        except EnvironmentFault as fault:
            unreadable[id] = fault
    return found, unreadable


def open_book(
    path: Path,
    records: Iterable[ScheduledJob],
    *,
    memory: Mapping[str, Any] | None,
    spec: ClusterSpec,
) -> Database:
    """Return the database of a book with exactly these jobs.

    Stories and speeds of an earlier life are kept where they are there.

    Args:
        memory: the ConfigMap with the remains of the last cycle, and lessons of jobs; None: there
            is none.
        spec: of the cluster.

    Raises:
        StorageFault: the disk takes none.
    """
    try:
        database = _opened(path)
    except EnvironmentFault as fault:
        # It is a copy: what it alone has are stories, and the speeds of the last minute.
        _log.warning("%s is begun from scratch: %s", path, fault)
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        database = _opened(path)
    with database.transaction():
        _fill(database, sorted(records, key=lambda record: (record.submitted, record.number)))
        if memory is not None:
            _remember(database, memory, spec)
            learn_again(database, memory)
    return database


def _opened(path: Path) -> Database:
    if path.exists():
        migrate(path)
    database = Database(path, copy=True)  # of what objects have
    for _ in database.jobs():
        pass  # as far as it can be read
    return database


def _fill(database: Database, records: list[ScheduledJob]) -> None:
    ids = {record.id for record in records}
    for _, id, _ in list(database.jobs()):
        if id not in ids:
            database.forget_job(id, "")
    numbers: set[int] = set()
    for record in records:
        if record.number in numbers:  # of two operators, of which one had lost its disk
            record.number = max(numbers) + 1
        numbers.add(record.number)
        database.put_job(record.number, record.id, msgspec.msgpack.encode(record))


def _remember(database: Database, memory: Mapping[str, Any], spec: ClusterSpec) -> None:
    """Have the last cycle be the one that left this."""
    try:
        content = _unpacked(memory["binaryData"][_MEMORY_KEY])
        policy = str(memory["data"][_POLICY_KEY])
    except (LookupError, TypeError, ValueError, zlib.error) as error:
        _log.warning("what the last cycle left cannot be read (%s): plans are made again", error)
        return
    last = database.last_cycle()
    if last is not None and (last.memory, last.policy) == (content, policy):
        return
    empty = Snapshot(
        now=0.0, cluster=spec.cluster, capacity=0, jobs=(), arrived=(), overheads=BELIEVED
    )
    database.add_cycle(0.0, policy, encode_cycle(empty, Decision(workers={})), content)


def go_on_counting(book: Book, memory: Mapping[str, Any] | None) -> None:
    """Have a book know the recent use of tenants, where it knows only an earlier one.

    Args:
        memory: the ConfigMap that has it; None: there is none.
    """
    text = ((memory or {}).get("data") or {}).get(_USE_KEY)
    if not text:
        return  # it did not count
    try:
        use = msgspec.json.decode(text, type=_Use)
    except (*UNDECODABLE, TypeError) as error:
        _log.warning("what tenants borrowed cannot be read (%s): it is counted from now on", error)
        return
    if book.counted is None or book.counted < use.counted:
        book.charge({}, {}, counted=use.counted, recent=use.recent)


def learn_again(database: Database, memory: Mapping[str, Any]) -> None:
    """Have this database know the lessons of jobs, where it does not know better."""
    packed = (memory.get("binaryData") or {}).get(_LESSONS_KEY)
    if not packed:
        return  # nobody has written any, or there was no room
    try:
        lessons = msgspec.json.decode(_unpacked(packed), type=Taught)
    except (*UNDECODABLE, TypeError, zlib.error) as error:
        _log.warning("what jobs have taught cannot be read (%s): it is learned again", error)
        return
    database.add_lessons(lessons)
