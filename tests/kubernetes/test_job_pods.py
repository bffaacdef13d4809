"""The automaton of a job's pods: events in, commands out, and an adversary between the two."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.backends.processes import Launch
from brim.backends.watching import RunWatch
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.errors import EnvironmentFault
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.refusals import Invalid, NoAnswer, Status
from brim.kubernetes.kubeflow.kubeflow_pods import KubeflowOrder, KubeflowPods
from brim.kubernetes.kubeflow.objects import KubeflowStart
from brim.kubernetes.kubeflow.request import KubeflowSpec, read_asked
from brim.kubernetes.nodes.places import slot_of
from brim.kubernetes.objects.identities import identity_of
from brim.kubernetes.pods.elastic_pods import ElasticPods, PodOrder
from brim.kubernetes.pods.job_pods import JobPods
from brim.kubernetes.pods.pod_commands import (
    AskMaster,
    AwaitRecord,
    Begun,
    ClearWay,
    Command,
    CommandEnded,
    EndPod,
    Event,
    Forced,
    JobSight,
    KeepObjects,
    Left,
    MakeObject,
    MakePod,
    PodsSeen,
    Refuse,
    RemoveObject,
    Suspended,
    Swept,
    WorkersAsked,
)
from brim.kubernetes.pods.pod_faults import NameTaken
from kube_objects import JOB, SLOT, WISHES, master, start_of, worker
from submissions import submission

UP = {name: NodeSeen(up=True) for name in ("n1", "n2")}
ORDER = PodOrder(uid=start_of().uid, wishes=WISHES, token="t{}".format)
GANG = replace(ORDER, wishes=replace(WISHES, gang=True))


class Table:
    """An automaton, and the state of the world that its events are seen in."""

    def __init__(self, folder: Path, order: PodOrder | None = ORDER) -> None:
        self.job = ElasticPods(JOB)
        self.order, self.pods, self.nodes = order, tuple[KubePod, ...](), dict(UP)
        self.run, self.now = RunWatch(folder), 100.0

    def __call__(self, event: Event, *pods: KubePod, after: float = 0.0) -> list[Command]:
        """The commands that follow from an event, in their order."""
        self.now += after
        self.pods = pods or self.pods
        sight = JobSight(self.now, 1e9 + self.now, self.order, self.pods, self.nodes, self.run)
        return [command for stage in self.job.handle(event, sight) for command in stage]


def launch(number: int = 1, workers: str = "1:4", **fields: Any) -> Launch:
    spec = submission(workers).spec
    return Launch(job=JOB.id, spec=spec, number=number, home="(masters)", **fields)


def pods_made(commands: list[Command]) -> list[str]:
    return [
        f"{command.manifest['metadata']['name']} on {command.node or '-'}"
        for command in commands
        if isinstance(command, MakePod)
    ]


def ended(commands: list[Command]) -> dict[str, int | None]:
    return {
        command.pod.metadata.name: command.grace
        for command in commands
        if isinstance(command, EndPod)
    }


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


# What is asked ------------------------------------------------------------------------------------


def test_a_start_needs_its_objects_before_its_pods(table: Table) -> None:
    commands = table(WorkersAsked(launch(), {"n1": 1, "n2": 1}, begins=True))
    kinds = [type(command) for command in commands]
    assert kinds == [ClearWay, MakeObject, MakeObject, MakePod, MakePod, MakePod]
    objects = [command.manifest["kind"] for command in commands if isinstance(command, MakeObject)]
    assert objects == ["Secret", "NetworkPolicy"]
    assert pods_made(commands) == ["flights-master on -", "flights-1-0 on n1", "flights-1-1 on n2"]


def test_a_gang_has_its_group_before_all_else(table: Table) -> None:
    table.order = GANG
    commands = table(WorkersAsked(launch(), {"n1": 1}, begins=True))
    group = next(command for command in commands if isinstance(command, KeepObjects))
    assert commands.index(group) < min(map(commands.index, made_of(commands, MakeObject)))
    table(CommandEnded(group, None, table.now))
    assert not table(PodsSeen(launch()), master(), worker(0))
    larger = table(PodsSeen(launch(workers="2:4")))
    assert [command.manifests[0]["spec"] for command in larger if isinstance(command, KeepObjects)]


def made_of(commands: list[Command], kind: type[Command]) -> list[Command]:
    return [command for command in commands if isinstance(command, kind)]


@pytest.mark.parametrize(
    ("planned", "pods", "make", "end"),
    [
        ({"n1": 2}, [worker(0)], ["flights-1-1 on n1"], {}),
        ({"n1": 1}, [worker(0), worker(1)], [], {"flights-1-1": None}),
        ({"n2": 1}, [worker(0)], ["flights-1-1 on n2"], {"flights-1-0": None}),
        ({"n1": 1}, [worker(0, leaving=True)], [], {}),
        ({"n1": 1}, [worker(0, phase="Failed")], ["flights-1-1 on n1"], {"flights-1-0": None}),
        ({"n1": 1}, [worker(0, "n9")], ["flights-1-1 on n1"], {"flights-1-0": 0}),
    ],
    ids=["grows", "shrinks", "moves", "waits for a slot", "replaces", "ends on a lost node"],
)
def test_a_resize_makes_and_ends_the_difference(
    table: Table,
    planned: dict[str, int],
    pods: list[KubePod],
    make: list[str],
    end: dict[str, int | None],
) -> None:
    commands = table(WorkersAsked(launch(), planned), master(), *pods)
    assert (pods_made(commands), ended(commands)) == (make, end)


def test_remade_master_waits_for_copies(table: Table) -> None:
    commands = table(WorkersAsked(launch(), {"n1": 1}), worker(0))
    (command,) = [command for command in commands if isinstance(command, MakePod)]
    assert command.slot == ""
    assert command.beside_slots == WISHES.master
    commands_after_loss = table(
        WorkersAsked(launch(), {"n1": 1}), master(phase="Failed"), worker(0)
    )
    assert ended(commands_after_loss) == {"flights-master": 0}
    assert not pods_made(commands_after_loss), "its name is taken until it is gone"


def test_an_object_that_is_gone_gets_no_pods(table: Table) -> None:
    table.order = None
    with pytest.raises(EnvironmentFault, match=r"the object of team\.flights is gone"):
        table(WorkersAsked(launch(), {"n1": 1}))
    assert table(Suspended(launch()), master(), worker(0)) == []


def test_a_master_suspends_its_run(table: Table) -> None:
    with_address = msgspec.structs.replace(
        master(), status=msgspec.structs.replace(master().status, pod_ip="10.0.0.9")
    )
    (command,) = table(Suspended(launch()), with_address, worker(0))
    assert command == AskMaster("10.0.0.9:7077", "t1")
    table(CommandEnded(command, None, table.now))
    assert ended(table(Forced(launch(), {}))) == {"flights-1-0": 1, "flights-master": 1}


def test_a_master_without_an_address_is_asked_again(table: Table) -> None:
    commands = table(Suspended(launch()), worker(0))
    assert pods_made(commands) == ["flights-master on -"]
    assert isinstance(commands[-1], Refuse)


def test_force_ends_no_more_than_the_surplus(table: Table) -> None:
    table(WorkersAsked(launch(), {"n1": 2}), master(), worker(0), worker(1))
    assert ended(table(Forced(launch(), {"n1": 1}))) == {"flights-1-1": 1}
    assert set(ended(table(Forced(launch(), {})))) == {
        "flights-1-0",
        "flights-1-1",
        "flights-master",
    }


def test_job_leaves_a_node_unless_placed_by_others(table: Table) -> None:
    pods = master(), worker(0), worker(1, "n2")
    assert ended(table(Left(launch(), "n2"), *pods)) == {"flights-1-1": None}
    assert table(Left(launch(anywhere=True), "n2")) == []


# What is seen and answered ------------------------------------------------------------------------


def test_nodes_on_which_nothing_is_missing_have_agents(table: Table) -> None:
    table(WorkersAsked(launch(), {"n1": 1, "n2": 1}), master(), worker(0))
    table(PodsSeen(launch()))
    assert table.job.seen.agents == {"(masters)", "n1"}
    table(PodsSeen(launch()), master(), worker(0), worker(1, "n2"))
    assert table.job.seen.agents == {"(masters)", "n1", "n2"}
    assert table.job.seen.workers == {"n1": 1, "n2": 1}
    table(PodsSeen(launch()), worker(0), worker(1, "n2"))
    assert table.job.seen.agents == {"(masters)"}, "its master is missing"


def test_failing_pod_is_remade_with_growing_pauses(table: Table) -> None:
    pauses = []
    for number in range(4):
        failed = msgspec.structs.replace(
            worker(number, phase="Failed"),
            metadata=msgspec.structs.replace(worker(number).metadata, uid=f"{number}"),
        )
        table(PodsSeen(launch()), master(), failed)
        start = table.now
        while not pods_made(table(WorkersAsked(launch(), {"n1": 1}))):
            table.now += 0.5
        pauses.append(table.now - start)
    assert pauses == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (NoAnswer("away"), None),
        (Invalid("pods", Status(reason="Invalid", message="odd", code=422)), "PodsRefused"),
    ],
    ids=["an outage is no stall", "a refusal is one"],
)
def test_a_refused_pod_stalls_its_job(
    table: Table, fault: EnvironmentFault, reason: str | None
) -> None:
    commands = table(WorkersAsked(launch(), {"n1": 1}), master())
    (pod,) = [command for command in commands if isinstance(command, MakePod)]
    table(CommandEnded(pod, fault, table.now))
    stall = table.job.stall
    assert (stall.reason if stall is not None else None) == reason
    assert not pods_made(table(WorkersAsked(launch(), {"n1": 1}))), "not again at once"
    table(CommandEnded(pod, None, table.now))
    assert table.job.stall is None


def test_pods_of_other_starts_end_after_the_record(table: Table) -> None:
    commands = table(Swept(2), master(), worker(0), worker(0, launch=2))
    assert isinstance(commands[0], AwaitRecord)
    assert set(ended(commands)) == {"flights-master", "flights-1-0"}
    assert set(ended(table(Swept(None)))) == {"flights-master", "flights-1-0", "flights-2-0"}


def test_the_secret_of_the_last_start_goes(table: Table) -> None:
    assert table(Begun(launch())) == []
    (command,) = table(Begun(launch(2)))
    assert isinstance(command, RemoveObject)
    assert command.thing["metadata"]["name"] == start_of(launch=1).files


@pytest.mark.parametrize("kind", [MakeObject, MakePod])
def test_refused_object_stalls_a_job_of_kubeflow(kind: type[Command]) -> None:
    request = pytorch_job()
    job, order = KubeflowPods(request.job), kubeflow_order(request)
    sight = JobSight(100.0, 1e9, order, (), UP)
    launched = replace(launch(), job=request.job.id)
    stages = job.handle(WorkersAsked(launched, {"n1": 1}, begins=True), sight)
    commands = [command for stage in stages for command in stage]
    (refused,) = made_of(commands, kind)
    conflict = NameTaken("Service", "team/flights-worker-0", "flights")
    job.handle(CommandEnded(refused, conflict, 100.0), sight)
    assert job.stall is not None
    assert job.stall.reason == "NameTaken"
    (pod,) = made_of(commands, MakePod)
    job.handle(CommandEnded(pod, None, 101.0), sight)
    assert job.stall is None


# An adversary -------------------------------------------------------------------------------------


class Town:
    """A server with nodes and pods, an automaton, and all that may come between the two."""

    def __init__(self, rng: random.Random, shape: Callable[[], JobPods[Any]], order: Any) -> None:
        self.rng, self.shape, self.order = rng, shape, order
        self.pods: dict[str, KubePod] = {}
        self.nodes = dict(UP)
        self.automaton, self.now, self.uids = shape(), 0.0, 0
        self.wanted: Mapping[str, int] = {}
        self.run: RunWatch | None = None
        self.faults = True

    def handle(self, launch: Launch, event: Event) -> None:
        """Carry out the commands, up to where the answer is lost or the operator dies."""
        self.now += self.rng.uniform(0.0, 2.0)
        sight = JobSight(
            self.now, 1e9 + self.now, self.order, tuple(self.pods.values()), self.nodes, self.run
        )
        for stage in self.automaton.handle(event, sight):
            for command in stage:
                if self.faults and self.rng.random() < 0.05:
                    self.automaton = self.shape()  # another operator takes over
                    return
                fault = self.carry_out(command)
                self.automaton.handle(CommandEnded(command, fault, self.now), sight)
                if fault is not None:
                    return

    def carry_out(self, command: Command) -> EnvironmentFault | None:
        if self.faults and self.rng.random() < 0.1:
            return NoAnswer("away")
        if isinstance(command, MakePod):
            meta = command.manifest["metadata"]
            if meta["name"] not in self.pods:
                self.uids += 1
                thing = {
                    **command.manifest,
                    "metadata": {**meta, "uid": f"uid {self.uids}"},
                    "status": {"phase": "Pending"},
                }
                self.pods[meta["name"]] = msgspec.convert(thing, KubePod)
        if isinstance(command, EndPod) and command.pod.metadata.name in self.pods:
            name = command.pod.metadata.name
            if self.pods[name].metadata.uid != command.pod.metadata.uid:
                return None
            if command.grace == 0 or not self.pods[name].spec.node_name:
                del self.pods[name]
            else:
                meta = msgspec.structs.replace(self.pods[name].metadata, deletion_timestamp="now")
                self.pods[name] = msgspec.structs.replace(self.pods[name], metadata=meta)
        if self.faults and self.rng.random() < 0.1:
            return NoAnswer("the answer is lost")
        return None

    def strike(self) -> None:
        """Something happens to a pod."""
        if not self.pods:
            return
        name = self.rng.choice(sorted(self.pods))
        pod = self.pods[name]
        deed = self.rng.choice(["vanish", "fail", "evict", "leave"])
        if deed == "vanish":
            del self.pods[name]
        elif deed == "leave":
            meta = msgspec.structs.replace(pod.metadata, deletion_timestamp="now")
            self.pods[name] = msgspec.structs.replace(pod, metadata=meta)
        elif not pod.has_ended:
            reason = "Evicted" if deed == "evict" else ""
            status = msgspec.structs.replace(pod.status, phase="Failed", reason=reason)
            self.pods[name] = msgspec.structs.replace(pod, status=status)

    def settle(self) -> None:
        """Kubelets bind, run and end pods as told."""
        for name, pod in list(self.pods.items()):
            if pod.is_leaving:
                del self.pods[name]
            elif pod.status.phase == "Pending":
                identity = identity_of(pod)
                assert identity is not None
                spec = msgspec.structs.replace(pod.spec, node_name=identity.node or "n1")
                status = msgspec.structs.replace(pod.status, phase="Running")
                self.pods[name] = msgspec.structs.replace(pod, spec=spec, status=status)

    def held(self, launch: Launch) -> Counter[str]:
        """The slots that workers of this start hold, by node; masters hold none."""
        found = Counter[str]()
        for name, pod in self.pods.items():
            identity = identity_of(pod)
            assert identity is not None
            is_worker = identity.launch == launch.number and name != JOB.master
            if is_worker and not pod.has_ended:
                found[identity.node] += 1
        return found


def kubeflow_order(request: KubeflowSpec) -> KubeflowOrder:
    def start(number: int) -> KubeflowStart:
        return KubeflowStart(request=request, uid="uid", launch=number, slot=slot_of(SLOT))

    return KubeflowOrder(uid="uid", request=request, start=start)


def pytorch_job() -> KubeflowSpec:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}
    spec = {
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
        "runPolicy": {"backoffLimit": 1000},
        "pytorchReplicaSpecs": {
            "Worker": {"replicas": 4, "restartPolicy": "OnFailure", "template": template}
        },
    }
    thing = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": "flights",
            "namespace": "team",
            "uid": "uid",
            "creationTimestamp": "2026-11-28T08:00:00Z",
        },
        "spec": spec,
    }
    request = read_asked(thing, slot=slot_of(SLOT))
    assert isinstance(request, KubeflowSpec)
    return request


@pytest.mark.parametrize("kind", ["ElasticJob", "PyTorchJob"])
def test_whatever_happens_pods_become_what_was_asked(tmp_path: Path, kind: str) -> None:
    """No step ever gives a node more workers than were asked for there, at most at that time."""
    request = pytorch_job()
    job = JOB if kind == "ElasticJob" else request.job
    for seed in range(40):
        rng = random.Random(seed)
        if kind == "ElasticJob":
            town = Town(rng, lambda: ElasticPods(JOB), ORDER)
            town.run = RunWatch(tmp_path)
        else:
            town = Town(rng, lambda: KubeflowPods(request.job), kubeflow_order(request))
        launched = replace(launch(), job=job.id)
        largest = Counter[str]()
        plan: dict[str, int] = {}
        for turn in range(25):
            if turn == 0 or rng.random() < 0.3:
                plan = {name: rng.randint(0, 2) for name in UP}
                plan = plan if any(plan.values()) else {"n1": 1}
            for name, count in plan.items():
                largest[name] = max(largest[name], count)
            town.handle(launched, WorkersAsked(launched, plan, begins=turn == 0))
            running = town.held(launched)
            assert all(running[name] <= largest[name] for name in running), (
                seed,
                turn,
                running,
                plan,
            )
            if rng.random() < 0.5:
                town.strike()
            if rng.random() < 0.5:
                town.settle()
            town.handle(launched, PodsSeen(launched))
            town.handle(launched, Swept(1))
        town.faults = False
        for _ in range(30):
            town.now += 10.0
            if isinstance(town.order, KubeflowOrder):  # the record has what a look has counted
                starts = town.order.starts.with_failures(town.automaton.seen.failed)
                town.order = replace(town.order, starts=starts)
            town.handle(launched, PodsSeen(launched))
            town.handle(launched, WorkersAsked(launched, plan))
            town.settle()
        planned = Counter({name: count for name, count in plan.items() if count})
        assert town.held(launched) == planned, (seed, plan)
        town.handle(launched, PodsSeen(launched))
        assert isinstance(town.automaton.seen, Seen)
        assert town.automaton.seen.alive
        for _ in range(3):
            town.handle(launched, Forced(launched, {}))
            town.settle()
        town.handle(launched, Swept(None))
        town.settle()
        assert not town.pods, (seed, town.pods)
