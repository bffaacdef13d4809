"""A reflector, and a server that cuts connections, forgets versions and refuses requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web

from brim.kubernetes.client.known_objects import ObjectChange
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.client.resources import ObjectKey, PlainObject, Resource
from scripted_api import Answering, ScriptedApi, page, plain_object, refuses, watched

PODS = Resource("v1", "pods", PlainObject)
BOOKMARK = ("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "50"}})
EXPIRED = ("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
PATIENCE = 60.0


class Watching:
    """A reflector that runs, and its news."""

    def __init__(self, reflector: Reflector[PlainObject], changes: list[str]) -> None:
        self.reflector, self.told = reflector, changes

    async def until(self, *changes: str) -> None:
        """Wait until these changes were told, and no others."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self.told[: len(changes)] != list(changes):
                    await asyncio.sleep(0.01)
        assert self.told == list(changes)


def spelled(change: ObjectChange[PlainObject]) -> str:
    sign = "+" if change.before is None else "-" if change.after is None else "~"
    return sign + change.key.name


def quiet() -> Answering:
    return watched(stays=True)


@contextlib.asynccontextmanager
async def watching(api: ScriptedApi, **settings: float) -> AsyncIterator[Watching]:
    changes: list[str] = []
    async with api.served() as server:
        reflector = Reflector(
            server,
            PODS,
            changed=lambda change: changes.append(spelled(change)),
            **settings,  # type: ignore[arg-type]
        )
        running = asyncio.create_task(reflector.run())
        try:
            yield Watching(reflector, changes)
        finally:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running


def run(api: ScriptedApi, *changes: str, requests: int, **settings: float) -> None:
    """Reflect until these changes were told; it must have taken so many requests."""

    async def reflect() -> None:
        async with watching(api, **settings) as watch_:
            await watch_.until(*changes)
            async with asyncio.timeout(PATIENCE):
                while len(api.asked) < requests:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # no request follows where nothing happens
            assert len(api.asked) == requests, api.asked

    asyncio.run(reflect())


def test_all_is_listed_in_pages_and_then_watched() -> None:
    happens = [
        ("ADDED", plain_object("d", version=9)),
        ("MODIFIED", plain_object("a", version=10)),
        ("DELETED", plain_object("b", version=11)),
    ]
    api = ScriptedApi([page("ab", 7, token="x"), page("c", 7), watched(*happens, stays=True)])
    run(api, "+a", "+b", "+c", "+d", "~a", "-b", requests=3)
    assert "allowWatchBookmarks=true" in api.asked[2]
    assert "resourceVersion=7&" in api.asked[2]


def test_refused_listings_are_tried_again() -> None:
    async def reflect() -> None:
        api = ScriptedApi([refuses(503), page("ab", 7), quiet()])
        async with watching(api) as watch_:
            async with asyncio.timeout(PATIENCE):
                await watch_.reflector.synced()
            assert watch_.reflector.objects.keys() == {
                ObjectKey("default", "a"),
                ObjectKey("default", "b"),
            }
            assert watch_.told == ["+a", "+b"]

    asyncio.run(reflect())


def test_ended_watches_resume_without_listing() -> None:
    added = ("ADDED", plain_object("b", version=9))
    api = ScriptedApi([page("a", 7), watched(added), watched(BOOKMARK), quiet()])
    run(api, "+a", "+b", requests=4)
    assert [
        query.partition("resourceVersion=")[2].partition("&")[0] for query in api.asked[1:]
    ] == [
        "7",
        "9",
        "50",
    ]


def test_silent_watches_are_restarted() -> None:
    # On a busy machine it may find the second one silent, too, before it hears of that.
    deletion = watched(("DELETED", plain_object("a", version=9)), stays=True)
    api = ScriptedApi([page("a", 7), quiet(), deletion])

    async def reflect() -> None:
        async with watching(api, silence=0.3) as watch_:
            await watch_.until("+a", "-a")
            assert len(api.asked) >= 3

    asyncio.run(reflect())


