"""Calls to an API server with rare behaviour."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import msgspec
import pytest
from aiohttp import web

from brim.errors import ProtocolError
from brim.kubernetes.client import transport
from brim.kubernetes.client.access import Access
from brim.kubernetes.client.api_server import ApiServer, NotPermitted
from brim.kubernetes.client.credentials import FixedProof, Proof
from brim.kubernetes.client.refusals import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NoAnswer,
    NotFound,
    Refusal,
    ServerFailed,
    TooManyRequests,
    Unauthorized,
    VersionGone,
)
from brim.kubernetes.client.resources import PlainObject, Resource
from scripted_api import ScriptedApi, page, plain_object, refuses, says

PODS = Resource("v1", "pods", PlainObject)
A = plain_object("a", version=1)


def get(api: ScriptedApi, *, timeout: float = 30.0) -> PlainObject:
    async def ask() -> PlainObject:
        async with api.served(timeout=timeout) as server:
            return await server.get(PODS, "a", namespace="default")

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", VersionGone),
        (422, "Invalid", Invalid),
        (500, "InternalError", ServerFailed),
        (503, "ServiceUnavailable", ServerFailed),
        (405, "MethodNotAllowed", Refusal),
        (302, "", Refusal),
    ],
)
def test_a_no_is_an_error_of_its_kind(code: int, reason: str, kind: type[Refusal]) -> None:
    api = ScriptedApi([refuses(code, reason, "the words of the server", Location="http://x/")])
    with pytest.raises(Refusal, match="GET /api/v1/namespaces/default/pods/a: the words") as error:
        get(api)
    assert type(error.value) is kind
    assert (error.value.code, error.value.reason) == (code, reason)
    assert error.value.retryable == (code >= 500)


@pytest.mark.parametrize("limit", ["_LARGEST_ANSWER", "_LARGEST_REFUSAL"])
def test_an_answer_without_end_is_not_taken_in(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, limit, 1 << 20)
    is_refusal = limit == "_LARGEST_REFUSAL"

    async def ask() -> None:
        api = ScriptedApi([says({"x": "x" * (2 << 20)}, 403 if is_refusal else 200)])
        async with api.served() as server:
            if is_refusal:
                async with server.watch(PODS, version="1", seconds=9.0, silence=9.0):
                    pass
            else:
                await server.get(PODS, "a", namespace="default")

    with pytest.raises(NoAnswer, match="an answer of more than 1024 KiB"):
        asyncio.run(ask())


def test_a_no_says_which_fields() -> None:
    details = {"name": "a", "causes": [{"field": "spec.x", "message": "too small"}]}
    api = ScriptedApi([says({"reason": "Invalid", "code": 422, "details": details}, 422)])
    with pytest.raises(Invalid) as error:
        get(api)
    assert [cause.field for cause in error.value.causes] == ["spec.x"]


def test_a_token_is_carried_nowhere_else() -> None:
    """A redirect is an answer that makes no sense, and not an order."""

    async def ask() -> list[str]:
        thief = ScriptedApi([says(A)])
        async with thief.served() as other_server:
            api = ScriptedApi([refuses(307, Location=f"{other_server.access.url}/x")])
            async with api.served() as server:
                with pytest.raises(Refusal):
                    await server.get(PODS, "a", namespace="default")
                with pytest.raises(Refusal):
                    async with server.watch(PODS, version="1", seconds=1, silence=1):
                        pass
        return thief.asked

    assert asyncio.run(ask()) == []


def test_what_a_proxy_says_is_shown() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="<html>bad gateway</html>")

    with pytest.raises(ServerFailed, match="bad gateway"):
        get(ScriptedApi([answer]))


def test_who_has_no_time_is_asked_later() -> None:
    started = time.monotonic()
    busy = refuses(429, "TooManyRequests", Retry_After="1")
    api = ScriptedApi([busy, refuses(503, Retry_After="0"), says(A)])
    assert get(api) == A
    assert len(api.asked) == 3
    assert time.monotonic() - started >= 1.0


def test_a_busy_server_is_given_up_in_time() -> None:
    api = ScriptedApi([refuses(429, "TooManyRequests", Retry_After="60")])
    with pytest.raises(TooManyRequests) as error:
        get(api, timeout=5.0)
    assert error.value.retryable
    assert len(api.asked) == 1


def test_ambiguous_failures_are_not_retried() -> None:
    api = ScriptedApi([refuses(500, "InternalError")])
    with pytest.raises(ServerFailed):
        get(api)
    assert len(api.asked) == 1


def test_who_says_nothing_is_not_waited_for() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    with pytest.raises(NoAnswer, match="no answer in time") as error:
        get(ScriptedApi([answer]), timeout=0.2)
    assert error.value.retryable


def test_an_endless_watch_refusal_is_not_awaited() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=502, headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half of ")
        await asyncio.sleep(3600)
        raise AssertionError

    async def ask() -> None:
        async with (
            asyncio.timeout(20.0),
            ScriptedApi([answer]).served(timeout=0.5) as server,
            server.watch(PODS, version="1", seconds=60.0, silence=60.0),
        ):
            pytest.fail("it was taken")

    with pytest.raises(NoAnswer, match="no answer in time"):
        asyncio.run(ask())


def test_where_nobody_listens_there_is_no_answer() -> None:
    silent = socket.socket()  # it has the port, so that nobody else listens there meanwhile
    silent.bind(("127.0.0.1", 0))
    port = silent.getsockname()[1]
    access = Access(
        url=f"http://127.0.0.1:{port}", namespace="default", credentials=FixedProof(Proof())
    )

    async def ask() -> None:
        async with ApiServer(access) as server:
            await server.get(PODS, "a", namespace="default")

    with silent, pytest.raises(NoAnswer, match=str(port)):
        asyncio.run(ask())


def test_what_makes_no_sense_is_said_to() -> None:
    class Pod(msgspec.Struct):
        spec: dict[str, int]

    async def ask() -> None:
        async with ScriptedApi([says({"spec": {"x": "y"}})]).served() as server:
            await server.get(Resource("v1", "pods", Pod), "a", namespace="default")

    with pytest.raises(ProtocolError, match="spec"):
        asyncio.run(ask())


def test_refused_tokens_are_renewed_once() -> None:
    class Renewing:
        renewals = 0

        async def proof(self, *, renewed: bool = False) -> Proof:
            self.renewals += renewed
            return Proof(f"Bearer {self.renewals}")

    async def ask(api: ScriptedApi) -> None:
        async with api.served(Renewing()) as server:
            await server.get(PODS, "a", namespace="default")

    unknown = refuses(401, "Unauthorized")
    api = ScriptedApi([unknown, says(A)])
    asyncio.run(ask(api))
    assert [header["Authorization"] for header in api.headers] == ["Bearer 0", "Bearer 1"]
    with pytest.raises(Unauthorized):
        asyncio.run(ask(ScriptedApi([unknown])))


def test_a_list_comes_in_pages() -> None:
    api = ScriptedApi([page("ab", 7, token="more"), page("c", 7)])

    async def ask() -> tuple[list[str], str]:
        async with api.served() as server:
            listing = await server.list(PODS, namespace="default", labels="x=y,z in (a, b)")
            return [item["metadata"]["name"] for item in listing.items], listing.version

    assert asyncio.run(ask()) == (["a", "b", "c"], "7")
    assert "limit=500" in api.asked[0]
    assert "continue" not in api.asked[0]
    assert "continue=more" in api.asked[1]


def test_each_request_says_what_is_meant() -> None:
    api = ScriptedApi([says(A)])

    async def ask() -> None:
        async with api.served() as server:
            namespace = "default"
            await server.create(PODS, A, namespace=namespace)
            await server.apply(PODS, "a", A, namespace=namespace, subresource="status")
            await server.apply(PODS, "a", A, namespace=namespace, force=False)
            await server.merge_patch(PODS, "a", {"x": None}, namespace=namespace)
            await server.json_patch(PODS, "a", [{"op": "test"}], namespace=namespace)
            await server.replace(PODS, "a", A, namespace=namespace)
            await server.delete(
                PODS, "a", namespace=namespace, grace=0, uid="u", propagation="Orphan"
            )

    asyncio.run(ask())
    path = "/api/v1/namespaces/default/pods"
    assert api.asked == [
        f"POST {path}?fieldManager=brim",
        f"PATCH {path}/a/status?force=true&fieldManager=brim",
        f"PATCH {path}/a?fieldManager=brim",
        f"PATCH {path}/a?fieldManager=brim",
        f"PATCH {path}/a?fieldManager=brim",
        f"PUT {path}/a?fieldManager=brim",
        f"DELETE {path}/a",
    ]
    kinds = [header["Content-Type"].removeprefix("application/") for header in api.headers]
    apply, merge, operations = "apply-patch+yaml", "merge-patch+json", "json-patch+json"
    assert kinds == ["json", apply, apply, merge, operations, "json", "json"]
    assert json.loads(api.bodies[3]) == {"x": None}
    assert json.loads(api.bodies[6]) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Orphan",
    }


def test_requests_go_at_the_rate_that_is_set() -> None:
    api = ScriptedApi([says(A)])

    async def ask() -> float:
        async with api.served(qps=20, burst=5) as server:
            started = time.monotonic()
            await asyncio.gather(*(server.get(PODS, "a", namespace="default") for _ in range(15)))
            return time.monotonic() - started

    assert asyncio.run(ask()) >= 10 / 20 * 0.99
    assert len(api.asked) == 15


def test_logs_are_read() -> None:
    async def log(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b"one\ntw", b"o\n\nth", b"ree"):
            await response.write(part)
            await asyncio.sleep(0.05)
        return response

    async def read() -> bytes:
        async with api.served() as server:
            return await server.logs("a", namespace="default", container="c", tail=9, previous=True)

    api = ScriptedApi([log])
    assert asyncio.run(read()) == b"one\ntwo\n\nthree"
    path = "GET /api/v1/namespaces/default/pods/a/log"
    assert api.asked == [f"{path}?container=c&tailLines=9&previous=true&limitBytes=16777216"]


def test_logs_are_read_from_a_time_on() -> None:
    stamp = "2026-11-30T10:00:00.000000001Z"

    async def read() -> bytes:
        async with api.served() as server:
            return await server.stamped_logs("a", namespace="default", container="c", since=stamp)

    api = ScriptedApi([says({})])
    asyncio.run(read())
    path = "GET /api/v1/namespaces/default/pods/a/log"
    assert api.asked == [
        f"{path}?container=c&timestamps=true&sinceTime={stamp}&limitBytes=16777216"
    ]


def test_who_may_not_write_sends_nothing() -> None:
    api = ScriptedApi([says(A)])

    async def ask() -> None:
        async with api.served(may_write=lambda: False) as server:  # type: ignore[arg-type]
            await server.get(PODS, "a", namespace="default")
            await server.delete(PODS, "a", namespace="default")

    with pytest.raises(NotPermitted, match="does not hold the Lease"):
        asyncio.run(ask())
    assert len(api.asked) == 1


def test_objects_without_namespace_are_not_requested() -> None:
    with pytest.raises(ValueError, match="in a namespace"):
        PODS.path("", "a")
