"""Jobs whose templates say on which nodes they can be, on a server with kube-scheduler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.coordination.cluster.sightings import NodesSeen
from brim.host.clock import monotonic, sleep
from brim.kubernetes.client.kube_types import KubeNode, KubePod, Taint
from brim.kubernetes.nodes.node_selection import (
    ANY_NODE,
    NodeChoice,
    choice_in,
    common_choice,
    nodes_for,
)
from brim.kubernetes.nodes.places import NodePlaces, slot_of
from brim.kubernetes.objects.schemas import crds
from brim.kubernetes.pods import unplaced_master
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
from edges.test_nonsense import twisted
from kube_objects import JOB, node, worker
from kubernetes.test_gangs import PATIENCE, bound, house, master_is_bound, until
from kubernetes.test_modes import placement
from kubernetes.test_operator import House, run

__all__ = ["house"]
FAST = {"nodeSelector": {"speed": "fast"}, "containers": [{"name": "worker"}]}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A server with kube-scheduler, and three nodes of four slots, of which the last is fast."""
    programs = (CONTROLLERS, SCHEDULER, KWOK)
    need(ETCD, API_SERVER, "kubectl", *programs)
    with control_plane(tmp_path_factory.mktemp("plane"), programs=programs) as plane:
        plane.add_kinds(crds().values())
        plane.add_fake_nodes(3, {"cpu": "4500m"})  # and room for a master
        plane.kubectl("label", "node", "fake-2", "size=4")
        plane.kubectl("label", "node", "fake-3", "speed=fast")
        yield plane


def required(*terms: dict[str, Any], **selector: str) -> dict[str, Any]:
    """The spec of a pod that requires one of these terms."""
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
    chosen = {"affinity": {"nodeAffinity": affinity}} if terms else {}
    return {**chosen, **({"nodeSelector": selector} if selector else {})}


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    expression = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    return {"matchExpressions": [expression]}


def named(operator: str, name: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]}


SPEED, SIZE = "speed", "size"  # labels: fake-3 is fast, fake-2 has size 4
CHOICES: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"fake-1", "fake-2", "fake-3"}),
    (required(speed="fast"), {"fake-3"}),
    (required(speed="slow"), set()),
    (required(label(SPEED, "In", "slow", "fast")), {"fake-3"}),
    (required(label(SPEED, "NotIn", "fast")), {"fake-1", "fake-2"}),
    (required(label(SPEED, "Exists")), {"fake-3"}),
    (required(label(SPEED, "DoesNotExist")), {"fake-1", "fake-2"}),
    (required(label(SIZE, "Gt", "3")), {"fake-2"}),
    (required(label(SIZE, "Gt", "4")), set()),
    (required(label(SIZE, "Lt", "5")), {"fake-2"}),
    (required(label(SPEED, "Lt", "5")), set()),
    (required(named("In", "fake-1")), {"fake-1"}),
    (required(named("NotIn", "fake-1")), {"fake-2", "fake-3"}),
    (required(label(SPEED, "Exists"), label(SIZE, "Exists")), {"fake-2", "fake-3"}),
    (required({**label(SPEED, "DoesNotExist"), **named("NotIn", "fake-1")}), {"fake-2"}),
    (required(label(SIZE, "Exists"), speed="fast"), set()),
    (required({}), set()),
    (required({}, label(SIZE, "Exists")), {"fake-2"}),
]


def nodes() -> list[KubeNode]:
    labels_of = {"fake-1": {}, "fake-2": {SIZE: "4"}, "fake-3": {SPEED: "fast"}}
    return [node(name, metadata={"labels": labels}) for name, labels in labels_of.items()]


@pytest.mark.parametrize(("spec", "allowed"), CHOICES)
def test_a_choice_of_nodes_is_read(spec: dict[str, Any], allowed: set[str]) -> None:
    choice = choice_in(spec)
    assert {node.metadata.name for node in nodes() if choice.allows(node)} == allowed
    assert (choice == ANY_NODE) == (not spec)