@pytest.mark.parametrize("forgotten", [watched(EXPIRED), refuses(410, "Expired")])
def test_changes_before_410_are_found(forgotten: Answering) -> None:
    api = ScriptedApi([page("abc", 7), forgotten, page("ad", 20), quiet()])
    run(api, "+a", "+b", "+c", "-b", "-c", "+d", requests=4)


def test_slow_lists_are_retried_without_pages() -> None:
    api = ScriptedApi([page("ab", 7, token="x"), refuses(410), page("ac", 8), quiet()])
    run(api, "+a", "+c", requests=4)
    assert "limit=0" in api.asked[2]


def test_repeated_errors_may_concern_the_version() -> None:
    failed = watched(("ERROR", {"code": 500, "message": "etcd is away"}))
    api = ScriptedApi([page("a", 7), failed, failed, page("b", 8), quiet()])
    run(api, "+a", "-a", "+b", requests=5)


def test_busy_servers_are_not_asked_for_lists() -> None:
    busy = refuses(503, "ServiceUnavailable")
    api = ScriptedApi([page("a", 7), busy, busy, busy, quiet()])
    run(api, "+a", requests=5)
    assert all("watch=1" in request for request in api.asked[1:])


def test_absent_servers_are_asked_less_often() -> None:
    async def reflect() -> None:
        api = ScriptedApi([page("a", 7), refuses(403, "Forbidden", "no verb watch")])
        async with watching(api) as watch_:
            async with asyncio.timeout(PATIENCE):
                while "no verb watch" not in watch_.reflector.fault:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(1.5)
            assert len(api.asked) <= 7  # 0.1, 0.2, 0.4 … seconds between them
            assert watch_.reflector.objects.keys() == {ObjectKey("default", "a")}
            api.answers, api.asked[:] = [page("a", 7), quiet()], []
            async with asyncio.timeout(PATIENCE):
                while watch_.reflector.fault:
                    await asyncio.sleep(0.01)

    asyncio.run(reflect())


def test_short_lived_watches_are_slowed() -> None:
    async def reflect() -> None:
        api = ScriptedApi([page("a", 7), watched()])
        async with watching(api) as watch_:
            await watch_.until("+a")
            await asyncio.sleep(1.0)
            assert len(api.asked) <= 7

    asyncio.run(reflect())


def test_undecodable_events_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Pod(msgspec.Struct):
        turn: int = 0

    async def reflect() -> None:
        odd = ("MODIFIED", plain_object("a", version=9, turn="odd"))
        last = ("MODIFIED", plain_object("a", version=10, turn=2))
        api = ScriptedApi([page("a", 7), watched(odd, last, stays=True)])
        changes: list[ObjectChange[Pod]] = []
        async with api.served() as server:
            reflector = Reflector(server, Resource("v1", "pods", Pod), changed=changes.append)
            running = asyncio.create_task(reflector.run())
            async with asyncio.timeout(PATIENCE):
                while len(changes) < 2:
                    await asyncio.sleep(0.01)
            running.cancel()
        object_before, object_after = changes[1].before, changes[1].after
        assert object_before is not None
        assert object_after is not None
        assert (object_before.turn, object_after.turn) == (0, 2)

    with caplog.at_level(logging.WARNING):
        asyncio.run(reflect())
    assert "default/a is passed over" in caplog.text


def test_what_the_caller_raises_ends_it() -> None:
    async def reflect() -> None:
        def fail(_: object) -> None:
            raise KeyError("a bug")

        async with ScriptedApi([page("a", 7), quiet()]).served() as server:
            with pytest.raises(KeyError):
                await Reflector(server, PODS, changed=fail).run()

    asyncio.run(reflect())


def test_half_a_line_is_no_event() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"type":"DELETED","object":{"metadata":{"name":"a","namesp')
        assert request.transport is not None
        request.transport.abort()
        return response

    api = ScriptedApi(
        [page("a", 7), cut, watched(("ADDED", plain_object("b", version=8))), quiet()]
    )
    run(api, "+a", "+b", requests=4)
