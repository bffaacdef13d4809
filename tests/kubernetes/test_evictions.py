"""Evictions that others ask for: the answers to them, and on a real server how a pod leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from brim.errors import EnvironmentFault
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.times import read_time
from brim.kubernetes.objects.schemas import crds
from brim.kubernetes.pods.evictions import Eviction, EvictionAnswer, answer_to, with_responder
from brim.kubernetes.pods.manifests import worker_pod
from brim_lab.kubernetes.api import PATCH
from brim_lab.kubernetes.control_plane import (
    API_SERVER,
    ETCD,
    ControlPlane,
    Features,
    control_plane,
)
from clusters import need
from kube_objects import JOB, WISHES, start_of, worker
from kubernetes.test_operator import NODES, House, Kubelets, add_node, run

BEGAN = "2026-12-01T08:00:00Z"
NOW = read_time(BEGAN, field="") + 5.0
RESPONDER = "brim.dev/operator"
POD = worker(0)


def eviction(state: str = "Active", *, uid: str = POD.metadata.uid, **report: str) -> Eviction:
    own_responder = {"name": RESPONDER, "startTime": BEGAN, **report}
    foreign = {"name": "imperative-eviction.k8s.io/evictor", "state": "Inactive"}
    thing = {
        "metadata": {"name": "e", "namespace": "team"},
        "spec": {"target": {"pod": {"name": POD.metadata.name, "uid": uid}}},
        "status": {
            "targetResponders": [{"name": RESPONDER, "state": state, "priority": 10_000}, foreign],
            "responders": [own_responder, {"name": foreign["name"]}],
        },
    }
    return msgspec.convert(thing, Eviction)


def reported(answer: EvictionAnswer | None) -> tuple[bool, set[str]]:
    assert answer is not None
    assert answer.report["name"] == RESPONDER
    return answer.end, set(answer.report) - {"name", "message"}


def test_evicted_pod_is_deleted_and_reported() -> None:
    answer = answer_to(eviction(), POD, NOW)
    assert reported(answer) == (True, {"heartbeatTime", "expectedCompletionTime"})
    assert answer is not None
    assert answer.report["heartbeatTime"] == "2026-12-01T08:00:05Z"
    assert answer.report["expectedCompletionTime"] == "2026-12-01T08:00:35Z"


def test_leaving_pod_sends_a_heartbeat_once_a_minute() -> None:
    leaving = worker(0, leaving=True)
    assert reported(answer_to(eviction(), leaving, NOW)) == (
        False,
        {"heartbeatTime", "expectedCompletionTime"},
    )
    reported_eviction = eviction(heartbeatTime="2026-12-01T08:00:05Z")
    assert answer_to(reported_eviction, leaving, NOW + 59.0) is None
    assert answer_to(reported_eviction, leaving, NOW + 60.0) is not None


@pytest.mark.parametrize(
    "pod", [None, worker(0, phase="Failed"), worker(1)], ids=["gone", "ended", "another"]
)
def test_it_is_complete_once_the_pod_is_gone(pod: KubePod | None) -> None:
    answer = answer_to(eviction(), pod, NOW)
    assert reported(answer) == (False, {"heartbeatTime", "completionTime"})
    assert answer_to(eviction(completionTime=BEGAN), pod, NOW) is None


@pytest.mark.parametrize("state", ["Inactive", "Interrupted", "Canceled", "Completed"])
def test_responder_acts_only_in_its_turn(state: str) -> None:
    assert answer_to(eviction(state), POD, NOW) is None


def test_nothing_is_done_where_nobody_says_since_when() -> None:
    assert answer_to(eviction(startTime="soon"), POD, NOW) is None


def test_no_time_is_before_the_servers_own() -> None:
    answer = answer_to(eviction(), POD, NOW - 30.0)
    assert answer is not None
    assert answer.report["heartbeatTime"] == BEGAN


# On a server --------------------------------------------------------------------------------------

LIFECYCLE = "/apis/lifecycle.k8s.io/v1alpha1/namespaces"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A server that stores evictions, and does nothing about them: the tests do."""
    need(ETCD, API_SERVER)
    features = Features(
        gates=("EvictionRequestAPI", "GenericWorkload"),
        apis=("lifecycle.k8s.io/v1alpha1", "scheduling.k8s.io/v1beta1"),
    )
    with control_plane(tmp_path_factory.mktemp("plane"), features=features) as plane:
        plane.add_kinds(crds().values())
        for name in NODES:
            add_node(plane, name)
        yield plane


