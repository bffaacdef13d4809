"""Pods are made and ended until those are there that should be, and never one twice."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.objects.identities import KubeJob, identity_of
from brim.kubernetes.pods.start_pods import (
    NewWorker,
    WorkerChanges,
    beyond,
    beyond_anywhere,
    differences,
    differences_anywhere,
    pods_of,
)
from kube_objects import JOB, master, pod, worker


def changes(pods: list[KubePod], launch: int = 1, **workers: int) -> WorkerChanges:
    return differences(pods_of(pods, JOB, launch), JOB, launch, workers)


def anywhere(
    pods: list[KubePod], *, drained: tuple[str, ...] = (), **workers: int
) -> WorkerChanges:
    return differences_anywhere(pods_of(pods, JOB, 1), JOB, 1, workers, leaving_nodes=drained)


def unbound(number: int, node: str = "n1", **fields: Any) -> KubePod:
    return worker(number, node, bound=False, phase="Pending", **fields)


def test_pods_that_others_place_count_wherever_they_are() -> None:
    assert anywhere([], n1=1, n2=1).make == (
        NewWorker("flights-1-0", "n1"),
        NewWorker("flights-1-1", "n2"),
    )
    pods = [worker(0, "n3"), unbound(1, "n1"), worker(2, "n9")]
    assert pods_of(pods, JOB, 1).bound == {"n3": 1, "n9": 1}
    assert anywhere(pods, n1=1, n2=2) == WorkerChanges()
    assert anywhere(pods, n1=2, n2=2).make == (NewWorker("flights-1-3", "n1"),)
    pods.append(worker(3, "n2", leaving=True))  # which holds its slot until it is gone
    assert anywhere(pods, n1=2, n2=2) == WorkerChanges()


def test_waiting_pods_placed_by_others_go_first() -> None:
    pods = [
        unbound(0),
        unbound(1, refused=True),
        worker(2, "n2", phase="Pending"),
        worker(3, "n2"),
        worker(4, "n1"),
        worker(5, "n1"),
    ]
    ended = [set(anywhere(pods, n1=count).end) for count in (6, 5, 4, 3, 2, 1, 0)]
    removed = [*(second - first for first, second in pairwise(ended))]
    assert removed == [{f"flights-1-{number}"} for number in (1, 0, 2, 3, 5, 4)]
    assert anywhere(pods, n2=1).end == (
        "flights-1-0",
        "flights-1-1",
        "flights-1-2",
        "flights-1-4",
        "flights-1-5",
    )


def test_pods_placed_by_others_leave_a_draining_node() -> None:
    pods = [worker(0, "n1"), worker(1, "n2"), unbound(2, "n2")]
    assert anywhere(pods, drained=("n2",), n1=3) == WorkerChanges(
        ("flights-1-1",), (NewWorker("flights-1-3", "n1"),)
    )


def test_force_prefers_pods_already_leaving() -> None:
    pods = pods_of([worker(0, leaving=True), worker(1, "n2"), unbound(2)], JOB, 1)
    assert beyond_anywhere(pods, {"n1": 2, "n3": 1}) == ()
    assert beyond_anywhere(pods, {"n3": 1}) == ("flights-1-0", "flights-1-2")


def test_missing_pods_are_made_and_surplus_ones_ended() -> None:
    assert changes([master()], n1=2, n2=1) == WorkerChanges(
        (),
        (
            NewWorker("flights-1-0", "n1"),
            NewWorker("flights-1-1", "n1"),
            NewWorker("flights-1-2", "n2"),
        ),
    )
    pods = [master(), worker(0), worker(1), worker(2, "n2")]
    assert changes(pods, n1=2, n2=1) == WorkerChanges()
    assert changes(pods, n1=1, n3=1) == WorkerChanges(
        ("flights-1-1", "flights-1-2"), (NewWorker("flights-1-3", "n3"),)
    )


def test_ended_pod_is_replaced_under_the_next_name() -> None:
    pods = [worker(0), worker(1, phase="Failed"), worker(2)]
    assert changes(pods, n1=3) == WorkerChanges(("flights-1-1",), (NewWorker("flights-1-3", "n1"),))


def test_leaving_pod_holds_its_slot_until_gone() -> None:
    pods = [worker(0), worker(1, leaving=True)]
    assert changes(pods, n1=2) == WorkerChanges()
    assert changes(pods, n1=1) == WorkerChanges()
    assert changes(pods[:1], n1=2).make == (NewWorker("flights-1-1", "n1"),)
    assert pods_of(pods, JOB, 1).held == {"n1": 2}


def test_pods_that_do_not_train_go_first() -> None:
    pods = [
        worker(0, bound=False, phase="Pending", refused=True),
        worker(1, phase="Pending"),
        worker(2),
        worker(3),
    ]
    ended = [set(changes(pods, n1=count).end) for count in (4, 3, 2, 1, 0)]
    removed = [*(second - first for first, second in pairwise(ended))]
    assert removed == [{f"flights-1-{number}"} for number in (0, 1, 3, 2)]


def test_force_takes_those_who_were_asked_first() -> None:
    pods = pods_of([worker(0, leaving=True), worker(1), worker(2)], JOB, 1)
    assert beyond(pods, {"n1": 3}) == ()
    assert beyond(pods, {"n1": 2}) == ("flights-1-0",)
    assert beyond(pods, {}) == ("flights-1-0", "flights-1-1", "flights-1-2")


def test_only_own_pods_of_other_starts_are_ended() -> None:
    foreign_job = KubeJob("team", "flights-1")
    own_pod = worker(0)
    forged = msgspec.structs.replace(
        own_pod, metadata=msgspec.structs.replace(own_pod.metadata, owner_references=())
    )
    pods = [
        worker(0, launch=1),
        master(launch=1),
        worker(0, job=foreign_job),
        pod("flights-2-0"),
        forged,
    ]
    assert changes(pods, launch=2, n1=1) == WorkerChanges(
        ("flights-1-0", "flights-master"), (NewWorker("flights-2-0", "n1"),)
    )
    assert not pods_of(pods, JOB, 2).alive
    assert pods_of(pods, JOB, 1).alive


def test_start_is_alive_until_its_last_pod_ends() -> None:
    assert not pods_of([master(phase="Succeeded"), worker(0, phase="Failed")], JOB, 1).alive
    assert pods_of([master(phase="Succeeded"), worker(0, leaving=True)], JOB, 1).alive
    assert pods_of([master(phase="Pending")], JOB, 1).alive


@pytest.mark.parametrize("name", ["a", "a-1", "a-1-2"])
def test_job_names_like_pod_names_cause_no_confusion(name: str) -> None:
    jobs = [KubeJob("team", name) for name in ("a", "a-1", "a-1-2")]
    own_pod = KubeJob("team", name)
    pods = [worker(n, job=job, launch=k) for job in jobs for k in (1, 2) for n in (1, 2)]
    assert len({pod.metadata.name for pod in pods}) == len(pods)
    assert sorted(pods_of(pods, own_pod, 1).workers) == [1, 2]
    assert len(pods_of(pods, own_pod, 1).others) == 2


class Server:
    """An API server and its kubelets, as far as pods go; ending a pod may take a while."""

    def __init__(self) -> None:
        self.pods: dict[str, KubePod] = {}

    def carry_out(self, todo: WorkerChanges, *, requests: int) -> None:
        """Carry out the changes; the operator ends after so many requests."""
        for name in todo.end[:requests]:
            pod = self.pods[name]
            identity = identity_of(pod)
            assert identity is not None
            number = int(name.rpartition("-")[2])
            phase = pod.status.phase  # one that has ended does so until it is gone
            self.pods[name] = worker(number, identity.node, phase=phase, leaving=True)
        for name, node in todo.make[: max(0, requests - len(todo.end))]:
            assert name not in self.pods
            self.pods[name] = worker(int(name.rpartition("-")[2]), node)

    def settle(self) -> None:
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.is_leaving}

    def fail(self, number: int) -> None:
        name = JOB.worker(1, number)
        if name in self.pods:
            identity = identity_of(self.pods[name])
            assert identity is not None
            self.pods[name] = worker(number, identity.node, phase="Failed")

    def todo(self, workers: dict[str, int]) -> WorkerChanges:
        return differences(pods_of(self.pods.values(), JOB, 1), JOB, 1, workers)


_WORKERS = st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 4))
_EVENTS = st.lists(
    st.tuples(st.just("plan"), _WORKERS)
    | st.tuples(st.just("fail"), st.integers(0, 5))
    | st.tuples(st.just("settle"), st.none())
    | st.tuples(st.just("ask"), st.integers(0, 6)),
    max_size=20,
)


@settings(deadline=None)
@given(_EVENTS)
def test_any_events_reach_the_plan_within_capacity(events: list[Any]) -> None:
    """Also where operators end in the middle, and where pods end by themselves."""
    server, plan = Server(), {}
    for event, value in events:
        if event == "plan":
            plan = value
        elif event == "fail":
            server.fail(value)
        elif event == "settle":
            server.settle()
        else:
            previous = pods_of(server.pods.values(), JOB, 1).held
            server.carry_out(server.todo(plan), requests=value)
            held_slots = pods_of(server.pods.values(), JOB, 1).held
            assert all(
                count <= max(previous.get(n, 0), plan.get(n, 0)) for n, count in held_slots.items()
            )
    for _ in range(3):
        server.carry_out(server.todo(plan), requests=1 << 10)
        server.settle()
    assert server.todo(plan) == WorkerChanges()
    assert Counter(pods_of(server.pods.values(), JOB, 1).held) == Counter(plan)
