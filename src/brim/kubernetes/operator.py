"""The operator: the scheduler of a cluster of Kubernetes.

Reflectors keep what there is; objects of jobs become events, nodes and pods what is seen. The loop,
the policies and the decisions are those of every scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import logging
import secrets
from base64 import b64decode, b64encode
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from brim.backends.live import LiveBackend
from brim.coordination.cluster.scheduled_jobs import Submitted, Wished
from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.domain.lifecycle import Happening, Phase
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import BrimError, EnvironmentFault, ProtocolError, SpecError, StorageFault
from brim.interfaces import Clock
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.known_objects import ObjectChange
from brim.kubernetes.client.kube_types import Amounts, KubeNode, KubePod
from brim.kubernetes.client.outages import SeenClock
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.client.refusals import AlreadyExists, NotFound, Refusal
from brim.kubernetes.client.resources import ObjectKey, PlainObject, Resource
from brim.kubernetes.install.manifests import MEMORY, NAME
from brim.kubernetes.kubeflow.jobs import KubeflowJobs
from brim.kubernetes.kubeflow.kubeflow_pods import KubeflowPods
from brim.kubernetes.kubeflow.placeholders import of_kubeflow_job
from brim.kubernetes.metrics import ClusterFigures, JobFigures
from brim.kubernetes.nodes.neighbours import handed_on
from brim.kubernetes.nodes.node_selection import (
    NodeChoice,
    choice_in,
    common_choice,
    node_requirements,
)
from brim.kubernetes.nodes.places import NodePlaces, slot_of
from brim.kubernetes.objects.elastic_jobs import code_in, idle_gpus, new_job, read_job, wishes_of
from brim.kubernetes.objects.failed_pods import MOST_FAILED, FailedPod, failed_pod
from brim.kubernetes.objects.identities import GROUP, VERSION, WORKER, KubeJob, identity_of
from brim.kubernetes.objects.status import (
    OPERATOR_FAULT,
    UNREADABLE,
    Stall,
    stall_of,
    stalled_jobs,
    stalled_status,
)
from brim.kubernetes.objects.templates import PodTemplates, claim_for, read_templates
from brim.kubernetes.objects.tenants import KnownTenants, read_tenants, with_tenants
from brim.kubernetes.pods.elastic_pods import ElasticPods, PodOrder
from brim.kubernetes.pods.eviction_responder import EvictionResponder
from brim.kubernetes.pods.job_faults import JobFaults
from brim.kubernetes.pods.known_pods import KnownPods
from brim.kubernetes.pods.manifests import USUAL_GRACE, Manifest, PodWishes
from brim.kubernetes.pods.placeholder_keeper import PlaceholderKeeper
from brim.kubernetes.pods.placeholders import of_elastic_job
from brim.kubernetes.pods.pod_requests import CONFIG_MAPS, PODS, SECRETS, PodRequests
from brim.kubernetes.pods.processes import AskToSuspend, PodProcesses
from brim.kubernetes.pods.runs_seen import FollowRun, RunsSeen, follow_by_port
from brim.kubernetes.record import (
    ELASTIC_JOBS,
    NEVER,
    RecordKeeper,
    open_book,
    read_records,
    write_status,
)
from brim.scheduler.loop import Scheduler
from brim.storage.book import Book
from brim.storage.database import Database
from brim.storage.removing import remove_run
from brim.wire.control import ask_later
from brim.wire.messages import Ask

NODES = Resource("v1", "nodes", KubeNode, namespaced=False)
TENANTS = Resource(f"{GROUP}/{VERSION}", "tenants", PlainObject, namespaced=False)
MASTERS = "(masters)"  # no node of Kubernetes can have that name
KEY = NAME  # the Secret with the key of which runs' tokens are made
_KEY_FIELD = "key"
_STARTS = 16  # jobs that are started at once: what else is asked for finds a way past them
_LOOK = 1.0  # seconds between two looks where nothing happens
_AGAIN = 2.0  # seconds before objects that could not be taken in are tried again
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """The settings of an operator.

    Args:
        directory: for its working copy of the book, and of the records of runs.
        namespace: its own.
        image: of jobs that name none.
        slot: what a worker gets.
        watched: the namespace whose jobs it schedules; empty: all.
        node_labels: a selector of the nodes that it may use; empty: all.
        tolerated: keys of taints that its jobs' pods bear.
        kubeflow: jobs of Kubeflow's kinds are its, too.
        kubectl: the image from which launchers of MPIJobs get kubectl; empty: that of Kubeflow.
        gangs: Kubeflow's jobs with a scheduling policy are gangs; of ElasticJobs it is said by each.
        evictions: evictions of jobs' pods are answered, where the server has them.
        policy, headroom, grace: see `ClusterSpec`.
        volume_size: of the volume on which a job's master keeps the run, where the job names no place
            for it; empty: it has none, and starts from scratch after it was suspended.
        placeholders: jobs that wait for places and have placeholders, at most.

    Raises:
        SpecError: the nodes are no selector.
    """

    directory: Path
    namespace: str
    image: str
    slot: Amounts
    watched: str = ""
    node_labels: str = ""
    tolerated: tuple[str, ...] = ()
    kubeflow: bool = False
    kubectl: str = ""
    gangs: bool = False
    evictions: bool = False
    policy: str = "brim"
    headroom: int = 0
    grace: float = USUAL_GRACE
    volume_size: str = ""
    placeholders: int = 0

    def __post_init__(self) -> None:
        node_requirements(self.node_labels)

    @property
    def spec(self) -> ClusterSpec:
        """The cluster as the operator describes it: all devices are brought by nodes."""
        return ClusterSpec(
            cluster=Cluster(nodes=(Node(id=MASTERS, devices=0),)),
            policy=self.policy,
            headroom=self.headroom,
            grace=self.grace,
        )


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
        self._objects = Reflector(
            server, ELASTIC_JOBS, changed=self._job_changed, namespace=watched
        )
        self._tenants = Reflector(server, TENANTS, changed=self._tenant_changed)
        self._kubeflow = KubeflowJobs(
            server,
            watched=watched,
            slot=slot_of(settings.slot),
            tolerated=settings.tolerated,
            kubectl=settings.kubectl,
            gangs=settings.gangs,
            pods=self._pods,
            changed=self._hear_of,
            record=lambda job: self._life.book.jobs.get(job) if self._life is not None else None,
            wall=lambda: clock.wall() + clock.set_by(),
        )
        self._evictions: EvictionResponder | None = None
        if settings.evictions:
            self._evictions = EvictionResponder(
                server, watched=watched, pods=self._pods, clock=clock
            )
        self._life: _OperatorLife | None = None
        self._made = clock.now()
        self._news: set[str] = set()  # ids of jobs whose objects have changed
        self._has_news = asyncio.Event()
        self._known = KnownTenants()
        self._jobs: defaultdict[str, _ObjectRead] = defaultdict(_ObjectRead)
        self._key = b""

    async def run(self) -> None:
        """Schedule until the call is cancelled: its jobs train on."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._settings.kubeflow:
                    await self._kubeflow.find()
                if self._evictions is not None and not await self._evictions.is_served():
                    self._evictions = None
                self._kubeflow.evictions = self._evictions is not None
                reflectors: tuple[Reflector[Any], ...] = (
                    self._nodes,
                    self._all_pods,
                    self._tenants,
                    self._objects,
                    *self._kubeflow.watches,
                    *([self._evictions.watch] if self._evictions is not None else []),
                )
                for each in reflectors:
                    tasks.create_task(each.run())
                for each in reflectors:
                    await each.synced()
                self._key = self._kubeflow.key = await self._read_key()
                self._life = life = await self._begin()
                for job in life.book.jobs:
                    self._know_choice(life, job)
                tasks.create_task(self._take_in(life))
                tasks.create_task(life.keeper.run())
                if self._evictions is not None:
                    tasks.create_task(self._evictions.run())
                await life.scheduler.run()
        finally:
            if self._life is not None:
                await self._life.processes.close()
                self._life.scheduler.close()

    @property
    def has_begun(self) -> bool:
        """True once it has read what there is, and schedules."""
        return self._life is not None

    @property
    def idle(self) -> float:
        """The seconds since it last looked at its jobs, or began to read what there is."""
        acted = self._life.backend.looked if self._life is not None else self._made
        return self._clock.now() - acted

    def figures(self) -> ClusterFigures | None:
        """Return what there is to count and to measure; None before it schedules."""
        if self._life is None:
            return None
        book, backend = self._life.book, self._life.backend
        running = backend.jobs.to_look_at()
        usable = backend.jobs.present.cluster.with_lost(backend.jobs.unavailable)
        phases = Counter(job.life.phase.value for job in book.jobs.values())
        return ClusterFigures(
            states={phase.value: phases[phase.value] for phase in Phase},
            stalled=stalled_jobs(self._objects.objects.values()),
            slots=usable.devices,
            held=sum(sum(job.held.values()) for job in running),
            cycles=backend.cycle_seconds,
            looks=backend.look_seconds,
            jobs=[JobFigures(job.id, job.target, *backend.jobs.speed(job)) for job in running],
        )

    async def _begin(self) -> _OperatorLife:
        """Fill the book from the objects, and be ready to schedule."""
        settings = self._settings
        self._known = read_tenants(self._tenants.objects.values())
        spec = with_tenants(settings.spec, self._known)
        records, unreadable = read_records(self._objects.objects.values())
        theirs, more = self._kubeflow.read_records()
        records, unreadable = [*records, *theirs], {**unreadable, **more}
        for job, fault in unreadable.items():
            await self._show_stall(job, Stall(UNREADABLE, str(fault)))
        self._places.leave_alone(unreadable)
        jobs = settings.directory / "jobs"
        jobs.mkdir(parents=True, exist_ok=True)
        known = {record.id for record in records} | unreadable.keys()
        await asyncio.to_thread(_remove_runs, jobs, known)
        memory = await self._read_memory()
        database = open_book(settings.directory / "operator.db", records, memory=memory, spec=spec)
        book = Book(database)
        keeper = RecordKeeper(
            self._server,
            book,
            database,
            objects=self._object,
            ready=self._ready,
            failed=self._failed_pods,
            kubeflow=self._kubeflow.write,
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
            most=settings.placeholders,
            watched=settings.watched,
            short=self._short,
            wanted=self._placeholders_of,
            faults=faults,
            clock=self._seen_clock,
        )
        shared = await requests.shared(settings.watched)
        processes = PodProcesses(
            requests,
            self._pods,
            self._places,
            RunsSeen(jobs, self._follow),
            shape=lambda job: KubeflowPods(job) if job.kind else ElasticPods(job),
            order=lambda job: (
                self._kubeflow.order(job) if KubeJob.parse(job).kind else self._order(job)
            ),
            objects=self._kubeflow.ids,
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
        self._pods.told(str(change.key), change.before, change.after)
        if failed := failed_pod(change.before, change.after):
            self._note_failed(failed)
        identity = identity_of(pod) if (pod := change.after or change.before) else None
        if identity is not None and self._life is not None:
            record = self._life.book.jobs.get(identity.job)
            if record is not None and record.life.ended:
                self._places.choices.forget(identity.job)
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

    def _job_changed(self, change: ObjectChange[PlainObject]) -> None:
        if _spec_of(change.before) != _spec_of(change.after):  # not its status alone
            self._hear_of(KubeJob(*change.key).id)

    def _hear_of(self, job: str) -> None:
        self._news.add(job)
        self._has_news.set()

    def _tenant_changed(self, _: ObjectChange[PlainObject]) -> None:
        self._known = read_tenants(self._tenants.objects.values())
        if self._life is not None:
            spec = with_tenants(self._life.backend.spec, self._known)
            if spec != self._life.backend.spec:
                self._life.scheduler.reconfigure(spec)
        self._news |= set(self._all_ids())
        self._has_news.set()

    def _stir(self) -> None:
        if self._life is not None:
            self._life.backend.stir()
        if self._evictions is not None:
            self._evictions.stir()

    # What the others ask --------------------------------------------------------------------------

    def _all_ids(self) -> Iterator[str]:
        """Return the ids of all jobs that have an object."""
        yield from (KubeJob(*key).id for key in self._objects.objects)
        yield from self._kubeflow.ids()

    def _has_jobs(self, namespace: str) -> bool:
        return any(key.namespace == namespace for key in self._objects.objects)

    def _object(self, job: str) -> PlainObject | None:
        name = KubeJob.parse(job)
        if name.kind:
            return self._kubeflow.object(job)
        return self._objects.objects.get(ObjectKey(name.namespace, name.name))

    def _ready(self, job: str) -> int:
        found = ((pod, identity_of(pod)) for pod in self._pods.of(job))
        return sum(pod.is_ready and who is not None and who.role == WORKER for pod, who in found)

    def _failed_pods(self, job: str) -> Sequence[Mapping[str, Any]]:
        thing = self._object(job)
        uid = thing["metadata"]["uid"] if thing is not None else ""
        failed = self._jobs[job].failed if job in self._jobs else ()
        return [each.entry for each in failed if each.identity.uid == uid]

    def _order(self, job: str) -> PodOrder | None:
        thing = self._object(job)
        record = self._life.book.jobs.get(job) if self._life is not None else None
        if thing is None or record is None or thing["metadata"]["uid"] != record.key:
            return None
        known = self._jobs[job]
        if known.order is None or known.order_of is not thing:
            known.order, known.order_of = self._order_in(thing, known), thing
        return known.order

    def _order_in(self, thing: PlainObject, known: _ObjectRead) -> PodOrder:
        # Templates may be changed to what cannot be understood: then the last ones stand.
        with contextlib.suppress(SpecError):
            known.templates = read_templates(thing["spec"])
        templates, settings = known.templates, self._settings
        wishes = PodWishes(
            image=settings.image,
            operator_namespace=settings.namespace,
            slot=settings.slot,
            priority_class=templates.priority_class,
            template=templates.worker,
            master_template=templates.master,
            claim=claim_for(templates, thing["spec"], usual=settings.volume_size),
            code=(thing["spec"].get("bundle") or {}).get("configMap", ""),
            tolerated=settings.tolerated,
            handed_on=handed_on(thing),
            gang=templates.gang,
            evictions=self._evictions is not None,
            anywhere=templates.anywhere,
            node_labels=settings.node_labels,
        )
        uid = thing["metadata"]["uid"]
        return PodOrder(uid=uid, wishes=wishes, token=functools.partial(self._token, uid))

    def _know_choice(self, life: _OperatorLife, job: str) -> None:
        record = life.book.jobs.get(job)
        if record is None or record.life.ended:
            self._places.choices.forget(job)
        else:
            self._places.choices.choose(job, self._choice_of(job))

    def _choice_of(self, job: str) -> NodeChoice:
        """Return which nodes all pods of a job may be on."""
        if KubeJob.parse(job).kind:
            asked = self._kubeflow.asked(job)
            templates = [each.template for each in asked.replicas] if asked is not None else []
        else:
            order = self._order(job)
            templates = [order.wishes.template] if order is not None else []
        return common_choice([choice_in(each.get("spec")) for each in templates])

    def _short(self) -> Sequence[ScheduledJob] | None:
        return self._life.backend.jobs.short_of_devices() if self._life is not None else None

    def _placeholders_of(self, job: ScheduledJob) -> Sequence[Manifest]:
        """Return the placeholders of a job that waits for places."""
        name, fewest = KubeJob.parse(job.id), job.submission.spec.workers.minimum
        order = None if name.kind else self._order(job.id)
        asked = self._kubeflow.asked(job.id) if name.kind else order and order.wishes
        known = self._jobs[job.id]
        if asked is None:
            return ()
        if known.placeholders_of is not asked or known.fewest != fewest:
            if order is not None:
                known.placeholders = of_elastic_job(name, order.uid, order.wishes, fewest)
            elif theirs := self._kubeflow.order(job.id):
                start, labels = theirs.start(0), self._settings.node_labels
                known.placeholders = of_kubeflow_job(start, fewest, labels)
            known.placeholders_of, known.fewest = asked, fewest
        return known.placeholders

    def _token(self, uid: str, launch: int) -> str:
        """Return the token of a start, which every operator of this cluster makes alike."""
        return hmac.new(self._key, f"{uid}/{launch}".encode(), hashlib.sha256).hexdigest()[:32]

    # Objects of jobs ------------------------------------------------------------------------------

    async def _take_in(self, life: _OperatorLife) -> None:
        """Take in the objects of jobs that have changed, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN):
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
        """Do what the object of a job asks for; False where something has to happen before."""
        if job in life.unreadable:
            return True
        thing, record = self._object(job), life.book.jobs.get(job)
        if record is None:
            return thing is None or await self._submit(life, job, thing)
        if thing is None or thing["metadata"]["uid"] != record.key:
            return await self._forget(life, record) and thing is None
        wishes = self._kubeflow.wishes if KubeJob.parse(job).kind else wishes_of
        events, problems = wishes(thing, record)
        self._jobs[job].stall = stall_of(problems)
        life.processes.forgive(job)  # as it is now, its pods may be made
        self._know_choice(life, job)
        for event in events:
            life.backend.handle(event)
        life.keeper.tell(job)  # the generation that was read is part of its status
        life.backend.stir()
        return True

    async def _submit(self, life: _OperatorLife, job: str, thing: PlainObject) -> bool:
        """Take a job in for the first time."""
        if thing["metadata"].get("deletionTimestamp") is not None:
            return True
        if thing["metadata"]["namespace"] == self._settings.namespace:
            if stall := stall_of((_in_own_namespace(job),)):
                await self._show_stall(job, stall)
            return True
        if KubeJob.parse(job).kind:
            wanted = self._kubeflow.read(thing, self._known)
        else:
            wanted = read_job(thing, code=await self._code_of(thing), known=self._known)
        if isinstance(wanted, tuple):
            if stall := stall_of(wanted):
                await self._show_stall(job, stall)
            return not (thing.get("spec") or {}).get("bundle")  # whose ConfigMap may come
        number = life.database.next_number()
        taken = new_job(thing, wanted, id=job, number=number)
        idle = idle_gpus(wanted, slot_of(self._settings.slot))
        life.backend.handle(Submitted(taken, idle))
        return await self._follow_object(life, job)  # it may be suspended from the start

    async def _code_of(self, thing: PlainObject) -> bytes | None:
        bundle = (thing.get("spec") or {}).get("bundle")
        name = bundle.get("configMap") if isinstance(bundle, dict) else None
        if not isinstance(name, str) or not name:
            return None
        namespace = thing["metadata"]["namespace"]
        try:
            there = await self._server.get(CONFIG_MAPS, name, namespace=namespace)
        except NotFound:
            return None
        return code_in(there)

    async def _forget(self, life: _OperatorLife, record: ScheduledJob) -> bool:
        """Cancel a job whose object is gone, and forget it once it has ended; True where it is."""
        if record.life.ended:
            life.processes.forgive(record.id)
            self._places.choices.forget(record.id)
            self._jobs.pop(record.id, None)
            self._kubeflow.forget(record.id)
            namespace = KubeJob.parse(record.id).namespace
            if not self._has_jobs(namespace):
                await life.processes.leave_namespace(namespace)
            await life.scheduler.forget(record.id)
            return True
        life.backend.handle(Wished(record.id, Happening.CANCEL, "its object is deleted"))
        return False

    def _stall(self, job: str) -> Stall | None:
        """Return why nothing comes of a job, or of what was changed of it."""
        refused = self._life.processes.stall(job) if self._life is not None else None
        known = self._jobs.get(job)
        return (known.stall if known is not None else None) or refused

    async def _show_stall(self, job: str, stall: Stall) -> None:
        """Say in the status of an object why nothing comes of it."""
        thing = self._object(job)
        if thing is None:
            return
        if KubeJob.parse(job).kind:
            await self._kubeflow.stall(thing, stall)
            return
        before = thing.get("status")
        generation = thing["metadata"].get("generation", 0)
        now = self._clock.wall() + self._clock.set_by()
        status = stalled_status(before, stall, generation=generation, now=now)
        if status == before:
            return
        try:
            await write_status(self._server, thing, status)
        except Refusal as refusal:
            if refusal.code not in NEVER:
                raise
            _log.error("%s: %s; its status cannot say so: %s", job, stall.message, refusal)

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
            there = await self._server.get(SECRETS, KEY, namespace=namespace)
        except NotFound:
            try:
                there = await self._server.create(SECRETS, body, namespace=namespace)
            except AlreadyExists:
                there = await self._server.get(SECRETS, KEY, namespace=namespace)
        try:
            key = b64decode(there["data"][_KEY_FIELD], validate=True)
        except (LookupError, TypeError, ValueError) as error:
            raise EnvironmentFault(
                f"the Secret {namespace}/{KEY} has no key\n  hint: delete it: another one is made, "
                "and runs start again from their last checkpoints"
            ) from error
        return key


@dataclass(slots=True)
class _ObjectRead:
    """The object of a job, as far as an operator has read it.

    Args:
        stall: why nothing comes of it, as it is now.
        templates: the last that could be understood.
        order: the order in it, and of which state of it.
        placeholders: of the job, and of what, and of how many pods at least.
        failed: its pods that have failed, the last of them.
    """

    stall: Stall | None = None
    templates: PodTemplates = field(default_factory=PodTemplates)
    order: PodOrder | None = None
    order_of: PlainObject | None = None
    placeholders: Sequence[Manifest] = ()
    placeholders_of: object = None
    fewest: int = 0
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
    """Remove what an earlier operator has left of the runs of other jobs than these.

    They were deleted while no operator was there. All of it is a mirror of what is elsewhere.
    """
    for each in sorted(folder.iterdir()):
        if each.name not in jobs:
            try:
                remove_run(each, user="")
            except (BrimError, OSError) as error:  # it is tried again by the next operator
                _log.warning("%s, of a job that is gone, is not removed: %s", each, error)


def _in_own_namespace(job: str) -> SpecError:
    """Return the error for a job whose pods could have the Secret and the account of the operator."""
    return SpecError(
        "metadata.namespace",
        got=f"{KubeJob.parse(job).namespace}, which is the operator's own",
        need="another one: pods of a job could mount what the operator's tokens are made of",
        hint="kubectl create namespace team",
    )


def _spec_of(thing: PlainObject | None) -> Any:
    """Return what of an object decides anything: all but its status, and who wrote it."""
    if thing is None:
        return None
    meta = thing["metadata"]
    parts = meta.get("uid"), meta.get("generation"), meta.get("deletionTimestamp")
    return (*parts, msgspec.json.encode(thing.get("spec")))
