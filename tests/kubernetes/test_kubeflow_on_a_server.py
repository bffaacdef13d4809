"""Kubeflow's jobs on a real API server: what people apply, the pods that follow, and what is said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from brim.clock import SystemClock, monotonic
from brim.errors import EnvironmentFault
from brim.kubernetes.access import find_access
from brim.kubernetes.api_server import ApiServer
from brim.kubernetes.kubeflow.schemas import kubeflow_crds
from brim.kubernetes.operator import Operator, OperatorSettings
from brim.kubernetes.schemas import crds
from brim_lab.kubernetes.api import PATCH
from brim_lab.kubernetes.control_plane import ControlPlane, control_plane
from clusters import need
from kubernetes.test_operator import NODES, Kubelets, add_node

FILES = Path(__file__).parent / "files"
JOB = "elastic-example-imagenet"
OWN = "brim-system"
WITHIN = 20.0


class Place:
    """A namespace in which an operator schedules Kubeflow's jobs."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        self.plane, self.namespace, self.folder = plane, namespace, folder
        self.kubelets = Kubelets(plane, namespace)
        self.lives = 0
        for name in (namespace, OWN):
            with contextlib.suppress(EnvironmentFault):
                body = {"metadata": {"name": name}}
                plane.api.ask("/api/v1/namespaces", method="POST", body=body)

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[None]:
        """An operator, whose disk is lost when it ends."""
        self.lives += 1
        settings = OperatorSettings(
            directory=self.folder / f"life-{self.lives}",
            namespace=OWN,
            image="registry.example/brim:1",
            slot={"cpu": "1", "memory": "1Gi"},
            watched=self.namespace,
            kubeflow=True,
            grace=10.0,
        )
        access = find_access({"KUBECONFIG": str(self.plane.kubeconfig)})
        async with ApiServer(access, qps=500, burst=500) as api:
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

    def path(self, plural: str = "pytorchjobs") -> str:
        return f"/apis/kubeflow.org/v1/namespaces/{self.namespace}/{plural}"

    def services(self) -> set[str]:
        items = self.plane.api.ask(f"/api/v1/namespaces/{self.namespace}/services")["items"]
        return {each["metadata"]["name"] for each in items}

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
        self.plane.api.ask(self.path(f"{body['kind'].lower()}s"), method="POST", body=body)

    def change(self, body: Any, path: str = "") -> None:
        self.plane.api.ask(f"{self.path()}/{JOB}{path}", method="PATCH", body=body, kind=PATCH)

    def job(self) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.api.ask(f"{self.path()}/{JOB}")
        return found

    def held(self) -> dict[str, str]:
        """The conditions of the job, the newest last."""
        conditions = self.job().get("status", {}).get("conditions", [])
        return {each["type"]: each["status"] for each in conditions}

    def message(self, type: str) -> str:
        conditions = self.job().get("status", {}).get("conditions", [])
        return next((str(each["message"]) for each in conditions if each["type"] == type), "")

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

    async def until(self, holds: Callable[[], Any]) -> None:
        """Let kubelets do their work until this is so."""
        deadline = monotonic() + WITHIN
        while True:
            await asyncio.to_thread(self.kubelets.settle)
            if await asyncio.to_thread(holds):
                return
            if self.task.done():
                self.task.result()
            assert monotonic() < deadline, (self.job(), sorted(self.kubelets.pods()))
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with the kinds of brim and of Kubeflow, and two nodes of 3 CPUs."""
    need("etcd", "kube-apiserver")
    with control_plane(tmp_path_factory.mktemp("plane")) as plane:
        for each in [*crds().values(), *kubeflow_crds().values()]:
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            plane.api.ask(path, method="POST", body=each)
        for name in NODES:
            add_node(plane, name)
        yield plane


@pytest.fixture
def place(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Place]:
    place = Place(plane, namespace, tmp_path)
    yield place
    for name in list(place.kubelets.pods()):  # the nodes are the next test's
        with contextlib.suppress(EnvironmentFault):
            place.kubelets.remove(name)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def alone() -> None:
        await work()

    asyncio.run(alone())


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


def test_it_is_scaled_suspended_and_resumed_as_kubectl_does(place: Place) -> None:
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


def test_a_pod_that_is_taken_away_is_no_failure(place: Place) -> None:
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


def test_its_metrics_make_an_autoscaler_that_follows_the_job(place: Place) -> None:
    policy = {"minReplicas": 1, "maxReplicas": 4, "metrics": [METRIC]}

    def bounds() -> tuple[int, int] | None:
        items = place.plane.api.ask(place.autoscalers)["items"]
        found = [each for each in items if each["metadata"]["name"] == JOB]
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
            # As the autoscaler does it, by its scale.
            place.change({"spec": {"replicas": 3}}, "/scale")
            await place.until(lambda: place.runs_with(0, 1, 2))
            place.plane.api.ask(f"{place.autoscalers}/{JOB}", method="DELETE")
            await place.until(lambda: bounds() == (1, 3))
        async with place.operator():
            version = place.plane.api.ask(f"{place.autoscalers}/{JOB}")["metadata"]
            place.change({"spec": {"runPolicy": {"suspend": True}}})
            await place.until(lambda: bounds() is None)
            place.change({"spec": {"runPolicy": {"suspend": False}}})
            await place.until(lambda: place.runs_with(0, 1, 2) and bounds() == (1, 3))
            again = place.plane.api.ask(f"{place.autoscalers}/{JOB}")["metadata"]
            assert again["uid"] != version["uid"]
            place.change({"spec": {"elasticPolicy": {"metrics": [{"type": "Resource"}]}}})
            await place.until(lambda: "spec.elasticPolicy.metrics" in place.message("Created"))
            place.change({"spec": {"elasticPolicy": {"metrics": [METRIC]}}})
            await place.until(lambda: "elasticPolicy" not in place.message("Created"))
            place.kubelets.say(f"{JOB}-worker-1", phase="Succeeded")
            await place.until(lambda: bounds() is None and place.held().get("Succeeded") == "True")

    run(work)


def test_an_autoscaler_that_somebody_else_has_made_stays(place: Place) -> None:
    theirs = {
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
        place.plane.api.ask(place.autoscalers, method="POST", body=theirs)
        async with place.operator():
            place.apply(elasticPolicy={"maxReplicas": 4, "metrics": [METRIC]})
            await place.until(lambda: "HorizontalPodAutoscaler" in place.message("Created"))
            await place.until(lambda: place.runs_with(0, 1))
        there = place.plane.api.ask(f"{place.autoscalers}/{JOB}")
        assert there["spec"]["maxReplicas"] == 9

    run(work)


def test_a_job_that_fails_too_often_says_what_it_said_last(place: Place) -> None:
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
        before = {name: pod["metadata"]["uid"] for name, pod in place.kubelets.pods().items()}
        async with place.operator():
            place.change({"metadata": {"labels": {"seen": "by-the-second"}}})
            await asyncio.sleep(1.0)
            after = {name: pod["metadata"]["uid"] for name, pod in place.kubelets.pods().items()}
            assert after == before, "what ran was touched"
            place.kubelets.remove(f"{JOB}-worker-1")
            await place.until(lambda: place.runs_with(0, 1))

    run(work)


def test_a_record_that_no_operator_wrote_is_not_believed(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply()
            await place.until(lambda: place.runs_with(0, 1))
        record = place.job()["metadata"]["annotations"]["brim.dev/record"]
        place.change({"metadata": {"annotations": {"brim.dev/record": f"{record}A"}}})
        async with place.operator():
            await place.until(lambda: "none that an operator" in place.message("Created"))
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
