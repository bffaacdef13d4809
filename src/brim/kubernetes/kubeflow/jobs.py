"""The part of an operator that knows Kubeflow's objects: it watches them, and writes what became of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from brim.coordination.cluster.scheduled_jobs import RangeChanged, Wished
from brim.domain.course import Change, reason_of, sentence_of
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission
from brim.errors import EnvironmentFault
from brim.kubernetes.client.amounts import Totals
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.known_objects import ObjectChange
from brim.kubernetes.client.reading import Problems
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.client.refusals import NotFound
from brim.kubernetes.client.resources import ObjectKey, PlainObject, Resource
from brim.kubernetes.client.times import read_time
from brim.kubernetes.kubeflow.asked import (
    KINDS,
    KUBEFLOW,
    PYTORCH,
    VERSION,
    KubeflowSpec,
    first_replicas,
    is_ours,
    read_asked,
    submission_of,
    wishes_of,
)
from brim.kubernetes.kubeflow.autoscalers import AUTOSCALERS, OURS
from brim.kubernetes.kubeflow.kubeflow_pods import KubeflowOrder
from brim.kubernetes.kubeflow.objects import KubeflowStart
from brim.kubernetes.kubeflow.records import (
    RESOURCES,
    job_of,
    read_records,
    sign,
    write_record,
    write_status,
)
from brim.kubernetes.kubeflow.status import stalled_status, status_of
from brim.kubernetes.objects.identities import KubeJob
from brim.kubernetes.objects.status import Stall
from brim.kubernetes.objects.tenants import KnownTenants
from brim.kubernetes.pods.known_pods import KnownPods

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Written:
    """The state of an object on the server, as it was written last."""

    uid: str
    record: str = ""
    status: Any = None


class KubeflowJobs:
    """The objects of Kubeflow's kinds.

    Args:
        watched: the namespace whose jobs are scheduled; empty: all.
        slot: what a pod asks for.
        tolerated: keys of taints that pods bear.
        kubectl, gangs: see `KubeflowStart`.
        pods: of all jobs.
        changed: is called with the id of each job whose object has changed.
        record: the record of a job by its id.
        wall: seconds since 1970.

    Attributes:
        evictions: see `KubeflowStart`; not before it is known that the server has them.
    """

    def __init__(
        self,
        server: ApiServer,
        *,
        watched: str,
        slot: Totals,
        tolerated: tuple[str, ...],
        kubectl: str,
        gangs: bool,
        pods: KnownPods,
        changed: Callable[[str], None],
        record: Callable[[str], ScheduledJob | None],
        wall: Callable[[], float],
    ) -> None:
        self._server, self._watched, self._pods = server, watched, pods
        self._slot, self._tolerated, self._kubectl = slot, tolerated, kubectl
        self._gangs, self.evictions = gangs, False
        self._changed, self._record, self._wall = changed, record, wall
        self.reflectors: dict[str, Reflector[PlainObject]] = {}
        self._autoscalers = Reflector(
            server, AUTOSCALERS, changed=self._autoscaler_changed, namespace=watched, labels=OURS
        )
        self.key = b""
        self._asked: dict[str, tuple[object, KubeflowSpec]] = {}
        self._written: dict[str, _Written] = {}

    async def find(self) -> None:
        """Find out which of the kinds the server has."""
        for word, resource in RESOURCES.items():
            if not await self._is_served(resource):
                await self._warn_of_absence(word)
                continue
            self.reflectors[word] = Reflector(
                self._server, resource, changed=self._hears_of(word), namespace=self._watched
            )

    async def _is_served(self, resource: Resource[PlainObject]) -> bool:
        try:
            async for _ in self._server.pages(resource, namespace=self._watched):
                break
        except NotFound:
            return False
        return True

    async def _warn_of_absence(self, word: str) -> None:
        """Say that the server does not have a kind, or only versions whose jobs nobody runs."""
        kind = KINDS[word]
        for version in kind.others:
            if await self._is_served(Resource(f"{KUBEFLOW}/{version}", kind.plural, PlainObject)):
                _log.warning(
                    "the server has %s as %s/%s and not as %s: brim runs none of these jobs, and "
                    "without another operator they wait for ever",
                    kind.name,
                    KUBEFLOW,
                    version,
                    VERSION,
                )
                return
        _log.warning("the server has no %s", kind.name)

    @property
    def watches(self) -> tuple[Reflector[PlainObject], ...]:
        """All that keeps up to date what is known; it has to be run."""
        return (*self.reflectors.values(), *([self._autoscalers] if self.reflectors else []))

    def _autoscaler_changed(self, change: ObjectChange[PlainObject]) -> None:
        self._changed(KubeJob(*change.key, PYTORCH).id)

    def _hears_of(self, word: str) -> Callable[[ObjectChange[PlainObject]], None]:
        def hear(change: ObjectChange[PlainObject]) -> None:
            if _deciding(change.before) != _deciding(change.after):
                self._changed(KubeJob(*change.key, word).id)

        return hear

    # What is there --------------------------------------------------------------------------------

    def object(self, job: str) -> PlainObject | None:
        """Return the object of a job; None where there is none that is this operator's."""
        name = KubeJob.parse(job)
        if name.kind not in self.reflectors:
            return None
        objects = self.reflectors[name.kind].objects
        thing = objects.get(ObjectKey(name.namespace, name.name))
        if thing is None or not is_ours(thing):
            return None
        return {**thing, "kind": KINDS[name.kind].name}  # which those of a list do not say

    def autoscaler(self, job: str) -> PlainObject | None:
        """Return the autoscaler of a job; None where there is none that an operator has made."""
        name = KubeJob.parse(job)
        if name.kind != PYTORCH:
            return None
        return self._autoscalers.objects.get(ObjectKey(name.namespace, name.name))

    def ids(self) -> Iterator[str]:
        """Return the ids of all jobs that have an object."""
        for word, reflector in self.reflectors.items():
            for key, thing in reflector.objects.items():
                if is_ours(thing):
                    yield KubeJob(*key, word).id

    def read_records(self) -> tuple[list[ScheduledJob], dict[str, EnvironmentFault]]:
        """Return the records that objects have, and why others cannot be read, by job."""
        things = (
            (word, thing)
            for word, reflector in self.reflectors.items()
            for thing in reflector.objects.values()
            if is_ours(thing)
        )
        return read_records(things, self.key)

    def asked(self, job: str) -> KubeflowSpec | None:
        """Return what a job's object asks for, or did as long as it could be understood."""
        thing, record = self.object(job), self._record(job)
        if thing is None or record is None or thing["metadata"]["uid"] != record.key:
            return None
        state = record.key, thing["metadata"].get("generation")
        known = self._asked.get(job)
        if known is None or known[0] != state:
            asked = read_asked(thing, slot=self._slot, first=first_replicas(record))
            if isinstance(asked, KubeflowSpec):
                known = self._asked[job] = state, asked
        return known[1] if known is not None else None

    def order(self, job: str) -> KubeflowOrder | None:
        """Return the object of a job as far as its pods go."""
        thing, record, asked = self.object(job), self._record(job), self.asked(job)
        if thing is None or record is None or asked is None:
            return None

        def start(launch: int) -> KubeflowStart:
            return KubeflowStart(
                asked=asked,
                uid=record.key,
                launch=launch,
                slot=self._slot,
                tolerated=self._tolerated,
                kubectl=self._kubectl,
                gangs=self._gangs,
                evictions=self.evictions,
            )

        began = (thing.get("status") or {}).get("startTime")
        return KubeflowOrder(
            uid=record.key,
            asked=asked,
            start=start,
            began=read_time(began, field="status.startTime") if began else None,
            ended=record.ended,
            is_over=record.life.ended,
            starts=record.starts,
            autoscaler=self.autoscaler(job),
        )

    # What it asks for -----------------------------------------------------------------------------

    def read(self, thing: PlainObject, known: KnownTenants) -> Submission | Problems:
        """Return the submission of an object that is read for the first time."""
        asked = read_asked(thing, slot=self._slot)
        return submission_of(thing, asked, known) if isinstance(asked, KubeflowSpec) else asked

    def wishes(
        self, thing: PlainObject, record: ScheduledJob
    ) -> tuple[list[Wished | RangeChanged], Problems]:
        """Return what an object asks for beyond what its record says."""
        return wishes_of(thing, record, slot=self._slot)

    # What is written ------------------------------------------------------------------------------

    async def write(
        self, thing: PlainObject, record: ScheduledJob, story: Sequence[Change], stall: Stall | None
    ) -> None:
        """Have the object of a job keep its record, and say how it does."""
        job, uid = record.id, record.key
        there = self._written.get(job)
        if there is None or there.uid != uid:
            there = self._written[job] = _Written(uid, status=thing.get("status"))
        signed = sign(record, self.key)
        if signed != there.record:
            await write_record(self._server, job, thing, signed)
            there.record = signed
        status = status_of(
            record,
            self.asked(job),
            self._pods.of(job),
            before=there.status,
            now=self._wall(),
            why=_why(record, story),
            stall=stall,
        )
        if status != there.status:
            await write_status(self._server, job, thing, status)
            there.status = status

    async def stall(self, thing: PlainObject, stall: Stall) -> None:
        """Say in the status of an object why nothing comes of it."""
        job = job_of(thing, thing["kind"].lower()).id
        before = thing.get("status")
        status = stalled_status(thing["kind"], before, stall, now=self._wall())
        if status != before:
            await write_status(self._server, job, thing, status)

    def forget(self, job: str) -> None:
        """Know nothing more of a job whose object is gone."""
        self._asked.pop(job, None)
        self._written.pop(job, None)


def _why(record: ScheduledJob, story: Sequence[Change]) -> str:
    if record.life.ended:
        return ""
    last = next((change for change in reversed(story) if reason_of(change)), None)
    return sentence_of(last) if last else record.judgement.detail


def _deciding(thing: PlainObject | None) -> Any:
    """Return what of an object decides anything: all but its status, and the record."""
    meta = thing["metadata"] if thing is not None else {}
    return meta.get("uid"), meta.get("generation"), meta.get("deletionTimestamp")