@pytest.fixture
def house(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[House]:
    house = House(plane, namespace, tmp_path, evictions=True)
    yield house
    house.kubelets.remove_all()  # the nodes are the next test's


class Evicted(Protocol):
    """A namespace whose pods may be evicted."""

    plane: ControlPlane
    namespace: str
    kubelets: Kubelets


class Evicting:
    """An eviction of a pod, and its controller's part in it."""

    def __init__(self, house: Evicted, pod: str) -> None:
        self.api, responders = house.plane.api, house.kubelets.pods()[pod]
        self.path = f"{LIFECYCLE}/{house.namespace}/evictions"
        self.at = f"{self.path}/{pod}"
        target = {"pod": {"name": pod, "uid": responders["metadata"]["uid"]}}
        body = {"metadata": {"name": pod}, "spec": {"target": target}}
        self.api.ask(self.path, method="POST", body=body)
        self.named = responders["spec"].get("evictionResponders", [])

    def begin(self) -> None:
        """Have the first responder act."""
        default = {"name": "imperative-eviction.k8s.io/evictor", "priority": 100}
        responders = sorted([*self.named, default], key=lambda each: -each["priority"])
        states = ["Active", *["Inactive"] * (len(responders) - 1)]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        own_responder = [{"name": responder["name"]} for responder in responders]
        own_responder[0]["startTime"] = now
        eviction_requests = [{"name": "drainer.example.com/node", "intent": "Eviction"}]
        pairs = zip(responders, states, strict=True)
        self.say(
            requesters=eviction_requests,
            targetResponders=[{**responder, "state": state} for responder, state in pairs],
            responders=own_responder,
        )

    def say(self, **status: Any) -> None:
        body = {"status": status}
        self.api.ask(f"{self.at}/status", method="PATCH", body=body, kind=PATCH)

    def own(self) -> dict[str, Any]:
        """The operator's answer."""
        pods = self.api.ask(self.at)["status"].get("responders", [])
        return next((dict(responder) for responder in pods if responder["name"] == RESPONDER), {})

    def is_complete(self) -> bool:
        return "completionTime" in self.own()


def pod_of(house: House, name: str) -> str:
    return str(house.kubelets.pods().get(name, {}).get("metadata", {}).get("uid", ""))


def test_operator_reports_progress_of_an_evicted_worker(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until_running(3)
            previous = pod_of(house, "flights-1-0")
            house.kubelets.frozen.add("flights-1-0")
            evicting = Evicting(house, "flights-1-0")
            await asyncio.sleep(1.5)
            assert not evicting.own(), "it is not the operator's turn yet"
            evicting.begin()
            assert evicting.own()
            await house.until(lambda: "expectedCompletionTime" in evicting.own())
            leaving = house.kubelets.pods()["flights-1-0"]["metadata"]
            assert "deletionTimestamp" in leaving
            assert not evicting.is_complete()
            house.kubelets.frozen.clear()
            await house.until(evicting.is_complete)
            assert evicting.own()["message"] == "its process has left"
            await house.until_running(3)
            assert previous != pod_of(house, "flights-1-0")
            assert house.job()["status"].get("failedPods", []) == []

    run(work)


def test_next_operator_completes_a_pending_eviction(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit()
            await house.until_running(3)
        evicting = Evicting(house, "flights-master")
        evicting.begin()
        previous = pod_of(house, "flights-master")
        async with house.operator():
            await house.until(evicting.is_complete)
            await house.until(lambda: pod_of(house, "flights-master") not in ("", previous))
            assert house.phase() == "Running"

    run(work)


def test_gang_pods_have_no_responder(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit(gang=True)
            await house.until_running(3)
            pods = house.kubelets.pods()
            assert "evictionResponders" not in pods["flights-1-0"]["spec"]
            assert pods["flights-1-0"]["spec"]["schedulingGroup"] == {"podGroupName": "flights"}
            assert pods["flights-master"]["spec"]["evictionResponders"][0]["name"] == RESPONDER

    run(work)


def test_server_refuses_gang_members_with_a_responder(house: House) -> None:
    pod = with_responder(worker_pod(start_of(), WISHES, name=JOB.worker(1, 0), node="n1"))
    pod["spec"]["schedulingGroup"] = {"podGroupName": "flights"}
    pod["metadata"] = {"name": "one"}
    with pytest.raises(EnvironmentFault, match=r"evictionResponders.*schedulingGroup"):
        house.plane.api.ask(f"{house.kubelets.path}?dryRun=All", method="POST", body=pod)
