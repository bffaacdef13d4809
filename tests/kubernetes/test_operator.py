"""The operator on a real API server: the fate of objects, through any fate of its own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from brim.backends import live
from brim.backends.processes import Launch
from brim.coordination.cluster import metering
from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock, monotonic
from brim.kubernetes import elastic_objects, record
from brim.kubernetes.client.access import find_access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.known_objects import ObjectChange
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.install.manifests import MEMORY
from brim.kubernetes.objects.elastic_jobs import read_job, wishes_of
from brim.kubernetes.objects.identities import SERVICE
from brim.kubernetes.objects.schemas import crds
from brim.kubernetes.operator import Operator
from brim.kubernetes.pods.elastic_pods import ElasticPods
from brim.kubernetes.pods.pod_commands import Stage
from brim.kubernetes.pods.pod_requests import PODS
from brim.kubernetes.settings import OperatorSettings
from brim.storage.mirror import RecordsMirror
from brim.telemetry.record_files import EVENTS
from brim_lab.kubernetes.api import PATCH
from brim_lab.kubernetes.control_plane import ControlPlane, control_plane
from clusters import need
from kube_fakes import FakeFollower
from recorded_run import RecordedRun, RecordLog, spec

PATIENCE = 120.0  # seconds: nothing is judged by it, and a busy machine is slow
OPERATORS_NAMESPACE = "brim-system"
NODES = ("n1", "n2")


class Copies:
    """Follows of runs: which addresses were called, and where the records go."""

    def __init__(self) -> None:
        self.called: list[tuple[Path, str, str]] = []
        self.news: dict[str, Callable[[], None]] = {}

    def __call__(
        self, mirror: RecordsMirror, address: str, token: str, news: Callable[[], None]
    ) -> FakeFollower:
        self.called.append((mirror._directory, address, token))
        self.news[mirror._directory.name] = news
        return FakeFollower()


class Kubelets:
    """Binds and runs the pods of a server without controllers, as kubelets and a scheduler do.

    Args:
        first: the node of pods that are planned for none.
    """

    def __init__(self, plane: ControlPlane, namespace: str, *, first: str = NODES[0]) -> None:
        self._api, self.namespace, self._first = plane.api, namespace, first
        self._kubeconfig = plane.kubeconfig
        self._ips = itertools.count(2)
        self.frozen: set[str] = set()  # pods that do not end
        self.room: dict[str, int] = {}  # workers for whom there is room, by node, whatever it says
        self.turned_away = False  # a kubelet says that there is none, and not a scheduler
        self.kept_out: set[str] = set()  # the uids of those who have heard that

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self._api.ask(self.path)["items"]}

    @contextlib.asynccontextmanager
    async def followed(self, notice: Callable[[KubePod], None]) -> AsyncIterator[None]:
        """Tell meanwhile of each state of each pod, also where it lasts for no time."""

        def changed(change: ObjectChange[KubePod]) -> None:
            if change.after is not None:
                notice(change.after)

        async with ApiServer(find_access({"KUBECONFIG": str(self._kubeconfig)})) as api:
            pods = Reflector(api, PODS, changed=changed, namespace=self.namespace)
            following = asyncio.create_task(pods.run())
            await pods.synced()
            try:
                yield
            finally:
                following.cancel()
                await asyncio.wait([following])

    def settle(self) -> None:
        for name, pod in self.pods().items():
            with contextlib.suppress(EnvironmentFault):
                self._live(name, pod)

    def _live(self, name: str, pod: dict[str, Any]) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            if name not in self.frozen:
                self.remove(name)
        elif "nodeName" not in pod["spec"]:
            planned = pod["metadata"].get("annotations", {}).get("brim.dev/node", "")
            node = planned or self._first
            if planned and self._is_full(planned) and not self.turned_away:
                self.kept_out.add(pod["metadata"]["uid"])
                condition = {"reason": "Unschedulable", "message": "0/2 nodes: 1 Insufficient cpu."}
                self.say(
                    name, conditions=[{"type": "PodScheduled", "status": "False", **condition}]
                )
                return
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
            if planned and self._is_full(planned):
                self.kept_out.add(pod["metadata"]["uid"])
            self._api.ask(
                f"{self.path}/{name}/binding", method="POST", body=binding | {"target": target}
            )
        elif pod["status"]["phase"] == "Pending" and pod["metadata"]["uid"] in self.kept_out:
            self.say(name, phase="Failed", reason="OutOfcpu")
        elif pod["status"]["phase"] == "Pending":
            ip = f"10.1.0.{next(self._ips)}"
            ready = [{"type": "Ready", "status": "True"}]
            running = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": ready}
            self.say(name, **running)

    def _is_full(self, node: str) -> bool:
        """Whether no worker more goes there."""
        present = [
            name
            for name, pod in self.pods().items()
            if pod["spec"].get("nodeName") == node
            and pod["metadata"].get("annotations", {}).get("brim.dev/node")
            and pod["metadata"]["uid"] not in self.kept_out
        ]
        return len(present) >= self.room.get(node, len(present) + 1)

    def remove(self, name: str) -> None:
        self._api.ask(
            f"{self.path}/{name}",
            method="DELETE",
            body={"gracePeriodSeconds": 0, "kind": "DeleteOptions", "apiVersion": "v1"},
        )

    def remove_all(self) -> None:
        """Remove the pods that are there, at once; pods that go by themselves meanwhile are gone."""
        for name in self.pods():
            with contextlib.suppress(EnvironmentFault):
                self.remove(name)

    def say(self, name: str, **status: Any) -> None:
        self._api.ask(
            f"{self.path}/{name}/status",
            method="PATCH",
            body={"status": status},
            kind=PATCH,
        )


class House:
    """A namespace with operators, one after the other."""

    def __init__(
        self,
        plane: ControlPlane,
        namespace: str,
        folder: Path,
        *,
        first_node: str = NODES[0],
        evictions: bool = False,
        placeholders: int = 0,
    ) -> None:
        self.evictions, self.placeholders = evictions, placeholders
        self.service_urls: tuple[str, ...] = ()
        self.usage_half_life: float | None = None
        self.plane, self.namespace, self.folder = plane, namespace, folder
        self.slot = {"cpu": "1", "memory": "1Gi"}
        self.kubelets = Kubelets(plane, namespace, first=first_node)
        self.scheduled = namespace  # whose jobs the operators schedule; empty: those of all
        self.copies = Copies()
        self.suspended: list[tuple[str, str]] = []
        self.clock = SystemClock()
        self.lives = 0
        self.present: Operator | None = None
        self.task: asyncio.Task[None] | None = None
        self.has_ended = False  # its run, whoever has heard that
        for name in (namespace, OPERATORS_NAMESPACE):
            with contextlib.suppress(EnvironmentFault):
                body = {"metadata": {"name": name}}
                plane.api.ask("/api/v1/namespaces", method="POST", body=body)

    @contextlib.asynccontextmanager
    async def operator(
        self, server: Callable[[ApiServer], ApiServer] = lambda api: api, *, keep: bool = False
    ) -> AsyncIterator[asyncio.Task[None]]:
        """An operator that schedules; it ends as by SIGTERM.

        Args:
            keep: it has the directory of the one before; else its disk is lost.
        """
        self.lives += not keep
        if isinstance(self.copies, Copies):
            self.copies.news.clear()  # of the operator before
        directory = self.folder / f"life-{self.lives}"
        access = find_access({"KUBECONFIG": str(self.plane.kubeconfig)})
        settings = OperatorSettings(
            directory=directory,
            namespace=OPERATORS_NAMESPACE,
            image="registry.example/brim:1",
            slot=self.slot,
            watched=self.scheduled,
            evictions=self.evictions,
            placeholders=self.placeholders,
            service_urls=self.service_urls,
            grace=10.0,
            usage_half_life=self.usage_half_life,
        )

        async with ApiServer(access, qps=500, burst=500) as api:
            self.present = operator = Operator(
                server(api),
                settings,
                follow=self.copies,
                ask_to_suspend=self.suspend_run,
                clock=self.clock,
            )
            self.task = task = asyncio.create_task(operator.run())
            try:
                yield task
            finally:
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.exception()  # it has died, as it was to, or the test says why not
        await asyncio.sleep(0.05)  # connections that were cut close in the next turns of the loop

    async def suspend_run(self, address: str, token: str) -> None:
        """Ask the master at an address to suspend its run."""
        self.suspended.append((address, token))

    # Objects --------------------------------------------------------------------------------------

    @property
    def core(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    def collect_garbage(self) -> None:
        """Delete the dependents of objects that are gone, as a controller does."""
        present = {job["metadata"]["uid"] for job in self.plane.api.ask(self.jobs)["items"]}
        policies = f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies"
        for path in (f"{self.core}/secrets", f"{self.core}/services", policies):
            for owned in self.plane.api.ask(path)["items"]:
                owners = owned["metadata"].get("ownerReferences", [])
                if owners and owners[0]["uid"] not in present:
                    self.plane.api.ask(f"{path}/{owned['metadata']['name']}", method="DELETE")

    @property
    def jobs(self) -> str:
        return f"/apis/brim.dev/v1alpha1/namespaces/{self.namespace}/elasticjobs"

    def submit(self, name: str = "flights", **spec: Any) -> None:
        spec_fields = {
            "file": "flights.py",
            "workers": {"min": 3, "max": 3},
            "template": TEMPLATE,
        } | spec
        body = {
            "apiVersion": "brim.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": name},
            "spec": {field: value for field, value in spec_fields.items() if value is not None},
        }
        self.plane.api.ask(self.jobs, method="POST", body=body)

    def job(self, name: str = "flights") -> dict[str, Any]:
        found: dict[str, Any] = self.plane.api.ask(f"{self.jobs}/{name}")
        return found

    def change(self, name: str = "flights", **spec: Any) -> None:
        self.plane.api.ask(
            f"{self.jobs}/{name}",
            method="PATCH",
            body={"spec": spec},
            kind=PATCH,
        )

    def delete(self, name: str = "flights") -> None:
        self.plane.api.ask(f"{self.jobs}/{name}", method="DELETE")

    def phase(self, name: str = "flights") -> str:
        return str(self.job(name).get("status", {}).get("phase", ""))

    def workers(self, name: str = "flights") -> Counter[str]:
        return Counter(
            pod["metadata"]["annotations"]["brim.dev/node"]
            for pod in self.kubelets.pods().values()
            if pod["metadata"]["labels"].get("brim.dev/role") == "worker"
            and pod["metadata"]["labels"].get("brim.dev/job") == name
        )

    def makes_steps(self, steps: int = 3, name: str = "flights") -> None:
        """Let the run of a job make steps with one worker."""
        folder = self.folder / f"life-{self.lives}" / "jobs" / f"{self.namespace}.{name}"
        run = RecordedRun(folder, spec())
        run.begin(workers=1)
        run.train(steps)
        self.copies.news[folder.name]()

    def run_ends(self, exit: str, name: str = "flights") -> None:
        self.has_ended = True
        folder = self.folder / f"life-{self.lives}" / "jobs" / f"{self.namespace}.{name}"
        log = RecordLog(folder / EVENTS, clock=self.clock)
        log.append("run_ended", summary={"exit": exit})
        self.copies.news[folder.name]()
        for pod in self.kubelets.pods():
            if pod.startswith(f"{name}-"):
                self.kubelets.say(pod, phase="Succeeded")

    async def until(self, holds: Callable[[], Any], *, settling: bool = True) -> None:
        """Let kubelets do their work until this is so."""
        deadline = monotonic() + PATIENCE
        while True:
            if settling:
                await asyncio.to_thread(self.kubelets.settle)
            if await asyncio.to_thread(holds):
                return
            if self.task is not None and self.task.done():
                self.task.result()
            assert monotonic() < deadline, (self.job(), sorted(self.kubelets.pods()))
            await asyncio.sleep(0.02)

    async def until_running(self, count: int, name: str = "flights") -> None:
        def runs() -> bool:
            status = self.job(name).get("status", {})
            return (
                bool(status.get("phase") == "Running" and status["workers"]["ready"] == count)
                and self.workers(name).total() == count
            )

        await self.until(runs)

    async def until_followed(self, name: str = "flights") -> None:
        """Wait until the operator follows a run that it records: the master may be seen last."""
        await self.until(lambda: f"{self.namespace}.{name}" in self.copies.news)


TEMPLATE = {"spec": {"containers": [{"name": "worker"}]}}


@contextlib.contextmanager
def planes(
    folder: Path, flags: Sequence[str] = (), tokens: Mapping[str, tuple[str, str]] | None = None
) -> Iterator[ControlPlane]:
    """An API server with the kinds of brim and two nodes of 3 CPUs, on which nothing acts."""
    need("etcd", "kube-apiserver")
    with control_plane(folder, api_server_flags=flags, tokens=tokens) as plane:
        plane.add_kinds(crds().values())
        for name in NODES:
            add_node(plane, name)
        yield plane


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with planes(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


def add_node(plane: ControlPlane, name: str) -> None:
    capacity = {"cpu": "3500m", "memory": "16Gi", "pods": "20"}
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    body = {"metadata": {"name": name}, "status": {"allocatable": capacity, "capacity": capacity}}
    plane.api.ask("/api/v1/nodes", method="POST", body=body)
    say_of_node(plane, name, conditions=ready)
    # A new node has a taint until a controller has seen that it is ready.
    plane.api.ask(
        f"/api/v1/nodes/{name}", method="PATCH", body={"spec": {"taints": None}}, kind=PATCH
    )


def say_of_node(plane: ControlPlane, name: str, **status: Any) -> None:
    plane.api.ask(
        f"/api/v1/nodes/{name}/status",
        method="PATCH",
        body={"status": status},
        kind=PATCH,
    )


@pytest.fixture
def house(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[House]:
    house = House(plane, namespace, tmp_path)
    yield house
    house.kubelets.remove_all()  # the nodes are the next test's


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def work_alone() -> None:
        await work()

    asyncio.run(work_alone())


def test_story_of_a_job_reports_idle_gpus(house: House) -> None:
    house.slot |= {"nvidia.com/gpu": "2"}

    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until(lambda: house.job().get("status", {}).get("story"))
            advice = "each worker has 2 nvidia.com/gpu and uses 1: processesPerWorker: 2 uses all"
            assert house.job()["status"]["story"][0].endswith(f" submitted ({advice})")

    run(work)


def test_a_job_is_submitted_runs_and_ends(house: House) -> None:
    async def work() -> None:
        async with house.operator() as task:
            house.submit()
            await house.until_running(3)
            assert not task.done()
            status = house.job()["status"]
            conditions = {
                condition["type"]: condition["status"] for condition in status["conditions"]
            }
            assert (conditions["Running"], conditions["Succeeded"]) == ("True", "False")
            assert status["observedGeneration"] == 1
            assert house.workers().total() == 3
            await house.until_followed()
            _, address, token = house.copies.called[-1]
            assert address.endswith(":7077")
            (secret,) = house.plane.api.ask(f"{house.core}/secrets")["items"]
            assert base64.b64decode(secret["data"]["token"]).decode() == token
            assert len(token) == 32
            house.run_ends("done")
            await house.until(lambda: house.phase() == "Done" and not house.kubelets.pods())

    run(work)


def test_what_people_ask_of_the_object_is_done(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until_running(3)
            house.change(workers={"min": 1, "max": 1})
            await house.until_running(1)
            house.change(suspend=True)
            await house.until(lambda: house.phase() == "Suspended" and not house.kubelets.pods())
            assert house.job()["status"]["observedGeneration"] == 3
            house.change(suspend=False)
            await house.until_running(1)
            assert "flights-2-0" in house.kubelets.pods()

    run(work)


def test_deleted_jobs_slots_pass_node_by_node(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit(workers={"min": 6, "max": 6})
            await house.until_running(6)
            await house.until_followed()
            house.makes_steps()
            await house.until(lambda: house.job()["status"].get("step") == 3)
            house.submit("other")
            house.delete()
            for name, pod in house.kubelets.pods().items():  # as the garbage collector does
                if pod["metadata"].get("annotations", {}).get("brim.dev/node") == NODES[1]:
                    house.kubelets.frozen.add(name)
                house.plane.api.ask(f"{house.kubelets.path}/{name}", method="DELETE")
            await house.until(lambda: house.workers("other") == {NODES[0]: 3})
            assert house.workers() == {NODES[1]: 3}
            house.kubelets.frozen.clear()
            await house.until(lambda: not house.workers())

    run(work)


@pytest.mark.parametrize("refuser", ["kube-scheduler", "a kubelet"])
def test_worker_refused_by_its_node_is_planned_elsewhere(house: House, refuser: str) -> None:
    """The node says that it has room for three, and has it for one."""
    house.kubelets.room[NODES[0]] = 1
    house.kubelets.turned_away = refuser == "a kubelet"

    async def work() -> None:
        async with house.operator():
            house.submit()

            def is_elsewhere() -> bool:
                placement = house.workers()
                return (placement[NODES[0]], placement[NODES[1]]) in ((1, 2), (0, 3))

            await house.until(lambda: is_elsewhere() and house.phase() == "Running")
            assert house.kubelets.kept_out, "nobody was refused"
            await house.until_running(3)

    run(work)


def test_invalid_job_is_reported_and_ends_nothing(house: House) -> None:
    async def work() -> None:
        async with house.operator() as task:
            house.submit("odd", bundle={"configMap": "none", "sha256": "0" * 64})
            house.submit()
            await house.until_running(3)
            await house.until(lambda: house.phase("odd") == "Invalid")
            assert "spec.bundle.configMap" in house.job("odd")["status"]["message"]
            assert not task.done()

    run(work)


def test_unsupported_gang_is_reported_in_the_status(house: House) -> None:
    def stalled() -> str:
        conditions = house.job().get("status", {}).get("conditions", [])
        stalls = [
            str(condition["message"])
            for condition in conditions
            if condition["reason"] == "PodsRefused"
        ]
        return "".join(stalls)

    async def work() -> None:
        async with house.operator() as task:
            house.submit(gang=True)
            await house.until(lambda: "spec.gang" in stalled() and "podgroups" in stalled())
            assert not house.kubelets.pods()
            assert not task.done()

    run(work)


def test_jobs_run_on_servers_without_evictions(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    house = House(plane, namespace, tmp_path, evictions=True)

    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until_running(3)
            house.delete()
            await house.until(lambda: not house.kubelets.pods())

    run(work)


def test_impossibly_large_job_holds_up_no_other(house: House) -> None:
    async def work() -> None:
        async with house.operator() as task:
            for count in (10**6, 10**7):
                house.submit(f"huge-{count}", workers={"min": count, "max": count})
            house.submit()
            await house.until_running(3)
            await house.until(lambda: house.phase("huge-10000000") == "Admitted")
            assert not task.done()

    run(work)


def test_job_in_the_operators_namespace_is_refused(plane: ControlPlane, tmp_path: Path) -> None:
    house = House(plane, OPERATORS_NAMESPACE, tmp_path)

    async def work() -> None:
        async with house.operator() as task:
            house.submit()
            await house.until(lambda: house.phase() == "Invalid")
            message = house.job()["status"]["message"]
            assert message.startswith(
                f"metadata.namespace: got {OPERATORS_NAMESPACE}, which is the operator's own"
            )
            assert not house.kubelets.pods()
            assert not task.done()

    try:
        run(work)
    finally:
        house.delete()


def test_failed_pod_is_kept_in_the_status(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until_running(3)
            termination = {"exitCode": 3, "reason": "Error", "finishedAt": "2026-11-24T17:00:00Z"}
            ended = {"name": "worker", "state": {"terminated": termination | {"message": "boom"}}}
            unknown = {"image": "i", "imageID": "", "ready": False, "restartCount": 0}
            house.kubelets.say("flights-1-0", phase="Failed", containerStatuses=[ended | unknown])
            await house.until(lambda: house.job()["status"].get("failedPods"))
            await house.until_running(3)
        async with house.operator():
            house.change(workers={"min": 2, "max": 2})
            await house.until_running(2)
        (failed,) = house.job()["status"]["failedPods"]
        assert (failed["pod"], failed["exitCode"], failed["lastLines"]) == (
            "flights-1-0",
            3,
            "boom",
        )

    run(work)


def test_pods_that_are_taken_away_are_made_again(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until_running(3)
            house.kubelets.say("flights-1-0", phase="Failed", reason="Evicted")
            await house.until_running(3)
            uid = house.kubelets.pods()["flights-master"]["metadata"]["uid"]
            house.kubelets.remove("flights-master")

            def is_another() -> bool:
                master = house.kubelets.pods().get("flights-master")
                return master is not None and master["metadata"]["uid"] != uid

            await house.until(is_another)
            command = house.kubelets.pods()["flights-master"]["spec"]["containers"][0]["command"]
            assert "--rejoin-timeout" not in command
            await house.until_running(3)
            assert house.job()["status"]["phase"] == "Running"

    run(work)


def test_a_node_that_is_lost_is_left(house: House, plane: ControlPlane) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until_running(3)
            (remaining,) = house.workers()
            (second,) = set(NODES) - {remaining}
            placement = house.kubelets.pods()
            house.kubelets.frozen = {
                name for name in placement if placement[name]["spec"]["nodeName"] == remaining
            }
            unknown = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
            say_of_node(plane, remaining, conditions=unknown)
            try:
                await house.until(lambda: house.workers()[second] == 3)
                assert house.phase() == "Running"
                await house.until(lambda: house.workers() == {second: 3})  # by force
                await house.until_running(3)
            finally:
                ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
                say_of_node(plane, remaining, conditions=ready)

    run(work)


def test_name_of_a_deleted_job_may_be_reused(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until_running(3)
            house.delete()
            house.submit()

            def is_another() -> bool:
                house.collect_garbage()
                return house.phase() == "Running" and house.workers().total() == 3

            await house.until(is_another)
            folder = house.folder / "life-1" / "jobs"
            assert [path.name for path in folder.iterdir()] == [f"{house.namespace}.flights"]

    run(work)


@pytest.mark.parametrize("keep", [True, False], ids=["its disk is kept", "its disk is lost"])
def test_another_operator_goes_on_where_one_has_ended(house: House, keep: bool) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until_running(3)
        previous = {name: pod["metadata"]["uid"] for name, pod in house.kubelets.pods().items()}
        house.kubelets.remove("flights-1-2")
        house.submit("later")
        folder = house.folder / f"life-{house.lives}" / "jobs"
        (folder / "team.gone").mkdir()  # deleted while no operator was there, nor its database
        async with house.operator(keep=keep):
            await house.until(lambda: house.phase("later") == "Running")
            await house.until(lambda: house.workers().total() + house.workers("later").total() == 6)
            current = {name: pod["metadata"]["uid"] for name, pod in house.kubelets.pods().items()}
            del previous["flights-1-2"]
            assert previous.items() <= current.items(), "what ran was touched"
            await house.until_followed()
            house.run_ends("done")
            await house.until(lambda: house.phase() == "Done")
            if keep:
                assert "team.gone" not in [path.name for path in folder.iterdir()]

    run(work)


def test_learned_speeds_outlive_an_operators_disk(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_TEACH_EVERY", 0.1)

    def speed(job: str) -> float | None:
        figures = house.present.figures() if house.present is not None else None
        found = (
            [figure for figure in figures.jobs if figure.job == f"{house.namespace}.{job}"]
            if figures
            else []
        )
        return found[0].rate if found else None

    def lessons() -> str:
        memory = house.plane.api.ask(
            f"/api/v1/namespaces/{OPERATORS_NAMESPACE}/configmaps/{MEMORY}"
        )
        return str(memory["binaryData"]["lessons"])

    async def work() -> None:
        single = {"min": 1, "max": 1}
        async with house.operator():
            house.submit("first", workers=single)
            await house.until_running(1, "first")
            await house.until_followed("first")
            previous = lessons()
            house.makes_steps(20, "first")
            await house.until(lambda: speed("first"))
            learned = speed("first")
            house.run_ends("done", "first")
            await house.until(lambda: house.phase("first") == "Done" and lessons() != previous)
        async with house.operator():
            house.submit("second", workers=single)
            await house.until_running(1, "second")
            assert speed("second") == pytest.approx(learned)
            # What a cycle has left needs the room: lessons give way, also where there are no new ones.
            monkeypatch.setattr(record, "_TEACH_EVERY", math.inf)
            monkeypatch.setattr(record, "_ROOM", 1)
            house.submit("third", workers=single)
            await house.until_running(1, "third")
            await house.until(lambda: lessons() == "")

    run(work)


def test_recent_use_outlives_an_operators_disk(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "_INTERVAL", 0.1)
    monkeypatch.setattr(live, "_MAX_POLL_INTERVAL", 0.2)  # where nothing happens
    house.usage_half_life = 60.0
    tenants = "/apis/brim.dev/v1alpha1/tenants"

    def recent() -> dict[str, Any]:
        with contextlib.suppress(EnvironmentFault, KeyError):
            path = f"/api/v1/namespaces/{OPERATORS_NAMESPACE}/configmaps/{MEMORY}"
            found: dict[str, Any] = json.loads(house.plane.api.ask(path)["data"]["recent-use"])
            return found
        return {"counted": 0.0, "recent": {"borrowed": {}}}

    def borrowed(tenant: str) -> float:
        return float(recent()["recent"]["borrowed"].get(tenant, 0.0))

    async def work() -> None:
        single = {"min": 1, "max": 1}
        async with house.operator():
            house.submit("first", workers=single, tenant="ads")
            await house.until_running(1, "first")
            await house.until(lambda: borrowed("ads") > 0.02)
            await house.until_followed("first")
            house.run_ends("done", "first")
            await house.until(lambda: house.phase("first") == "Done")
        written = recent()
        assert written["recent"]["half_life"] == 60.0
        async with house.operator():
            house.submit("second", workers=single, tenant="web")
            await house.until_running(1, "second")
            await house.until(lambda: borrowed("web") > 0.0)
            assert recent()["counted"] > written["counted"]
            assert 0.5 * written["recent"]["borrowed"]["ads"] < borrowed("ads")

    for name in ("ads", "web"):
        body = {
            "apiVersion": "brim.dev/v1alpha1",
            "kind": "Tenant",
            "metadata": {"name": name},
            "spec": {"namespaces": [house.namespace]},
        }
        house.plane.api.ask(tenants, method="POST", body=body)
    try:
        run(work)
    finally:
        for name in ("ads", "web"):
            house.plane.api.ask(f"{tenants}/{name}", method="DELETE")


def test_job_with_an_unreadable_record_is_left_alone(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until_running(3)
        previous = sorted(house.kubelets.pods())
        house.plane.api.ask(
            f"{house.jobs}/flights/status",
            method="PATCH",
            body={"status": {"record": "9.later"}},
            kind=PATCH,
        )
        async with house.operator():
            house.submit("other", workers={"min": 1, "max": 1})
            await house.until_running(1, "other")
            assert "version '9'" in house.job()["status"]["message"]
            assert house.job()["status"]["record"] == "9.later"
            assert sorted(name for name in house.kubelets.pods() if "flights" in name) == previous

    run(work)


def stalled(house: House, name: str = "flights") -> tuple[str, str]:
    """The reason and the message of the condition Stalled; empty where it does not hold."""
    status = house.job(name).get("status", {})
    found = (
        condition for condition in status.get("conditions", []) if condition["type"] == "Stalled"
    )
    conditions: dict[str, Any] = next(
        (condition for condition in found if condition["status"] == "True"), {}
    )
    return conditions.get("reason", ""), conditions.get("message", "")


def test_unexpected_error_stalls_only_its_job(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, wishes = read_job, wishes_of

    def unsound(thing: Any, **options: Any) -> Any:
        if thing["metadata"]["name"] == "odd":
            raise LookupError("nobody thought of this")
        return sound(thing, **options)

    def unsound_wishes(thing: Any, record: Any) -> Any:
        if thing["spec"]["workers"]["max"] == 2:
            raise LookupError("nor of this")
        return wishes(thing, record)

    look = ElasticPods._look

    def unsound_look(self: ElasticPods, launch: Launch, sight: Any) -> list[Stage]:
        if launch.job.endswith("blind"):
            raise LookupError("nor of that")
        return look(self, launch, sight)

    monkeypatch.setattr(elastic_objects, "read_job", unsound)
    monkeypatch.setattr(elastic_objects, "wishes_of", unsound_wishes)
    monkeypatch.setattr(ElasticPods, "_look", unsound_look)

    async def work() -> None:
        async with house.operator() as task:
            house.submit("blind", workers={"min": 1, "max": 1})
            await house.until(lambda: stalled(house, "blind")[0] == "OperatorFault")
            assert "nor of that" in stalled(house, "blind")[1]
            house.submit("odd")
            house.submit()
            await house.until_running(3)
            await house.until(lambda: stalled(house, "odd")[0] == "OperatorFault")
            assert "nobody thought of this" in stalled(house, "odd")[1]
            house.change(workers={"min": 2, "max": 2})
            await house.until(lambda: "nor of this" in stalled(house)[1])
            assert house.phase() == "Running"
            house.change(workers={"min": 1, "max": 1})
            await house.until_running(1)
            await house.until(lambda: stalled(house) == ("", ""))
            assert not task.done()

    run(work)


@pytest.mark.parametrize("name", ["flights-master", "flights-1-1"])
def test_foreign_pod_with_a_name_taken_is_reported(house: House, name: str) -> None:
    containers = [{"name": "main", "image": "registry.example/other:1"}]
    # Starts come after 1, 3, 7, 15 and 31 s: so many fail that the test sees one before one succeeds.
    names = {name, *(name.replace("-1-", f"-{start}-") for start in (2, 3, 4, 5))}
    for taken_name in names:
        body = {"metadata": {"name": taken_name}, "spec": {"containers": containers}}
        house.plane.api.ask(house.kubelets.path, method="POST", body=body)

    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until(lambda: stalled(house)[0] == "NameTaken")
            assert f"the Pod {house.namespace}/flights-" in stalled(house)[1]
            assert "is not of flights" in stalled(house)[1]
            # The story has it once the whole start has failed, the condition with the first answer.
            await house.until(lambda: any(name in line for line in house.job()["status"]["story"]))
            for taken_name in names:
                house.kubelets.remove(taken_name)
            await house.until_running(3)
            await house.until(lambda: stalled(house) == ("", ""))

    run(work)


def test_foreign_service_with_the_masters_name_is_reported(house: House) -> None:
    services = f"/api/v1/namespaces/{house.namespace}/services"
    spec = {"selector": {"app": "other"}, "ports": [{"port": 80}]}
    body = {"metadata": {"name": SERVICE}, "spec": spec}
    house.plane.api.ask(services, method="POST", body=body)

    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until(lambda: stalled(house)[0] == "NameTaken")
            assert f"the Service {house.namespace}/{SERVICE} is not of flights" in stalled(house)[1]
            house.plane.api.ask(f"{services}/{SERVICE}", method="DELETE")
            await house.until_running(3)
            await house.until(lambda: stalled(house) == ("", ""))
            house.delete()
            await house.until(lambda: not house.plane.api.ask(services)["items"])

    run(work)


def reads_the_last_change(house: House) -> bool:
    job = house.job()
    return bool(job["status"]["observedGeneration"] == job["metadata"]["generation"])


def test_refused_template_is_reported_in_the_servers_words(house: House) -> None:
    odd = {"spec": {"containers": [{"name": "worker"}], "dnsPolicy": "Nope"}}

    async def work() -> None:
        async with house.operator() as task:
            house.submit(template=odd)
            house.submit("other", workers={"min": 1, "max": 1})
            await house.until(lambda: stalled(house)[0] == "PodsRefused")
            assert "spec.dnsPolicy" in stalled(house)[1]
            await house.until_running(1, "other")
            house.change(template={"spec": {"dnsPolicy": None}})
            await house.until_running(3)
            await house.until(lambda: stalled(house) == ("", ""))
            # A job that runs goes on with the pods that it has.
            house.change(template=odd)
            await house.until(lambda: reads_the_last_change(house))
            house.kubelets.remove(min(house.kubelets.pods().keys() - {"flights-master"}))
            await house.until(lambda: stalled(house)[0] == "PodsRefused")
            assert (house.phase(), house.workers().total()) == ("Running", 2)
            assert not task.done()

    run(work)
