"""Calls to the API server of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import uniform
from typing import Any, Generic, Literal, Self, TypeVar, cast

import msgspec

from brim.decoding import UNDECODABLE
from brim.errors import ProtocolError
from brim.host.clock import monotonic
from brim.kubernetes.client.access import Access
from brim.kubernetes.client.credentials import Proof
from brim.kubernetes.client.outages import Outages
from brim.kubernetes.client.rate import RateLimit
from brim.kubernetes.client.refusals import NoAnswer, refusal
from brim.kubernetes.client.resources import PlainObject, Resource
from brim.kubernetes.client.transport import HttpStream, Transport

FIELD_MANAGER = "brim"  # as which fields are owned
PAGE = 500  # objects of a list that are asked for at once
_TIMEOUT = 30.0  # seconds
_TRIES = 10  # of a request that the server has no time for
_A_WHILE = 1.0  # seconds before the next one, where it does not say
_LARGEST_LOG = 16 << 20  # bytes
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
T = TypeVar("T")

Propagation = Literal["", "Foreground", "Background", "Orphan"]


class NotPermitted(NoAnswer):
    """A request that was not sent: this process holds no Lease any more, and may not write."""

    def __init__(self, called: str) -> None:
        super().__init__(f"{called}: not sent, as this process does not hold the Lease")


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of a list.

    Args:
        resource_version: at which it was true.
        continue_from: the server's word for the next page; empty: there is none.
    """

    resource_version: str = ""
    continue_from: str = msgspec.field(default="", name="continue")


