"""Services on Kubernetes: their loads are measured, and their scale follows what is foreseen.

Only the number of replicas is changed. Pods, rollouts and addresses are Kubernetes' own, and a
service whose load or whose object cannot be read keeps the replicas that it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from brim.domain.autoscaling import BETWEEN_LOADS, Autoscaler
from brim.domain.quantities import counted
from brim.errors import EnvironmentFault, ProtocolError, SpecError
from brim.interfaces import Clock
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.known_objects import ObjectChange
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.client.refusals import Conflict, NotFound, Refusal
from brim.kubernetes.client.resources import Resource
from brim.kubernetes.client.times import NO_TIME, write_time
from brim.kubernetes.install.manifests import LOADS
from brim.kubernetes.metrics import ServiceFigures
from brim.kubernetes.objects.kept_loads import (
    MOST_SERVICES,
    KeptLoads,
    keep_loads,
    pack,
    remembered,
    unpack,
)
from brim.kubernetes.objects.scaled_services import (
    APPS,
    AUTOSCALING,
    EVENTS,
    SCALED_KINDS,
    Annotations,
    OtherAutoscaler,
    ScaledObject,
    ScaledService,
    ServiceKey,
    autoscaled_by_others,
    event_of,
    oldest_first,
    read_service,
)
from brim.kubernetes.pods.pod_requests import CONFIG_MAPS
from brim.wire.measure import measure

INVALID, TWO_AUTOSCALERS, TOO_MANY = "InvalidService", "TwoAutoscalers", "TooManyServices"
LOAD_UNKNOWN, NOT_SCALED, SCALED = "LoadUnknown", "NotScaled", "Scaled"  # reasons of events
_KINDS = {plural: Resource(f"{APPS}/v1", plural, ScaledObject) for plural in SCALED_KINDS}
_AUTOSCALERS = Resource(f"{AUTOSCALING}/v2", "horizontalpodautoscalers", OtherAutoscaler)
_RETRY_PAUSE = 2.0  # seconds before the pasts are asked for again
_KEEP_EVERY = 60.0  # seconds, at least, between two writes of all pasts
_SAY_AGAIN = 1800.0  # seconds: a server forgets an event after an hour
_BETWEEN_WORDS = 10.0  # seconds, at least, between two events about what is wrong with a service
_READERS = 8  # loads that are read at once
_KEY = "loads"
_log = logging.getLogger(__name__)


class _Scaler:
    """One service that is scaled.

    Args:
        uid: of its object.
        annotations: that were read.
        kept: what an earlier operator knew of it; None: nothing.
        replicas: that it has.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        uid: str,
        annotations: Annotations,
        service: ScaledService,
        kept: KeptLoads | None,
        *,
        replicas: int,
        wall: float,
    ) -> None:
        self.uid, self.annotations, self.service = uid, annotations, service
        url, day = service.url, service.rule.day
        past, self._coarse = remembered(kept, url=url, day=day, wall=wall)
        notices = kept.notices if kept is not None else ()
        self.autoscaler = Autoscaler(past, replicas=replicas, notices=notices)
        self.asked = replicas  # that its scale was last given by this operator, or had at first
        self.ready = 0
        self._reading: Future[float] | None = None

    def kept(self) -> KeptLoads:
        """Return what the next operator is to know."""
        url, day = self.service.url, self.service.rule.day
        return keep_loads(self._coarse, url=url, day=day, notices=self.autoscaler.notices)

    def read(self, readers: ThreadPoolExecutor, wall: float) -> bool:
        """Take in the load that was read, and read it again.

        Returns:
            Whether a load was read.

        Raises:
            EnvironmentFault: it could not be read.
        """
        reading = self._reading
        if reading is not None and not reading.done():
            return False
        self._reading = readers.submit(measure, self.service.url)
        if reading is None:
            return False
        load = reading.result()
        self.autoscaler.measured(load, wall=wall)
        self._coarse.add(wall, load)
        return True


