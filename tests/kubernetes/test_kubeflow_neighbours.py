"""Kubeflow's jobs beside programs that bind and evict pods: their PodGroups and responders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.errors import SpecError
from brim.host.clock import monotonic
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.kubeflow.gangs import gang_of_kubeflow, pod_group_of
from brim.kubernetes.kubeflow.objects import KubeflowStart
from brim.kubernetes.kubeflow.placeholders import of_kubeflow_job
from brim.kubernetes.kubeflow.pods import pod_of
from brim.kubernetes.kubeflow.ranks import NewPod
from brim.kubernetes.kubeflow.request import Rank, read_asked
from brim.kubernetes.objects.identities import stands_for
from brim_lab.kubernetes.control_plane import (
    API_SERVER,
    CONTROLLERS,
    ETCD,
    KWOK,
    SCHEDULER,
    ControlPlane,
    Features,
    control_plane,
)
from clusters import need
from kubernetes.test_evictions import RESPONDER, Evicting
from kubernetes.test_kubeflow import SLOT, asked_of, replicas, thing
from kubernetes.test_kubeflow_on_a_server import JOB, Place, add_kinds, run

VOLCANO = "scheduling.volcano.sh/v1beta1"


def start_of(
    policy: dict[str, Any] | None,
    *,
    gangs: bool = True,
    file: str = "pytorchjob.yaml",
    **fields: Any,
) -> KubeflowStart:
    """A start of a job with this scheduling policy; None: it has none."""
    spec = {"runPolicy": {"schedulingPolicy": policy}} | fields
    evictions = bool(spec.pop("evictions", False))
    request = asked_of(file, **spec)
    return KubeflowStart(
        request=request, uid="uid 1", launch=1, slot=SLOT, gangs=gangs, evictions=evictions
    )


def worker_of(start: KubeflowStart) -> dict[str, Any]:
    return pod_of(start, NewPod(Rank("worker", 0), "n1"))


def test_gang_needs_a_scheduling_policy_and_enabled_gangs() -> None:
    for start in (start_of(None), start_of({}, gangs=False)):
        assert gang_of_kubeflow(start) is None
        assert pod_group_of(start) is None
        assert "schedulingGroup" not in worker_of(start)["spec"]
    start = start_of({})
    group = pod_group_of(start)
    assert group is not None
    assert (group["apiVersion"], group["kind"]) == ("scheduling.k8s.io/v1beta1", "PodGroup")
    (owner,) = group["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("PyTorchJob", "uid 1")
    assert group["metadata"]["name"] == JOB
    assert worker_of(start)["spec"]["schedulingGroup"] == {"podGroupName": JOB}


@pytest.mark.parametrize(
    ("file", "policy", "spec", "count"),
    [
        ("pytorchjob.yaml", {}, {}, 1),
        ("pytorchjob.yaml", {"minAvailable": 2}, {}, 1),
        ("pytorchjob.yaml", {}, {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 4}}, 2),
        ("pytorchjob.yaml", {"minAvailable": 1}, {"elasticPolicy": {"minReplicas": 2}}, 1),
        ("pytorchjob.yaml", {}, {"elasticPolicy": None}, 2),
        ("pytorchjob.yaml", {"minAvailable": 1}, {"elasticPolicy": None}, 1),
        ("mpijob.yaml", {}, {}, None),
    ],
)
def test_pod_group_needs_the_minimum_or_less(
    file: str, policy: dict[str, Any], spec: dict[str, Any], count: int | None
) -> None:
    start = start_of(policy, file=file, **spec)
    group = pod_group_of(start)
    assert group is not None
    fewest = start.request.pods.minimum if count is None else count
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": fewest}}
    assert group["spec"]["disruptionMode"] == {"single": {}}


def test_pod_group_follows_policy_and_template() -> None:
    template = replicas(2)
    template["template"]["spec"]["schedulerName"] = "volcano"
    policy = {"queue": "ads", "minAvailable": 2, "priorityClass": "low"}
    start = start_of(policy, elasticPolicy=None, pytorchReplicaSpecs={"Worker": template})
    group = pod_group_of(start)
    assert group is not None
    assert group["apiVersion"] == VOLCANO
    assert group["spec"] == {"minMember": 2, "queue": "ads", "priorityClassName": "low"}
    pod = worker_of(start)
    assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == JOB
    assert pod["spec"]["priorityClassName"] == "low"
    template["template"]["spec"]["priorityClassName"] = "high"
    start = start_of(policy, elasticPolicy=None, pytorchReplicaSpecs={"Worker": template})
    group = pod_group_of(start)
    assert group is not None
    assert group["spec"]["priorityClassName"] == "high", "as its pods have it"


@pytest.mark.parametrize(
    ("policy", "field"),
    [({"minAvailable": 0}, "minAvailable"), ({"queue": 3}, "queue"), (3, "schedulingPolicy")],
)
def test_invalid_scheduling_policy_is_refused_by_field(policy: Any, field: str) -> None:
    problems = read_asked(thing(runPolicy={"schedulingPolicy": policy}), slot=SLOT)
    assert isinstance(problems, tuple)
    (problem,) = problems
    assert isinstance(problem, SpecError)
    assert field in str(problem)


def test_only_pods_outside_gangs_have_a_responder() -> None:
    plain = worker_of(start_of(None, evictions=True))
    assert [responder["name"] for responder in plain["spec"]["evictionResponders"]] == [RESPONDER]
    assert "evictionResponders" not in worker_of(start_of(None))["spec"]
    assert "evictionResponders" not in worker_of(start_of({}, evictions=True))["spec"]


def test_placeholders_stand_for_each_type_of_replicas() -> None:
    start = start_of({}, file="mpijob.yaml")
    manifests = of_kubeflow_job(start, start.request.pods.minimum, "")
    name = start.request.job.name
    assert [manifest["metadata"]["name"] for manifest in manifests] == [
        f"{name}-mpijob-placeholder-{number}" for number in range(start.request.pods.minimum)
    ]
    for manifest in manifests:
        (container,) = manifest["spec"]["containers"]
        assert container["command"] == ["sleep", "365d"]
        assert "schedulingGroup" not in manifest["spec"]
        pod = msgspec.convert(
            {**manifest, "metadata": {**manifest["metadata"], "uid": "u"}}, KubePod
        )
        owner = stands_for(pod)
        assert owner is not None
        assert owner.job == start.request.job.id


# On a server --------------------------------------------------------------------------------------

GROUPS = "/apis/scheduling.k8s.io/v1beta1"
PATIENCE = 120.0  # seconds: a slot that was refused is tried again after 10


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A server with PodGroups and evictions, kube-scheduler, and three nodes of two slots."""
    need(ETCD, API_SERVER, "kubectl", CONTROLLERS, SCHEDULER, KWOK)
    features = Features(
        gates=("EvictionRequestAPI", "GenericWorkload"),
        apis=("lifecycle.k8s.io/v1alpha1", "scheduling.k8s.io/v1beta1"),
    )
    programs = (CONTROLLERS, SCHEDULER, KWOK)
    folder = tmp_path_factory.mktemp("plane")
    with control_plane(folder, features=features, programs=programs) as plane:
        add_kinds(plane)
        plane.add_fake_nodes(3, {"cpu": "2"})
        yield plane


