"""Kubeflow's jobs on a real API server: applied objects, the pods that follow, and statuses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock, monotonic, sleep
from brim.kubernetes.client.access import Access, find_access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.resources import resource_of
from brim.kubernetes.install.manifests import NAME, Installation, manifests
from brim.kubernetes.kubeflow.mpi import HOSTS
from brim.kubernetes.kubeflow.request import kind_of
from brim.kubernetes.kubeflow.schemas import kubeflow_crds
from brim.kubernetes.objects.schemas import crds
from brim.kubernetes.operator import Operator
from brim.kubernetes.settings import OperatorSettings
from brim_lab.kubernetes.api import PATCH
from brim_lab.kubernetes.control_plane import ControlPlane, control_plane
from clusters import need
from kubernetes.test_operator import NODES, Kubelets, add_node

FILES = Path(__file__).parent / "files"
JOB = "elastic-example-imagenet"
OPERATORS_NAMESPACE = "brim-system"
PATIENCE = 120.0  # seconds: nothing is judged by it, and a busy machine is slow
RELEARNT = 100.0  # seconds within which all controllers know of new kinds: they look every 30


class Place:
    """A namespace in which an operator schedules Kubeflow's jobs.

    Args:
        more: it has the rights for gangs and evictions, too, and is told to have them.
    """

    def __init__(
        self, plane: ControlPlane, namespace: str, folder: Path, *, neighbours: bool = False
    ) -> None:
        self.more = neighbours
        self.plane, self.namespace, self.folder = plane, namespace, folder
        self.kubelets = Kubelets(plane, namespace)
        self.lives = 0
        self.at = ""  # the path of the job that was applied first
        for name in (namespace, OPERATORS_NAMESPACE):
            with contextlib.suppress(EnvironmentFault):
                body = {"metadata": {"name": name}}
                plane.api.ask("/api/v1/namespaces", method="POST", body=body)
        self.access = self._install()

    def _install(self) -> Access:
        """Give an operator the rights that an installation gives it, and no others."""
        chosen = Installation(
            image="brim:1",
            namespace=OPERATORS_NAMESPACE,
            of=self.namespace,
            foreign_kinds=True,
            gangs=self.more,
            evictions=self.more,
        )
        for thing in manifests(chosen):
            if thing["kind"] == "ServiceAccount" or "rbac" in thing["apiVersion"]:
                path = resource_of(thing).path(thing["metadata"].get("namespace", ""))
                with contextlib.suppress(EnvironmentFault):  # those of the cluster may be there
                    self.plane.api.ask(path, method="POST", body=thing)
        return find_access({"KUBECONFIG": str(self.config_of(OPERATORS_NAMESPACE, NAME))})

    def config_of(self, namespace: str, account: str) -> Path:
        """Return a kubeconfig of an account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        token = self.plane.api.ask(path, method="POST", body={"spec": {}})["status"]["token"]
        config = yaml.safe_load(self.plane.kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        file = self.folder / f"config-{account}"
        file.write_text(yaml.safe_dump(config))
        return file

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[None]:
        """An operator, whose disk is lost when it ends."""
        self.lives += 1
        settings = OperatorSettings(
            directory=self.folder / f"life-{self.lives}",
            namespace=OPERATORS_NAMESPACE,
            image="registry.example/brim:1",
            slot={"cpu": "1", "memory": "1Gi"},
            watched=self.namespace,
            foreign_kinds=True,
            gangs=self.more,
            evictions=self.more,
            grace=10.0,
        )
        async with ApiServer(self.access, qps=500, burst=500) as api:
            task = asyncio.create_task(Operator(api, settings, clock=SystemClock()).run())
            self.task = task
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.result()
        await asyncio.sleep(0.05)

    def path(self, plural: str = "pytorchjobs", version: str = "v1") -> str:
        return f"/apis/kubeflow.org/{version}/namespaces/{self.namespace}/{plural}"

    def services(self) -> set[str]:
        items = self.plane.api.ask(f"/api/v1/namespaces/{self.namespace}/services")["items"]
        return {autoscaler["metadata"]["name"] for autoscaler in items}

    def add_service(self, name: str) -> None:
        """Add a Service of somebody's that is not of the job."""
        labels = {"training.kubeflow.org/job-name": JOB}
        body = {"metadata": {"name": name, "labels": labels}, "spec": {"clusterIP": "None"}}
        path = f"/api/v1/namespaces/{self.namespace}/services"
        self.plane.api.ask(path, method="POST", body=body)

    @property
    def autoscalers(self) -> str:
        return f"/apis/autoscaling/v2/namespaces/{self.namespace}/horizontalpodautoscalers"

    def apply(self, file: str = "pytorchjob.yaml", **spec: Any) -> None:
        body = yaml.safe_load((FILES / file).read_text())
        body["spec"] |= spec
        version = body["apiVersion"].rpartition("/")[2]
        path = self.path(f"{body['kind'].lower()}s", version)
        self.plane.api.ask(path, method="POST", body=body)
        self.at = self.at or f"{path}/{body['metadata']['name']}"

    def change(self, body: Any, path: str = "") -> None:
        self.plane.api.ask(f"{self.at}{path}", method="PATCH", body=body, kind=PATCH)

    def job(self) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.api.ask(self.at)
        return found

    def held(self) -> dict[str, str]:
        """The conditions of the job, the newest last."""
        conditions = self.job().get("status", {}).get("conditions", [])
        return {condition["type"]: condition["status"] for condition in conditions}

    def message(self, type: str) -> str:
        conditions = self.job().get("status", {}).get("conditions", [])
        return next(
            (str(condition["message"]) for condition in conditions if condition["type"] == type), ""
        )

    def runs_with(self, *numbers: int) -> bool:
        pods = self.kubelets.pods()
        active = self.job().get("status", {}).get("replicaStatuses", {}).get("Worker", {})
        return (
            self.held().get("Running") == "True"
            and active.get("active", 0) == len(numbers)
            and pods.keys() == {f"{JOB}-worker-{number}" for number in numbers}
        )

    def fail(self, name: str, code: int, words: str = "") -> None:
        container = self.kubelets.pods()[name]["spec"]["containers"][0]
        ended = {"exitCode": code, "reason": "Error", "message": words}
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": ended},
        }
        self.kubelets.say(name, phase="Failed", containerStatuses=[status])

    async def seen(self, holds: Callable[[], Any]) -> None:
        """Wait until this is so, while kubelets do nothing."""
        deadline = monotonic() + PATIENCE
        while not await asyncio.to_thread(holds):
            assert monotonic() < deadline, sorted(self.kubelets.pods())
            await asyncio.sleep(0.02)

    async def until(self, holds: Callable[[], Any], *, seconds: float = PATIENCE) -> None:
        """Let kubelets do their work until this is so."""
        deadline = monotonic() + seconds
        while True:
            await asyncio.to_thread(self.kubelets.settle)
            if await asyncio.to_thread(holds):
                return
            if self.task.done():
                self.task.result()
            assert monotonic() < deadline, (self.job(), sorted(self.kubelets.pods()))
            await asyncio.sleep(0.02)


