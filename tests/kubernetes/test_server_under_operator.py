"""The faults of a real API server while an operator has jobs on it, and of the wire between them.

`BRIM_SERVER_FAULTS=1` tries all of them, which takes minutes. Of each the promise is the same: every job
ends, nothing is started twice, nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.kubernetes import record
from brim.kubernetes.client import reflector
from brim.kubernetes.client.access import find_access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.holder import LEASES
from brim_lab.kubernetes.api import kubeconfig
from brim_lab.kubernetes.control_plane import API_SERVER, ETCD, ControlPlane
from kubernetes.test_operator import plane, planes, run
from kubernetes.test_operator_dies import Town

__all__ = ["plane"]

ALL = os.environ.get("BRIM_SERVER_FAULTS", "0") not in ("", "0")
PATIENCE = 60.0
TIMEOUT = 3.0  # seconds for a call of the operator's
JOBS = ("flights", "other")


class Wire:
    """The connections between an operator and its API server, which can be cut, held and slowed."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._to = int(plane.url.rpartition(":")[2])
        self._plane, self._folder = plane, folder
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_open = True  # else connections are refused, as nearly as a listener can
        self.delay = 0.0  # seconds before what the server says is passed on
        self.holds = asyncio.Event()  # set: everything is passed on
        self.holds.set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Callable[[ApiServer], ApiServer]]:
        """Yield a function that has a client call through the wire."""
        listener = await asyncio.start_server(self._called, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        config = self._folder / "wire.kubeconfig"
        api = self._plane.api
        config.write_bytes(kubeconfig(f"https://127.0.0.1:{port}", api.authority, api.token))

        renewing: list[asyncio.Task[None]] = []

        def wired(client: ApiServer) -> ApiServer:
            client.access = find_access({"KUBECONFIG": str(config)})
            client._timeout = TIMEOUT
            renewing.append(asyncio.create_task(renew(client)))
            return client

        try:
            yield wired
        finally:
            for task in renewing:
                task.cancel()
            await asyncio.gather(*renewing, return_exceptions=True)
            self.cut()
            listener.close()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0.05)  # what was cut closes in the next turns of the loop

    def cut(self) -> None:
        """End all connections that there are."""
        for task in self._tasks:
            task.cancel()

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            if self.is_open:
                server = await asyncio.open_connection("127.0.0.1", self._to)
                writers.append(server[1])
                requests = self._passed(reader, server[1], lambda: 0.0)
                answered = self._passed(server[0], writer, lambda: self.delay)
                async with asyncio.TaskGroup() as group:
                    group.create_task(requests)
                    group.create_task(answered)
        except (asyncio.CancelledError, OSError, ExceptionGroup):
            pass  # it was cut, at one end or here
        finally:
            self._tasks.discard(task)
            for one_writer in writers:
                one_writer.transport.abort()

    async def _passed(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        delay: Callable[[], float],
    ) -> None:
        while data := await reader.read(1 << 16):
            if delay():
                await asyncio.sleep(delay())
            await self.holds.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


async def renew(client: ApiServer) -> None:
    """Ask something now and then, as the holder of a Lease does: it notices an outage."""
    async with ApiServer(client.access, timeout=TIMEOUT, outages=client.outages) as api:
        while True:
            with contextlib.suppress(EnvironmentFault):
                await api.get(LEASES, "none", namespace="default")
            await asyncio.sleep(1.0)


def forget_the_past(plane: ControlPlane) -> None:
    """Have etcd keep only the present state."""
    version = plane.api.ask("/api/v1/nodes")["metadata"]["resourceVersion"]

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(str(plane._sockets / "client"))

    etcd = Connection("etcd", timeout=10.0)
    etcd.request("POST", "/v3/kv/compaction", json.dumps({"revision": version}))
    answer = etcd.getresponse()
    assert answer.status == 200, answer.read()
    etcd.close()


async def restart(plane: ControlPlane) -> None:
    """Kill the API server, and have another one in its place."""
    await asyncio.to_thread(plane[API_SERVER].stop, signal.SIGKILL)
    plane[API_SERVER].start()  # here: it dies with the thread that has started it
    await asyncio.to_thread(plane.wait_ready)


class City(Town):
    """A namespace whose operator calls its server through a wire."""

    async def until_so(self, holds: Callable[[], Any]) -> None:
        """Let kubelets do their work until this is so; a server that is away is waited for."""

        def is_so() -> bool:
            with contextlib.suppress(EnvironmentFault):
                self.kubelets.settle()
                return bool(holds())
            return False

        deadline = monotonic() + PATIENCE
        while not await asyncio.to_thread(is_so):
            assert self.task is not None
            if self.task.done():
                self.task.result()
            assert monotonic() < deadline, sorted(self.kubelets.pods())
            await asyncio.sleep(0.02)

    def story(self, name: str = "flights") -> str:
        return "\n".join(self.job(name)["status"]["story"])

    async def ends_well(self, *jobs: str, pods: int, workers: int = 2) -> None:
        """All jobs run, are done, and nothing of them was started twice or is left."""
        for name in jobs:
            await self.until_so(lambda: self.runs_with(workers, name))  # noqa: B023
        for name in jobs:
            await asyncio.to_thread(self.end, name, "done")
            await self.until_so(lambda: self.phase(name) == "Done")  # noqa: B023
        await self.until_so(lambda: not self.kubelets.pods())
        restarted = [name for name in jobs if self.record_of(name).starts.launches > 1]
        assert not restarted, "\n".join(map(self.story, restarted))
        counts = Counter({name: len(uids) for name, uids in self.made.items()})
        assert counts.total() == pods, self.made
        for name in jobs:
            await asyncio.to_thread(self.delete, name)
        await self.until_so(lambda: not (self.left() or self.folders))


