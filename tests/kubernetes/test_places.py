"""Nodes have as many slots as fit beside the pods of others, and those that kube-scheduler sees."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.coordination.cluster.sightings import AgentSeen
from brim.errors import SpecError
from brim.kubernetes.client.kube_types import Container, KubePod, Resources
from brim.kubernetes.nodes.places import NodePlaces, slot_of
from brim.kubernetes.objects.identities import KubeJob
from kube_objects import SLOT, master, node, pod, worker


def places(**amounts: str) -> NodePlaces:
    return NodePlaces(slot_of(amounts or SLOT), tolerated=["gpus"])


def devices(node_places: NodePlaces, now: float = 0.0, name: str = "n1") -> int:
    brings = node_places.seen(now)[name].brings
    assert brings is not None
    return brings.devices


def test_remaining_room_is_counted_in_slots() -> None:
    node_places = places()
    node_places.take_node("n1", node())
    assert devices(node_places) == 4
    node_places.take_pod("a", pod("a", "n1", cpu="100m"))
    assert devices(node_places) == 3
    node_places.take_pod("b", pod("b", "n1", memory="13Gi"))
    assert devices(node_places) == 1
    node_places.take_pod("b", pod("b", "n1", phase="Succeeded", memory="13Gi"))
    assert devices(node_places) == 3
    node_places.take_pod("a", None)
    assert devices(node_places) == 4


def test_masters_count_like_foreign_pods() -> None:
    node_places = places()
    node_places.take_node("n1", node())
    for number in range(2):
        node_places.take_pod(f"w{number}", worker(number))
    node_places.take_pod("w9", worker(9, launch=2, bound=False))  # it is only planned there
    assert devices(node_places) == 4
    node_places.take_pod("m", master())
    assert devices(node_places) == 3
    assert node_places.seen(0.0)["n1"].agents == (
        AgentSeen("team.flights", 1, 2),
        AgentSeen("team.flights", 2, 1),
    )


def test_requests_beyond_the_slot_count_as_taken() -> None:
    node_places = places()
    node_places.take_node("n1", node())
    large = worker(0)
    sidecar = Container(name="beside", resources=Resources(requests={"memory": "9Gi"}))
    containers = (*large.spec.containers, sidecar)
    spec = msgspec.structs.replace(large.spec, containers=containers)
    node_places.take_pod("w", msgspec.structs.replace(large, spec=spec))
    assert devices(node_places) == 3
    assert node_places.seen(0.0)["n1"].agents == (AgentSeen("team.flights", 1, 1),)
    node_places.take_pod("w", large)
    assert devices(node_places) == 4


def test_there_are_never_fewer_than_no_slots() -> None:
    node_places = places()
    node_places.take_node("n1", node())
    node_places.take_pod("w", worker(0))
    node_places.take_pod("a", pod("a", "n1", cpu="5"))
    assert devices(node_places) == 0
    assert node_places.seen(0.0)["n1"].agents == (AgentSeen("team.flights", 1, 1),)


def test_preempting_pods_count_on_their_nominated_node() -> None:
    node_places = places()
    node_places.take_node("n1", node())
    waiting = pod("a", cpu="3", phase="Pending")
    node_places.take_pod("a", waiting)
    assert devices(node_places) == 4
    status = msgspec.structs.replace(waiting.status, nominated_node_name="n1")
    node_places.take_pod("a", msgspec.structs.replace(waiting, status=status))
    assert devices(node_places) == 1


def test_a_node_of_pods_is_full() -> None:
    node_places = places()
    node_places.take_node("n1", node(allocatable={"cpu": "8", "memory": "64Gi", "pods": "2"}))
    node_places.take_pod("a", pod("a", "n1"))
    assert devices(node_places) == 1


def test_closed_nodes_keep_their_pods() -> None:
    node_places = places()
    node_places.take_pod("w", worker(0))
    node_places.take_pod("v", worker(1, leaving=True))
    for closed in (
        node(unschedulable=True),
        node(taints=[("maintenance", "NoSchedule")]),
        node(ready="False"),
    ):
        node_places.take_node("n1", closed)
        seen = node_places.seen(0.0)["n1"]
        assert (seen.up, devices(node_places), seen.leaving, seen.lost) == (False, 1, False, False)
        assert seen.problem
    for opened in (node(taints=[("gpus", "NoSchedule")]), node(taints=[("x", "PreferNoSchedule")])):
        node_places.take_node("n1", opened)
        assert (node_places.seen(0.0)["n1"].up, devices(node_places)) == (True, 4)


def test_unobservable_nodes_are_not_lost() -> None:
    node_places = places()
    node_places.doubts = True
    node_places.take_node("n1", node(ready="Unknown"))
    assert not node_places.seen(0.0)["n1"].lost
    node_places.take_node("n1", node(ready="False"))
    assert [node_places.seen(moment)["n1"].lost for moment in (1.0, 30.0)] == [False, False]
    node_places.take_node("n1", node(ready="Unknown"))
    assert not node_places.seen(30.0)["n1"].lost
    node_places.doubts = False
    assert node_places.seen(36.0)["n1"].lost


def test_nodes_about_to_go_are_left() -> None:
    node_places = places()
    for going in (
        node(taints=[("ToBeDeletedByClusterAutoscaler", "NoSchedule")]),
        node(metadata={"deletionTimestamp": "2026-11-24T17:00:00Z"}),
    ):
        node_places.take_node("n1", going)
        assert node_places.seen(0.0)["n1"].leaving


def test_unheard_nodes_are_not_counted_on() -> None:
    node_places = places()
    node_places.take_node("n1", node(ready="Unknown"))
    assert node_places.seen(0.0)["n1"].lost
    node_places.take_node("n1", node())
    assert not node_places.seen(1.0)["n1"].lost
    node_places.take_node("n1", node(ready="False"))  # its kubelet is restarted
    assert [node_places.seen(moment)["n1"].lost for moment in (2.0, 6.9, 7.1)] == [
        False,
        False,
        True,
    ]
    node_places.take_node("n1", None)
    assert "n1" not in node_places.seen(8.0)


def test_waiting_gang_members_are_refused_together() -> None:
    """And no others: kube-scheduler has not asked whether their nodes have room."""
    message = "minCount (3) cannot be satisfied: 1 scheduled, 1 remaining"
    node_places = places()
    pods = [
        ("n1", "0/2 nodes are available: 2 Insufficient cpu."),
        ("n1", message),
        ("n2", f"pod group is unschedulable, {message}"),
    ]
    for name in ("n1", "n2"):
        node_places.take_node(name, node(name))
    for number, (name, message_of_pod) in enumerate(pods):
        waiting = worker(
            number, name, bound=False, phase="Pending", refused=True, message=message_of_pod
        )
        node_places.take_pod(f"w{number}", waiting)
    assert (devices(node_places, name="n1"), devices(node_places, name="n2")) == (0, 4)


def test_a_refused_pod_blocks_a_slot_temporarily() -> None:
    node_places = places()
    node_places.take_node("n1", node())
    node_places.take_pod("w", worker(0, bound=False, phase="Pending", refused=True))
    assert devices(node_places, 0.0) == 3
    node_places.take_pod("w", None)  # the plan has gone on without it
    assert [devices(node_places, moment) for moment in (0.0, 9.9, 10.1)] == [3, 3, 4]
    node_places.take_pod("w", worker(0, bound=False, phase="Pending", refused=True))
    assert [devices(node_places, moment) for moment in (11.0, 30.0)] == [3, 3]
    node_places.take_pod("w", None)
    assert devices(node_places, 31.1) == 4  # it was twice as long this time
    node_places.take_pod("w", worker(0, bound=False, phase="Pending", refused=True))
    assert devices(node_places, 32.0) == 3
    node_places.take_pod("w", None)
    node_places.take_pod("a", pod("a", "n1", cpu="1"))  # the node has changed, so it is asked again
    assert devices(node_places, 32.0) == 3


def test_a_rejected_pod_blocks_a_slot() -> None:
    """kube-scheduler has bound it, so it believed as much as the operator."""
    node_places = places()
    node_places.take_node("n1", node())
    node_places.take_pod("w", worker(0))
    node_places.take_pod("v", worker(1, phase="Failed", reason="OutOfcpu"))
    assert devices(node_places) == 1
    assert node_places.seen(0.0)["n1"].agents == (AgentSeen("team.flights", 1, 1),)
    node_places.take_pod("v", None)
    assert [devices(node_places, moment) for moment in (9.9, 10.1)] == [1, 4]
    node_places.take_pod("v", worker(1, phase="Failed", reason="Evicted"))
    assert devices(node_places, 11.0) == 4


def test_a_failed_fit_limits_the_nodes_slots() -> None:
    """With one slot less, three of four would still be planned where there is room for one."""
    node_places = places()
    node_places.take_node("n1", node())
    full: dict[str, Any] = {
        "bound": False,
        "phase": "Pending",
        "refused": True,
        "message": "1 Insufficient cpu.",
    }
    node_places.take_pod("w0", worker(0))
    node_places.take_pod(
        "w1", worker(1, bound=False, phase="Pending")
    )  # nobody has looked at it yet
    node_places.take_pod("w2", worker(2, **full))
    assert devices(node_places) == 2
    node_places.take_pod("w1", worker(1, **full))
    assert devices(node_places) == 1
    node_places.take_pod("w2", None)
    node_places.take_pod("w1", None)
    assert [devices(node_places, moment) for moment in (0.0, 9.9, 10.1)] == [1, 1, 4]
    node_places.take_pod("w1", worker(1, **full))
    assert [devices(node_places, moment) for moment in (11.0, 30.9)] == [1, 1], "longer, this time"


def test_pending_masters_count_where_room_is_made() -> None:
    node_places = places()
    for name in ("n1", "n2", "n3"):
        node_places.take_node(name, node(name, unschedulable=name == "n3"))
    waiting = master(node="", phase="Pending", refused=True)
    key = waiting.metadata.key
    node_places.take_pod(key, waiting)

    def slots_of_both() -> tuple[int, int]:
        return devices(node_places), devices(node_places, name="n2")

    assert slots_of_both() == (4, 4)
    node_places.make_room(waiting, {"n3": 4})
    assert slots_of_both() == (4, 4), "nobody comes to a closed node"
    node_places.make_room(waiting, {"n1": 2, "n2": 4, "n3": 4})
    assert slots_of_both() == (4, 3)
    node_places.make_room(waiting, {"n1": 4, "n2": 3})
    node_places.take_pod(key, waiting)
    assert slots_of_both() == (4, 3), "it moves only from a node that is none any more"
    node_places.make_room(waiting, {"n1": 4})
    assert slots_of_both() == (3, 4)
    node_places.take_pod(key, master(node="n2"))
    assert slots_of_both() == (4, 3)
    node_places.take_pod(key, None)
    node_places.take_pod(key, waiting)
    assert slots_of_both() == (4, 4), "another one of its name is given nothing yet"


def test_a_node_may_fit_a_master_beside_slots() -> None:
    node_places = places()
    allocatable = {"cpu": "4600m", "memory": "16Gi", "pods": "110"}
    node_places.take_node("n1", node("n1"))  # four slots, and nothing beside them
    node_places.take_node("n2", node("n2", allocatable=allocatable))
    node_places.take_node("n3", node("n3", allocatable=allocatable, unschedulable=True))
    assert node_places.node_beside_slots({"cpu": "100m"}) == "", "nothing was seen yet"
    for too_much in ({"cpu": "700m"}, {"example.com/gpu": 1}):
        node_places.take_node("n2", node("n2", allocatable=allocatable))
        node_places.seen(0.0)
        assert node_places.node_beside_slots(too_much) == ""
    node_places.take_node("n2", node("n2", allocatable=allocatable))
    node_places.seen(0.0)
    assert [node_places.node_beside_slots({"cpu": "250m"}) for _ in range(3)] == ["n2", "n2", ""]
    node_places.take_pod("a", pod("a", "n2", cpu="100m"))
    node_places.seen(1.0)
    assert [node_places.node_beside_slots({"cpu": "250m"}) for _ in range(3)] == ["n2", "n2", ""]
    node_places.take_pod("b", pod("b", "n2", cpu="300m"))
    node_places.seen(2.0)
    assert node_places.node_beside_slots({"cpu": "250m"}) == ""
    node_places.take_node("n2", None)
    node_places.seen(3.0)
    assert node_places.node_beside_slots({"cpu": "100m"}) == ""


def test_labels_alone_make_no_worker() -> None:
    """A pod that only says so would hide its resources."""
    node_places = places()
    node_places.take_node("n1", node())
    own_worker = worker(0)
    meta = msgspec.structs.replace(own_worker.metadata, owner_references=())
    node_places.take_pod("w", msgspec.structs.replace(own_worker, metadata=meta))
    assert (devices(node_places), node_places.seen(0.0)["n1"].agents) == (3, ())


@pytest.mark.parametrize("slot", [{}, {"cpu": "0"}, {"cpu": "-1", "memory": "1Gi"}])
def test_a_slot_is_something(slot: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="slot"):
        slot_of(slot)


_PODS = st.tuples(
    st.sampled_from("abcd"),
    st.sampled_from(["n1", "n2", ""]),
    st.sampled_from(["Running", "Pending", "Failed"]),
    st.integers(0, 40),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_PODS | st.sampled_from("abcd") | st.tuples(st.integers(0, 3)), max_size=12))
def test_object_order_does_not_matter(events: list[object]) -> None:
    """The order of events decides nothing."""
    step = places()
    last: dict[str, KubePod] = {}
    for name in ("n1", "n2"):
        step.take_node(name, node(name))
    for event in events:
        if isinstance(event, str):
            step.take_pod(event, None)
            last.pop(event, None)
            continue
        assert isinstance(event, tuple)
        if len(event) == 1:
            key, pod_changed = f"w{event[0]}", worker(event[0], job=KubeJob("team", "other"))
        else:
            key, node_name, phase, cpu = event
            pod_changed = pod(key, node_name, phase=phase, cpu=f"{cpu}00m")
        step.take_pod(key, pod_changed)
        last[key] = pod_changed
        step.seen(0.0)
    whole = places()
    for key, pod_changed in last.items():
        whole.take_pod(key, pod_changed)
    for name in ("n1", "n2"):
        whole.take_node(name, node(name))
    assert step.seen(0.0) == whole.seen(0.0)
