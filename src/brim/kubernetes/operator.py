"""The operator: the scheduler of a cluster of Kubernetes.

Reflectors keep what there is; objects of jobs become events, nodes and pods what is seen. The loop,
the policies and the decisions are those of every scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from base64 import b64decode, b64encode
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.backends.live import LiveBackend
from brim.coordination.cluster.scheduled_jobs import Submitted, Wished
from brim.domain.cluster import ClusterSpec
from brim.domain.lifecycle import Happening, Phase
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission
from brim.errors import BrimError, EnvironmentFault, ProtocolError, SpecError, StorageFault
from brim.interfaces import Clock
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.known_objects import ObjectChange
from brim.kubernetes.client.kube_types import KubeNode, KubePod
from brim.kubernetes.client.outages import SeenClock
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.client.refusals import AlreadyExists, NotFound
from brim.kubernetes.client.resources import PlainObject, Resource
from brim.kubernetes.elastic_objects import ElasticObjects
from brim.kubernetes.install.manifests import MEMORY, NAME
from brim.kubernetes.kinds import JobObjects, OperatorContext, foreign_families
from brim.kubernetes.metrics import ClusterFigures, JobFigures
from brim.kubernetes.nodes.places import NodePlaces, slot_of
from brim.kubernetes.objects.elastic_jobs import idle_gpus, new_job
from brim.kubernetes.objects.failed_pods import MOST_FAILED, FailedPod, failed_pod
from brim.kubernetes.objects.identities import GROUP, VERSION, WORKER, KubeJob, identity_of
from brim.kubernetes.objects.status import (
    OPERATOR_FAULT,
    UNREADABLE,
    Stall,
    stall_of,
    stalled_jobs,
)
from brim.kubernetes.objects.tenants import KnownTenants, read_tenants, with_tenants
from brim.kubernetes.pods.eviction_responder import EvictionResponder
from brim.kubernetes.pods.job_faults import JobFaults
from brim.kubernetes.pods.known_pods import KnownPods
from brim.kubernetes.pods.manifests import Manifest
from brim.kubernetes.pods.placeholder_keeper import PlaceholderKeeper
from brim.kubernetes.pods.pod_requests import CONFIG_MAPS, PODS, SECRETS, PodRequests
from brim.kubernetes.pods.processes import AskToSuspend, PodProcesses
from brim.kubernetes.pods.runs_seen import FollowRun, RunsSeen, follow_by_port
from brim.kubernetes.record import (
    RecordKeeper,
    go_on_counting,
    open_book,
)
from brim.kubernetes.services import ServiceScaling
from brim.kubernetes.settings import OperatorSettings
from brim.scheduler.loop import Scheduler
from brim.storage.book import Book
from brim.storage.database import Database
from brim.storage.removing import remove_run
from brim.wire.control import ask_later
from brim.wire.messages import Ask

NODES = Resource("v1", "nodes", KubeNode, namespaced=False)
TENANTS = Resource(f"{GROUP}/{VERSION}", "tenants", PlainObject, namespaced=False)
KEY = NAME  # the Secret with the key of which runs' tokens are made
_KEY_FIELD = "key"
_STARTS = 16  # jobs that are started at once: what else is asked for finds a way past them
_LOOK = 1.0  # seconds between two looks where nothing happens
_RETRY_PAUSE = 2.0  # seconds before objects that could not be taken in are tried again
_log = logging.getLogger(__name__)


async def ask_by_port(address: str, token: str) -> None:
    """Ask a run's master to suspend it. Raises EnvironmentFault where it does not say yes."""
    answer = await ask_later(address, token=token, question=Ask(verb="suspend"))
    if not answer.ok:
        raise EnvironmentFault(f"the master at {address} says no: {answer.detail}")


