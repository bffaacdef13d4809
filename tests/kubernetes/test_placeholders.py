"""Placeholders: their requests, their beginning and end, and a real kube-scheduler's treatment of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.domain.scheduled_job import ScheduledJob
from brim.errors import SpecError
from brim.host.clock import VirtualClock, monotonic
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.refusals import Invalid, Status
from brim.kubernetes.nodes.node_selection import node_requirements
from brim.kubernetes.nodes.places import NodePlaces, slot_of
from brim.kubernetes.objects.identities import PLACEHOLDER_CLASS, KubeJob, identity_of, stands_for
from brim.kubernetes.objects.schemas import crds
from brim.kubernetes.pods.job_faults import JobFaults
from brim.kubernetes.pods.manifests import Manifest, PodWishes, worker_pod
from brim.kubernetes.pods.placeholder_keeper import PlaceholderKeeper
from brim.kubernetes.pods.placeholders import (
    bound_on,
    of_elastic_job,
    placeholder_changes,
    priority_class,
)
from brim_lab.kubernetes.control_plane import (
    API_SERVER,
    CONTROLLERS,
    ETCD,
    KWOK,
    SCHEDULER,
    ControlPlane,
    control_plane,
)
from clusters import need
from kube_fakes import FakeServer, Watched
from kube_objects import JOB, SLOT, WISHES, node, seen, start_of, worker
from kubernetes.test_operator import House, run
from kubernetes.test_processes import World
from submissions import submission

SIDECAR = {"name": "proxy", "resources": {"limits": {"cpu": "500m"}}}
WITH_MORE = replace(
    WISHES,
    priority_class="high",
    handed_on={"labels": {"kueue.x-k8s.io/queue-name": "team"}},
    template={
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "schedulerName": "volcano",
            "serviceAccountName": "flights",
            "initContainers": [{"name": "fetch", "resources": {"requests": {"memory": "4Gi"}}}],
            "containers": [
                {"name": "worker", "image": "images/flights:3", "env": [{"name": "A"}]},
                SIDECAR,
            ],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "secret", "secret": {"secretName": "theirs"}},
            ],
        },
    },
)


def manifests_of(
    fewest: int = 2, wishes: PodWishes = WISHES, *, uid: str = "uid of flights", **fields: Any
) -> list[Manifest]:
    return of_elastic_job(JOB, wishes=replace(wishes, **fields), fewest=fewest, uid=uid)


def bound_pod(manifest: Manifest, node: str = "", **fields: Any) -> KubePod:
    return seen(manifest, node, phase="Running" if node else "Pending", **fields)


def test_placeholder_requests_the_resources_of_its_worker() -> None:
    first, second = manifests_of(wishes=WITH_MORE)
    assert (first["metadata"]["name"], second["metadata"]["name"]) == (
        "flights-placeholder-0",
        "flights-placeholder-1",
    )
    spec = first["spec"]
    (container,) = spec["containers"]
    assert container["command"] == ["sleep", "365d"]
    assert container["image"] == "images/flights:3"
    # Its sidecar's limits count as requests, and what starts before it needs more memory.
    assert container["resources"] == {
        "requests": {"cpu": "1500m", "memory": str(4 << 30)},
        "limits": {"memory": str(4 << 30)},
    }
    assert {name: spec[name] for name in ("nodeSelector", "tolerations", "schedulerName")} == {
        name: WITH_MORE.template["spec"][name]
        for name in ("nodeSelector", "tolerations", "schedulerName")
    }
    assert [volume["name"] for volume in spec["volumes"]] == ["data"]
    assert spec["priorityClassName"] == PLACEHOLDER_CLASS
    assert "affinity" not in spec, "it is pinned to no node"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_placeholder_belongs_to_no_queue_or_service() -> None:
    first, _ = manifests_of(wishes=WITH_MORE)
    labels = first["metadata"]["labels"]
    assert set(labels) == {"app.kubernetes.io/managed-by", "brim.dev/job", "brim.dev/role"}
    pod = bound_pod(first)
    assert identity_of(pod) is None
    assert stands_for(pod) == (JOB.id, "uid of flights")


def test_placeholder_keeps_to_nodes_of_the_operator() -> None:
    """And that the job's own template asks for, in both modes of placement."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    zone = {"key": "zone", "operator": "Exists"}
    own_affinity = {required: {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
    template = {
        "spec": {"affinity": {"nodeAffinity": own_affinity}, "containers": [{"name": "worker"}]}
    }
    pool = {"key": "pool", "operator": "In", "values": ["training"]}
    for unpinned in (False, True):
        (first,) = manifests_of(1, node_labels="pool=training", anywhere=unpinned)
        (second,) = manifests_of(
            1, node_labels="pool=training", anywhere=unpinned, template=template
        )
        found = [
            manifest["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
            for manifest in (first, second)
        ]
        assert found == [[{"matchExpressions": [pool]}], [{"matchExpressions": [zone, pool]}]]


@pytest.mark.parametrize(
    ("selector", "requirements"),
    [
        ("", []),
        ("a=b,c==d", [("a", "In", ["b"]), ("c", "In", ["d"])]),
        ("a!=b", [("a", "NotIn", ["b"])]),
        ("a in (b, c),d notin (e)", [("a", "In", ["b", "c"]), ("d", "NotIn", ["e"])]),
        ("x.io/a,!b", [("x.io/a", "Exists", None), ("b", "DoesNotExist", None)]),
        ("size>4", [("size", "Gt", ["4"])]),
        ("a=", [("a", "In", [""])]),
    ],
)
def test_selector_of_nodes_becomes_an_affinity(selector: str, requirements: list[Any]) -> None:
    found = node_requirements(selector)
    assert [
        (requirement["key"], requirement["operator"], requirement.get("values"))
        for requirement in found
    ] == requirements


@pytest.mark.parametrize("selector", ["a b", "a=b=c", "=a", "a in b", "a,,b", "a in ()x", "-"])
def test_what_is_no_selector_is_refused(selector: str) -> None:
    with pytest.raises(SpecError, match="--node-labels: got"):
        node_requirements(selector)


def test_missing_ones_are_made_and_others_end() -> None:
    first, second = manifests = manifests_of()
    todo = placeholder_changes(manifests, [bound_pod(first)])
    assert (todo.end, todo.make) == ((), (second,))
    done = placeholder_changes(manifests, [bound_pod(first), bound_pod(second, "n1")])
    assert done == ((), ())
    leftover = placeholder_changes([], [bound_pod(first), bound_pod(second, leaving=True)])
    assert [pod.metadata.name for pod in leftover.end] == ["flights-placeholder-0"]


def test_outdated_placeholder_is_replaced() -> None:
    first, _ = manifests = manifests_of()
    older = manifests_of(uid="uid of another")[0]
    larger = manifests_of(wishes=replace(WISHES, slot={"cpu": "9"}))[0]
    for pod in (seen(first, "n1", phase="Failed"), bound_pod(older), bound_pod(larger)):
        todo = placeholder_changes(manifests[:1], [pod])
        assert (todo.end, todo.make) == ((pod,), ()), "its name is free once it is gone"


def test_placeholder_blocking_a_worker_is_deleted() -> None:
    first, second = manifests = manifests_of()
    pods = [bound_pod(first, "n1"), bound_pod(second)]
    todo = placeholder_changes(manifests, pods, in_the_way=lambda name: name in ("n1", ""))
    assert [pod.spec.node_name for pod in todo.end] == ["n1"]
    assert bound_on({"n1"}, pods) == [pods[0]]


# Places -------------------------------------------------------------------------------------------


def places() -> NodePlaces:
    found = NodePlaces(slot_of(SLOT))
    found.take_node("n1", node())
    return found


def devices(found: NodePlaces) -> int:
    brings = found.seen(0.0)["n1"].brings
    assert brings is not None
    return brings.devices


def test_a_node_has_the_slots_that_placeholders_keep() -> None:
    found = places()
    assert devices(found) == 4
    for number, manifest in enumerate(manifests_of(3)):
        found.take_pod(f"team/{number}", bound_pod(manifest, "n1"))
    assert devices(found) == 4
    assert found.seen(0.0)["n1"].agents == ()


def test_forged_placeholder_counts_as_a_pod() -> None:
    found = places()
    (first,) = manifests_of(1)
    first["spec"]["priorityClassName"] = "high"
    found.take_pod("team/0", bound_pod(first, "n1"))
    assert devices(found) == 3
    first["spec"]["priorityClassName"] = PLACEHOLDER_CLASS
    first["metadata"]["ownerReferences"] = []
    found.take_pod("team/0", bound_pod(first, "n1"))
    assert devices(found) == 3


def test_unbound_worker_waits_for_its_node() -> None:
    found = places()
    assert not found.awaits_worker("n1")
    found.take_pod("team/0", worker(0))
    assert not found.awaits_worker("n1")
    found.take_pod("team/1", worker(1, bound=False, phase="Pending"))
    assert found.awaits_worker("n1")


# The keeper ---------------------------------------------------------------------------------------


class KeeperWorld:
    """A keeper beside a server that only seems to be one, and the jobs that it is told of."""

    def __init__(self, limit: int = 2, watched: str = "") -> None:
        self.server = FakeServer()
        self.clock = VirtualClock(start=1e9)
        self.watched = Watched(self.server)
        self.short: list[ScheduledJob] | None = []
        self.keeper = PlaceholderKeeper(
            self.server,
            self.watched.pods,
            self.watched.places,
            maximum=limit,
            watched=watched,
            short=lambda: self.short,
            placeholders=self.wanted,
            faults=JobFaults(lambda job: None),
            clock=self.clock,
        )

    def wanted(self, job: ScheduledJob) -> list[Manifest]:
        name = KubeJob.parse(job.id)
        fewest = job.submission.spec.workers.minimum
        if name.name == "broken":
            raise LookupError("nobody has thought of this")
        return of_elastic_job(name, f"uid of {job.id}", WISHES, fewest)

    def waits(self, *names: str, workers: str = "2") -> None:
        self.short = [
            ScheduledJob(
                number=number, id=f"team.{name}", submission=submission(workers), submitted=0.0
            )
            for number, name in enumerate(names)
        ]

    def has_waited(self, *names: str, workers: str = "2") -> None:
        """Jobs have waited for long enough to have placeholders."""
        self.waits(*names, workers=workers)
        self.tend()
        self.clock.advance(5.0)

    def tend(self, seconds: float = 0.2) -> list[str]:
        """Look once, and return the pods that are there then."""

        async def once() -> None:
            self.keeper.tend()
            if self.keeper._task is not None:
                await self.keeper._task

        self.clock.advance(seconds)
        self.watched.catch_up()
        asyncio.run(once())
        return sorted(self.server.pods)

    def make_way(self, *nodes: str) -> set[str]:
        self.watched.catch_up()
        return set(asyncio.run(self.keeper.make_way(nodes)))


def test_only_the_first_waiting_jobs_have_placeholders() -> None:
    world = KeeperWorld(limit=2)
    world.has_waited("a", "b", "c")
    names = ["a-placeholder-0", "a-placeholder-1", "b-placeholder-0", "b-placeholder-1"]
    assert world.tend() == names
    assert world.tend() == names
    assert len(world.server.made) == 4, "each was made once"
    world.waits("b", "c")
    assert not world.keeper.is_calm(), "others wait than at the last look"
    assert world.tend() == names[2:]
    assert not world.keeper.is_calm(), "one is to have its own soon"
    assert world.tend(4.0) == names[2:], "those that were before it are getting their workers"
    world.clock.advance(1.0)
    assert not world.keeper.is_calm(), "its time has come"
    assert world.tend(0.0) == [*names[2:], "c-placeholder-0", "c-placeholder-1"]
    world.has_waited()
    assert world.tend() == []
    assert world.keeper.is_calm()


def test_nothing_is_done_before_anything_was_decided() -> None:
    world = KeeperWorld()
    world.has_waited("a")
    previous = world.tend()
    world.short = None
    assert world.tend() == previous


def test_operator_without_placeholders_deletes_earlier_ones() -> None:
    world = KeeperWorld(limit=1)
    world.has_waited("a")
    world.tend()
    world.keeper._maximum = 0
    assert world.tend() == []


def test_placeholders_of_another_operators_namespace_are_left_alone() -> None:
    world = KeeperWorld()
    world.has_waited("a")
    previous = world.tend()
    world.keeper._watched = "other"
    world.has_waited()
    assert world.tend() == previous


def test_lost_placeholder_is_remade_with_growing_pauses() -> None:
    world = KeeperWorld()
    world.has_waited("a", workers="1")
    world.tend()
    (name,) = world.tend()
    world.server.vanish(name)
    assert world.tend() == [name]
    for _ in range(100):
        world.server.settle()
        if name in world.server.pods:
            world.server.end(name)
        world.tend(0.5)
    assert 5 <= len(world.server.made) <= 9, "in 50 s, with pauses of 1, 2, 4, 8 … s"


def test_refused_or_broken_placeholders_stop_no_other_job() -> None:
    world = KeeperWorld(limit=3)
    world.has_waited("a", "broken", "c", workers="2")
    world.server.refused["a-placeholder-0"] = Invalid("POST pods", Status(code=422, message="no"))
    assert world.tend() == ["c-placeholder-0", "c-placeholder-1"]
    request_count = world.server.asked
    world.tend(0.2)
    assert world.server.asked == request_count, "it is not asked at each look"
    world.server.refused.clear()
    assert world.tend(2.0) == [
        *("a-placeholder-0", "a-placeholder-1"),
        *("c-placeholder-0", "c-placeholder-1"),
    ]


def test_blocking_placeholder_is_remade_with_growing_pauses() -> None:
    """The next one might be bound in the same place before the worker is."""
    world = KeeperWorld()
    world.has_waited("a", workers="1")
    world.tend()
    world.server.objects["Pod", "team", "flights-1-0"] = {
        **worker_pod(start_of(), WISHES, name="flights-1-0", node="node0"),
        "status": {"phase": "Pending"},
    }
    world.server.pods["flights-1-0"]["metadata"]["uid"] = "uid of the worker"
    for _ in range(50):
        if "a-placeholder-0" in world.server.pods:
            world.server.pods["a-placeholder-0"]["spec"]["nodeName"] = "node0"
        world.tend(0.2)
        if "deletionTimestamp" in world.server.pods.get("a-placeholder-0", {}).get("metadata", {}):
            world.server.vanish("a-placeholder-0")
    assert 3 <= len(world.server.made) <= 5, "in 10 s, with pauses of 1, 2, 4 … s"


def test_workers_wait_for_leaving_placeholders_within_a_limit() -> None:
    world = KeeperWorld()
    world.has_waited("a")
    world.tend()
    world.server.settle()  # both are on node0
    assert world.make_way("node1") == set()
    assert world.make_way("node0", "node1") == {"node0"}
    assert all("deletionTimestamp" in pod["metadata"] for pod in world.server.pods.values())
    world.clock.advance(11.0)
    assert world.make_way("node0") == set(), "kube-scheduler says no, where they are still there"
    world.server.settle()
    assert world.make_way("node0") == set()


def test_worker_is_made_once_its_place_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "jobs")
    blocked = {"node0"}

    async def make_way(nodes: Collection[str]) -> Collection[str]:
        return blocked & set(nodes)

    monkeypatch.setattr(world.processes._placeholders, "make_way", make_way)
    world.submit()
    world.look()
    world.decide(flights={"node0": 1, "node1": 1})
    world.settle()
    assert world.on() == {"node1": 1}
    blocked.clear()
    world.look(0.2)
    assert world.on() == {"node0": 1, "node1": 1}


# On a server --------------------------------------------------------------------------------------

PATIENCE = 120.0  # seconds: a slot that was refused is tried again after 10


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A server with kube-scheduler, and one node of two slots and room for a master."""
    need(ETCD, API_SERVER, "kubectl", CONTROLLERS, SCHEDULER, KWOK)
    programs = (CONTROLLERS, SCHEDULER, KWOK)
    with control_plane(tmp_path_factory.mktemp("plane"), programs=programs) as plane:
        plane.add_kinds(crds().values())
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        plane.api.ask(path, method="POST", body=priority_class())
        plane.add_fake_nodes(1, {"cpu": "2500m"})
        yield plane


@pytest.fixture
def house(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[House]:
    house = House(plane, namespace, tmp_path, placeholders=1)
    yield house
    plane.kubectl("delete", "namespace", namespace, "--wait=false")  # the node is the next test's
    house.kubelets.remove_all()


def placeholders(house: House) -> dict[str, KubePod]:
    """Those that are there and stay, by the jobs whose names they have."""
    return {
        name: pod
        for name, entry in house.kubelets.pods().items()
        if stands_for(pod := msgspec.convert(entry, KubePod)) and not pod.is_leaving
    }


def has_placeholders(house: House, name: str, bound: int, refused: int) -> bool:
    """Whether a job has so many placeholders on nodes, and so many for which kube-scheduler has none."""
    pods = [pod for key, pod in placeholders(house).items() if key.startswith(f"{name}-")]
    bound_count = sum(pod.spec.node_name != "" for pod in pods)
    return (bound_count, sum(pod.is_refused for pod in pods), len(pods)) == (
        bound,
        refused,
        bound + refused,
    )


async def until(holds: Callable[[], bool], house: House) -> None:
    deadline = monotonic() + PATIENCE
    while not await asyncio.to_thread(holds):
        assert monotonic() < deadline, "\n".join(
            f"{name}: {pod['spec'].get('nodeName')} {pod['metadata'].get('deletionTimestamp')} {pod['status']}"
            for name, pod in house.kubelets.pods().items()
        )
        await asyncio.sleep(0.1)


def test_placeholders_bring_a_node_for_the_waiting_job(
    house: House,
) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit("small", workers={"min": 1, "max": 1})
            await until(lambda: house.workers("small").total() == 1, house)
            house.submit("large", workers={"min": 3, "max": 3})
            house.submit("later", workers={"min": 9, "max": 9})
            # One slot is free: an autoscaler is asked for no more than what is missing.
            await until(lambda: has_placeholders(house, "large", bound=1, refused=2), house)
            assert house.workers("small") == {"fake-1": 1}, "nobody has given way to it"
            assert all(name.startswith("large-") for name in placeholders(house)), "it is one job"
            previous = placeholders(house)
        async with house.operator():  # the next one knows them
            await asyncio.sleep(2)
            uids = {pod.metadata.uid for pod in previous.values()}
            assert {pod.metadata.uid for pod in placeholders(house).values()} == uids
            house.plane.add_fake_nodes(1, {"cpu": "2500m"}, first=2)
            try:
                # The placeholders make way at once, also where they were bound.
                await until(
                    lambda: (
                        house.workers("large") == {"fake-1": 1, "fake-2": 2}
                        and has_placeholders(house, "large", bound=0, refused=0)
                    ),
                    house,
                )
                await until(lambda: ready(house, "large") == 3, house)
                await until(lambda: has_placeholders(house, "later", bound=0, refused=9), house)
                house.delete("later")
                await until(lambda: not placeholders(house), house)
            finally:
                house.plane.kubectl("delete", "node", "fake-2")

    run(work)


def ready(house: House, name: str) -> int:
    return sum(
        pod["status"]["phase"] == "Running"
        for pod in house.kubelets.pods().values()
        if pod["metadata"]["labels"].get("brim.dev/role") == "worker"
        and pod["metadata"]["labels"].get("brim.dev/job") == name
    )


def test_a_placeholder_takes_no_place_from_anybody(house: House) -> None:
    """A foreign pod that comes later has the slot at once, and waiting ones stay pending."""

    async def work() -> None:
        async with house.operator():
            house.submit("large", workers={"min": 3, "max": 3})
            await until(lambda: has_placeholders(house, "large", bound=2, refused=1), house)
            container = {"name": "a", "image": "a:1", "resources": {"requests": {"cpu": "2"}}}
            body = {"metadata": {"name": "theirs"}, "spec": {"containers": [container]}}
            house.plane.api.ask(house.kubelets.path, method="POST", body=body)
            await until(
                lambda: house.kubelets.pods()["theirs"]["spec"].get("nodeName") == "fake-1", house
            )
            await until(lambda: has_placeholders(house, "large", bound=0, refused=3), house)

    run(work)


def test_job_beyond_its_quota_has_no_placeholders(house: House) -> None:
    tenant = {
        "apiVersion": "brim.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": "small"},
        "spec": {"namespaces": [house.namespace], "guaranteed": 1, "limit": 1},
    }
    house.plane.api.ask("/apis/brim.dev/v1alpha1/tenants", method="POST", body=tenant)

    async def work() -> None:
        async with house.operator():
            house.submit("within", workers={"min": 1, "max": 1}, tenant="small")
            await until(lambda: house.workers("within").total() == 1, house)
            house.submit("beyond", workers={"min": 1, "max": 1}, tenant="small")
            await until(lambda: bool(house.job("beyond").get("status", {}).get("story")), house)
            await asyncio.sleep(3)
            assert not placeholders(house)
            assert not house.workers("beyond")

    try:
        run(work)
    finally:
        house.plane.kubectl("delete", "tenant", "small")


def test_refused_placeholders_hold_up_no_other_job(house: House) -> None:
    quota = {
        "metadata": {"name": "few"},
        "spec": {"hard": {"requests.cpu": "3"}},
    }
    house.plane.api.ask(f"{house.core}/resourcequotas", method="POST", body=quota)

    async def work() -> None:
        async with house.operator():
            house.submit("large", workers={"min": 5, "max": 5})
            await until(lambda: len(placeholders(house)) == 3, house)
            house.submit("small", workers={"min": 1, "max": 1})
            house.change("large", suspend=True)
            await until(lambda: not placeholders(house), house)
            await until(lambda: ready(house, "small") == 1, house)

    run(work)
