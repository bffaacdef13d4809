"""The client on a real API server: pages, broken connections, compacted versions, field managers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from brim.errors import EnvironmentFault
from brim.kubernetes.client.access import KUBECONFIG, Access, find_access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.credentials import FixedProof, Proof, bearer
from brim.kubernetes.client.known_objects import ObjectChange
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.client.refusals import (
    AlreadyExists,
    Conflict,
    Invalid,
    NoAnswer,
    NotFound,
    Unauthorized,
    VersionGone,
)
from brim.kubernetes.client.resources import PlainObject, Resource
from brim_lab.kubernetes.api import PATCH
from brim_lab.kubernetes.control_plane import (
    API_SERVER,
    ETCD,
    ControlPlane,
    Features,
    control_plane,
)
from clusters import need

pytestmark = pytest.mark.e2e

MAPS = Resource("v1", "configmaps", PlainObject)
PODS = Resource("v1", "pods", PlainObject)
NAMESPACES = Resource("v1", "namespaces", PlainObject, namespaced=False)
PATIENCE = 120.0  # seconds: nothing is judged by it, and a busy machine is slow


class CountingServer(ApiServer):
    """Counts the lists that are asked for."""

    lists = 0

    async def pages(self, *args: Any, **settings: Any) -> Any:
        self.lists += 1
        async with contextlib.aclosing(super().pages(*args, **settings)) as pages:
            async for page in pages:
                yield page


class Cable:
    """The way to an API server, which can be cut.

    Attributes:
        passed: bytes that clients have sent.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._there, self.passed = (parts.hostname or "", parts.port or 0), 0
        self._ends: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self._port = 0

    @contextlib.asynccontextmanager
    async def laid(self) -> AsyncIterator[Cable]:
        """Listen, until the end."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self.cut()
            server.close()
            async with asyncio.timeout(PATIENCE):
                while self._carrying:  # more come of connections that were accepted just before
                    await asyncio.wait(self._carrying)

    def access(self, plane: ControlPlane) -> Access:
        return replace(access_to(plane), url=f"https://127.0.0.1:{self._port}")

    def cut(self) -> None:
        self._is_cut = True
        for end in self._ends:
            end.transport.abort()

    def mend(self) -> None:
        self._is_cut = False

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        async with self._ending(writer):
            far_reader, far_writer = await asyncio.open_connection(*self._there)
            async with self._ending(far_writer):
                if not self._is_cut:
                    await asyncio.gather(
                        self._copy(reader, far_writer, counted=True),
                        self._copy(far_reader, writer, counted=False),
                    )

    @contextlib.asynccontextmanager
    async def _ending(self, end: asyncio.StreamWriter) -> AsyncIterator[None]:
        self._ends.add(end)
        try:
            with contextlib.suppress(OSError):
                yield
        finally:
            self._ends.discard(end)
            end.transport.abort()
            with contextlib.suppress(OSError):
                await end.wait_closed()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool
    ) -> None:
        while content := await reader.read(1 << 16):
            self.passed += len(content) * counted
            writer.write(content)
            await writer.drain()
        writer.transport.abort()


def access_to(plane: ControlPlane) -> Access:
    return find_access({KUBECONFIG: str(plane.kubeconfig)})


def run(
    plane: ControlPlane, namespace: str, test: Callable[[ApiServer], Coroutine[Any, Any, None]]
) -> None:
    """Run a test with a client that may ask as fast as it can, in a namespace of its own."""

    async def prepared() -> None:
        async with ApiServer(access_to(plane), qps=2000, burst=2000) as server:
            await server.create(NAMESPACES, named(namespace))
            await test(server)

    asyncio.run(prepared())


def named(name: str, **fields: object) -> PlainObject:
    return {"metadata": {"name": name}, **fields}


@contextlib.asynccontextmanager
async def reflected(
    server: ApiServer, namespace: str, **settings: Any
) -> AsyncIterator[tuple[Reflector[PlainObject], list[str]]]:
    changes: list[str] = []

    def tell(change: ObjectChange[PlainObject]) -> None:
        sign = "+" if change.before is None else "-" if change.after is None else "~"
        changes.append(sign + change.key.name)

    reflector = Reflector(server, MAPS, namespace=namespace, changed=tell, **settings)
    running = asyncio.create_task(reflector.run())
    try:
        async with asyncio.timeout(PATIENCE):
            await reflector.synced()
        yield reflector, changes
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


async def patiently(call: Callable[[], Awaitable[object]]) -> None:
    """Call until somebody answers: the API server is being started."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await call()
            except NoAnswer:
                await asyncio.sleep(0.05)
            else:
                return