class Operator:
    """One operator's life.

    Args:
        follow, ask_to_suspend: see `RunsSeen` and `PodProcesses`.
    """

    def __init__(
        self,
        server: ApiServer,
        settings: OperatorSettings,
        *,
        clock: Clock,
        follow: FollowRun = follow_by_port,
        ask_to_suspend: AskToSuspend = ask_by_port,
    ) -> None:
        self._server, self._settings, self._clock = server, settings, clock
        self._follow, self._ask = follow, ask_to_suspend
        self._places = NodePlaces(slot_of(settings.slot), tolerated=settings.tolerated)
        self._pods = KnownPods(self._places)
        watched = settings.watched
        outages = server.outages
        self._seen_clock = SeenClock(clock, outages)
        self._nodes = Reflector(
            server,
            NODES,
            changed=self._node_changed,
            labels=settings.node_labels,
            outages=outages,
        )
        self._all_pods = Reflector(server, PODS, changed=self._pod_changed, outages=outages)
        self._tenants = Reflector(server, TENANTS, changed=self._tenant_changed)
        context = OperatorContext(
            server=server,
            settings=settings,
            pods=self._pods,
            changed=self._hear_of,
            record=lambda job: self._life.book.jobs.get(job) if self._life is not None else None,
            wall=lambda: clock.wall() + clock.set_by(),
        )
        self._elastic = ElasticObjects(context)
        foreign = [(family.words, family.objects(context)) for family in foreign_families()]
        self._foreign = {word: objects for words, objects in foreign for word in words}
        self._families: tuple[JobObjects, ...] = (
            self._elastic,
            *(objects for _, objects in foreign),
        )
        self._evictions: EvictionResponder | None = None
        if settings.evictions:
            self._evictions = EvictionResponder(
                server, watched=watched, pods=self._pods, clock=clock
            )
        self._services: ServiceScaling | None = None
        if settings.service_urls:
            self._services = ServiceScaling(
                server,
                watched=watched,
                namespace=settings.namespace,
                prefixes=settings.service_urls,
                clock=self._seen_clock,
            )
        self._life: _OperatorLife | None = None
        self._created = clock.now()
        self._news: set[str] = set()  # ids of jobs whose objects have changed
        self._has_news = asyncio.Event()
        self._tenants_read = KnownTenants()
        self._jobs: defaultdict[str, _ObjectNotes] = defaultdict(_ObjectNotes)

    async def run(self) -> None:
        """Schedule until the call is cancelled: its jobs train on."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._settings.foreign_kinds:
                    for foreign_objects in dict.fromkeys(self._foreign.values()):
                        await foreign_objects.find()
                if self._evictions is not None and not await self._evictions.is_served():
                    self._evictions = None
                reflectors: tuple[Reflector[Any], ...] = (
                    self._nodes,
                    self._all_pods,
                    self._tenants,
                    *(watch for objects in self._families for watch in objects.watches),
                    *([self._evictions.watch] if self._evictions is not None else []),
                    *(self._services.watches if self._services is not None else []),
                )
                for reflector in reflectors:
                    tasks.create_task(reflector.run())
                for reflector in reflectors:
                    await reflector.synced()
                key = await self._read_key()
                for objects in self._families:
                    objects.begin(key=key, evictions=self._evictions is not None)
                self._life = life = await self._begin()
                for job in life.book.jobs:
                    self._know_choice(life, job)
                tasks.create_task(self._take_in(life))
                tasks.create_task(life.keeper.run())
                if self._evictions is not None:
                    tasks.create_task(self._evictions.run())
                if self._services is not None:
                    tasks.create_task(self._services.run())
                await life.scheduler.run()
        finally:
            if self._life is not None:
                await self._life.processes.close()
                self._life.scheduler.close()

    @property
    def has_begun(self) -> bool:
        """True once it has read the present objects, and schedules."""
        return self._life is not None

    @property
    def idle(self) -> float:
        """The seconds since it last looked at its jobs, or began to read the present objects."""
        acted = self._life.backend.looked if self._life is not None else self._created
        return self._clock.now() - acted

    def figures(self) -> ClusterFigures | None:
        """Return the figures for metrics; None before it schedules."""
        if self._life is None:
            return None
        book, backend = self._life.book, self._life.backend
        running = backend.jobs.to_look_at()
        usable = backend.jobs.present.cluster.with_lost(backend.jobs.unavailable)
        phases = Counter(job.life.phase.value for job in book.jobs.values())
        return ClusterFigures(
            states={phase.value: phases[phase.value] for phase in Phase},
            stalled=stalled_jobs(self._elastic.objects.values()),
            slots=usable.devices,
            held=sum(sum(job.held.values()) for job in running),
            cycles=backend.cycle_seconds,
            looks=backend.look_seconds,
            jobs=[JobFigures(job.id, job.target, *backend.jobs.speed(job)) for job in running],
            services=self._services.figures() if self._services is not None else (),
        )

    async def _begin(self) -> _OperatorLife:
        """Fill the book from the objects, and be ready to schedule."""
        settings = self._settings
        self._tenants_read = read_tenants(self._tenants.objects.values())
        spec = self._with_tenants(settings.spec)
        records: list[ScheduledJob] = []
        unreadable: dict[str, EnvironmentFault] = {}
        for objects in self._families:
            readable, damaged = objects.read_records()
            records += readable
            unreadable |= damaged
        for job, fault in unreadable.items():
            await self._show_stall(job, Stall(UNREADABLE, str(fault)))
        self._places.leave_alone(unreadable)
        jobs = settings.directory / "jobs"
        jobs.mkdir(parents=True, exist_ok=True)
        job_ids = {record.id for record in records} | unreadable.keys()
        await asyncio.to_thread(_remove_runs, jobs, job_ids)
        memory = await self._read_memory()
        database = open_book(settings.directory / "operator.db", records, memory=memory, spec=spec)
        book = Book(database)
        go_on_counting(book, memory)
        keeper = RecordKeeper(
            self._server,
            book,
            database,
            objects=self._object,
            ready=self._ready,
            failed=self._failed_pods,
            foreign=self._foreign,
            stall=self._stall,
            namespace=settings.namespace,
            clock=self._clock,
        )
        book.tell = keeper.tell
        faults = JobFaults(keeper.tell)
        requests = PodRequests(self._server)
        placeholders = PlaceholderKeeper(
            requests,
            self._pods,
            self._places,
            maximum=settings.placeholders,
            watched=settings.watched,
            short=self._short,
            placeholders=self._placeholders_of,
            faults=faults,
            clock=self._seen_clock,
        )
        shared = await requests.shared(settings.watched)
        processes = PodProcesses(
            requests,
            self._pods,
            self._places,
            RunsSeen(jobs, self._follow),
            shape=lambda job: self._objects_of(job.id).shape(job),
            order=lambda job: self._objects_of(job).order(job),
            objects=self._foreign_ids,
            ask_to_suspend=self._ask,
            clock=self._seen_clock,
            untouched=unreadable,
            tell=keeper.tell,
            faults=faults,
            settled=keeper.settled,
            doubts=lambda: self._server.outages.doubts(self._clock.now()),
            shared=shared,
            placeholders=placeholders,
        )
        for namespace in shared:
            if not self._has_jobs(namespace):
                await processes.leave_namespace(namespace)
        backend = LiveBackend(
            book,
            processes,
            spec,
            clock=self._clock,
            settled=keeper.settled,
            unseen=lambda: self._server.outages.unseen(self._clock.now()),
            interval=_LOOK,
            starts=_STARTS,
            calm=processes.is_calm,
        )
        scheduler = Scheduler(book, database, backend, jobs_folder=jobs, clock=self._clock)
        self._news |= set(self._all_ids()) - unreadable.keys()
        self._news |= set(book.jobs)  # the objects of some may be gone
        self._has_news.set()
        return _OperatorLife(
            book=book,
            database=database,
            keeper=keeper,
            processes=processes,
            backend=backend,
            scheduler=scheduler,
            unreadable=frozenset(unreadable),
        )

    # What the server tells ------------------------------------------------------------------------

    def _node_changed(self, change: ObjectChange[KubeNode]) -> None:
        self._places.take_node(change.key.name, change.after)
        self._stir()

    def _pod_changed(self, change: ObjectChange[KubePod]) -> None:
        self._pods.observe(str(change.key), change.before, change.after)
        if failed := failed_pod(change.before, change.after):
            self._note_failed(failed)
        identity = identity_of(pod) if (pod := change.after or change.before) else None
        if identity is not None and self._life is not None:
            record = self._life.book.jobs.get(identity.job)
            if record is not None and record.life.ended:
                self._places.choices.drop(identity.job)
            if KubeJob.parse(identity.job).kind:
                self._life.keeper.tell(identity.job)  # its status counts pods
            else:
                self._life.keeper.moved(identity.job)
        self._stir()

    def _note_failed(self, failed: FailedPod) -> None:
        job = failed.identity.job
        if self._life is not None and self._object(job) is None:
            return
        self._jobs[job].failed.append(failed)
        if self._life is not None:
            self._life.keeper.tell(job)

    def _hear_of(self, job: str) -> None:
        self._news.add(job)
        self._has_news.set()

    def _tenant_changed(self, _: ObjectChange[PlainObject]) -> None:
        self._tenants_read = read_tenants(self._tenants.objects.values())
        if self._life is not None:
            spec = self._with_tenants(self._life.backend.spec)
            if spec != self._life.backend.spec:
                self._life.scheduler.reconfigure(spec)
        self._news |= set(self._all_ids())
        self._has_news.set()

    def _with_tenants(self, base: ClusterSpec) -> ClusterSpec:
        half_life = self._settings.usage_half_life
        return with_tenants(base, self._tenants_read, usage_half_life=half_life)

    def _stir(self) -> None:
        if self._life is not None:
            self._life.backend.stir()
        if self._evictions is not None:
            self._evictions.stir()

    # What the others ask --------------------------------------------------------------------------

    def _all_ids(self) -> Iterator[str]:
        """Return the ids of all jobs that have an object."""
        return (job for objects in self._families for job in objects.ids())

    def _foreign_ids(self) -> Iterator[str]:
        return (job for objects in self._families[1:] for job in objects.ids())

    def _has_jobs(self, namespace: str) -> bool:
        return any(key.namespace == namespace for key in self._elastic.objects)

    def _objects_of(self, job: str) -> JobObjects:
        """Return the objects of the kind of a job."""
        kind = KubeJob.parse(job).kind
        return self._foreign[kind] if kind else self._elastic

    def _object(self, job: str) -> PlainObject | None:
        return self._objects_of(job).object(job)

    def _ready(self, job: str) -> int:
        found = ((pod, identity_of(pod)) for pod in self._pods.of_job(job))
        return sum(
            pod.is_ready and identity is not None and identity.role == WORKER
            for pod, identity in found
        )

    def _failed_pods(self, job: str) -> Sequence[Mapping[str, Any]]:
        thing = self._object(job)
        uid = thing["metadata"]["uid"] if thing is not None else ""
        failed = self._jobs[job].failed if job in self._jobs else ()
        return [pod.entry for pod in failed if pod.identity.uid == uid]

    def _know_choice(self, life: _OperatorLife, job: str) -> None:
        record = life.book.jobs.get(job)
        if record is None or record.life.ended:
            self._places.choices.drop(job)
        else:
            self._places.choices.choose(job, self._objects_of(job).choice(job))

    def _short(self) -> Sequence[ScheduledJob] | None:
        return self._life.backend.jobs.short_of_devices() if self._life is not None else None

    def _placeholders_of(self, job: ScheduledJob) -> Sequence[Manifest]:
        """Return the placeholders of a job that waits for places."""
        objects = self._objects_of(job.id)
        return objects.placeholders(job.id, job.submission.spec.workers.minimum)

    # Objects of jobs ------------------------------------------------------------------------------

    async def _take_in(self, life: _OperatorLife) -> None:
        """Take in the objects of jobs that have changed, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_PAUSE):
                    await self._has_news.wait()
            self._has_news.clear()
            news, self._news = self._news, set()
            for job in sorted(news, key=self._age):
                await asyncio.sleep(0)  # where many come at once, others have their turn in between
                try:
                    if not await self._follow_object(life, job):
                        self._news.add(job)  # later
                except StorageFault:
                    raise
                except (EnvironmentFault, ProtocolError) as fault:
                    _log.warning("%s is taken in later: %s", job, fault)
                    self._news.add(job)
                except Exception as error:  # noqa: BLE001 - it is about this object alone
                    _log.exception("%s cannot be taken in", job)
                    await self._leave(life, job, error)

    async def _leave(self, life: _OperatorLife, job: str, error: Exception) -> None:
        """Follow the object of a job no more, until it changes, and say so in its status."""
        words = f"the operator cannot take it in: {type(error).__name__}: {error}"
        self._jobs[job].stall = stall = Stall(OPERATOR_FAULT, words)
        if job in life.book.jobs:
            life.keeper.tell(job)
            life.backend.stir()
        else:
            with contextlib.suppress(EnvironmentFault):
                await self._show_stall(job, stall)

    def _age(self, job: str) -> tuple[str, str]:
        thing = self._object(job)
        return (thing["metadata"].get("creationTimestamp", "") if thing else "", job)

    async def _follow_object(self, life: _OperatorLife, job: str) -> bool:
        """Carry out the wish of a job's object; False where something has to happen before."""
        if job in life.unreadable:
            return True
        objects = self._objects_of(job)
        thing, record = objects.object(job), life.book.jobs.get(job)
        if record is None and thing is not None:
            submission = await self._submission_in(objects, thing)
            if not isinstance(submission, Submission):
                return submission
            record = new_job(thing, submission, id=job, number=life.database.next_number())
            idle = idle_gpus(submission, slot_of(self._settings.slot))
            life.backend.handle(Submitted(record, idle))
        if record is None:
            return True
        if thing is None or thing["metadata"]["uid"] != record.key:
            return await self._forget(life, record) and thing is None
        events, problems = objects.wishes(thing, record)  # it may be suspended from the start
        self._jobs[job].stall = stall_of(problems)
        life.processes.forgive(job)  # as it is now, its pods may be made
        self._know_choice(life, job)
        for event in events:
            life.backend.handle(event)
        life.keeper.tell(job)  # the generation that was read is part of its status
        life.backend.stir()
        return True

    async def _submission_in(self, objects: JobObjects, thing: PlainObject) -> Submission | bool:
        """Return the submission of an object that is new.

        Where it has none, its status says why.

        Returns:
            Whether all is done about an object without one, until it changes.
        """
        if thing["metadata"].get("deletionTimestamp") is not None:
            return True
        is_here = thing["metadata"]["namespace"] == self._settings.namespace
        submission = (
            (_in_own_namespace(self._settings.namespace),)
            if is_here
            else await objects.read(thing, self._tenants_read)
        )
        if isinstance(submission, Submission):
            return submission
        if stall := stall_of(submission):
            await objects.show_stall(thing, stall)
        return is_here or not (thing.get("spec") or {}).get("bundle")  # whose ConfigMap may come

    async def _forget(self, life: _OperatorLife, record: ScheduledJob) -> bool:
        """Cancel a job whose object is gone, and forget it once it has ended; True where it is."""
        if record.life.ended:
            life.processes.forgive(record.id)
            self._places.choices.drop(record.id)
            self._jobs.pop(record.id, None)
            self._objects_of(record.id).forget(record.id)
            namespace = KubeJob.parse(record.id).namespace
            if not self._has_jobs(namespace):
                await life.processes.leave_namespace(namespace)
            await life.scheduler.forget(record.id)
            return True
        life.backend.handle(Wished(record.id, Happening.CANCEL, "its object is deleted"))
        return False

    def _stall(self, job: str) -> Stall | None:
        """Return the reason why a job, or a change of it, makes no progress."""
        refused = self._life.processes.stall(job) if self._life is not None else None
        notes = self._jobs.get(job)
        return (notes.stall if notes is not None else None) or refused

    async def _show_stall(self, job: str, stall: Stall) -> None:
        """Say in the status of an object why nothing comes of it."""
        thing = self._object(job)
        if thing is not None:
            await self._objects_of(job).show_stall(thing, stall)

    # What an operator leaves to the next ----------------------------------------------------------

    async def _read_memory(self) -> PlainObject | None:
        with contextlib.suppress(NotFound):
            return await self._server.get(CONFIG_MAPS, MEMORY, namespace=self._settings.namespace)
        return None

    async def _read_key(self) -> bytes:
        """Return the key of which tokens are made, which the first operator makes."""
        namespace = self._settings.namespace
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY, "namespace": namespace},
            "type": "Opaque",
            "data": {_KEY_FIELD: b64encode(secrets.token_bytes(32)).decode()},
        }
        try:
            secret = await self._server.get(SECRETS, KEY, namespace=namespace)
        except NotFound:
            try:
                secret = await self._server.create(SECRETS, body, namespace=namespace)
            except AlreadyExists:
                secret = await self._server.get(SECRETS, KEY, namespace=namespace)
        try:
            key = b64decode(secret["data"][_KEY_FIELD], validate=True)
        except (LookupError, TypeError, ValueError) as error:
            raise EnvironmentFault(
                f"the Secret {namespace}/{KEY} has no key\n  hint: delete it: another one is made, "
                "and runs start again from their last checkpoints"
            ) from error
        return key