def test_kube_scheduler_agrees_on_choices_of_nodes(house: House) -> None:
    agrees(house, CHOICES)


def agrees(house: House, choices: list[tuple[dict[str, Any], set[str]]]) -> None:
    """Make a pod for each choice and node: bound where the choice allows the node, refused elsewhere."""
    api, path = house.plane.api, house.kubelets.path
    expected: dict[str, bool] = {}
    for number, (spec, allowed) in enumerate(choices):
        affinity = spec.get("affinity", {}).get("nodeAffinity")
        for name in ("fake-1", "fake-2", "fake-3"):
            pinned = nodes_for(affinity, node=name)
            container = {"name": "a", "image": "a:1"}
            body = {**spec, "affinity": {"nodeAffinity": pinned}, "containers": [container]}
            pod = f"choice-{number}-{name}"
            api.ask(path, method="POST", body={"metadata": {"name": pod}, "spec": body})
            expected[pod] = name in allowed

    def judged() -> dict[str, bool]:
        found = {}
        for name, pod in house.kubelets.pods().items():
            if pod["spec"].get("nodeName"):
                found[name] = True
            elif msgspec.convert(pod, KubePod).is_refused:
                found[name] = False
        return found

    deadline = monotonic() + PATIENCE
    while judged() != expected and monotonic() < deadline:  # it may hear of a change of a node late
        sleep(0.2)
    assert judged() == expected


TAINTS = {
    "fake-1": [Taint(key="pool", value="a", effect="NoSchedule")],
    "fake-2": [
        Taint(key="pool", value="b", effect="NoSchedule"),
        Taint(key="x", effect="PreferNoSchedule"),
    ],
    "fake-3": [Taint(key="gpu", effect="NoExecute")],
}
TOLERATIONS: list[tuple[list[dict[str, Any]], set[str]]] = [
    ([], set()),
    ([{"key": "pool", "operator": "Exists"}], {"fake-1", "fake-2"}),
    ([{"key": "pool", "operator": "Equal", "value": "a"}], {"fake-1"}),
    ([{"key": "pool", "value": "b"}], {"fake-2"}),
    ([{"key": "pool"}], set()),
    ([{"key": "pool", "value": "a", "effect": "NoSchedule"}], {"fake-1"}),
    ([{"key": "pool", "value": "a", "effect": "NoExecute"}], set()),
    ([{"operator": "Exists"}], {"fake-1", "fake-2", "fake-3"}),
    ([{"operator": "Exists", "effect": "NoExecute"}], {"fake-3"}),
    ([{"key": "gpu"}], {"fake-3"}),
    ([{"key": "gpu", "operator": "Exists"}, {"key": "pool", "value": "a"}], {"fake-1", "fake-3"}),
]


@contextlib.contextmanager
def tainted(house: House, taints: dict[str, list[Taint]]) -> Iterator[None]:
    """Nodes with these taints for a while."""
    commands = [
        (name, f"{taint.key}={taint.value}:{taint.effect}")
        for name, node_taints in taints.items()
        for taint in node_taints
    ]
    for name, taint in commands:
        house.plane.kubectl("taint", "node", name, taint)
    try:
        yield
    finally:
        for name, taint in commands:
            house.plane.kubectl("taint", "node", name, f"{taint}-")


def test_kube_scheduler_reads_tolerations_in_the_same_way(house: House) -> None:
    with tainted(house, TAINTS):
        agrees(
            house, [({"tolerations": tolerations}, allowed) for tolerations, allowed in TOLERATIONS]
        )


@pytest.mark.parametrize(("tolerations", "allowed"), TOLERATIONS)
def test_tolerations_are_read(tolerations: list[dict[str, Any]], allowed: set[str]) -> None:
    choice = choice_in({"tolerations": tolerations})
    assert {name for name, taints in TAINTS.items() if bears(choice, name, taints)} == allowed


def bears(choice: NodeChoice, name: str, taints: list[Taint]) -> bool:
    return choice.allows(
        node(name), [taint for taint in taints if taint.effect != "PreferNoSchedule"]
    )


