"""The operator as a responder to evictions of its jobs' pods: it ends them, and says how far it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from brim.errors import EnvironmentFault
from brim.interfaces import Clock
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.known_objects import ObjectChange
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.client.refusals import NotFound
from brim.kubernetes.client.resources import ObjectKey, Resource
from brim.kubernetes.objects.identities import identity_of
from brim.kubernetes.pods.evictions import API, Eviction, answer_to
from brim.kubernetes.pods.known_pods import KnownPods
from brim.kubernetes.pods.pod_requests import PodRequests

EVICTIONS = Resource(API, "evictions", Eviction)
_LOOK = 1.0  # seconds between two looks where nothing happens
_log = logging.getLogger(__name__)


class EvictionResponder:
    """Answers evictions, see `answer_to`.

    Args:
        watched: the namespace whose jobs are scheduled; empty: all.
        pods: of all jobs.
    """

    def __init__(self, server: ApiServer, *, watched: str, pods: KnownPods, clock: Clock) -> None:
        self._server, self._pods, self._clock = server, pods, clock
        self._watched = watched
        self._requests = PodRequests(server)
        self.watch = Reflector(server, EVICTIONS, changed=self._changed, namespace=watched)
        self._answered: dict[ObjectKey, tuple[Eviction, Eviction]] = {}  # as told, and as answered
        self._news = asyncio.Event()

    async def is_served(self) -> bool:
        """Return whether the server has evictions of this kind."""
        try:
            async for _ in self._server.pages(EVICTIONS, namespace=self._watched, limit=1):
                break
        except NotFound:
            _log.warning(
                "the server does not serve %s %s: evictions are not answered", API, EVICTIONS.plural
            )
            return False
        return True

    def stir(self) -> None:
        """Look soon: a pod has changed."""
        self._news.set()

    def _changed(self, change: ObjectChange[Eviction]) -> None:
        if change.after is None:
            self._answered.pop(change.key, None)
        self._news.set()

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._news.wait()
            self._news.clear()
            for key, eviction in list(self.watch.objects.items()):
                try:
                    await self._answer(key, eviction)
                except EnvironmentFault as fault:
                    _log.warning("the eviction %s is answered later: %s", key, fault)

    async def _answer(self, key: ObjectKey, reported: Eviction) -> None:
        last, answered = self._answered.get(key, (reported, reported))
        # A server tells of a change a moment after it has taken it.
        renewed = answered if last == reported else reported
        target = renewed.spec.target.pod
        pod = self._pods.named(f"{key.namespace}/{target.name}") if target is not None else None
        if pod is not None and identity_of(pod) is None:
            return  # somebody else has named the wrong responder
        now = self._clock.wall() + self._clock.set_by()
        answer = answer_to(renewed, pod, now)
        if answer is None:
            return
        if answer.end and pod is not None:
            await self._requests.end_pod(pod)
            self._pods.ending(pod, self._clock.now())
        body: dict[str, Any] = {
            "apiVersion": API,
            "kind": "Eviction",
            "metadata": {"name": key.name},
            "status": {"responders": [answer.report]},
        }
        with contextlib.suppress(NotFound):
            applied = await self._server.apply(
                EVICTIONS, key.name, body, namespace=key.namespace, subresource="status"
            )
            self._answered[key] = reported, applied
