"""Gangs: their PodGroups, and kube-scheduler's treatment of pods that others keep from a node."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.errors import SpecError
from brim.host.clock import monotonic
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.nodes.neighbours import handed_on
from brim.kubernetes.objects.identities import NODE, ROLE, WORKER
from brim.kubernetes.objects.schemas import crds
from brim.kubernetes.objects.templates import read_templates
from brim.kubernetes.pods import unplaced_master
from brim.kubernetes.pods.gangs import gang_of
from brim.kubernetes.pods.manifests import owned, worker_pod
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
from kube_objects import JOB, WISHES, start_of
from kubernetes.test_operator import House, run

START = start_of()
POD = worker_pod(START, WISHES, name=JOB.worker(1, 0), node="n1")
VOLCANO = {"schedulerName": "volcano", "containers": [{"name": "worker"}]}


def test_job_is_a_gang_only_on_request() -> None:
    assert gang_of(WISHES) is None


def test_pod_group_needs_the_minimum_of_workers() -> None:
    gang = gang_of(replace(WISHES, gang=True, priority_class="low"))
    assert gang is not None
    group = gang.pod_group(owned(gang.version, "PodGroup", JOB.name, START), 3)
    assert (group["apiVersion"], group["metadata"]["name"]) == (
        "scheduling.k8s.io/v1beta1",
        "flights",
    )
    assert group["metadata"]["ownerReferences"][0]["uid"] == START.uid
    assert group["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "disruptionMode": {"single": {}},
        "priorityClassName": "low",  # kube-scheduler binds no group whose pods have another
    }
    member = gang.with_member(JOB.name, POD)
    assert member["spec"] == {**POD["spec"], "schedulingGroup": {"podGroupName": "flights"}}


def test_scheduler_of_the_template_decides_the_pod_group() -> None:
    queue = {"metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "ads"}}}
    wishes = replace(WISHES, gang=True, template={"spec": VOLCANO}, handed_on=handed_on(queue))
    gang = gang_of(wishes)
    assert gang is not None
    group = gang.pod_group(owned(gang.version, "PodGroup", JOB.name, START), 3)
    assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert group["spec"] == {"minMember": 3, "queue": "ads"}
    member = gang.with_member(JOB.name, POD)
    assert member["metadata"]["annotations"] == {
        **POD["metadata"]["annotations"],
        "scheduling.k8s.io/group-name": "flights",
    }
    assert member["spec"] == POD["spec"]


def test_gang_is_refused_for_schedulers_that_group_pods() -> None:
    template = {"spec": {**VOLCANO, "schedulerName": "kai-scheduler"}}
    with pytest.raises(
        SpecError, match=r"spec\.gang: got true, need none: kai-scheduler groups pods"
    ):
        read_templates({"template": template, "gang": True})
    assert not read_templates({"template": template}).gang


# On a server --------------------------------------------------------------------------------------

GROUPS = "/apis/scheduling.k8s.io/v1beta1"
PATIENCE = 120.0  # seconds: a slot that was refused is tried again after 10


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A server with PodGroups, kube-scheduler, and three nodes of two slots."""
    need(ETCD, API_SERVER, "kubectl", CONTROLLERS, SCHEDULER, KWOK)
    features = Features(gates=("GenericWorkload",), apis=("scheduling.k8s.io/v1beta1",))
    programs = (CONTROLLERS, SCHEDULER, KWOK)
    folder = tmp_path_factory.mktemp("plane")
    with control_plane(folder, features=features, programs=programs) as plane:
        plane.add_kinds(crds().values())
        plane.add_fake_nodes(3, {"cpu": "2500m"})  # and room for a master
        yield plane