def test_temporary_toleration_does_not_count() -> None:
    """A pod that comes there is evicted, and so are all that come in its place."""
    for seconds in (0, 300):
        tolerations = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        choice = choice_in({"tolerations": [tolerations]})
        assert not bears(choice, "fake-3", TAINTS["fake-3"])


def test_what_a_node_refuses_follows_its_labels() -> None:
    places = NodePlaces(slot_of({"cpu": "1"}))
    for each_node in nodes():
        places.take_node(each_node.metadata.name, each_node)
    places.choices.choose("team.a", choice_in(required(speed="fast")))
    places.choices.choose("team.b", choice_in(required(label(SIZE, "Exists"))))

    def refusing() -> dict[str, set[str]]:
        return {name: set(seen.refuses) for name, seen in places.seen(0.0).items()}

    assert refusing() == {
        "fake-1": {"team.a", "team.b"},
        "fake-2": {"team.a"},
        "fake-3": {"team.b"},
    }
    assert NodesSeen(places.seen(0.0)).chosen() == {"team.a": ("fake-3",), "team.b": ("fake-2",)}
    places.take_node("fake-1", node("fake-1", metadata={"labels": {SPEED: "fast"}}))
    assert refusing()["fake-1"] == {"team.b"}
    places.choices.drop("team.b")
    assert refusing() == {"fake-1": set(), "fake-2": {"team.a"}, "fake-3": set()}


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["fake-1", "fake-2", "fake-3"]),
            st.sampled_from([None, {}, {SPEED: "fast"}, {SIZE: "4"}]),
            st.sampled_from([(), (("pool", "NoSchedule"),), (("pool", "NoExecute"), ("x", ""))]),
            st.sampled_from(["team.a", "team.b", "team.c"]),
            st.sampled_from(
                [
                    None,
                    {},
                    required(speed="fast"),
                    required(label(SIZE, "Exists")),
                    {"tolerations": [{"key": "pool", "operator": "Exists"}]},
                    {**required(speed="fast"), "tolerations": [{"operator": "Exists"}]},
                ]
            ),
            st.booleans(),
        ),
        max_size=20,
    )
)
def test_what_nodes_refuse_is_known_whatever_changed_before(steps: list[Any]) -> None:
    slot = slot_of({"cpu": "1"})
    places = NodePlaces(slot)
    nodes_now: dict[str, KubeNode | None] = {}
    choices: dict[str, NodeChoice] = {}
    for name, labels, taints, job, spec, looks in steps:
        changed = None if labels is None else node(name, metadata={"labels": labels}, taints=taints)
        nodes_now[name] = changed
        places.take_node(name, changed)
        if spec is None:
            choices.pop(job, None)
            places.choices.drop(job)
        else:
            choices[job] = choice_in(spec)
            places.choices.choose(job, choices[job])
        if looks:
            anew = NodePlaces(slot)
            for entry, as_it_is in nodes_now.items():
                anew.take_node(entry, as_it_is)
            for entry, choice in choices.items():
                anew.choices.choose(entry, choice)
            assert places.seen(0.0) == anew.seen(0.0)
            assert places.is_calm()


@pytest.mark.parametrize("odd", ["1_0", " 9", "٩", "1e3", "9" * 5_000, ""])
def test_invalid_number_is_neither_more_nor_less(odd: str) -> None:
    odd_node = node(metadata={"labels": {SIZE: odd}})
    for operator in ("Gt", "Lt"):
        assert not choice_in(required(label(SIZE, operator, "5"))).allows(odd_node)