def test_long_lists_come_in_pages(api_server: ControlPlane, namespace: str) -> None:
    async def list_(server: ApiServer) -> None:
        names = [f"m{number:04}" for number in range(1200)]
        for begin in range(0, 1200, 100):
            batch = names[begin : begin + 100]
            await asyncio.gather(
                *(server.create(MAPS, named(name), namespace=namespace) for name in batch)
            )
        sizes = [len(page.items or ()) async for page in server.pages(MAPS, namespace=namespace)]
        assert sizes == [500, 500, 200]
        listing = await server.list(MAPS, namespace=namespace)
        assert [item["metadata"]["name"] for item in listing.items] == names
        async with reflected(server, namespace) as (reflector, changes):
            assert changes == [f"+{name}" for name in names]
            assert [key.name for key in reflector.objects] == names

    run(api_server, namespace, list_)


def test_only_what_is_selected_is_listed(api_server: ControlPlane, namespace: str) -> None:
    async def list_(server: ApiServer) -> None:
        for name, job in (("a", "x"), ("b", "y")):
            body = {"metadata": {"name": name, "labels": {"job": job}}}
            await server.create(MAPS, body, namespace=namespace)
        by_label = await server.list(MAPS, namespace=namespace, labels="job in (x, z)")
        by_field = await server.list(MAPS, namespace=namespace, fields="metadata.name!=a")
        names = [
            [item["metadata"]["name"] for item in found.items] for found in (by_label, by_field)
        ]
        assert names == [["a"], ["b"]]
        async with reflected(server, namespace, labels="job=x") as (_, changes):
            await server.merge_patch(
                MAPS, "a", {"metadata": {"labels": {"job": "y"}}}, namespace=namespace
            )
            await until(lambda: changes == ["+a", "-a"])  # it is selected no longer

    run(api_server, namespace, list_)


def test_a_cut_connection_costs_nothing(api_server: ControlPlane, namespace: str) -> None:
    async def cut(server: ApiServer) -> None:
        for name in "abc":
            await server.create(MAPS, named(name), namespace=namespace)
        async with (
            Cable(api_server.url).laid() as cable,
            CountingServer(cable.access(api_server)) as cut_off,
            reflected(cut_off, namespace) as (reflector, changes),
        ):
            cable.cut()
            await until(lambda: reflector.fault != "")
            await server.delete(MAPS, "a", namespace=namespace)
            await server.delete(MAPS, "b", namespace=namespace)
            await server.create(MAPS, named("b"), namespace=namespace)
            await server.create(MAPS, named("d"), namespace=namespace)
            await server.delete(MAPS, "d", namespace=namespace)
            assert changes == ["+a", "+b", "+c"]
            cable.mend()
            await until(lambda: changes[3:] == ["-a", "-b", "+b", "+d", "-d"])
            assert cut_off.lists == 1
            assert not reflector.fault

    run(api_server, namespace, cut)


def test_where_nothing_happens_nothing_is_sent(api_server: ControlPlane, namespace: str) -> None:
    async def stay(server: ApiServer) -> None:
        async with (
            Cable(api_server.url).laid() as cable,
            ApiServer(cable.access(api_server)) as watching,
            reflected(watching, namespace) as (_, changes),
        ):
            await server.create(MAPS, named("a"), namespace=namespace)
            await until(lambda: changes == ["+a"])
            passed = cable.passed
            await server.create(MAPS, named("b"), namespace=namespace)
            await until(lambda: changes == ["+a", "+b"])
            await asyncio.sleep(2.0)
            assert cable.passed == passed

    run(api_server, namespace, stay)