@pytest.fixture(autouse=True)
def _news_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_PROGRESS", 0.2)
    monkeypatch.setattr(reflector, "_LONGEST_PAUSE", 1.0)


@pytest.fixture
def city(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[City]:
    city = City(plane, namespace, tmp_path)
    yield city
    city.kubelets.remove_all()  # the nodes are the next test's


async def submit(city: City, *jobs: str, workers: int = 2) -> None:
    for name in jobs:
        workers_range = {"min": workers, "max": workers}
        await asyncio.to_thread(city.submit, name, workers=workers_range)


async def killed_in_the_middle_of_starts(city: City, _: Wire) -> None:
    await submit(city, *JOBS)
    await city.until_so(lambda: any(city.workers(name) for name in JOBS))
    await restart(city.plane)
    await city.ends_well(*JOBS, pods=6)


async def forgets_what_is_deleted_meanwhile(city: City, wire: Wire) -> None:
    await submit(city, "flights")
    await city.until_so(lambda: city.runs_with(2))
    wire.is_open = False
    wire.cut()
    for pod in ("flights-1-0", "flights-master"):
        await asyncio.to_thread(city.kubelets.remove, pod)
    await asyncio.to_thread(forget_the_past, city.plane)
    await restart(city.plane)  # its cache begins with what is so now
    wire.is_open = True
    await city.ends_well("flights", pods=5)


async def has_its_store_stopped(city: City, _: Wire) -> None:
    async with a_job_that_gives(city):
        city.plane[ETCD].send(signal.SIGSTOP)
        await asyncio.sleep(20.0)
        city.plane[ETCD].send(signal.SIGCONT)
        await asyncio.to_thread(city.plane.wait_ready)


async def says_nothing_for_long(city: City, wire: Wire) -> None:
    async with a_job_that_gives(city):
        wire.holds.clear()
        await asyncio.sleep(20.0)
        wire.holds.set()


@contextlib.asynccontextmanager
async def a_job_that_gives(city: City) -> AsyncIterator[None]:
    """It was asked just before, and its pods end right behind an outage.

    That lasts longer than the grace period, of 10 s.
    """
    await submit(city, "flights", workers=3)
    await city.until_so(lambda: city.runs_with(3))
    pods = city.kubelets.pods()
    city.kubelets.frozen = {name for name in pods if not name.endswith("master")}
    await asyncio.to_thread(city.change, workers={"min": 2, "max": 2})

    def request_count() -> int:
        pods = city.kubelets.pods().values()
        return sum("deletionTimestamp" in pod["metadata"] for pod in pods)

    await city.until_so(request_count)
    yield
    city.kubelets.frozen = set()
    await city.until_so(lambda: city.runs_with(2))
    assert "forced" not in city.story()
    await city.ends_well("flights", pods=4)


async def cuts_watches_again_and_again(city: City, wire: Wire) -> None:
    await submit(city, *JOBS)
    for _ in range(20):
        await asyncio.sleep(0.3)
        wire.cut()
    await city.ends_well(*JOBS, pods=6)


async def answers_slowly(city: City, wire: Wire) -> None:
    wire.delay = 0.7
    await submit(city, *JOBS)
    await city.ends_well(*JOBS, pods=6)


async def answers_too_late(city: City, wire: Wire) -> None:
    """Starts are done, and their answers are lost."""
    await asyncio.sleep(2.0)
    wire.delay = TIMEOUT + 1.0
    await submit(city, *JOBS)
    await asyncio.sleep(15.0)
    wire.delay = 0.0
    await city.ends_well(*JOBS, pods=6)


FAULTS = (
    killed_in_the_middle_of_starts,
    forgets_what_is_deleted_meanwhile,
    has_its_store_stopped,
    says_nothing_for_long,
    cuts_watches_again_and_again,
    answers_slowly,
    answers_too_late,
)


@pytest.mark.parametrize("fault", FAULTS if ALL else FAULTS[:2])
def test_a_server_that(
    city: City, plane: ControlPlane, fault: Callable[[City, Wire], Awaitable[None]]
) -> None:
    async def work() -> None:
        wire = Wire(plane, city.folder)
        async with wire.listening() as wired, city.watched(), city.operator(wired):
            await fault(city, wire)

    run(work)


BUSY = ("--enable-priority-and-fairness=false", "--max-mutating-requests-inflight=1")


def has_no_time(namespace: str, tmp_path: Path) -> None:
    """It answers 429 with Retry-After, but to its administrators."""
    codes, token = Counter[int](), "a" * 32
    with planes(tmp_path / "plane", BUSY, {"operator": (token, "operators")}) as plane:
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        plane.api.ask(path, method="POST", body=BINDING)
        config = tmp_path / "operator.kubeconfig"
        config.write_bytes(kubeconfig(plane.url, plane.api.authority, token))
        city = City(plane, namespace, tmp_path)

        def counting(api: ApiServer) -> ApiServer:
            api.access = find_access({"KUBECONFIG": str(config)})
            api._answered = lambda verb, code: codes.update([code])
            return api

        async def work() -> None:
            async with city.watched(), city.operator(counting):
                await submit(city, *JOBS)
                await city.ends_well(*JOBS, pods=6)

        run(work)
    assert codes[429] > 0


BINDING = {
    "metadata": {"name": "operator"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "cluster-admin",
    },
    "subjects": [{"kind": "User", "name": "operator"}],
}

if ALL:
    test_a_server_that_has_no_time = has_no_time