@pytest.fixture
def house(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[House]:
    house = House(plane, namespace, tmp_path)
    yield house
    plane.kubectl("delete", "namespace", namespace, "--wait=false")  # the nodes are the next test's
    house.kubelets.remove_all()


def keep_out(house: House, node: str) -> None:
    """Run a pod of somebody's on a node that bears no worker beside it, of which plans know nothing."""
    workers = {"labelSelector": {"matchLabels": {"brim.dev/role": "worker"}}}
    term = {**workers, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    spec = {"nodeName": node, "affinity": affinity, "containers": [{"name": "a", "image": "a:1"}]}
    body = {"metadata": {"name": f"alone-{node}", "labels": {"color": "blue"}}, "spec": spec}
    house.plane.api.ask(house.kubelets.path, method="POST", body=body)


def bound(house: House) -> dict[str, str]:
    """The nodes of a job's workers that have been bound, by name."""
    return {
        name: pod["spec"]["nodeName"]
        for name, pod in house.kubelets.pods().items()
        if pod["metadata"]["labels"].get("brim.dev/role") == "worker"
        and pod["spec"].get("nodeName")
    }


def master_is_bound(house: House, name: str = "flights") -> bool:
    master = house.kubelets.pods().get(f"{name}-master", {})
    return bool(master.get("spec", {}).get("nodeName"))


def uids(house: House) -> set[str]:
    return {house.kubelets.pods()[name]["metadata"]["uid"] for name in bound(house)}


def pod_group(house: House) -> dict[str, Any]:
    found: dict[str, Any] = house.plane.api.ask(
        f"{GROUPS}/namespaces/{house.namespace}/podgroups/flights"
    )
    return found


async def until(holds: Callable[[], bool], house: House) -> None:
    deadline = monotonic() + PATIENCE
    while not await asyncio.to_thread(holds):
        if monotonic() >= deadline:
            jobs = house.plane.api.ask(house.jobs)["items"]
            stories = {job["metadata"]["name"]: job.get("status", {}).get("story") for job in jobs}
            pods = {
                name: (
                    pod["spec"].get("nodeName"),
                    pod["metadata"].get("annotations"),
                    pod["status"],
                )
                for name, pod in house.kubelets.pods().items()
            }
            pytest.fail(f"{stories}\n{pods}")
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("gang", [True, False])
def test_gang_without_room_is_not_half_bound(house: House, gang: bool) -> None:
    keep_out(house, "fake-2")
    refused: set[str] = set()
    early: set[str] = set()  # who is bound although not all can be

    def notice(pod: KubePod) -> None:
        if pod.metadata.labels.get(ROLE) == WORKER:
            if pod.is_refused:
                refused.add(pod.metadata.name)
            if pod.spec.node_name:
                early.add(pod.metadata.name)

    async def work() -> None:
        async with house.operator():
            async with house.kubelets.followed(notice):
                house.submit(workers={"min": 5, "max": 5}, gang=gang)
                await until(lambda: bool(refused), house)
                if gang:
                    await asyncio.sleep(3)
                    assert not early
                else:
                    await until(lambda: len(early) >= 3, house)
            house.kubelets.remove("alone-fake-2")
            await until(lambda: len(bound(house)) == 5, house)

    run(work)


def test_gang_leaves_a_node_that_refuses_one_member(house: House) -> None:
    """The node on which the others had room is not taken for full."""
    keep_out(house, "fake-3")
    planned: dict[str, str] = {}
    refused: set[str] = set()

    def notice(pod: KubePod) -> None:
        if pod.metadata.labels.get(ROLE) == WORKER:
            planned[pod.metadata.name] = pod.metadata.annotations[NODE]
            if pod.is_refused:
                refused.add(pod.metadata.annotations[NODE])

    async def work() -> None:
        house.plane.kubectl("cordon", "fake-2")
        async with house.operator(), house.kubelets.followed(notice):
            house.submit(workers={"min": 4, "max": 4}, gang=True)
            await until(lambda: bool(refused), house)
            assert Counter(planned.values()) == {"fake-1": 2, "fake-3": 2}
            house.plane.kubectl("uncordon", "fake-2")
            await until(lambda: Counter(bound(house).values()) == {"fake-1": 2, "fake-2": 2}, house)
            assert refused == {"fake-3"}

    run(work)


def test_gang_gives_way_while_its_master_is_unplaced(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unplaced_master, "_PATIENCE", 10.0)
    monkeypatch.setattr(unplaced_master, "_FIRST", 15.0)
    nowhere = {"nodeSelector": {"disk": "none"}, "containers": [{"name": "master"}]}

    async def work() -> None:
        async with house.operator():
            template = {"spec": nowhere}
            house.submit(workers={"min": 3, "max": 3}, gang=True, masterTemplate=template)
            await until(lambda: len(bound(house)) == 3, house)
            await until(lambda: house.phase() == "Suspended" and not house.workers(), house)
            house.change(masterTemplate={"spec": {"nodeSelector": None}})
            await until(lambda: len(bound(house)) == 3, house)
            await until(lambda: master_is_bound(house), house)

    run(work)


def test_workers_beyond_the_fewest_come_and_go_alone(house: House) -> None:
    def fewest() -> int:
        count = pod_group(house)["spec"]["schedulingPolicy"]["gang"]["minCount"]
        assert isinstance(count, int)
        return count

    async def work() -> None:
        async with house.operator():
            house.submit(workers={"min": 2, "max": 2}, gang=True)
            await until(lambda: len(bound(house)) == 2, house)
            group = pod_group(house)
            assert group["spec"]["disruptionMode"] == {"single": {}}
            assert group["metadata"]["ownerReferences"][0]["name"] == "flights"
            previous = set(bound(house))
            house.change(workers={"min": 2, "max": 3})
            await until(lambda: len(bound(house)) == 3, house)
            (third,) = set(bound(house)) - previous
            await asyncio.sleep(0.5)
            previous = uids(house)
            house.kubelets.remove(third)
            await until(lambda: len(bound(house)) == 3 and uids(house) != previous, house)
            assert len(uids(house) & previous) == 2
            house.change(workers={"min": 1, "max": 1})
            await until(lambda: len(bound(house)) == 1 and fewest() == 1, house)
        async with house.operator():  # the next one follows what it has not begun
            house.change(workers={"min": 3, "max": 3})
            await until(lambda: len(bound(house)) == 3 and fewest() == 3, house)
            house.delete()
            groups = f"{GROUPS}/namespaces/{house.namespace}/podgroups"
            await until(lambda: not house.plane.api.ask(groups)["items"], house)

    run(work)