class ListPage(msgspec.Struct, frozen=True, rename="camel"):
    """A page of a list, with objects that are not decoded yet."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class WatchEvent(msgspec.Struct, frozen=True):
    """An event of a watch.

    Args:
        type: `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
        object: as it is, or was at its end; of a bookmark only its version, of an error a Status.
    """

    type: str
    object: msgspec.Raw


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of a kind.

    Args:
        items: in the order of their keys, as the server has them.
        version: at which this was true: a watch goes on from there.
    """

    items: list[T]
    version: str


class ApiServer:
    """An API server as this process calls it.

    Every call ends: by its answer, or by NoAnswer once `timeout` is over. A request that the server
    has no time for is sent again within that time. What waits for its turn by the limit of requests
    waits besides. The calls raise Refusal where the server says no, and ProtocolError where its
    answer makes no sense.

    Args:
        access: where it is, and how to be heard.
        qps: requests a second in the long run.
        burst: requests at once.
        timeout: seconds for a call.
        may_write: asked before each request that changes something; False refuses it with
            NotPermitted, as a Lease does that was lost.
        answered: called with the verb of each request and the code of its answer; 0: there was none.
        outages: are told which requests are answered; None: they are its own.

    Attributes:
        outages: of the server.
    """

    def __init__(
        self,
        access: Access,
        *,
        qps: float = 50.0,
        burst: int = 100,
        timeout: float = _TIMEOUT,
        may_write: Callable[[], bool] | None = None,
        answered: Callable[[str, int], None] = lambda verb, code: None,
        outages: Outages | None = None,
    ) -> None:
        self.access, self.outages = access, outages or Outages()
        self._limit = RateLimit(per_second=qps, burst=burst)
        self._timeout, self._may_write, self._answered = timeout, may_write, answered
        self._transport: Transport | None = None
        self._retired: Transport | None = None
        self._proof: tuple[bytes, bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        for transport in (self._transport, self._retired):
            if transport is not None:
                await transport.close()
        self._transport = self._retired = None

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """Return an object."""
        return await self._changed("GET", resource, namespace, name)

    async def list(
        self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> Listing[T]:
        """Return all objects, as they are at one moment.

        Args:
            namespace: in which; empty: all.
            labels: a label selector; empty: all.
            fields: a field selector; empty: all.
        """
        items: list[T] = []
        version = ""
        pages = self.pages(resource, namespace=namespace, labels=labels, fields=fields)
        async for page in pages:
            items += [decoded(resource, item) for item in page.items or ()]
            version = page.metadata.resource_version
        return Listing(items, version)

    async def pages(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        limit: int = PAGE,
    ) -> AsyncGenerator[ListPage]:
        """Yield all objects as they are at one moment, in pages; arguments as those of `list`.

        No `resourceVersion` is named: the server then answers with the present state, not with
        one that its cache had a while ago.

        Raises:
            Gone: it took so long that the server has forgotten that moment; begin from scratch.
        """
        path, continuation = resource.path(namespace), ""
        while True:
            query = _query(
                labelSelector=labels,
                fieldSelector=fields,
                limit=limit,
                **{"continue": continuation},
            )
            page = _read(_pages, await self._ask("GET", path, query, verb="list"), path)
            yield page
            continuation = page.metadata.continue_from
            if not continuation:
                return

    @contextlib.asynccontextmanager
    async def watch(
        self,
        resource: Resource[T],
        *,
        version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        seconds: float,
        silence: float,
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Yield the events since a version, bookmarks among them.

        Args:
            version: of a list or an event.
            seconds: after which the server ends it.
            silence: seconds without a byte after which the connection is given up.

        Raises:
            Gone: the server has forgotten that version.
        """
        query = _query(
            watch="1",
            resourceVersion=version,
            allowWatchBookmarks="true",
            timeoutSeconds=max(1, round(seconds)),
            labelSelector=labels,
            fieldSelector=fields,
        )
        path = resource.path(namespace)
        async with (
            self._streamed(path, query, "watch") as stream,
            contextlib.aclosing(stream.lines(silence)) as lines,
            contextlib.aclosing(_events(lines, path)) as events,
        ):
            yield events

    async def create(self, resource: Resource[T], body: object, *, namespace: str = "") -> T:
        """Create an object.

        Args:
            body: all of it, plain JSON values, or a struct.

        Raises:
            AlreadyExists: one of its name does.
        """
        return await self._changed("POST", resource, namespace, "", body)

    async def apply(
        self,
        resource: Resource[T],
        name: str,
        body: object,
        *,
        namespace: str = "",
        subresource: str = "",
        force: bool = True,
    ) -> T:
        """Have an object be as `body` says, whether it exists or not, in the fields that it names.

        Fields that brim has applied before and `body` lacks are removed.

        Args:
            body: with apiVersion, kind and name.
            force: take the fields that other managers own.

        Raises:
            Conflict: another manager owns one, and it is not to be taken.
        """
        query = {"force": "true"} if force else {}
        return await self._changed(
            "PATCH", resource, namespace, name, body, subresource, content=_APPLY, query=query
        )

    async def replace(
        self,
        resource: Resource[T],
        name: str,
        body: object,
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """Replace an object.

        Args:
            body: all of it; with a `resourceVersion` only if it has not changed since.

        Raises:
            Conflict: it has.
        """
        return await self._changed("PUT", resource, namespace, name, body, subresource)

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        body: object,
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """Change the fields that `body` has; null removes one.

        Args:
            body: with a `resourceVersion` in its metadata only if the object has not changed since.

        Raises:
            Conflict: it has.
        """
        return await self._changed(
            "PATCH", resource, namespace, name, body, subresource, content=_MERGE
        )

    async def json_patch(
        self,
        resource: Resource[T],
        name: str,
        operations: Sequence[Mapping[str, object]],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """Carry out operations on an object, as RFC 6902 defines them: all of them or none.

        Raises:
            Invalid: one cannot be carried out, such as a `test` that fails.
        """
        return await self._changed(
            "PATCH", resource, namespace, name, operations, subresource, content=_JSON_PATCH
        )

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        *,
        namespace: str = "",
        grace: int | None = None,
        uid: str = "",
        version: str = "",
        propagation: Propagation = "",
    ) -> None:
        """Ask for the end of an object; returns before it is gone.

        Args:
            grace: seconds that a pod may take; None: as the pod says; 0: none, nobody waits for it.
            uid: only if it is this one, and not another of its name; empty: any.
            version: only if it is as it was at this version; empty: however it is.
            propagation: what becomes of the objects that it owns; empty: as its kind has it.

        Raises:
            Conflict: it is another one, or has changed.
        """
        options: PlainObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        conditions = {"uid": uid, "resourceVersion": version}
        if uid or version:
            options["preconditions"] = {key: value for key, value in conditions.items() if value}
        if propagation:
            options["propagationPolicy"] = propagation
        await self._ask("DELETE", resource.path(namespace, name), {}, options)

    async def delete_each(self, resource: Resource[T], *, namespace: str, labels: str) -> None:
        """Ask for the end of the objects of a namespace that a label selector selects."""
        if not namespace or not labels:
            raise ValueError(f"all {resource.plural} would go: namespace and labels say which")
        await self._ask("DELETE", resource.path(namespace), _query(labelSelector=labels))

    async def logs(
        self,
        pod: str,
        *,
        namespace: str,
        container: str = "",
        tail: int | None = None,
        previous: bool = False,
    ) -> bytes:
        """Return the output of a container, at most 16 MiB of it.

        Args:
            container: empty: the only one.
            tail: the last lines alone; None: all.
            previous: of its last life.
        """
        query = _query(
            container=container,
            tailLines=tail,
            previous="true" if previous else "",
            limitBytes=_LARGEST_LOG,
        )
        return await self._ask("GET", _PODS.path(namespace, pod, "log"), query)

    async def stamped_logs(self, pod: str, *, namespace: str, container: str, since: str) -> bytes:
        """Return the output of a container, at most 16 MiB of it, each line behind its time.

        Args:
            since: lines before the second of this time are left out; empty: none is.
        """
        query = _query(
            container=container, timestamps="true", sinceTime=since, limitBytes=_LARGEST_LOG
        )
        return await self._ask("GET", _PODS.path(namespace, pod, "log"), query)

    async def _changed(
        self,
        method: str,
        resource: Resource[T],
        namespace: str,
        name: str,
        body: object = None,
        subresource: str = "",
        *,
        content: str = _JSON,
        query: Mapping[str, str] | None = None,
    ) -> T:
        """Send a request and return the object that it answers with."""
        path = resource.path(namespace, name, subresource)
        parameters = dict(query or {})
        if method != "GET":
            parameters["fieldManager"] = FIELD_MANAGER
        return decoded(resource, await self._ask(method, path, parameters, body, content))

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: object = None,
        content: str = _JSON,
        *,
        verb: str = "",
    ) -> bytes:
        """Send a request, and again where the server asks for that; return the body.

        Args:
            verb: of Kubernetes; empty: the one that the method usually is.
        """
        called = f"{method} {path}"
        encoded = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": content}
        await self._turn()
        end = monotonic() + self._timeout
        tried, renewed = 0, False
        while True:
            if method != "GET" and self._may_write is not None and not self._may_write():
                raise NotPermitted(called)
            transport, proof = await self._ready(renewed)
            with self._counted(verb or _VERBS[method]) as count:
                answer = await transport.ask(
                    method,
                    path,
                    query=query,
                    headers={**headers, **proof},
                    body=encoded,
                    timeout=max(0.001, end - monotonic()),
                )
                count(answer.code)
            if answer.code < 300:
                return answer.body
            if answer.code == 401 and not renewed:
                renewed = True
                continue
            tried += 1
            pause = _pause_before_next(answer.code, answer.retry_after)
            if pause is None or tried >= _TRIES or monotonic() + pause > end:
                raise refusal(called, answer.code, answer.body)
            await asyncio.sleep(pause)
            await self._turn()

    @contextlib.contextmanager
    def _counted(self, verb: str) -> Iterator[Callable[[int], None]]:
        """Tell of a request's answer, once that is there, or of its lack."""
        sent, codes = monotonic(), list[int]()
        try:
            yield codes.append
        except NoAnswer:
            self.outages.unanswered(sent)
            raise
        finally:
            self._answered(verb, codes[0] if codes else 0)
        if codes[0] < 500:
            self.outages.answered(monotonic())
        else:
            self.outages.unanswered(sent)

    @contextlib.asynccontextmanager
    async def _streamed(
        self, path: str, query: Mapping[str, str], verb: str
    ) -> AsyncIterator[HttpStream]:
        await self._turn()
        async with contextlib.AsyncExitStack() as stack:
            for renewed in (False, True):
                transport, proof = await self._ready(renewed)
                with self._counted(verb) as count:
                    stream = await stack.enter_async_context(
                        transport.stream(path, query=query, headers=proof, timeout=self._timeout)
                    )
                    count(stream.code)
                if stream.code != 401:
                    break
            if stream.code >= 300:
                raise refusal(f"GET {path}", stream.code, await stream.read(self._timeout))
            yield stream

    async def _turn(self) -> None:
        """Wait for this request's turn."""
        now = monotonic()
        turn_at = self._limit.turn(now)
        if turn_at > now:
            await asyncio.sleep(turn_at - now)

    async def _ready(self, renewed: bool) -> tuple[Transport, Mapping[str, str]]:
        """Return the connections to use, and the headers that identify the caller."""
        proof = await self.access.credentials.proof(renewed=renewed)
        if self._transport is None or self._proof != (proof.certificate, proof.key):
            await self._connect(proof)
        assert self._transport is not None
        header = {"Authorization": proof.authorization} if proof.authorization else {}
        return self._transport, header

    async def _connect(self, proof: Proof) -> None:
        """Have new connections, which show this proof.

        The last ones may be in use still: they go with the next change.
        """
        access, outdated = self.access, self._retired
        self._retired, self._transport = (
            self._transport,
            Transport(
                access.url,
                tls=access.tls(proof),
                server_name=access.server_name,
                proxy=access.proxy,
            ),
        )
        self._proof = (proof.certificate, proof.key)
        if outdated is not None:
            await outdated.close()


def decoded(resource: Resource[T], content: bytes | msgspec.Raw) -> T:
    """Return an object as its resource has it.

    Raises:
        ProtocolError: it cannot be decoded.
    """
    return _read(_decoder(resource.decode), content, resource.plural)


_PODS = Resource("v1", "pods", PlainObject)
_pages = msgspec.json.Decoder(ListPage)
_watched = msgspec.json.Decoder(WatchEvent)
_decoders: dict[object, msgspec.json.Decoder[Any]] = {}


async def _events(lines: AsyncIterator[bytes], path: str) -> AsyncGenerator[WatchEvent]:
    async for line in lines:
        yield _read(_watched, line, path)


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return cast("msgspec.json.Decoder[T]", _decoders[kind])


def _read(decoder: msgspec.json.Decoder[T], content: bytes | msgspec.Raw, subject: str) -> T:
    try:
        return decoder.decode(content)
    except UNDECODABLE as error:
        raise ProtocolError(
            f"{subject}: the API server sent what cannot be read: {error}"
        ) from error


def _query(**parameters: object) -> dict[str, str]:
    """Return the query without empty parameters."""
    return {key: str(value) for key, value in parameters.items() if value not in ("", None)}


def _pause_before_next(code: int, retry_after: float | None) -> float | None:
    """Return the seconds before a request is sent again; None: it is not.

    Where the server says after how long, it has not carried the request out, with any code.
    """
    if code != 429 and (code < 500 or retry_after is None):
        return None
    return (_A_WHILE if retry_after is None else retry_after) * uniform(1.0, 1.25)