@dataclass(slots=True)
class _ObjectNotes:
    """The object of a job, as far as an operator has read it.

    Args:
        stall: why nothing comes of it, as it is now.
        failed: its pods that have failed, the last of them.
    """

    stall: Stall | None = None
    failed: deque[FailedPod] = field(default_factory=lambda: deque(maxlen=MOST_FAILED))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OperatorLife:
    """The parts of an operator that has begun to schedule.

    Args:
        unreadable: jobs whose records cannot be read; nothing is done about them.
    """

    book: Book
    database: Database
    keeper: RecordKeeper
    processes: PodProcesses
    backend: LiveBackend
    scheduler: Scheduler
    unreadable: frozenset[str]


def _remove_runs(folder: Path, jobs: Collection[str]) -> None:
    """Remove the remains of an earlier operator's runs, except those of these jobs.

    They were deleted while no operator was there. All of it is a mirror of what is elsewhere.
    """
    for run in sorted(folder.iterdir()):
        if run.name not in jobs:
            try:
                remove_run(run, user="")
            except (BrimError, OSError) as error:  # it is tried again by the next operator
                _log.warning("%s, of a job that is gone, is not removed: %s", run, error)


def _in_own_namespace(namespace: str) -> SpecError:
    """Return the error for a job whose pods could have the Secret and the account of the operator."""
    return SpecError(
        "metadata.namespace",
        got=f"{namespace}, which is the operator's own",
        need="another one: pods of a job could mount what the operator's tokens are made of",
        hint="kubectl create namespace team",
    )
