"""The part of an operator that knows ElasticJobs: it watches them, and reads their wishes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from brim.coordination.cluster.scheduled_jobs import RangeChanged, Wished
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission
from brim.errors import SpecError
from brim.kubernetes.client.known_objects import ObjectChange
from brim.kubernetes.client.reading import Problems
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.client.refusals import NotFound, Refusal
from brim.kubernetes.client.resources import ObjectKey, PlainObject
from brim.kubernetes.kinds import OperatorContext, Records
from brim.kubernetes.nodes.neighbours import handed_on
from brim.kubernetes.nodes.node_selection import ANY_NODE, NodeChoice, choice_in
from brim.kubernetes.objects.elastic_jobs import code_in, read_job, wishes_of
from brim.kubernetes.objects.identities import KubeJob
from brim.kubernetes.objects.status import Stall, stalled_status
from brim.kubernetes.objects.templates import PodTemplates, claim_for, read_templates
from brim.kubernetes.objects.tenants import KnownTenants
from brim.kubernetes.pods.elastic_pods import ElasticPods, PodOrder
from brim.kubernetes.pods.manifests import Manifest, PodWishes
from brim.kubernetes.pods.placeholders import of_elastic_job
from brim.kubernetes.pods.pod_requests import CONFIG_MAPS
from brim.kubernetes.record import ELASTIC_JOBS, LASTING_REFUSALS, read_records, write_status

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _ObjectRead:
    """The object of a job, as far as it was read.

    Args:
        templates: the last that could be understood.
        order: the order in it, and of which state of it.
        placeholders: of the job, and of what, and of how many pods at least.
    """

    templates: PodTemplates = field(default_factory=PodTemplates)
    order: PodOrder | None = None
    order_of: PlainObject | None = None
    placeholders: Sequence[Manifest] = ()
    placeholders_of: PodWishes | None = None
    fewest: int = 0


class ElasticObjects:
    """The ElasticJobs that an operator schedules."""

    def __init__(self, context: OperatorContext) -> None:
        self._context, self._settings = context, context.settings
        self._reflector = Reflector(
            context.server,
            ELASTIC_JOBS,
            changed=self._job_changed,
            namespace=context.settings.watched,
        )
        self._read: dict[str, _ObjectRead] = {}
        self._key, self._evictions = b"", False

    @property
    def watches(self) -> tuple[Reflector[PlainObject], ...]:
        return (self._reflector,)

    def begin(self, *, key: bytes, evictions: bool) -> None:
        self._key, self._evictions = key, evictions

    def _job_changed(self, change: ObjectChange[PlainObject]) -> None:
        if _deciding(change.before) != _deciding(change.after):  # not its status alone
            self._context.changed(KubeJob(*change.key).id)

    # What is there --------------------------------------------------------------------------------

    @property
    def objects(self) -> Mapping[ObjectKey, PlainObject]:
        """All objects, by namespace and name."""
        return self._reflector.objects

    def ids(self) -> Iterator[str]:
        return (KubeJob(*key).id for key in self.objects)

    def object(self, job: str) -> PlainObject | None:
        name = KubeJob.parse(job)
        return self.objects.get(ObjectKey(name.namespace, name.name))

    def read_records(self) -> Records:
        return read_records(self.objects.values())

    def order(self, job: str) -> PodOrder | None:
        thing, record = self.object(job), self._context.record(job)
        if thing is None or record is None or thing["metadata"]["uid"] != record.key:
            return None
        cached = self._read.get(job)
        if cached is None:
            cached = self._read[job] = _ObjectRead()
        if cached.order is None or cached.order_of is not thing:
            cached.order, cached.order_of = self._order_in(thing, cached), thing
        return cached.order

    def _order_in(self, thing: PlainObject, cached: _ObjectRead) -> PodOrder:
        # Templates may be changed to what cannot be understood: then the last ones stand.
        with contextlib.suppress(SpecError):
            cached.templates = read_templates(thing["spec"])
        templates, settings = cached.templates, self._settings
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
            evictions=self._evictions,
            anywhere=templates.anywhere,
            node_labels=settings.node_labels,
        )
        uid = thing["metadata"]["uid"]
        return PodOrder(uid=uid, wishes=wishes, token=functools.partial(self._token, uid))

    def _token(self, uid: str, launch: int) -> str:
        """Return the token of a start, which every operator of this cluster makes alike."""
        return hmac.new(self._key, f"{uid}/{launch}".encode(), hashlib.sha256).hexdigest()[:32]

    # What it asks for -----------------------------------------------------------------------------

    async def read(self, thing: PlainObject, tenants: KnownTenants) -> Submission | Problems:
        code = await self._code_of(thing)
        return read_job(thing, code=code, tenants=tenants)

    async def _code_of(self, thing: PlainObject) -> bytes | None:
        bundle = (thing.get("spec") or {}).get("bundle")
        name = bundle.get("configMap") if isinstance(bundle, dict) else None
        if not isinstance(name, str) or not name:
            return None
        namespace = thing["metadata"]["namespace"]
        try:
            present = await self._context.server.get(CONFIG_MAPS, name, namespace=namespace)
        except NotFound:
            return None
        return code_in(present)

    def wishes(
        self, thing: PlainObject, record: ScheduledJob
    ) -> tuple[list[Wished | RangeChanged], Problems]:
        return wishes_of(thing, record)

    def shape(self, job: KubeJob) -> ElasticPods:
        return ElasticPods(job)

    def choice(self, job: str) -> NodeChoice:
        order = self.order(job)
        return ANY_NODE if order is None else choice_in(order.wishes.template.get("spec"))

    def placeholders(self, job: str, fewest: int) -> Sequence[Manifest]:
        order = self.order(job)
        if order is None:
            return ()
        cached, wishes = self._read[job], order.wishes
        if cached.placeholders_of is not wishes or cached.fewest != fewest:
            name = KubeJob.parse(job)
            cached.placeholders = of_elastic_job(name, order.uid, wishes, fewest)
            cached.placeholders_of, cached.fewest = wishes, fewest
        return cached.placeholders

    # What is written ------------------------------------------------------------------------------

    async def show_stall(self, thing: PlainObject, stall: Stall) -> None:
        last = thing.get("status")
        generation = thing["metadata"].get("generation", 0)
        status = stalled_status(last, stall, generation=generation, now=self._context.wall())
        if status == last:
            return
        try:
            await write_status(self._context.server, thing, status)
        except Refusal as refusal:
            if refusal.code not in LASTING_REFUSALS:
                raise
            name = KubeJob(thing["metadata"]["namespace"], thing["metadata"]["name"])
            _log.error("%s: %s; its status cannot say so: %s", name.id, stall.message, refusal)

    def forget(self, job: str) -> None:
        self._read.pop(job, None)


def _deciding(thing: PlainObject | None) -> Any:
    """Return the parts of an object that decide anything: all but its status and its writers."""
    if thing is None:
        return None
    meta = thing["metadata"]
    parts = meta.get("uid"), meta.get("generation"), meta.get("deletionTimestamp")
    return (*parts, msgspec.json.encode(thing.get("spec")))
