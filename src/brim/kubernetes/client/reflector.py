"""Keeps copies of an API server's objects: a list, then a watch for as long as it lasts.

A connection that breaks is opened again at the last version that was seen, so nothing is missed and
nothing is listed. Where the server has forgotten that version (410), all is listed again, and the
difference is what happened meanwhile, ends of objects included. In between nothing is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from random import uniform
from typing import Generic, NoReturn, TypeVar

import msgspec

from brim.decoding import UNDECODABLE
from brim.errors import BrimError, EnvironmentFault, ProtocolError
from brim.host.clock import monotonic
from brim.kubernetes.client.api_server import PAGE, ApiServer, WatchEvent, decoded
from brim.kubernetes.client.known_objects import KnownObjects, ObjectChange, Sighting
from brim.kubernetes.client.outages import Outages
from brim.kubernetes.client.refusals import (
    Invalid,
    Refusal,
    Status,
    TooManyRequests,
    VersionGone,
    refusal_of,
)
from brim.kubernetes.client.resources import ObjectKey, Resource

_LASTS = 300.0  # seconds for which a watch is asked for at least, and twice that at most
_SILENCE = 150.0  # seconds: a bookmark comes every minute, and the first one within two
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds before it is tried again
_TOO_SHORT = 1.0  # seconds: a watch that ends sooner, and says nothing, has failed
_REFUSED_OFTEN = 2  # times in a row that a version was refused: then it may be the version
_log = logging.getLogger(__name__)
T = TypeVar("T")


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Metadata


_named = msgspec.json.Decoder(_Named)
_status = msgspec.json.Decoder(Status)


class Reflector(Generic[T]):
    """Keeps the objects of a kind, or some of them, as the API server has them.

    Args:
        server: to ask.
        resource: the kind. An object that cannot be decoded to its type is logged, and what was
            known of it stays.
        changed: called with each change, in order; it must not wait. Its errors end `run`.
        namespace: in which; empty: all.
        labels: a label selector; empty: all.
        fields: a field selector; empty: all.
        lasts: seconds for which the server is asked to keep a watch at least.
        silence: seconds without a byte after which the connection is given up.
        page: objects of a list that are asked for at once.
        outages: are told while the objects may be out of date; None: nobody decides by them for
            how long something has not happened.
    """

    def __init__(
        self,
        server: ApiServer,
        resource: Resource[T],
        *,
        changed: Callable[[ObjectChange[T]], None],
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        lasts: float = _LASTS,
        silence: float = _SILENCE,
        page: int = PAGE,
        outages: Outages | None = None,
    ) -> None:
        self._server, self._resource, self._tell = server, resource, changed
        self._selectors = {"namespace": namespace, "labels": labels, "fields": fields}
        self._lasts, self._silence, self._page = lasts, silence, page
        self._outages = outages
        self._objects: KnownObjects[T] = KnownObjects()
        self._synced = asyncio.Event()
        self._version: str | None = None  # None: all must be listed
        self._pause = _FIRST_PAUSE
        self._refused = 0
        self._fault = ""

    @property
    def objects(self) -> Mapping[ObjectKey, T]:
        """The objects by name: a view, which later changes show in."""
        return self._objects.objects

    @property
    def fault(self) -> str:
        """Return why the objects may be out of date; empty: they are not."""
        return self._fault

    async def synced(self) -> None:
        """Wait until all objects were listed once, and their changes were told."""
        await self._synced.wait()

    async def run(self) -> NoReturn:
        """Keep the objects up to date, until it is cancelled."""
        while True:
            started = monotonic()
            try:
                if self._version is None:
                    await self._list()
                await self._watch(self._version or "")
            except (EnvironmentFault, ProtocolError) as error:
                if self._outages is not None:
                    self._outages.miss(self._resource.plural, monotonic())
                if monotonic() - started > _LONGEST_PAUSE:  # it was well for a while
                    self._progress()
                await asyncio.sleep(self._pause_after(error))

    async def _list(self) -> None:
        try:
            found, version = await self._listed(self._page)
        except VersionGone:  # it took too long for pages
            found, version = await self._listed(0)
        self._report(self._objects.listed(found))
        self._version = version
        self._synced.set()

    async def _listed(self, page: int) -> tuple[list[Sighting[T]], str]:
        found: list[Sighting[T]] = []
        version = ""
        async with aclosing(
            self._server.pages(self._resource, limit=page, **self._selectors)
        ) as pages:
            async for item in pages:
                found += map(self._sighting, item.items or ())
                version = item.metadata.resource_version
        return found, version

    async def _watch(self, version: str) -> None:
        """Take in the events since a version, until the server ends the watch."""
        started, has_events = monotonic(), False
        async with self._server.watch(
            self._resource,
            version=version,
            seconds=uniform(self._lasts, 2 * self._lasts),
            silence=self._silence,
            **self._selectors,
        ) as events:
            self._is_well()
            async for event in events:
                self._take(event)
                self._progress()
                has_events = True
        if not has_events and monotonic() - started < _TOO_SHORT:
            raise EnvironmentFault("the watch ended as soon as it began", retryable=True)

    def _take(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            raise refusal_of(f"watch of {self._resource.plural}", _decoded(_status, event.object))
        if event.type == "BOOKMARK":
            self._version = _decoded(_named, event.object).metadata.resource_version
            return
        sighting = self._sighting(event.object)
        if event.type == "DELETED":
            self._report(self._objects.deleted(sighting.key))
        elif event.type in ("ADDED", "MODIFIED"):
            self._report(self._objects.seen(sighting))
        self._version = sighting.version

    def _report(self, changes: list[ObjectChange[T]]) -> None:
        for change in changes:
            self._tell(change)

    def _sighting(self, content: msgspec.Raw) -> Sighting[T]:
        metadata = _decoded(_named, content).metadata
        key = ObjectKey(metadata.namespace, metadata.name)
        value: T | None = None
        try:
            value = decoded(self._resource, content)
        except ProtocolError as error:
            _log.warning("%s %s is passed over: %s", self._resource.plural, key, error)
        return Sighting(key, metadata.uid, metadata.resource_version, value)

    def _progress(self) -> None:
        self._pause, self._refused = _FIRST_PAUSE, 0

    def _is_well(self) -> None:
        if self._outages is not None:
            self._outages.find(self._resource.plural, monotonic())
        if self._fault:
            _log.info("%s are watched again", self._resource.plural)
        self._fault = ""

    def _pause_after(self, error: BrimError) -> float:
        """Return the seconds to wait, and decide whether to list after them."""
        # A list would be one more thing to do for a server that has too much to do.
        is_busy = isinstance(error, Refusal) and error.code in (429, 503)
        self._refused += isinstance(error, Refusal) and not is_busy
        if isinstance(error, VersionGone | Invalid) or self._refused >= _REFUSED_OFTEN:
            self._version, self._refused = None, 0
        if not isinstance(error, VersionGone) and str(error) != self._fault:
            _log.warning("%s are not watched now: %s", self._resource.plural, error)
            self._fault = str(error)
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        minimum_pause = 0.0
        if isinstance(error, TooManyRequests) and error.status.details:
            minimum_pause = error.status.details.retry_after_seconds
        return minimum_pause + uniform(pause / 2, pause)


def _decoded(decoder: msgspec.json.Decoder[T], content: msgspec.Raw) -> T:
    try:
        return decoder.decode(content)
    except UNDECODABLE as error:
        raise ProtocolError(f"the API server sent what cannot be read: {error}") from error
