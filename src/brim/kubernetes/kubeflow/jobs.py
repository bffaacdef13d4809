"""The part of an operator for Kubeflow's objects: it watches them, and writes their states."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from brim.coordination.cluster.scheduled_jobs import RangeChanged, Wished
from brim.domain.course import Change, reason_of, sentence_of
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission
from brim.kubernetes.client.known_objects import ObjectChange
from brim.kubernetes.client.reading import Problems
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.client.refusals import NotFound
from brim.kubernetes.client.resources import ObjectKey, PlainObject, Resource
from brim.kubernetes.client.times import read_time
from brim.kubernetes.kinds import OperatorContext, Records
from brim.kubernetes.kubeflow.autoscalers import AUTOSCALERS, SELECTOR
from brim.kubernetes.kubeflow.kubeflow_pods import KubeflowOrder, KubeflowPods
from brim.kubernetes.kubeflow.objects import KubeflowStart
from brim.kubernetes.kubeflow.placeholders import of_kubeflow_job
from brim.kubernetes.kubeflow.records import (
    RESOURCES,
    job_of,
    read_records,
    seed_of,
    sign,
    write_record,
    write_status,
)
from brim.kubernetes.kubeflow.request import (
    KINDS,
    KUBEFLOW,
    PYTORCH,
    KubeflowSpec,
    first_replicas,
    is_ours,
    read_asked,
    submission_of,
    wishes_of,
)
from brim.kubernetes.kubeflow.status import stalled_status, status_of
from brim.kubernetes.nodes.node_selection import NodeChoice, choice_in, common_choice
from brim.kubernetes.nodes.places import slot_of
from brim.kubernetes.objects.identities import KubeJob
from brim.kubernetes.objects.status import Stall
from brim.kubernetes.objects.tenants import KnownTenants
from brim.kubernetes.pods.manifests import Manifest

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Written:
    """The state of an object on the server, as it was written last."""

    uid: str
    record: str = ""
    status: Any = None


class KubeflowJobs:
    """The objects of Kubeflow's kinds."""

    def __init__(self, context: OperatorContext) -> None:
        server, settings = context.server, context.settings
        self._context, self._settings = context, settings
        self._server, self._watched = server, settings.watched
        self._slot = slot_of(settings.slot)
        self.reflectors: dict[str, Reflector[PlainObject]] = {}
        self._apis: dict[str, str] = {}  # the version in which each kind is watched
        self._autoscalers = Reflector(
            server,
            AUTOSCALERS,
            changed=self._autoscaler_changed,
            namespace=settings.watched,
            labels=SELECTOR,
        )
        self._key, self._evictions = b"", False
        self._requests: dict[str, tuple[object, KubeflowSpec]] = {}
        self._placeholders: dict[str, tuple[KubeflowSpec, int, Sequence[Manifest]]] = {}
        self._written: dict[str, _Written] = {}

    def begin(self, *, key: bytes, evictions: bool) -> None:
        self._key, self._evictions = key, evictions

    async def find(self) -> None:
        for word, resources in RESOURCES.items():
            for resource in resources:
                if await self._is_served(resource):
                    self._apis[word] = resource.api
                    self.reflectors[word] = Reflector(
                        self._server,
                        resource,
                        changed=self._hears_of(word),
                        namespace=self._watched,
                    )
                    break
            else:
                await self._warn_of_absence(word)

    async def _is_served(self, resource: Resource[PlainObject]) -> bool:
        try:
            async for _ in self._server.pages(resource, namespace=self._watched):
                break
        except NotFound:
            return False
        return True

    async def _warn_of_absence(self, word: str) -> None:
        """Say that the server lacks a kind, or has only versions whose jobs brim does not run."""
        kind = KINDS[word]
        for version in kind.others:
            if await self._is_served(Resource(f"{KUBEFLOW}/{version}", kind.plural, PlainObject)):
                _log.warning(
                    "the server has %s as %s/%s and not as %s: brim runs none of these jobs, and "
                    "without another operator they wait for ever",
                    kind.name,
                    KUBEFLOW,
                    version,
                    " or ".join(resource.api.rpartition("/")[2] for resource in RESOURCES[word]),
                )
                return
        _log.warning("the server has no %s", kind.name)

    @property
    def watches(self) -> tuple[Reflector[PlainObject], ...]:
        return (*self.reflectors.values(), *([self._autoscalers] if self.reflectors else []))

    def _autoscaler_changed(self, change: ObjectChange[PlainObject]) -> None:
        self._context.changed(KubeJob(*change.key, PYTORCH).id)

    def _hears_of(self, word: str) -> Callable[[ObjectChange[PlainObject]], None]:
        def hear(change: ObjectChange[PlainObject]) -> None:
            if _deciding(change.before) != _deciding(change.after):
                self._context.changed(KubeJob(*change.key, word).id)

        return hear

    # What is there --------------------------------------------------------------------------------

    def object(self, job: str) -> PlainObject | None:
        """Return the object of a job; one that another operator schedules is none."""
        name = KubeJob.parse(job)
        if name.kind not in self.reflectors:
            return None
        objects = self.reflectors[name.kind].objects
        thing = objects.get(ObjectKey(name.namespace, name.name))
        if thing is None or not is_ours(thing):
            return None
        # Those of a list do not say it.
        return {**thing, "apiVersion": self._apis[name.kind], "kind": KINDS[name.kind].name}

    def autoscaler(self, job: str) -> PlainObject | None:
        """Return the autoscaler of a job; None where there is none that an operator has made."""
        name = KubeJob.parse(job)
        if name.kind != PYTORCH:
            return None
        return self._autoscalers.objects.get(ObjectKey(name.namespace, name.name))

    def ids(self) -> Iterator[str]:
        for word, reflector in self.reflectors.items():
            for key, thing in reflector.objects.items():
                if is_ours(thing):
                    yield KubeJob(*key, word).id

    def read_records(self) -> Records:
        things = (
            (word, thing)
            for word, reflector in self.reflectors.items()
            for thing in reflector.objects.values()
            if is_ours(thing)
        )
        return read_records(things, self._key)

    def request(self, job: str) -> KubeflowSpec | None:
        """Return the request of a job's object, or its last one that could be understood."""
        thing, record = self.object(job), self._context.record(job)
        if thing is None or record is None or thing["metadata"]["uid"] != record.key:
            return None
        state = record.key, thing["metadata"].get("generation")
        cached = self._requests.get(job)
        if cached is None or cached[0] != state:
            request = read_asked(thing, slot=self._slot, first=first_replicas(record))
            if isinstance(request, KubeflowSpec):
                cached = self._requests[job] = state, request
        return cached[1] if cached is not None else None

    def order(self, job: str) -> KubeflowOrder | None:
        thing, record, request = self.object(job), self._context.record(job), self.request(job)
        if thing is None or record is None or request is None:
            return None

        def start(launch: int) -> KubeflowStart:
            return KubeflowStart(
                request=request,
                uid=record.key,
                launch=launch,
                slot=self._slot,
                seed=seed_of(record.key, self._key),
                tolerated=self._settings.tolerated,
                kubectl=self._settings.kubectl,
                gangs=self._settings.gangs,
                evictions=self._evictions,
            )

        start_time = (thing.get("status") or {}).get("startTime")
        return KubeflowOrder(
            uid=record.key,
            request=request,
            start=start,
            started=read_time(start_time, field="status.startTime") if start_time else None,
            ended=record.ended,
            is_over=record.life.ended,
            starts=record.starts,
            autoscaler=self.autoscaler(job),
        )

    def shape(self, job: KubeJob) -> KubeflowPods:
        return KubeflowPods(job)

    def choice(self, job: str) -> NodeChoice:
        request = self.request(job)
        replicas = request.replicas if request is not None else ()
        return common_choice([choice_in(part.template.get("spec")) for part in replicas])

    def placeholders(self, job: str, fewest: int) -> Sequence[Manifest]:
        order = self.order(job)
        if order is None:
            return ()
        cached = self._placeholders.get(job)
        if cached is None or cached[0] is not order.request or cached[1] != fewest:
            manifests = of_kubeflow_job(order.start(0), fewest, self._settings.node_labels)
            cached = self._placeholders[job] = order.request, fewest, manifests
        return cached[2]

    # What it asks for -----------------------------------------------------------------------------

    async def read(self, thing: PlainObject, tenants: KnownTenants) -> Submission | Problems:
        request = read_asked(thing, slot=self._slot)
        return (
            submission_of(thing, request, tenants) if isinstance(request, KubeflowSpec) else request
        )

    def wishes(
        self, thing: PlainObject, record: ScheduledJob
    ) -> tuple[list[Wished | RangeChanged], Problems]:
        return wishes_of(thing, record, slot=self._slot)

    # What is written ------------------------------------------------------------------------------

    async def write(
        self, thing: PlainObject, record: ScheduledJob, story: Sequence[Change], stall: Stall | None
    ) -> None:
        job, uid = record.id, record.key
        written = self._written.get(job)
        if written is None or written.uid != uid:
            written = self._written[job] = _Written(uid, status=thing.get("status"))
        signed = sign(record, self._key)
        if signed != written.record:
            await write_record(self._server, job, thing, signed)
            written.record = signed
        status = status_of(
            record,
            self.request(job),
            self._context.pods.of_job(job),
            before=written.status,
            now=self._context.wall(),
            explanation=_explanation(record, story),
            stall=stall,
        )
        if status != written.status:
            await write_status(self._server, job, thing, status)
            written.status = status

    async def show_stall(self, thing: PlainObject, stall: Stall) -> None:
        job = job_of(thing, thing["kind"].lower()).id
        last = thing.get("status")
        status = stalled_status(thing["kind"], last, stall, now=self._context.wall())
        if status != last:
            await write_status(self._server, job, thing, status)

    def forget(self, job: str) -> None:
        self._requests.pop(job, None)
        self._placeholders.pop(job, None)
        self._written.pop(job, None)


def _explanation(record: ScheduledJob, story: Sequence[Change]) -> str:
    if record.life.ended:
        return ""
    last = next((change for change in reversed(story) if reason_of(change)), None)
    return sentence_of(last) if last else record.judgement.detail


def _deciding(thing: PlainObject | None) -> Any:
    """Return the parts of an object that decide anything: all but its status, and the record."""
    meta = thing["metadata"] if thing is not None else {}
    return meta.get("uid"), meta.get("generation"), meta.get("deletionTimestamp")