def test_tainted_node_takes_only_tolerating_jobs() -> None:
    places = NodePlaces(slot_of({"cpu": "1"}), tolerated=["ours"])
    pool, own_taint = ("pool", "NoSchedule"), ("ours", "NoSchedule")
    places.take_node("n1", node("n1", taints=[pool, own_taint]))
    places.take_node("n2", node("n2"))
    places.choices.choose("team.plain", ANY_NODE)

    def seen() -> tuple[str, int, set[str]]:
        found = places.seen(0.0)["n1"]
        assert found.up == (not found.problem)
        assert found.brings is not None
        return found.problem, found.brings.devices, set(found.refuses)

    assert seen() == ("it has the taint pool", 0, set())
    bearing = choice_in({"tolerations": [{"key": "pool", "operator": "Exists"}]})
    places.choices.choose("team.bears", bearing)
    assert seen() == ("", 4, {"team.plain"})
    places.choices.choose(
        "team.slow", choice_in({"nodeSelector": {SPEED: "slow"}, **tolerating("pool")})
    )
    assert seen() == ("", 4, {"team.plain", "team.slow"})
    places.take_node(
        "n1", node("n1", taints=[pool, ("node.kubernetes.io/disk-pressure", "NoSchedule")])
    )
    assert seen() == ("it has the taint node.kubernetes.io/disk-pressure", 0, {"team.slow"})
    places.choices.choose("team.bears", choice_in({"tolerations": [{"operator": "Exists"}]}))
    assert seen() == ("it has the taint node.kubernetes.io/disk-pressure", 0, {"team.slow"})
    places.take_node("n1", node("n1", taints=[pool]))
    assert seen() == ("", 4, {"team.plain", "team.slow"})
    places.choices.drop("team.bears")
    assert seen() == ("it has the taint pool", 0, {"team.slow"})


def tolerating(key: str) -> dict[str, Any]:
    return {"tolerations": [{"key": key, "operator": "Exists"}]}


def test_only_noexecute_taints_end_current_pods() -> None:
    places = NodePlaces(slot_of({"cpu": "1"}))
    places.choices.choose(JOB.id, ANY_NODE)
    places.choices.choose("team.other", ANY_NODE)
    places.choices.choose("team.bears", choice_in(tolerating("pool")))
    for effect, refused in (
        ("NoSchedule", {"team.other"}),
        ("NoExecute", {"team.other", JOB.id}),
    ):
        places.take_node("n1", node("n1", taints=[("pool", effect)]))
        places.take_pod("w", worker(0))
        assert places.seen(0.0)["n1"].refuses == refused
        for not_there in (worker(0, leaving=True), worker(0, bound=False)):
            places.take_pod("w", not_there)
            assert places.seen(0.0)["n1"].refuses == {"team.other", JOB.id}


def test_common_choice_is_shared_by_all_templates() -> None:
    fast, pool, gpu = required(speed="fast"), tolerating("pool"), tolerating("gpu")
    tolerating_both = {"tolerations": [*pool["tolerations"], *gpu["tolerations"]]}
    cases: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
        ([], {}),
        ([fast], fast),
        ([fast, {}], {}),
        ([{**fast, **pool}, {**fast, **tolerating_both}], {**fast, **pool}),
        ([pool, gpu], {}),
    ]
    for specs, common in cases:
        assert common_choice([choice_in(spec) for spec in specs]) == choice_in(common)


def test_jobs_with_equal_choices_share_one_entry() -> None:
    """A thousand jobs on a thousand nodes would else take a million entries, several times over."""
    places = NodePlaces(slot_of({"cpu": "1"}))
    for number in range(20):
        labels = {SPEED: "fast"} if number % 2 else {}
        places.take_node(f"n{number}", node(f"n{number}", metadata={"labels": labels}))
    for number in range(20):
        places.choices.choose(f"team.{number}", choice_in(required(speed="fast")))
    seen = places.seen(0.0)
    assert len({id(sighting.refuses) for sighting in seen.values()}) == 2
    chosen = NodesSeen(seen).chosen()
    assert len(chosen) == 20
    assert len({id(nodes) for nodes in chosen.values()}) == 1
    assert chosen["team.0"] == tuple(sorted(f"n{number}" for number in range(1, 20, 2)))


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"disk": 3}},
        {"nodeSelector": ["ssd"]},
        required({"matchExpressions": [{"key": "speed", "operator": "Is"}]}),
        required({"matchExpressions": [{"key": "speed", "operator": "In", "values": [1]}]}),
        required({"matchExpressions": {}}),
        {"affinity": {"nodeAffinity": 3}, "nodeSelector": None},
        {"tolerations": [{"key": 3}], "nodeSelector": {"disk": "ssd"}},
        {"tolerations": {}},
    ],
)
def test_what_the_server_refuses_chooses_nothing(spec: dict[str, Any]) -> None:
    """Pods are made, so that the server names the fault."""
    assert choice_in(spec) == ANY_NODE