@pytest.fixture
def place(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Place]:
    place = Place(plane, namespace, tmp_path, neighbours=True)
    yield place
    plane.kubectl("delete", "namespace", namespace, "--wait=false")  # the nodes are the next test's
    place.kubelets.remove_all()


def bound(place: Place) -> int:
    return sum(
        bool(pod["spec"].get("nodeName"))
        for name, pod in place.kubelets.pods().items()
        if name.startswith(JOB)
    )


def fewest(place: Place) -> int:
    path = f"{GROUPS}/namespaces/{place.namespace}/podgroups/{JOB}"
    return int(place.plane.api.ask(path)["spec"]["schedulingPolicy"]["gang"]["minCount"])


async def until(holds: Callable[[], bool], place: Place) -> None:
    deadline = monotonic() + PATIENCE
    while not await asyncio.to_thread(holds):
        assert monotonic() < deadline, (place.job(), place.kubelets.pods())
        await asyncio.sleep(0.1)


def keep_out(place: Place, node: str) -> None:
    """Run a pod of somebody's on a node that bears no pod of a job beside it."""
    term = {
        "labelSelector": {"matchLabels": {"brim.dev/role": "worker"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    spec = {"nodeName": node, "affinity": affinity, "containers": [{"name": "a", "image": "a:1"}]}
    body = {"metadata": {"name": "alone"}, "spec": spec}
    place.plane.api.ask(place.kubelets.path, method="POST", body=body)


def elastic(fewest: int, largest: int, **policy: Any) -> dict[str, Any]:
    bounds = {"rdzvBackend": "c10d", "minReplicas": fewest, "maxReplicas": largest}
    return {"elasticPolicy": bounds, "runPolicy": {"schedulingPolicy": policy}}


def test_job_is_bound_whole_and_its_group_follows(place: Place) -> None:
    refused: set[str] = set()
    early: set[str] = set()  # who is bound although not all can be

    def notice(pod: KubePod) -> None:
        if pod.metadata.name.startswith(JOB):
            if pod.is_refused:
                refused.add(pod.metadata.name)
            if pod.spec.node_name:
                early.add(pod.metadata.name)

    async def work() -> None:
        keep_out(place, "fake-2")
        async with place.operator():
            async with place.kubelets.followed(notice):
                place.apply(**elastic(5, 5))
                await until(lambda: bool(refused), place)
                await asyncio.sleep(3)
                assert not early
            place.kubelets.remove("alone")
            await until(lambda: bound(place) == 5 and fewest(place) == 5, place)
            place.change({"spec": elastic(2, 3)})
            await until(lambda: bound(place) == 3 and fewest(place) == 2, place)
        place.change({"spec": elastic(3, 4)})
        async with place.operator():  # the next one follows what it has not begun
            await until(lambda: bound(place) == 4 and fewest(place) == 3, place)

    run(work)


def test_job_is_planned_on_nodes_its_template_allows(place: Place) -> None:
    async def work() -> None:
        place.plane.kubectl("label", "node", "fake-3", "speed=fast")
        place.plane.kubectl("taint", "node", "fake-3", "pool=gpus:NoSchedule")
        async with place.operator():
            worker = replicas(2)
            worker["template"]["spec"]["nodeSelector"] = {"speed": "fast"}
            worker["template"]["spec"]["tolerations"] = [{"key": "pool", "value": "gpus"}]
            place.apply(**elastic(2, 2), pytorchReplicaSpecs={"Worker": worker})
            await until(lambda: bound(place) == 2, place)
            nodes = {pod["spec"]["nodeName"] for pod in place.kubelets.pods().values()}
            assert nodes == {"fake-3"}
        place.plane.kubectl("label", "node", "fake-3", "speed-")
        place.plane.kubectl("taint", "node", "fake-3", "pool-")

    run(work)


def test_eviction_of_a_pod_is_no_failure(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply()
            await until(lambda: bound(place) == 2, place)
            name = f"{JOB}-worker-1"
            previous = place.kubelets.pods()[name]["metadata"]["uid"]
            evicting = Evicting(place, name)
            evicting.begin()
            await until(evicting.is_complete, place)
            assert evicting.own()["message"] == "its process has left"

            def is_back() -> bool:
                found = place.kubelets.pods().get(name)
                return found is not None and found["metadata"]["uid"] != previous

            await until(is_back, place)
            await until(lambda: bound(place) == 2, place)
            assert place.held().get("Failed") is None

    run(work)