class ServiceScaling:
    """The services of an operator's namespaces.

    Args:
        watched: the namespace whose services are scaled; empty: those of all.
        namespace: the operator's own.
        prefixes: with one of which the URL of a load has to begin.
        clock: whose monotonic seconds stand still while the API server is away.
    """

    def __init__(
        self,
        server: ApiServer,
        *,
        watched: str,
        namespace: str,
        prefixes: Collection[str],
        clock: Clock,
    ) -> None:
        self._server, self._namespace, self._clock = server, namespace, clock
        self._prefixes = prefixes
        self._objects = {
            plural: Reflector(server, kind, changed=_ignore, namespace=watched)
            for plural, kind in _KINDS.items()
        }
        self._autoscalers = Reflector(server, _AUTOSCALERS, changed=_ignore, namespace=watched)
        self.watches: tuple[Reflector[Any], ...] = (*self._objects.values(), self._autoscalers)
        self._scalers: dict[ServiceKey, _Scaler] = {}
        self._kept: dict[ServiceKey, KeptLoads] = {}
        self._kept_at = -math.inf
        self._said: dict[
            ServiceKey, tuple[str, float]
        ] = {}  # what is wrong, and when that was said

    async def run(self) -> None:
        """Scale until cancelled, once the watches are synced; the replicas stay."""
        self._kept = await self._read_kept()
        readers = ThreadPoolExecutor(_READERS, thread_name_prefix="loads")
        try:
            while True:
                await self._look(readers)
                await self._keep()
                await asyncio.sleep(BETWEEN_LOADS)
        finally:
            readers.shutdown(wait=False, cancel_futures=True)

    def figures(self) -> list[ServiceFigures]:
        """Return the figures of the services that are scaled."""
        return [
            ServiceFigures(
                key.namespace,
                key.name,
                key.kind,
                load=scaler.autoscaler.load,
                wanted=scaler.autoscaler.target,
                ready=scaler.ready,
            )
            for key, scaler in sorted(self._scalers.items())
        ]

    # A look ---------------------------------------------------------------------------------------

    async def _look(self, readers: ThreadPoolExecutor) -> None:
        """Look at each service once; whatever is wrong with one, others are looked at."""
        things = dict(self._things())
        keys = oldest_first(things.items())
        for key in (self._scalers.keys() | self._said.keys()) - set(keys):
            self._scalers.pop(key, None)
            self._said.pop(key, None)
        others = autoscaled_by_others(self._autoscalers.objects)
        for key in keys:
            try:
                await self._tend(key, things[key], others.get(key, ""), readers)
            except (EnvironmentFault, ProtocolError) as fault:
                _log.warning("%s is scaled later: %s", "/".join(key), fault)
            except Exception:  # noqa: BLE001 - whatever it is, it is about this service alone
                _log.exception("%s cannot be scaled", "/".join(key))
            await asyncio.sleep(0)  # others have their turn in between

    def _things(self) -> Iterator[tuple[ServiceKey, ScaledObject]]:
        for plural, reflector in self._objects.items():
            for key, thing in reflector.objects.items():
                yield ServiceKey(plural, key.namespace, key.name), thing

    async def _tend(
        self, key: ServiceKey, thing: ScaledObject, other: str, readers: ThreadPoolExecutor
    ) -> None:
        if other:
            self._scalers.pop(key, None)
            words = f"the HorizontalPodAutoscaler {other} scales it, too: delete that, or the annotations"
            await self._say(key, thing, TWO_AUTOSCALERS, words)
            return
        try:
            scaler = self._scaler_of(key, thing)
        except SpecError as wrong:
            self._scalers.pop(key, None)
            await self._say(key, thing, INVALID, str(wrong))
            return
        if scaler is None:
            others = counted(MOST_SERVICES, "other service")
            words = f"{others} scaled by this operator, which takes no more"
            await self._say(key, thing, TOO_MANY, words)
            return
        scaler.ready = thing.status.ready_replicas
        scaler.autoscaler.ready(scaler.ready, self._clock.now())
        if thing.spec.replicas == 0:  # as for a HorizontalPodAutoscaler: it is switched off
            return
        try:
            is_new = scaler.read(readers, self._wall())
        except EnvironmentFault as fault:
            await self._say(key, thing, LOAD_UNKNOWN, str(fault))
            return
        if is_new and not any(watch.fault for watch in self.watches):
            await self._rescale(key, thing, scaler)

    def _scaler_of(self, key: ServiceKey, thing: ScaledObject) -> _Scaler | None:
        """Return the scaler of a service; None: there are too many.

        Raises:
            SpecError: its annotations are wrong.
        """
        scaler, annotations = self._scalers.get(key), thing.annotations
        if scaler is not None and scaler.uid == thing.metadata.uid:
            if scaler.annotations == annotations:
                return scaler
            service = read_service(annotations, prefixes=self._prefixes)
            before = scaler.service
            if (service.url, service.rule.day) == (before.url, before.rule.day):
                scaler.annotations, scaler.service = annotations, service
                return scaler
        service = read_service(annotations, prefixes=self._prefixes)
        if scaler is None and len(self._scalers) >= MOST_SERVICES:
            return None
        self._scalers[key] = scaler = _Scaler(
            thing.metadata.uid,
            annotations,
            service,
            self._kept.pop(key, None),
            replicas=thing.spec.replicas,
            wall=self._wall(),
        )
        return scaler

    async def _rescale(self, key: ServiceKey, thing: ScaledObject, scaler: _Scaler) -> None:
        """Have a service as many replicas as follow from its load.

        A number that somebody else has chosen within the range stays until another one follows.
        """
        rule, now = scaler.service.rule, self._clock.now()
        target = scaler.autoscaler.decide(rule, now=now, wall=self._wall())
        current = thing.spec.replicas
        is_in_range = rule.minimum <= current <= rule.maximum
        if target == current or (target == scaler.asked and is_in_range):
            scaler.asked = target
            return
        meta = thing.metadata
        body = {
            "metadata": {"resourceVersion": meta.resource_version},
            "spec": {"replicas": target},
        }
        try:
            await self._server.merge_patch(
                _KINDS[key.plural], key.name, body, namespace=key.namespace, subresource="scale"
            )
        except (Conflict, NotFound):
            return  # it has changed: it is read again first
        except Refusal as refused:
            await self._say(key, thing, NOT_SCALED, str(refused))
            return
        scaler.asked = target
        scaler.autoscaler.resized(current, target, now)
        await self._tell(key, meta.uid, SCALED, scaler.autoscaler.words(rule), is_warning=False)

    # What is told ---------------------------------------------------------------------------------

    async def _say(self, key: ServiceKey, thing: ScaledObject, reason: str, words: str) -> None:
        """Say in an event what is wrong with a service, once, and again before that is forgotten."""
        now = self._clock.now()
        last, said_at = self._said.get(key, ("", -math.inf))
        if now - said_at < (_SAY_AGAIN if words == last else _BETWEEN_WORDS):
            return
        self._said[key] = words, now
        await self._tell(key, thing.metadata.uid, reason, words, is_warning=True)

    async def _tell(
        self, key: ServiceKey, uid: str, reason: str, words: str, *, is_warning: bool
    ) -> None:
        time = write_time(self._wall()) or NO_TIME
        body = event_of(key, uid, reason=reason, message=words, is_warning=is_warning, time=time)
        name = body["metadata"]["name"]
        with contextlib.suppress(NotFound):  # its namespace is gone
            await self._server.apply(EVENTS, name, body, namespace=key.namespace)

    def _wall(self) -> float:
        return self._clock.wall() + self._clock.set_by()

    # What an operator leaves to the next ----------------------------------------------------------

    async def _read_kept(self) -> dict[ServiceKey, KeptLoads]:
        while True:
            try:
                kept = await self._server.get(CONFIG_MAPS, LOADS, namespace=self._namespace)
                break
            except NotFound:
                return {}
            except (EnvironmentFault, ProtocolError) as fault:
                _log.warning("services are scaled later: %s", fault)
                await asyncio.sleep(_RETRY_PAUSE)
        try:
            return unpack((kept.get("binaryData") or {}).get(_KEY, ""))
        except EnvironmentFault as fault:
            _log.warning("services begin without a past: %s", fault)
            return {}

    async def _keep(self) -> None:
        """Write down the pasts of all services, now and then."""
        now = self._clock.now()
        is_new = any(scaler.autoscaler.load is not None for scaler in self._scalers.values())
        if not is_new or now - self._kept_at < _KEEP_EVERY:
            return
        self._kept_at = now
        kept = {}
        for key, scaler in self._scalers.items():
            kept[key] = scaler.kept()
            await asyncio.sleep(0)  # others have their turn in between
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": LOADS, "namespace": self._namespace},
            "binaryData": {_KEY: pack(kept)},
        }
        try:
            await self._server.apply(CONFIG_MAPS, LOADS, body, namespace=self._namespace)
        except (EnvironmentFault, ProtocolError) as fault:
            _log.warning("the loads of services are kept later: %s", fault)


def _ignore(_: ObjectChange[Any]) -> None:
    """Do nothing: each look reads what is there."""