@settings(max_examples=300, deadline=None)
@given(
    spec=twisted(
        {
            **required({**label(SPEED, "In", "a"), **named("In", "b")}, speed="fast"),
            "tolerations": [
                {"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}
            ],
        }
    )
)
def test_any_choice_is_read_or_left_open(spec: Any) -> None:
    choice = choice_in(spec)
    assert all(choice.allows(node, TAINTS["fake-1"]) in (True, False) for node in nodes())
    assert isinstance(hash(choice), int)


# On a server --------------------------------------------------------------------------------------


def test_job_is_planned_on_nodes_its_template_allows(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit(workers={"min": 2, "max": 2}, template={"spec": FAST})
            await until(lambda: placement(house) == {"fake-3": 2}, house)

    run(work)


def test_job_too_large_for_its_nodes_says_why(house: House) -> None:
    """The nodes that it cannot be on are others'."""

    async def work() -> None:
        async with house.operator():
            house.submit(workers={"min": 6, "max": 6}, template={"spec": FAST})
            house.submit("other", workers={"min": 5, "max": 5})
            await until(lambda: sum(placement(house).values()) == 5, house)
            reason = "it needs 6 devices on nodes that its template allows, which have 4"
            await until(lambda: reason in str(house.job()["status"]), house)
            house.plane.kubectl("label", "node", "fake-2", "speed=fast")
            await until(lambda: len(bound(house)) == 11, house)
            assert house.workers() == {"fake-2": 2, "fake-3": 4}
            house.plane.kubectl("label", "node", "fake-2", "speed-")
            await until(lambda: len(bound(house)) == 5, house)

    run(work)


def test_job_without_a_suitable_node_says_why(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            spec = {**FAST, "nodeSelector": {"speed": "warp"}}
            house.submit(workers={"min": 1, "max": 2}, template={"spec": spec})
            reason = "it needs 1 device on nodes that its template allows, which have 0"
            await until(lambda: reason in str(house.job()["status"].get("story")), house)
            assert not bound(house)
            house.plane.kubectl("label", "node", "fake-2", "speed=warp")
            await until(lambda: house.workers() == {"fake-2": 1}, house)
        house.plane.kubectl("label", "node", "fake-2", "speed-")

    run(work)


def test_only_tolerating_jobs_run_on_tainted_nodes(
    house: House,
) -> None:
    pool = {"fake-3": [Taint(key="pool", value="a", effect="NoSchedule")]}
    bearing = {**tolerating("pool"), "containers": [{"name": "worker"}]}

    async def work() -> None:
        async with house.operator():
            with tainted(house, pool):
                house.submit("other", workers={"min": 8, "max": 8})
                await until(lambda: placement(house) == {"fake-1": 4, "fake-2": 4}, house)
                house.submit(workers={"min": 3, "max": 3}, template={"spec": bearing})
                await until(lambda: len(bound(house)) == 11, house)
                assert house.workers() == {"fake-3": 3}
                house.submit("later", workers={"min": 1, "max": 1})
                reason = "on nodes that its template allows, and other jobs leave fewer there"
                await until(lambda: reason in str(house.job("later").get("status")), house)
                assert not house.workers("later")
            await until(lambda: placement(house) == {f"fake-{k}": 4 for k in (1, 2, 3)}, house)
            assert house.workers("later") == {"fake-3": 1}

    run(work)


def fill(house: House, requests: dict[str, str]) -> None:
    """Have pods of others on these nodes, which request so many processors."""
    for name, cpu in requests.items():
        container = {"name": "a", "image": "a:1", "resources": {"requests": {"cpu": cpu}}}
        body = {
            "metadata": {"name": f"of-{name}", "labels": {"app": "a"}},
            "spec": {"nodeName": name, "containers": [container]},
        }
        house.plane.api.ask(house.kubelets.path, method="POST", body=body)


def test_masters_go_where_they_cost_no_slot(house: House) -> None:
    """Two of them fit beside the slots of fake-2, and none elsewhere, where more is left."""
    fill(house, {"fake-1": "400m", "fake-2": "1", "fake-3": "400m"})

    async def work() -> None:
        async with house.operator():
            house.submit(workers={"min": 6, "max": 6})
            house.submit("other", workers={"min": 5, "max": 5})
            await until(lambda: len(bound(house)) == 11, house)
            for name in ("flights", "other"):
                await until(lambda: master_is_bound(house, name), house)  # noqa: B023
            masters = [f"{name}-master" for name in ("flights", "other")]
            assert [house.kubelets.pods()[name]["spec"]["nodeName"] for name in masters] == [
                "fake-2",
                "fake-2",
            ]
            assert {"flights-1-0", "other-1-0"} <= house.kubelets.pods().keys()

    run(work)


def test_full_cluster_makes_room_for_the_master(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the node of the master is drained: no other pod would ever end elsewhere."""
    monkeypatch.setattr(unplaced_master, "_ROOM", 2.0)
    # Beside four workers fake-2 has no room for a master, and fake-3 has none for anybody.
    fill(house, {"fake-2": "400m", "fake-3": "4400m"})

    def node_of_the_master() -> str:
        master = house.kubelets.pods().get("flights-master", {})
        return str(master.get("spec", {}).get("nodeName", ""))

    async def work() -> None:
        async with house.operator():
            house.submit(workers={"min": 8, "max": 8})
            await until(lambda: placement(house) == {"fake-1": 4, "fake-2": 4}, house)
            await until(lambda: node_of_the_master() == "fake-1", house)
            house.change(workers={"min": 1, "max": 8})
            house.plane.kubectl("cordon", "fake-1")
            try:
                house.kubelets.remove("flights-master")
                await until(lambda: node_of_the_master() == "fake-2", house)
                assert placement(house) == {"fake-1": 4, "fake-2": 3}
                assert "flights-1-0" in house.kubelets.pods(), "it was started again"
            finally:
                house.plane.kubectl("uncordon", "fake-1")

    run(work)


def test_workers_give_way_to_a_reported_unplaced_master(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes are tainted, and the template of the master does not bear it."""
    monkeypatch.setattr(unplaced_master, "_PATIENCE", 10.0)
    monkeypatch.setattr(unplaced_master, "_FIRST", 15.0)
    taints_everywhere = {
        f"fake-{k}": [Taint(key="pool", value="a", effect="NoSchedule")] for k in (1, 2, 3)
    }
    bearing = {**tolerating("pool"), "containers": [{"name": "worker"}]}

    def stalled() -> str:
        conditions = house.job()["status"]["conditions"]
        (found,) = (condition for condition in conditions if condition["type"] == "Stalled")
        return str(found["reason"]) if found["status"] == "True" else ""

    async def work() -> None:
        with tainted(house, taints_everywhere):
            async with house.operator():
                house.submit(workers={"min": 12, "max": 12}, template={"spec": bearing})
                await until(lambda: sum(placement(house).values()) == 12, house)
                await until(lambda: stalled() == "MasterUnschedulable", house)
                reason = "no node takes its master: 0/3 nodes are available: 3 node(s) had untolerated taint"
                assert reason in str(house.job()["status"]["conditions"])
                await until(lambda: house.phase() == "Suspended", house)
                await until(lambda: not house.workers(), house)
                assert stalled() == "MasterUnschedulable"
                master = {**tolerating("pool"), "containers": [{"name": "master"}]}
                house.change(masterTemplate={"spec": master})
                await until(lambda: len(bound(house)) == 12 and stalled() == "", house)
                await until(lambda: master_is_bound(house), house)

    run(work)
