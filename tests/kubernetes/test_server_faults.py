"""Clients' account of a server that fails: the time in which it could not be seen."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime

import pytest
from aiohttp import web

from brim.host.clock import monotonic, wall
from brim.kubernetes.client import holder as holder_module
from brim.kubernetes.client.access import Access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.holder import LeaseHolder, LeaseLost
from brim.kubernetes.client.lease import LeaseTerms
from brim.kubernetes.client.outages import Outages
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.client.refusals import NoAnswer, ServerFailed
from brim.kubernetes.client.resources import PlainObject, Resource
from scripted_api import ScriptedApi, page, plain_object, refuses, says, watched

PODS = Resource("v1", "pods", PlainObject)
PATIENCE = 10.0


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def work_alone() -> None:
        async with asyncio.timeout(2 * PATIENCE):
            await work()

    asyncio.run(work_alone())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.01)


async def says_nothing(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


async def cuts(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def counts(server: ApiServer) -> bool:
    """Return whether an outage is under way."""
    now = monotonic()
    return server.outages.unseen(now + 1.0) > server.outages.unseen(now)


@pytest.mark.parametrize("answer", [says_nothing, cuts, refuses(500), refuses(503)])
def test_unanswered_requests_are_an_outage(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> None:
    async def work() -> None:
        api = ScriptedApi([answer, refuses(404)])
        async with api.served(timeout=1.0) as server:
            start = monotonic()
            with pytest.raises((NoAnswer, ServerFailed)):
                await server.create(PODS, {}, namespace="default")
            assert counts(server)
            await asyncio.sleep(0.1)
            server._timeout = PATIENCE  # a busy machine may take longer than a second to answer
            with contextlib.suppress(Exception):
                await server.get(PODS, "a", namespace="default")
            assert not counts(server)
            assert 0.1 <= server.outages.unseen(monotonic()) - 1.0 <= monotonic() - start

    run(work)


@pytest.mark.parametrize(("renewed", "shortest"), [(70.0, 69.0), (None, 0.0)])
def test_new_holders_count_time_since_renewal(renewed: float | None, shortest: float) -> None:
    renew_time = datetime.fromtimestamp(wall() - (renewed or 0.0), UTC).isoformat()
    spec = {"holderIdentity": "", "renewTime": renew_time} if renewed is not None else {}
    lease = {"metadata": {"name": "one", "resourceVersion": "1"}, "spec": spec}

    async def takes(request: web.Request) -> web.StreamResponse:
        return web.json_response(await request.json())

    async def work() -> None:
        api = ScriptedApi([says(lease), takes])
        outages, seen = Outages(), list[float]()
        async with api.served() as server:
            holder = LeaseHolder(
                server.access, namespace="own", name="one", identity="me", outages=outages
            )

            async def once() -> None:
                seen.append(outages.unseen(monotonic()))

            await holder.run(once)
        assert shortest <= seen[0] < shortest + PATIENCE

    run(work)


@pytest.mark.parametrize("code", [401, 403, 404, 409, 422, 429])
def test_a_refusal_is_an_answer(code: int) -> None:
    async def work() -> None:
        api = ScriptedApi([refuses(code)])
        async with api.served() as server:
            with contextlib.suppress(Exception):
                await server.get(PODS, "a", namespace="default")
            assert server.outages.unseen(monotonic()) == 0.0

    run(work)


def test_a_blocked_watch_is_an_outage() -> None:
    async def work() -> None:
        api = ScriptedApi(
            [
                page("a", 3),
                watched(("MODIFIED", plain_object("a", version=4))),  # and it ends
                cuts,
                refuses(503),
                watched(("MODIFIED", plain_object("a", version=5)), stays=True),
            ]
        )
        async with api.served() as server:
            messages = list[str]()
            reflector = Reflector(
                server,
                PODS,
                changed=lambda change: messages.append(change.key.name),
                outages=server.outages,
            )
            running = asyncio.create_task(reflector.run())
            await until(lambda: len(api.asked) >= 3)
            server.outages.answered(monotonic())  # what other requests say is no news of pods
            await until(lambda: counts(server))
            await until(lambda: len(messages) == 3)
            assert not counts(server)
            assert server.outages.unseen(monotonic()) > 1.0
            running.cancel()
            await asyncio.wait([running])

    run(work)


@contextlib.contextmanager
def served_elsewhere(api: ScriptedApi) -> Iterator[Access]:
    """Serve in a thread of its own: it answers while the loop of a test stands still."""
    ready, ended = threading.Event(), asyncio.Event()
    found: list[tuple[Access, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        async with api.served() as server:
            found.append((server.access, asyncio.get_running_loop()))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(PATIENCE)
    access, loop = found[0]
    try:
        yield access
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(PATIENCE)


def a_lease() -> ScriptedApi:
    """A server that takes any write to a Lease."""
    leases: list[PlainObject] = []

    async def takes(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response(leases[-1] if leases else {}, status=200 if leases else 404)
        leases.append(await request.json())
        return web.json_response(leases[-1])

    return ScriptedApi([takes])


def test_a_busy_holder_keeps_its_lease() -> None:
    terms = LeaseTerms(duration=3.0, renew_within=2.4, retry=0.2)
    holds_seen: list[bool] = []

    async def work() -> None:
        time.sleep(2.5)  # nothing else gets a turn, for longer than it holds without a renewal
        holds_seen.append(holder.holds())
        await asyncio.sleep(0.1)

    with served_elsewhere(a_lease()) as access:
        holder = LeaseHolder(access, namespace="own", name="one", identity="me", terms=terms)
        asyncio.run(holder.run(work))
        assert holds_seen == [True]
        assert not holder.holds(), "it is released"


def test_an_idle_holder_loses_its_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holder_module, "_SIGN", 0.1)
    monkeypatch.setattr(holder_module, "_SILENCE", 1.0)
    terms = LeaseTerms(duration=2.0, renew_within=1.4, retry=0.2)
    holds_seen: list[bool] = []

    async def work() -> None:
        end = time.monotonic() + PATIENCE
        while holder.holds() and time.monotonic() < end:
            time.sleep(0.01)  # nothing else gets a turn
        holds_seen.append(holder.holds())
        await asyncio.sleep(PATIENCE)

    with served_elsewhere(a_lease()) as access:
        holder = LeaseHolder(access, namespace="own", name="one", identity="me", terms=terms)
        with pytest.raises(LeaseLost, match="nothing has been done for"):
            asyncio.run(holder.run(work))
        assert holds_seen == [False]


def test_cancelled_candidates_end() -> None:
    lease = {
        "metadata": {"name": "one", "resourceVersion": "1"},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 60},
    }

    async def does_not_end() -> None:
        raise AssertionError

    async def work() -> None:
        api = ScriptedApi([says(lease)])
        async with api.served() as server:
            holder = LeaseHolder(server.access, namespace="own", name="one", identity="me")
            running = asyncio.create_task(holder.run(does_not_end))
            await until(lambda: bool(api.asked))
            running.cancel()
            await asyncio.wait([running], timeout=PATIENCE)
            assert running.cancelled()

    run(work)