def add_kinds(plane: ControlPlane) -> None:
    """Add the kinds of brim and of Kubeflow where they are not there, and wait until they are served."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    kinds = [*crds().values(), *kubeflow_crds().values()]
    for kind in kinds:
        with contextlib.suppress(EnvironmentFault):
            plane.api.ask(path, method="POST", body=kind)
    deadline = monotonic() + PATIENCE
    for spec in (kind["spec"] for kind in kinds):
        collection = (
            f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        )
        while True:
            try:
                plane.api.ask(collection)
                break
            except EnvironmentFault:
                assert monotonic() < deadline, f"{collection} is not served"
                sleep(0.05)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with the kinds of brim and of Kubeflow, and two nodes of 3 CPUs."""
    need("etcd", "kube-apiserver")
    with control_plane(tmp_path_factory.mktemp("plane")) as plane:
        add_kinds(plane)
        for name in NODES:
            add_node(plane, name)
        yield plane


@pytest.fixture
def place(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Place]:
    place = Place(plane, namespace, tmp_path)
    yield place
    place.kubelets.remove_all()  # the nodes are the next test's


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def work_alone() -> None:
        await work()

    asyncio.run(work_alone())


def test_the_job_of_the_guide_runs_and_succeeds(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply()
            await place.until(lambda: place.runs_with(0, 1))
            assert place.held() == {"Created": "True", "Running": "True"}
            names = {f"{JOB}-worker-0", f"{JOB}-worker-1"}
            assert place.services() == names
            place.kubelets.say(f"{JOB}-worker-1", phase="Succeeded")
            await place.until(lambda: place.held().get("Succeeded") == "True")
            assert list(place.held().items())[-1] == ("Succeeded", "True")
            assert place.held()["Running"] == "False"
            assert place.job()["status"]["completionTime"]
            assert place.kubelets.pods().keys() == names, "cleanPodPolicy is None"
            assert place.services() == names

    run(work)


def test_job_is_scaled_suspended_and_resumed_by_kubectl(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply()
            place.add_service("mine")
            await place.until(lambda: place.runs_with(0, 1))
            place.change({"spec": {"replicas": 1}}, "/scale")
            await place.until(lambda: place.runs_with(0))
            place.change({"spec": {"replicas": 2}}, "/scale")
            await place.until(lambda: place.runs_with(0, 1))
            place.change({"spec": {"runPolicy": {"suspend": True}}})
            await place.until(
                lambda: place.held().get("Suspended") == "True" and not place.kubelets.pods()
            )
            assert place.held()["Running"] == "False"
            assert place.services() == {"mine"}
            place.change({"spec": {"runPolicy": {"suspend": False}}})
            await place.until(lambda: place.runs_with(0, 1))
            assert place.held()["Suspended"] == "False"
            assert place.services() == {"mine", f"{JOB}-worker-0", f"{JOB}-worker-1"}

    run(work)


def test_removed_pod_is_no_failure(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply(runPolicy={"backoffLimit": 0})
            await place.until(lambda: place.runs_with(0, 1))
            uid = place.kubelets.pods()[f"{JOB}-worker-0"]["metadata"]["uid"]
            place.kubelets.say(f"{JOB}-worker-0", phase="Failed", reason="Evicted")

            def is_another() -> bool:
                pod = place.kubelets.pods().get(f"{JOB}-worker-0")
                return pod is not None and pod["metadata"]["uid"] != uid

            await place.until(is_another)
            await place.until(lambda: place.runs_with(0, 1))
            place.kubelets.remove(f"{JOB}-worker-1")
            await place.until(lambda: place.runs_with(0, 1))
            assert "Failed" not in place.held()

    run(work)


METRIC = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}


def test_autoscaler_of_metrics_follows_the_job(place: Place) -> None:
    policy = {"minReplicas": 1, "maxReplicas": 4, "metrics": [METRIC]}

    def bounds() -> tuple[int, int] | None:
        items = place.plane.api.ask(place.autoscalers)["items"]
        found = [autoscaler for autoscaler in items if autoscaler["metadata"]["name"] == JOB]
        if not found:
            return None
        assert found[0]["spec"]["scaleTargetRef"]["name"] == JOB
        assert found[0]["metadata"]["ownerReferences"][0]["uid"] == place.job()["metadata"]["uid"]
        return found[0]["spec"]["minReplicas"], found[0]["spec"]["maxReplicas"]

    async def work() -> None:
        async with place.operator():
            place.apply(elasticPolicy=policy)
            await place.until(lambda: place.runs_with(0, 1) and bounds() == (1, 4))
            place.change({"spec": {"elasticPolicy": {"maxReplicas": 3}}})
            await place.until(lambda: bounds() == (1, 3))
            place.plane.api.ask(f"{place.autoscalers}/{JOB}", method="DELETE")
            await place.until(lambda: bounds() == (1, 3))
        async with place.operator():
            version = place.plane.api.ask(f"{place.autoscalers}/{JOB}")["metadata"]
            place.change({"spec": {"runPolicy": {"suspend": True}}})
            await place.until(lambda: bounds() is None)
            place.change({"spec": {"runPolicy": {"suspend": False}}})
            await place.until(lambda: place.runs_with(0, 1) and bounds() == (1, 3))
            next_metadata = place.plane.api.ask(f"{place.autoscalers}/{JOB}")["metadata"]
            assert next_metadata["uid"] != version["uid"]
            place.change({"spec": {"elasticPolicy": {"metrics": [{"type": "Resource"}]}}})
            await place.until(lambda: "spec.elasticPolicy.metrics" in place.message("Created"))
            place.change({"spec": {"elasticPolicy": {"metrics": [METRIC]}}})
            await place.until(lambda: "elasticPolicy" not in place.message("Created"))
            place.kubelets.say(f"{JOB}-worker-1", phase="Succeeded")
            await place.until(lambda: bounds() is None and place.held().get("Succeeded") == "True")

    run(work)


def test_what_a_job_has_goes_with_it(
    fake_cluster: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Where there are controllers, as in any cluster: that of autoscalers is among them."""
    add_kinds(fake_cluster)
    place = Place(fake_cluster, namespace, tmp_path)

    def things() -> list[str]:
        lists = (place.autoscalers, place.kubelets.path, place.kubelets.path[:-4] + "services")
        return [
            thing["metadata"]["name"]
            for path in lists
            for thing in fake_cluster.api.ask(path)["items"]
        ]

    def can_scale() -> bool:
        """Return whether Kubernetes has found the target of the autoscaler."""
        with contextlib.suppress(EnvironmentFault):
            status = fake_cluster.api.ask(f"{place.autoscalers}/{JOB}")["status"]
            conditions = {
                condition["type"]: condition["status"] for condition in status.get("conditions", [])
            }
            return conditions.get("AbleToScale") == "True"
        return False

    async def work() -> None:
        async with place.operator():
            place.apply(elasticPolicy={"maxReplicas": 4, "metrics": [METRIC]})
            await place.until(lambda: place.runs_with(0, 1) and can_scale(), seconds=RELEARNT)
            fake_cluster.api.ask(place.at, method="DELETE")
            await place.until(lambda: not things(), seconds=RELEARNT)

    run(work)


def test_an_autoscaler_that_somebody_else_has_made_stays(place: Place) -> None:
    foreign = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": JOB},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "name": JOB,
            },
            "maxReplicas": 9,
        },
    }

    async def work() -> None:
        place.plane.api.ask(place.autoscalers, method="POST", body=foreign)
        async with place.operator():
            place.apply(elasticPolicy={"maxReplicas": 4, "metrics": [METRIC]})
            await place.until(lambda: "HorizontalPodAutoscaler" in place.message("Created"))
            await place.until(lambda: place.runs_with(0, 1))
        found = place.plane.api.ask(f"{place.autoscalers}/{JOB}")
        assert found["spec"]["maxReplicas"] == 9

    run(work)


def test_failed_job_shows_its_last_message(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply(runPolicy={"backoffLimit": 1, "cleanPodPolicy": "All"})
            await place.until(lambda: place.runs_with(0, 1))
            place.fail(f"{JOB}-worker-0", 1, "no such file: imagenet")
            await place.until(lambda: place.runs_with(0, 1))
            place.fail(f"{JOB}-worker-1", 1, "no such file: imagenet")
            await place.until(lambda: place.held().get("Failed") == "True")
            assert "2 times, of 1" in place.message("Failed")
            assert "pytorch exited with 1: no such file: imagenet" in place.message("Failed")
            await place.until(lambda: not place.kubelets.pods())
            assert not place.services()

    run(work)


def test_failures_count_across_operators(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply(runPolicy={"backoffLimit": 1})
            await place.until(lambda: place.runs_with(0, 1))
            place.fail(f"{JOB}-worker-0", 1)
            await place.until(lambda: place.runs_with(0, 1))
            assert "Failed" not in place.held()
        async with place.operator():
            place.fail(f"{JOB}-worker-1", 1)
            await place.until(lambda: place.held().get("Failed") == "True")
            assert "2 times, of 1" in place.message("Failed")

    run(work)


def test_another_operator_goes_on_where_one_has_ended(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply()
            await place.until(lambda: place.runs_with(0, 1))
        previous = {name: pod["metadata"]["uid"] for name, pod in place.kubelets.pods().items()}
        async with place.operator():
            place.change({"metadata": {"labels": {"seen": "by-the-second"}}})
            await asyncio.sleep(1.0)
            current = {name: pod["metadata"]["uid"] for name, pod in place.kubelets.pods().items()}
            assert current == previous, "what ran was touched"
            place.kubelets.remove(f"{JOB}-worker-1")
            await place.until(lambda: place.runs_with(0, 1))

    run(work)


def test_forged_record_is_rejected(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply()
            await place.until(lambda: place.runs_with(0, 1))
        record = place.job()["metadata"]["annotations"]["brim.dev/record"]
        place.change({"metadata": {"annotations": {"brim.dev/record": f"{record}A"}}})
        async with place.operator():
            await place.until(lambda: "without the operator" in place.message("Created"))
            assert len(place.kubelets.pods()) == 2

    run(work)


def test_what_is_no_job_is_told_so(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply(elasticPolicy={"minReplicas": 3, "maxReplicas": 2})
            await place.until(lambda: place.held().get("Failed") == "True")
            assert "spec.elasticPolicy.minReplicas" in place.message("Failed")
            assert not place.kubelets.pods()

    run(work)


def test_what_another_manager_has_is_left_alone(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply(runPolicy={"managedBy": "kubeflow.org/training-operator"})
            place.apply("tfjob.yaml")

            def has_pods() -> bool:
                return place.kubelets.pods().keys() == {
                    "dynamic-ps-0",
                    *(f"dynamic-worker-{number}" for number in range(3)),
                }

            await place.until(has_pods)
            assert "status" not in place.job()

    run(work)


def test_it_is_deleted_some_time_after_its_end(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply(runPolicy={"ttlSecondsAfterFinished": 1})
            await place.until(lambda: place.runs_with(0, 1))
            place.kubelets.say(f"{JOB}-worker-0", phase="Succeeded")

            def is_gone() -> bool:
                return not place.plane.api.ask(place.path())["items"]

            await place.until(is_gone)

    run(work)


# MPIJob -------------------------------------------------------------------------------------------

MPI = "tensorflow-mnist-elastic"


class MpiPlace:
    """The MPIJob of the guide, as its launcher and its kubelet see it."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def pods(self) -> set[str]:
        return {name.removeprefix(f"{MPI}-") for name in self.place.kubelets.pods()}

    def active(self) -> tuple[int, int]:
        """The launchers and the workers that run, as the status of the job has them."""
        counts = self.place.job().get("status", {}).get("replicaStatuses", {})
        launchers, workers = (counts.get(type, {}) for type in ("Launcher", "Worker"))
        return launchers.get("active", 0), workers.get("active", 0)

    def mark(self) -> str:
        """The launcher's annotation on its hosts; it is set behind them. Empty: there is none."""
        launcher = self.place.kubelets.pods().get(f"{MPI}-launcher")
        return str(launcher["metadata"]["annotations"].get(HOSTS, "")) if launcher else ""

    def hosts(self) -> list[str]:
        """The hosts that the launcher discovers; those that its kubelet does not know yet are none."""
        path = f"/api/v1/namespaces/{self.place.namespace}/configmaps/{MPI}-config"
        if not self.mark():
            return []
        lines = self.place.plane.api.ask(path)["data"]["discover_hosts.sh"].splitlines()
        assert all(line.startswith(f"echo {MPI}-") and line.endswith(":1") for line in lines[1:])
        return [line.removeprefix(f"echo {MPI}-").removesuffix(":1") for line in lines[1:]]

    def may(self, verb: str, resource: str, name: str = "") -> bool:
        """Return whether the launcher's account may do this in its namespace."""
        kind, _, sub = resource.partition("/")
        attributes = {
            "namespace": self.place.namespace,
            "verb": verb,
            "resource": kind,
            "subresource": sub,
        }
        user = f"system:serviceaccount:{self.place.namespace}:{MPI}-launcher"
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes | {"name": name}},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answer = self.place.plane.api.ask(path, method="POST", body=review)
        return bool(answer["status"]["allowed"])


@pytest.fixture
def mpi(place: Place) -> MpiPlace:
    for name, value in (("preserved-pc", 90_000_000), ("preemptible-pc", 80_000_001)):
        body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"}
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        with contextlib.suppress(EnvironmentFault):
            place.plane.api.ask(path, method="POST", body=body)
    return MpiPlace(place)


def test_launcher_learns_of_worker_changes_within_seconds(mpi: MpiPlace) -> None:
    place = mpi.place
    all_workers = ["worker-0", "worker-1", "worker-2"]

    async def work() -> None:
        async with place.operator():
            place.apply("mpijob.yaml")
            await place.until(lambda: mpi.hosts() == all_workers)
            assert mpi.pods() == {"launcher", *all_workers}
            await place.until(lambda: mpi.active() == (1, 3))
            assert place.held()["Running"] == "True"
            assert not place.services()
            mark = mpi.mark()
            leaver = f"{MPI}-worker-1"
            place.kubelets.frozen.add(leaver)  # it has its grace period
            place.plane.api.ask(f"{place.kubelets.path}/{leaver}", method="DELETE")
            await place.until(lambda: mpi.hosts() == ["worker-0", "worker-2"])
            place.kubelets.frozen.clear()
            # The same hosts have the same mark.
            await place.until(lambda: (mpi.hosts(), mpi.mark()) == (all_workers, mark))
            replicas = {"mpiReplicaSpecs": {"Worker": {"replicas": 1}}}
            place.change({"spec": replicas})
            await place.until(lambda: mpi.hosts() == ["worker-0"])
            await place.until(lambda: mpi.pods() == {"launcher", "worker-0"})
        async with place.operator():
            place.kubelets.say(f"{MPI}-launcher", phase="Succeeded")
            await place.until(lambda: place.held().get("Succeeded") == "True")
            await place.until(lambda: mpi.pods() == {"launcher"})  # cleanPodPolicy is Running

    run(work)


def test_launcher_may_only_exec_into_its_workers(mpi: MpiPlace) -> None:
    async def work() -> None:
        async with mpi.place.operator():
            mpi.place.apply("mpijob.yaml")
            await mpi.place.until(lambda: len(mpi.hosts()) == 3)

    run(work)
    assert mpi.may("create", "pods/exec", f"{MPI}-worker-2")
    assert mpi.may("get", "pods", f"{MPI}-worker-2")
    for verb, resource, name in (
        ("create", "pods/exec", f"{MPI}-launcher"),
        ("create", "pods/exec", f"{MPI}-worker-3"),
        ("create", "pods/exec", "another"),
        ("create", "pods/exec", ""),
        ("list", "pods", ""),
        ("delete", "pods", f"{MPI}-worker-2"),
        ("get", "pods/log", f"{MPI}-worker-2"),
        ("get", "configmaps", f"{MPI}-config"),
        ("list", "secrets", ""),
        ("create", "pods", ""),
    ):
        assert not mpi.may(verb, resource, name), (verb, resource, name)


# MPIJob of v2beta1 --------------------------------------------------------------------------------

PI = "mpijob-v2beta1.yaml"


@contextlib.contextmanager
def newer_version_alone(plane: ControlPlane) -> Iterator[None]:
    """Have the server serve MPIJobs in one version, as with the MPI operator's definition."""
    definition = kubeflow_crds()["kubeflow-mpijobs.yaml"]
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    path += f"/{definition['metadata']['name']}"
    older, newer = definition["spec"]["versions"]

    def serve(*versions: dict[str, Any]) -> None:
        body = {"spec": {"versions": list(versions)}}
        plane.api.ask(path, method="PATCH", body=body, kind=PATCH)
        names = {version["name"] for version in versions if version["served"]}
        deadline = monotonic() + PATIENCE
        while served_versions(plane) != names:
            assert monotonic() < deadline
            sleep(0.05)

    serve({**older, "served": False}, newer)
    try:
        yield
    finally:
        serve(older, newer)


def served_versions(plane: ControlPlane) -> set[str]:
    """The versions in which the server has MPIJobs."""
    found = set()
    for version in ("v1", "v2beta1"):
        with contextlib.suppress(EnvironmentFault):
            plane.api.ask(f"/apis/kubeflow.org/{version}/mpijobs")
            found.add(version)
    return found


def test_both_versions_of_mpijobs_are_told_apart(place: Place) -> None:
    place.apply(PI, sshAuthMountPath=None)
    place.apply("mpijob.yaml")
    path = place.path("mpijobs")
    newer, older = (place.plane.api.ask(f"{path}/{name}") for name in ("pi", MPI))
    assert newer["apiVersion"] == older["apiVersion"] == "kubeflow.org/v1"
    assert (kind_of(newer).version, kind_of(older).version) == ("v2beta1", "v1")
    assert newer["spec"]["mpiImplementation"] == "OpenMPI"
    read_as_newer = place.plane.api.ask(f"{place.path('mpijobs', 'v2beta1')}/{MPI}")
    assert read_as_newer["spec"]["cleanPodPolicy"] == "Running", "nothing of it is lost"


@pytest.mark.parametrize("alone", [False, True], ids=["both versions", "one version"])
def test_example_of_the_mpi_operator_runs(place: Place, alone: bool) -> None:
    with newer_version_alone(place.plane) if alone else contextlib.nullcontext():
        run_the_example(place)


def run_the_example(place: Place) -> None:
    core = f"/api/v1/namespaces/{place.namespace}"

    async def work() -> None:
        async with place.operator():
            place.apply(PI, launcherCreationPolicy="WaitForWorkersReady")
            workers = {"pi-worker-0", "pi-worker-1"}
            names = {"pi-launcher", *workers}
            await place.seen(lambda: place.kubelets.pods().keys() >= workers)
            assert place.kubelets.pods().keys() == workers, "the launcher waits for them"
            await place.until(lambda: place.kubelets.pods().keys() == names)
            await place.until(lambda: place.held().get("Running") == "True")
            pods = place.kubelets.pods()
            assert place.services() == {"pi"}
            hosts = place.plane.api.ask(f"{core}/configmaps/pi-config")["data"]["hostfile"]
            domain = f"pi.{place.namespace}.svc slots=1"
            assert hosts == f"pi-worker-0.{domain}\npi-worker-1.{domain}\n"
            (keys,) = place.plane.api.ask(f"{core}/secrets")["items"]
            volumes = pods["pi-worker-0"]["spec"]["volumes"]
            assert keys["metadata"]["name"] in [
                v.get("secret", {}).get("secretName") for v in volumes
            ]
            assert keys["type"] == "kubernetes.io/ssh-auth"
        async with place.operator():  # another comes up, and makes nothing twice
            place.change({"spec": {"runPolicy": {"suspend": True}}})
            await place.until(lambda: not place.kubelets.pods())
            place.change({"spec": {"runPolicy": {"suspend": False}}})
            await place.until(lambda: place.kubelets.pods().keys() == names)
            assert len(place.plane.api.ask(f"{core}/secrets")["items"]) == 1
            place.kubelets.say("pi-launcher", phase="Succeeded")
            await place.until(lambda: place.held().get("Succeeded") == "True")
            await place.until(lambda: place.kubelets.pods().keys() == {"pi-launcher"})

    run(work)


def test_mpijob_that_cannot_be_says_why(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply(PI, slotsPerWorker=0)
            await place.until(lambda: place.held().get("Failed") == "True")
            assert "spec.slotsPerWorker: got 0" in place.message("Failed")

    run(work)