@pytest.fixture(scope="module")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that tests may kill and start again, and which soon forgets old versions.

    Its cache keeps no versions of lists beside those of etcd, which is compacted each second.
    """
    need(ETCD, API_SERVER, "kubectl")
    with control_plane(
        tmp_path_factory.mktemp("own-plane"),
        features=Features(gates=("ListFromCacheSnapshot=false",)),
        api_server_flags=("--etcd-compaction-interval=1s",),
    ) as plane:
        yield plane


def test_a_killed_and_forgetful_api_server(own_plane: ControlPlane, namespace: str) -> None:
    """A cable is cut, too: so the events before the reflector is back are certain."""

    async def restart(server: ApiServer) -> None:
        for name in "abcd":
            await server.create(MAPS, named(name), namespace=namespace)
        async with (
            Cable(own_plane.url).laid() as cable,
            CountingServer(cable.access(own_plane)) as cut_off,
            reflected(cut_off, namespace) as (reflector, changes),
        ):
            own_plane[API_SERVER].stop(signal.SIGKILL)
            await until(lambda: reflector.fault != "")
            cable.cut()
            own_plane[API_SERVER].start()
            await patiently(lambda: server.delete(MAPS, "a", namespace=namespace))
            await server.delete(MAPS, "b", namespace=namespace)
            await server.create(MAPS, named("b"), namespace=namespace)
            await server.merge_patch(MAPS, "c", {"data": {"x": "y"}}, namespace=namespace)
            await server.create(MAPS, named("e"), namespace=namespace)
            # Once more, so that its cache begins behind all of this: 410.
            own_plane[API_SERVER].stop(signal.SIGKILL)
            own_plane[API_SERVER].start()
            await patiently(lambda: server.get(MAPS, "e", namespace=namespace))
            changes.clear()
            cable.mend()
            await until(lambda: len(changes) >= 5)
            assert changes == ["-a", "-b", "+b", "~c", "+e"]
            assert cut_off.lists == 2
            await server.delete(MAPS, "e", namespace=namespace)
            await until(lambda: changes[5:] == ["-e"])

    run(own_plane, namespace, restart)


def test_expired_pages_are_listed_again(own_plane: ControlPlane, namespace: str) -> None:
    class SlowServer(CountingServer):
        """Waits after the first page until the server has forgotten its version."""

        gone = 0

        async def pages(self, *args: Any, **settings: Any) -> Any:
            try:
                async with contextlib.aclosing(super().pages(*args, **settings)) as pages:
                    async for page in pages:
                        yield page
                        if page.metadata.continue_from:
                            await forgotten(page.metadata.resource_version)
            except VersionGone:
                self.gone += 1
                raise

    async def forgotten(version: str) -> None:
        exactly = f"?resourceVersion={version}&resourceVersionMatch=Exact"
        path, turn = MAPS.path(namespace), 0
        async with asyncio.timeout(PATIENCE):
            while True:
                turn += 1
                body = {"data": {"turn": str(turn)}}
                own_plane.api.ask(f"{path}/a", method="PATCH", body=body, kind=PATCH)
                try:
                    own_plane.api.ask(path + exactly)
                except EnvironmentFault as error:
                    if ": 410: " in str(error):
                        return
                    raise
                await asyncio.sleep(0.3)

    async def list_(server: ApiServer) -> None:
        for name in "abcdef":
            await server.create(MAPS, named(name), namespace=namespace)
        async with (
            SlowServer(access_to(own_plane)) as slow,
            reflected(slow, namespace, page=2) as (reflector, changes),
        ):
            assert changes[:6] == [f"+{name}" for name in "abcdef"]
            assert slow.gone == 1
            assert slow.lists == 2
            assert len(reflector.objects) == 6

    run(own_plane, namespace, list_)


def test_foreign_fields_are_taken_only_by_force(api_server: ControlPlane, namespace: str) -> None:
    def data(**values: str) -> PlainObject:
        return {"apiVersion": "v1", "kind": "ConfigMap", **named("m"), "data": values}

    async def apply(server: ApiServer) -> None:
        path = MAPS.path(namespace, "m") + "?fieldManager=other"
        content = "application/apply-patch+yaml"
        api_server.api.ask(path, method="PATCH", body=data(x="theirs", z="theirs"), kind=content)
        with pytest.raises(Conflict, match=r"other.*\.data\.x"):
            await server.apply(MAPS, "m", data(x="ours"), namespace=namespace, force=False)
        applied = await server.apply(MAPS, "m", data(x="ours", y="ours"), namespace=namespace)
        assert applied["data"] == {"x": "ours", "y": "ours", "z": "theirs"}
        # What is applied no longer goes; what is theirs stays.
        applied = await server.apply(MAPS, "m", data(x="ours"), namespace=namespace)
        assert applied["data"] == {"x": "ours", "z": "theirs"}
        managers = {field["manager"] for field in applied["metadata"]["managedFields"]}
        assert managers == {"brim", "other"}

    run(api_server, namespace, apply)


def test_calls_that_the_server_refuses(api_server: ControlPlane, namespace: str) -> None:
    async def call(server: ApiServer) -> None:
        created = await server.create(MAPS, named("m", data={"a": "1"}), namespace=namespace)
        version, uid = created["metadata"]["resourceVersion"], created["metadata"]["uid"]
        with pytest.raises(AlreadyExists):
            await server.create(MAPS, named("m"), namespace=namespace)
        with pytest.raises(NotFound):
            await server.get(MAPS, "lost", namespace=namespace)
        with pytest.raises(NotFound):
            await server.list(Resource("brim.dev/v9", "nothings", PlainObject))
        with pytest.raises(Invalid) as error:
            await server.create(MAPS, named("No Name"), namespace=namespace)
        assert [cause.field for cause in error.value.causes] == ["metadata.name"]

        changed = await server.replace(
            MAPS, "m", {**created, "data": {"a": "2"}}, namespace=namespace
        )
        with pytest.raises(Conflict):
            await server.replace(MAPS, "m", {**created, "data": {"a": "3"}}, namespace=namespace)
        stale = {"metadata": {"resourceVersion": version}, "data": {"a": "4"}}
        with pytest.raises(Conflict):
            await server.merge_patch(MAPS, "m", stale, namespace=namespace)
        test = {"op": "test", "path": "/data/a", "value": "9"}
        with pytest.raises(Invalid):
            await server.json_patch(MAPS, "m", [test], namespace=namespace)
        swap = [{**test, "value": "2"}, {"op": "replace", "path": "/data/a", "value": "5"}]
        assert (await server.json_patch(MAPS, "m", swap, namespace=namespace))["data"] == {"a": "5"}
        removed = await server.merge_patch(MAPS, "m", {"data": {"a": None}}, namespace=namespace)
        assert not removed.get("data")

        with pytest.raises(Conflict):
            await server.delete(MAPS, "m", uid="another", namespace=namespace)
        with pytest.raises(Conflict):
            await server.delete(
                MAPS, "m", version=changed["metadata"]["resourceVersion"], namespace=namespace
            )
        await server.delete(MAPS, "m", uid=uid, propagation="Background", namespace=namespace)
        with pytest.raises(NotFound):
            await server.delete(MAPS, "m", namespace=namespace)

        stranger_access = replace(server.access, credentials=FixedProof(Proof(bearer("wrong"))))
        async with ApiServer(stranger_access) as stranger:
            with pytest.raises(Unauthorized):
                await stranger.list(MAPS, namespace=namespace)

    run(api_server, namespace, call)


def test_status_and_grace_are_written_separately(api_server: ControlPlane, namespace: str) -> None:
    async def call(server: ApiServer) -> None:
        spec = {
            "nodeName": "nowhere",  # a kubelet that never comes: the pod stays while it ends
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "i"}],
        }
        await server.create(PODS, named("p", spec=spec), namespace=namespace)
        status = {"status": {"phase": "Running"}}
        assert (await server.merge_patch(PODS, "p", status, namespace=namespace))["status"][
            "phase"
        ] == "Pending"
        done = await server.merge_patch(
            PODS, "p", status, subresource="status", namespace=namespace
        )
        assert done["status"]["phase"] == "Running"
        await server.delete(PODS, "p", grace=7, namespace=namespace)
        ending = (await server.get(PODS, "p", namespace=namespace))["metadata"]
        assert ending["deletionGracePeriodSeconds"] == 7
        await server.delete(PODS, "p", grace=0, namespace=namespace)
        with pytest.raises(NotFound):
            await server.get(PODS, "p", namespace=namespace)

    run(api_server, namespace, call)


def test_a_certificate_of_another_authority_is_not_trusted(api_server: ControlPlane) -> None:
    async def call() -> None:
        untrusted = replace(access_to(api_server), authority="")
        async with ApiServer(untrusted) as server:
            with pytest.raises(NoAnswer, match="not signed by the authority") as error:
                await server.list(NAMESPACES)
            assert not error.value.retryable

    asyncio.run(call())
