"""Jobs as pods under the scheduler's own loop, and an operator that may die at every request."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import random
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.backends.live import LiveBackend, on_disk
from brim.coordination.cluster.scheduled_jobs import Submitted, Wished
from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.lifecycle import Happening, Phase
from brim.domain.schedule import Admitted, Decision, Reason
from brim.domain.scheduled_job import ScheduledJob
from brim.host.clock import VirtualClock
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.outages import Outages, SeenClock
from brim.kubernetes.client.refusals import Invalid, NoAnswer, Status
from brim.kubernetes.objects.identities import SERVICE, KubeJob
from brim.kubernetes.pods import elastic_pods, processes, start_pods
from brim.kubernetes.pods.elastic_pods import ElasticPods, PodOrder
from brim.kubernetes.pods.manifests import KubeStart, Manifest
from brim.kubernetes.pods.processes import PodProcesses
from brim.kubernetes.pods.runs_seen import RunsSeen
from brim.policies.placement import on_nodes
from brim.storage.book import Book
from brim.storage.database import Database
from brim.telemetry.record_files import EVENTS
from edges.test_scheduler_dies import Died, Points
from kube_fakes import FakeServer, NoPlaceholders, Watched, follow, nothing
from kube_objects import JOB, WISHES, node
from recorded_run import RecordedRun, RecordLog, spec
from submissions import submission

SPEC = ClusterSpec(cluster=Cluster(nodes=(Node(id="(masters)", devices=0),)), grace=10.0)

FILES = KubeStart(job=JOB, uid=f"uid of {JOB.id}", launch=1, token=f"uid of {JOB.id}/1").files


@functools.cache
def order_of(job: str, anywhere: bool) -> PodOrder:
    """Return the order of a job: the very same one, as long as its object does not change."""
    wishes = replace(WISHES, anywhere=anywhere)
    return PodOrder(uid=f"uid of {job}", wishes=wishes, token=f"uid of {job}/{{}}".format)


async def turns() -> None:
    """Let what is under way go on, also where this process has stood still for so long."""
    await asyncio.sleep(0.01)
    for _ in range(50):
        await asyncio.sleep(0)


class World:
    """Life after life of an operator, and a server with two nodes that outlives it."""

    def __init__(self, folder: Path, point: Callable[[], None] = nothing) -> None:
        self.folder, self.point = folder, point
        folder.mkdir(exist_ok=True)
        self.server = FakeServer(point)
        self.clock, self.outages = VirtualClock(start=1e9), Outages()
        self.suspended: list[str] = []
        self.told: list[str] = []
        self.shared: list[str] = []
        self.anywhere: set[str] = set()  # jobs whose pods are pinned to no node
        self.deleted: set[str] = set()  # jobs whose objects are gone
        self.live()

    def live(self) -> None:
        self.watched = Watched(self.server)
        self.watched.catch_up()
        runs = RunsSeen(self.folder, follow)
        self.processes = PodProcesses(
            self.server,
            self.watched.pods,
            self.watched.places,
            runs,
            shape=ElasticPods,
            placeholders=NoPlaceholders(),
            order=lambda job: None if job in self.deleted else order_of(job, job in self.anywhere),
            ask_to_suspend=self._suspend,
            clock=SeenClock(self.clock, self.outages),
            tell=self.told.append,
            settled=lambda jobs: self.settled(jobs),
            shared=self.shared,
        )
        database = Database(self.folder / "scheduler.db")
        database._sql.execute("pragma synchronous = off")  # who dies here takes no power along
        self.book = Book(database)
        self.backend = LiveBackend(
            self.book,
            self.processes,
            SPEC,
            clock=self.clock,
            unseen=lambda: self.outages.unseen(self.clock.now()),
        )

    async def settled(self, jobs: Collection[str]) -> None:
        """The records of the book are on the server."""

    async def _suspend(self, address: str, token: str) -> None:
        assert address == "10.0.0.9:7077"
        self.point()
        self.suspended.append(token)

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        async def work_alone() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            try:
                await work()
                under_way = [*self.backend._starting.values(), *self.backend._questions.values()]
                await asyncio.gather(*under_way, return_exceptions=True)
                await asyncio.gather(*self.processes._background.values())
            finally:
                await self.processes.close()

        asyncio.run(work_alone())

    def submit(
        self,
        job: KubeJob = JOB,
        workers: str = "1:4",
        *,
        anywhere: bool = False,
        processes: int = 1,
    ) -> ScheduledJob:
        number = self.book._database.next_number()
        self.anywhere |= {job.id} if anywhere else set()
        record = ScheduledJob(
            number=number,
            id=job.id,
            submission=submission(workers, anywhere=anywhere, processes=processes),
            submitted=self.clock.wall(),
        )
        self.backend.handle(Submitted(record))
        return record

    def look(self, seconds: float = 0.0) -> None:
        """Look once, at the events that the server has told by now."""
        self.clock.advance(seconds)
        if not self.server.down:
            self.watched.catch_up()
        self.run(self.backend.look)

    def settle(self, looks: int = 4) -> None:
        for _ in range(looks):
            self.look(0.2)
            self.server.settle()
        self.look(0.2)

    def decide(self, **plan: dict[str, int]) -> None:
        """Apply a decision that gives these jobs workers by node."""
        self.run(lambda: self.deciding(**plan))

    async def deciding(self, **plan: dict[str, int]) -> None:
        self.watched.catch_up()
        snapshot = await self.backend.observe()
        verdicts = tuple(
            Admitted(job=job, reason=Reason.NO_DEADLINE, promises=False) for job in snapshot.arrived
        )
        nodes = {f"team.{job}": placement for job, placement in plan.items()}
        workers = {job: sum(placement.values()) for job, placement in nodes.items()}
        await self.backend.apply(Decision(workers=workers, nodes=nodes, verdicts=verdicts))

    def away(self, reason: str = "the API server does not answer") -> None:
        """The server is away from now on, as its clients tell."""
        self.server.down = reason
        self.outages.miss("requests", self.clock.now())

    def back(self) -> None:
        self.server.down = ""
        self.outages.find("requests", self.clock.now())

    async def looking(self, seconds: float = 0.2) -> None:
        """Look once more, while earlier requests may still be under way."""
        self.clock.advance(seconds)
        if not self.server.down:
            self.watched.catch_up()
        await self.backend.look()
        await turns()

    def on(self, job: str = "flights") -> Counter[str]:
        """The workers' pods of a job that are there, by node."""
        return Counter(
            manifest["metadata"]["annotations"]["brim.dev/node"]
            for name, manifest in self.server.pods.items()
            if name.startswith(f"{job}-")
            and manifest["metadata"]["labels"]["brim.dev/role"] == "worker"
        )

    def bound(self, job: str = "flights") -> Counter[str]:
        """The workers' pods of a job that run, by node."""
        return Counter(
            manifest["spec"]["nodeName"]
            for name, manifest in self.server.pods.items()
            if name.startswith(f"{job}-")
            and manifest["metadata"]["labels"]["brim.dev/role"] == "worker"
            and manifest["spec"].get("nodeName")
        )

    def phase(self, job: KubeJob = JOB) -> Phase:
        return self.book.jobs[job.id].life.phase

    def trains(self, steps: int, job: KubeJob = JOB) -> RecordedRun:
        """Let a run make steps with one worker; return its records."""
        run = RecordedRun(self.folder / job.id, spec())
        run.begin(workers=1)
        run.train(steps)
        self.processes._runs._run_of(job.id).news = True
        return run

    def run_ends(self, exit: str, job: KubeJob = JOB) -> None:
        """The master has written the end of its run, and all processes have ended."""
        log = RecordLog(self.folder / job.id / EVENTS, clock=self.clock)
        log.append("run_ended", summary={"exit": exit})
        for name in list(self.server.pods):
            if name.startswith(f"{job.name}-"):
                self.server.end(name, "Succeeded")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "jobs")


def test_job_becomes_a_master_and_planned_workers(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 2, "node1": 1})
    assert world.on() == {"node0": 2, "node1": 1}
    assert world.server.made[:3] == [
        f"Secret {FILES}",
        "NetworkPolicy flights-master",
        "Service brim-masters",
    ]
    world.settle()
    assert len(world.server.made) == 3 + 1 + 3, "something was made twice"
    assert world.phase() is Phase.RUNNING
    assert world.book.jobs[JOB.id].held == {"node0": 2, "node1": 1}


def test_a_job_grows_and_shrinks_pod_by_pod(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    world.decide(flights={"node0": 2, "node1": 1})
    assert world.on() == {"node0": 2, "node1": 1}
    world.settle()
    world.decide(flights={"node1": 1})
    world.settle()
    assert world.on() == {"node1": 1}
    assert "flights-master" in world.server.pods


def test_lost_pod_is_remade_during_a_decision(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    world.submit(KubeJob("team", "other"))
    made_names: list[str] = []

    async def deciding() -> None:
        world.backend._starts = 0  # the other has to wait
        await world.deciding(flights={"node0": 2}, other={"node1": 3})
        world.backend._starts = 1
        decision = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(world.backend.decide_meanwhile(decision))
        await asyncio.sleep(0)
        world.server.vanish("flights-1-0")
        world.watched.catch_up()
        world.backend.stir()
        async with asyncio.timeout(10.0):
            while world.on() != {"node0": 2}:
                await asyncio.sleep(0.01)
        made_names.extend(world.server.pods)
        assert not waiting.done(), "it waits for the decision"
        phase = world.phase(KubeJob("team", "other"))
        assert phase is Phase.ADMITTED, "it is decided about now: it may go elsewhere"
        answer = Decision(workers={JOB.id: 2}, nodes={JOB.id: {"node0": 2}})
        decision.set_result(answer)
        assert await waiting is answer

    world.run(deciding)
    assert "flights-1-0" in made_names


def test_lost_pods_are_remade_ahead_of_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_OF_STARTS", 2)
    world = World(tmp_path / "jobs")
    world.submit()
    world.submit(KubeJob("team", "other"))
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    make_pod, hanging = world.server.make_pod, Counter[str]()

    async def slow(manifest: Manifest) -> KubePod | None:
        name = manifest["metadata"]["name"]
        if name.startswith("other"):
            hanging[name] += 1
            await asyncio.Event().wait()
        return await make_pod(manifest)

    monkeypatch.setattr(world.server, "make_pod", slow)

    async def starting() -> None:
        await world.deciding(flights={"node0": 2}, other={"node1": 3})
        world.server.vanish("flights-1-0")
        await world.looking()
        async with asyncio.timeout(10.0):
            while world.on() != {"node0": 2}:
                await world.looking()
        for task in world.backend._starting.values():
            task.cancel()

    world.run(starting)
    assert hanging.total() == 2, "all pods of a start are asked for at once"


def test_sound_pods_need_no_look(world: World) -> None:
    world.submit()
    world.look()
    assert world.processes.is_calm()
    world.decide(flights={"node0": 2})
    assert not world.processes.is_calm(), "the server has not told of what was made"
    world.settle()
    assert world.processes.is_calm()
    world.trains(3)
    assert not world.processes.is_calm(), "its run has news"
    world.settle()
    assert world.processes.is_calm()
    world.server.end("flights-1-0", "Failed")
    world.look(0.2)
    assert not world.processes.is_calm(), "its pod is made again after a while"
    world.look(2.0)
    world.settle()
    assert world.on() == {"node0": 2}
    assert world.processes.is_calm()


def test_unchanged_pods_are_swept_and_sorted_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Counter[str]()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **keywords: Any) -> Any:
            work[name] += 1
            return call(*arguments, **keywords)

        return count

    world.submit()
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    monkeypatch.setattr(ElasticPods, "_sweep", counted("sweep", ElasticPods._sweep))
    monkeypatch.setattr(elastic_pods, "pods_of", counted("sort", start_pods.pods_of))
    for _ in range(3):
        world.look(0.2)
    assert work == {}
    world.server.end("flights-1-0", "Failed")
    world.look(0.2)
    assert (work["sweep"], work["sort"] > 0) == (1, True)
    world.settle()
    work.clear()
    world.deleted.add(JOB.id)
    world.look(0.2)
    assert work["sweep"] == 1


def test_freed_slots_are_watched_until_they_count(world: World) -> None:
    world.look()
    assert world.processes.is_calm()
    larger = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "64", "pods": "110"}
    world.server.nodes["node0"] = node("node0", allocatable=larger)
    world.look()
    assert not world.processes.is_calm(), "more may come free within a second"
    world.look(1.1)
    assert world.processes.is_calm()


def test_masters_of_a_namespace_share_one_service(world: World) -> None:
    key = "Service", "team", SERVICE
    world.submit()
    world.submit(KubeJob("team", "other"))
    world.look()
    world.decide(flights={"node0": 1}, other={"node1": 1})
    assert world.server.made.count(f"Service {SERVICE}") == 1
    del world.server.objects[key]  # somebody has deleted it
    world.look(61.0)
    world.decide(flights={"node0": 2}, other={"node1": 1})
    assert key in world.server.objects
    world.live()  # another operator, which has found none
    world.run(lambda: world.processes.leave_namespace("team"))
    assert key in world.server.objects
    world.shared = ["team"]
    world.live()
    world.run(lambda: world.processes.leave_namespace("team"))
    assert key not in world.server.objects
    world.settle()
    world.server.vanish("flights-master")
    world.settle()
    assert key in world.server.objects, "there is a pod again that needs it"


def test_spec_of_a_run_allows_any_later_range(world: World) -> None:
    world.submit(workers="2")
    world.look()
    world.decide(flights={"node0": 2})
    (files,) = [manifest for key, manifest in world.server.objects.items() if key[0] == "Secret"]
    spec = msgspec.json.decode(b64decode(files["data"]["job.json"]), type=JobSpec)
    assert (spec.workers, spec.micro_batches) == (WorkerRange(minimum=1, maximum=8), 8)


def test_worker_of_several_processes_is_one_pod(
    world: World,
) -> None:
    job = world.submit(workers="1:3", processes=2)
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    assert world.on() == job.held == {"node0": 2}
    command = world.server.pods["flights-1-0"]["spec"]["containers"][0]["command"]
    assert command[6:8] == ["--workers", "2"]
    run = RecordedRun(world.folder / job.id, spec())
    run.begin(workers=4)
    run.train(8)
    world.processes._runs._run_of(job.id).news = True
    world.look()
    seen = world.backend.jobs._tracking.track(job).seen
    assert seen.reached is not None
    assert seen.reached.workers == 2
    assert seen.measured.rates.keys() == {2}


def test_slots_are_anothers_only_once_pods_are_gone(world: World) -> None:
    second = KubeJob("team", "other")
    world.submit(workers="1:4")
    world.submit(second, workers="1:4")
    world.look()
    world.decide(flights={"node0": 3})
    world.settle()
    world.decide(flights={"node0": 1}, other={"node0": 2})
    assert world.on("other") == {}
    world.look(0.2)
    assert world.on("other") == {}, "pods that are to end have their slots"
    world.server.settle()
    world.look(0.2)
    assert world.on("other") == {"node0": 2}


def test_deleted_jobs_slots_pass_one_by_one(world: World) -> None:
    """None of its pods is made again, so nothing is kept for them on nodes that they have left."""
    second = KubeJob("team", "other")
    world.submit(workers="1:4")
    world.submit(second, workers="1:4")
    world.look()
    world.decide(flights={"node0": 3, "node1": 1})
    world.settle()
    world.trains(3)
    world.look()
    world.deleted.add(JOB.id)
    world.backend.handle(Wished(JOB.id, Happening.CANCEL))
    world.decide(other={"node0": 3})
    assert not world.suspended, "nobody needs a checkpoint"
    world.server.vanish("flights-master")
    for number in (0, 1):
        world.server.vanish(f"flights-1-{number}")
    world.look(0.2)
    assert world.on("other") == {}
    world.server.vanish("flights-1-2")
    world.look(0.2)
    assert world.on("other") == {"node0": 3}
    assert world.on() == {"node1": 1}
    world.server.vanish("flights-1-3")
    world.look(0.2)
    assert world.phase() is Phase.CANCELLED


def test_removed_pod_is_remade(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    world.server.vanish("flights-1-1")
    world.look(0.2)
    assert world.on() == {"node0": 2}
    world.settle()
    world.server.end("flights-1-0", reason="Evicted")
    world.look(0.2)
    assert sorted(world.server.pods) == [
        "flights-1-0",
        "flights-1-1",
        "flights-1-2",
        "flights-master",
    ]
    assert "deletionTimestamp" in world.server.pods["flights-1-0"]["metadata"]


OTHER_JOBS = [KubeJob("team", name) for name in ("other", "third", "fourth")]


def slow_starts(world: World) -> asyncio.Event:
    """Have starts of all jobs but one wait until this is set."""
    make, goes_on = world.server.make, asyncio.Event()

    async def slowly(manifest: dict[str, Any]) -> bool:
        if not manifest["metadata"]["name"].startswith(JOB.name):
            await goes_on.wait()
        return await make(manifest)

    world.server.make = slowly  # type: ignore[method-assign]
    return goes_on


def test_slow_starts_hold_up_no_other_job(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    for job in OTHER_JOBS:
        world.submit(job)

    async def work() -> None:
        goes_on = slow_starts(world)
        plan = {"node1": 1}
        await world.deciding(flights={"node0": 1}, other=plan, third=plan, fourth=plan)
        world.server.vanish("flights-1-0")
        await world.looking()
        assert world.on() == {"node0": 1}
        assert [world.on(job.name) for job in OTHER_JOBS] == [{}, {}, {}]
        assert [world.phase(job) for job in OTHER_JOBS] == [Phase.RUNNING] * 3
        goes_on.set()
        await world.looking()
        await world.looking()
        assert [world.on(job.name) for job in OTHER_JOBS] == [plan] * 3

    world.run(work)
    assert [world.book.jobs[job.id].starts.launches for job in OTHER_JOBS] == [1, 1, 1]


def test_concurrent_starts_stay_within_their_limit(world: World) -> None:
    world.backend._starts = 2
    for job in OTHER_JOBS:
        world.submit(job)

    async def work() -> None:
        goes_on = slow_starts(world)
        plan = {"node0": 1}
        await world.deciding(other=plan, third=plan, fourth=plan)
        await world.looking()
        running = [world.phase(job) is Phase.RUNNING for job in OTHER_JOBS]
        assert running == [True, True, False]
        goes_on.set()
        for _ in range(3):
            await world.looking()
        assert [world.on(job.name) for job in OTHER_JOBS] == [plan] * 3

    world.run(work)


def test_cancellation_stops_a_start_under_way(world: World) -> None:
    (second, *_) = OTHER_JOBS
    world.submit(second)

    async def work() -> None:
        goes_on = slow_starts(world)
        await world.deciding(other={"node0": 2})
        world.backend.handle(Wished(second.id, Happening.CANCEL))
        await world.looking()
        goes_on.set()
        for _ in range(3):
            await world.looking()
            world.server.settle()
        assert world.on("other") == {}

    world.run(work)
    assert world.phase(second) is Phase.CANCELLED


def test_ended_pod_is_remade_with_growing_pauses(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    made_counts = []
    for _ in range(100):
        for name in world.server.pods:
            if name != "flights-master":
                world.server.end(name)
        previous = len(world.server.made)
        world.look(0.5)
        world.server.settle()
        made_counts.append(len(world.server.made) - previous)
    assert 4 <= sum(made_counts) <= 7, "in 50 s, with pauses of 1, 2, 4, 8 … s"
    assert world.phase() is Phase.RUNNING


def test_lost_master_is_remade_at_once_awaiting_copies(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    world.server.vanish("flights-master")
    world.look(0.2)
    command = world.server.pods["flights-master"]["spec"]["containers"][0]["command"]
    assert "--rejoin-timeout" not in command
    world.settle()
    assert world.phase() is Phase.RUNNING
    world.server.nodes["node7"] = node("node7")
    world.server.pods["flights-master"]["spec"]["nodeName"] = "node7"
    world.look(0.2)
    world.server.nodes["node7"] = node("node7", ready="Unknown")
    previous = len(world.server.made)
    world.settle()
    assert len(world.server.made) == previous + 1, (
        "nobody waits for the word of a node that is lost"
    )


def test_job_ends_with_its_run_leaving_no_pods(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    world.run_ends("done")
    world.settle()
    assert world.phase() is Phase.DONE
    assert world.server.pods == {}


def test_pods_stay_until_the_outcome_is_stored(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    ended = {"exitCode": 0, "message": json.dumps({"exit": "done", "steps": 7, "metrics": {}})}
    statuses = [{"name": "master", "state": {"terminated": ended}}]
    world.server.end("flights-master", "Succeeded", containerStatuses=statuses)
    world.server.end("flights-1-0", "Succeeded")

    async def work() -> None:
        stored = asyncio.Event()

        async def take_later(jobs: Collection[str]) -> None:
            assert list(jobs) == [JOB.id]
            await stored.wait()

        world.settled = take_later  # type: ignore[method-assign]
        for _ in range(3):
            await world.looking()
        assert world.phase() is Phase.DONE
        metadata = world.server.pods["flights-master"]["metadata"]
        assert "deletionTimestamp" not in metadata
        stored.set()
        await turns()
        assert "deletionTimestamp" in metadata

    world.run(work)


@pytest.mark.parametrize(("exit", "phase"), [("done", "done"), ("failed", "failed")])
def test_run_ending_without_an_operator_is_noticed(world: World, exit: str, phase: str) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    ended = {"exitCode": 0, "message": json.dumps({"exit": exit, "steps": 7, "metrics": {}})}
    statuses = [{"name": "master", "state": {"terminated": ended}}]
    world.server.end("flights-master", "Succeeded", containerStatuses=statuses)
    world.server.end("flights-1-0", "Succeeded")
    world.live()
    world.settle()
    assert world.phase().value == phase
    record = world.book.jobs[JOB.id]
    assert (record.progress.step, record.starts.launches) == (7, 1)
    assert record.summary["exit"] == exit


@pytest.mark.parametrize("uid", ["uid of another object", "uid of team.flights"])
def test_last_words_of_a_foreign_master_are_ignored(world: World, uid: str) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    ended = {"exitCode": 0, "message": json.dumps({"exit": "done"})}
    statuses = [{"name": "master", "state": {"terminated": ended}}]
    world.server.pods["flights-master"]["metadata"]["ownerReferences"][0]["uid"] = uid
    world.server.end("flights-master", "Succeeded", containerStatuses=statuses)
    world.server.end("flights-1-0", "Succeeded")
    world.live()
    world.settle()
    assert (world.phase() is Phase.DONE) == (uid == "uid of team.flights")


def test_pods_of_a_deleted_object_are_not_reused(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    previous = {pod["metadata"]["uid"] for pod in world.server.pods.values()}
    for pod in world.server.pods.values():
        pod["metadata"]["ownerReferences"][0]["uid"] = "uid of another object"
    world.live()  # the object was deleted and made again while no operator was there
    world.settle(8)
    current = {pod["metadata"]["uid"] for pod in world.server.pods.values()}
    assert not previous & current
    assert world.on() == {"node0": 1}
    assert "flights-master" in world.server.pods


def test_huge_number_in_last_words_does_no_harm(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    ended = {"exitCode": 0, "message": json.dumps({"exit": "done", "steps": 10**30})}
    statuses = [{"name": "master", "state": {"terminated": ended}}]
    world.server.end("flights-master", "Succeeded", containerStatuses=statuses)
    world.server.end("flights-1-0", "Succeeded")
    world.settle()
    assert world.phase() is Phase.DONE


def test_huge_number_in_a_summary_does_no_harm(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    log = RecordLog(world.folder / JOB.id / EVENTS, clock=world.clock)
    log.append("run_ended", summary={"exit": "done"})
    path = world.folder / JOB.id / EVENTS
    path.write_text(path.read_text().replace('"exit"', f'"steps":{10**30},"exit"'))
    for name in list(world.server.pods):
        world.server.end(name, "Succeeded")
    world.settle()
    assert world.phase() is Phase.DONE


def test_pending_worker_does_not_outlast_its_run(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    world.run_ends("done")
    world.server.pods["flights-1-1"]["status"] = {"phase": "Pending"}
    world.settle()
    assert world.phase() is Phase.DONE


def test_no_pod_is_made_after_the_run(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 2, "node1": 1})
    world.settle()
    metadata = {pod["metadata"]["uid"] for pod in world.server.pods.values()}
    world.run_ends("done")
    world.server.pods["flights-1-1"]["status"]["phase"] = "Running"  # one has not ended yet
    for _ in range(4):
        world.look(2.0)
        assert {pod["metadata"]["uid"] for pod in world.server.pods.values()} <= metadata
    world.settle()
    assert world.phase() is Phase.DONE


def test_a_job_is_suspended_by_its_master(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    world.trains(3)
    world.decide()
    world.look(0.2)
    assert world.suspended == ["uid of team.flights/1"]
    assert "deletionTimestamp" not in world.server.pods["flights-master"]["metadata"]
    world.run_ends("suspended")
    world.settle()
    assert world.phase() is Phase.SUSPENDED
    world.decide(flights={"node1": 1})
    world.settle()
    assert world.on() == {"node1": 1}
    assert "flights-2-0" in world.server.pods
    secrets = [name for kind, _, name in world.server.objects if kind == "Secret"]
    assert [name.startswith("flights-2-") for name in secrets] == [True], (
        "what the last start had beside its pods is forgotten"
    )


def test_next_operator_makes_missing_pods_of_a_restart(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    run = world.trains(3)
    world.decide()
    world.run_ends("suspended")
    world.settle()
    world.decide(flights={"node0": 2})
    world.settle()
    world.server.vanish("flights-2-1")
    world.live()  # before the master of the new start has said anything
    world.settle()
    run.begin(workers=1)
    world.processes._runs._run_of(JOB.id).news = True
    world.settle()
    assert world.on() == {"node0": 2}
    assert world.book.jobs[JOB.id].starts.launches == 2


def test_slow_leaver_takes_no_other_pod_along(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 2, "node1": 1})
    world.settle()
    world.decide(flights={"node0": 2})
    for _ in range(12):  # longer than the grace period: its node does not answer
        world.look(1.0)
    leaving = [
        name for name, pod in world.server.pods.items() if "deletionTimestamp" in pod["metadata"]
    ]
    assert leaving == ["flights-1-2"]


def test_job_without_an_object_is_forced_to_end(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    world.processes._order = lambda _: None
    world.backend.handle(Wished(JOB.id, Happening.CANCEL, "its object is deleted"))
    for _ in range(60):
        world.settle(1)
    assert world.phase() is Phase.CANCELLED
    assert world.server.pods == {}


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(processes, "_LONGEST_PAUSE", 0.001)


@pytest.mark.usefixtures("no_pauses")
def test_silent_server_is_no_fault_of_the_job(world: World) -> None:
    world.submit()
    world.look()

    async def work() -> None:
        world.away()
        await world.deciding(flights={"node0": 1})
        for _ in range(20):
            await world.looking(10.0)
        assert (world.phase(), world.server.pods) == (Phase.RUNNING, {})
        world.back()
        await world.looking()
        for _ in range(500):  # on a busy machine its request takes a moment
            if world.on():
                break
            await asyncio.sleep(0.01)
        assert world.on() == {"node0": 1}

    world.run(work)
    world.settle()
    assert world.phase() is Phase.RUNNING
    starts = world.book.jobs[JOB.id].starts
    assert (starts.launches, starts.setbacks, starts.vain) == (1, 0, 0)


@pytest.mark.usefixtures("no_pauses")
def test_start_without_an_answer_is_given_up_eventually(world: World) -> None:
    world.submit()
    world.look()

    async def work() -> None:
        world.server.down = "webhooks fail, and other requests do not"
        await world.deciding(flights={"node0": 1})
        for _ in range(5):
            await world.looking(10.0)
        assert world.phase() is Phase.RUNNING
        while not world.book.jobs[JOB.id].starts.vain:
            await world.looking(2.0)

    world.run(work)
    assert world.book.jobs[JOB.id].problem == "webhooks fail, and other requests do not"


@pytest.mark.usefixtures("no_pauses")
def test_pods_of_unanswered_requests_belong_to_the_job(world: World) -> None:
    world.submit()
    world.look()
    make, lost = world.server.make_pod, list[str]()

    async def unheard(manifest: dict[str, Any]) -> KubePod | None:
        pod = await make(manifest)
        name = manifest["metadata"]["name"]
        if name not in lost:
            lost.append(name)
            raise NoAnswer("the connection broke")
        return pod

    world.server.make_pod = unheard  # type: ignore[method-assign]

    async def work() -> None:
        await world.deciding(flights={"node0": 2})
        for _ in range(3):
            await asyncio.sleep(0.01)
            await world.backend.look()  # its watch has told of nothing yet

    world.run(work)
    assert len(lost) == 3
    world.settle()
    assert world.on() == {"node0": 2}
    assert world.book.jobs[JOB.id].starts.launches == 1


def test_pods_made_before_an_outage_are_kept(world: World) -> None:
    world.submit()
    world.look()

    async def work() -> None:
        await world.deciding(flights={"node0": 2})
        world.away()
        for _ in range(30):
            await world.looking(10.0)
        world.back()
        await world.looking()

    world.run(work)
    world.settle()
    assert (world.phase(), world.on()) == (Phase.RUNNING, {"node0": 2})
    assert world.book.jobs[JOB.id].starts.launches == 1
    assert len(world.server.made) == len(set(world.server.made))


def test_outage_does_not_count_towards_the_grace_period(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 3})
    world.settle()
    world.decide(flights={"node0": 1})
    world.away()
    for _ in range(12):
        world.look(10.0)
    world.back()
    world.look(0.2)
    story = [line.event for line in world.book.story(world.book.jobs[JOB.id])]
    assert "forced" not in story
    for _ in range(9):
        world.look(1.0)  # from now on its time runs again
    story = [line.event for line in world.book.story(world.book.jobs[JOB.id])]
    assert "forced" in story


def test_unnoticed_outage_forces_no_pod(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 3})
    world.settle()
    world.decide(flights={"node0": 1})
    forced = list[str]()
    force = world.processes.force

    async def counted(launch: Any, workers: Any) -> None:
        forced.append(launch.job)
        await force(launch, workers)

    world.processes.force = counted  # type: ignore[method-assign]

    async def noticed(_: Any) -> None:
        """Decisions have to be on the server first, which did not answer for long."""
        world.outages.miss("requests", world.clock.now() - 6.0)
        world.clock.advance(100.0)
        world.back()

    world.look(1.0)
    world.backend._settled = noticed
    world.look(8.0)
    assert forced == []
    world.backend._settled = on_disk
    world.server.settle()
    world.look(0.2)
    world.settle()
    assert (forced, world.on()) == ([], {"node0": 1})


def test_node_is_not_given_up_during_an_outage(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    world.server.nodes["node0"] = node("node0", ready="False")
    world.look(0.2)
    world.away()
    for _ in range(10):
        world.look(10.0)
    assert not world.backend.jobs.nodes.lost
    world.back()
    world.server.nodes["node0"] = node("node0")
    world.look(0.2)
    assert not world.backend.jobs.nodes.lost


def attempts(world: World, seconds: float) -> int:
    """Count the pods that are asked for meanwhile."""
    previous = world.server.asked
    for _ in range(round(seconds / 0.5)):
        world.look(0.5)
    return world.server.asked - previous


def test_taken_name_is_retried_and_reported(world: World) -> None:
    world.server.foreign("flights-1-1")
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    world.decide(flights={"node0": 2})
    assert 3 <= attempts(world, 60.0) <= 9, "with pauses of 1, 2, 4, 8 … s"
    assert world.phase() is Phase.RUNNING
    stall = world.processes.stall(JOB.id)
    assert stall is not None
    assert (stall.reason, world.told) == ("NameTaken", [JOB.id])
    world.server.vanish("flights-1-1")
    for _ in range(60):
        world.settle(1)
        world.look(1.0)
    assert world.on() == {"node0": 2}
    assert world.processes.stall(JOB.id) is None
    assert world.told == [JOB.id, JOB.id]


def test_taken_name_of_an_unwanted_pod_is_forgotten(world: World) -> None:
    world.server.foreign("flights-1-1")
    world.submit()
    world.look()
    world.decide(flights={"node0": 1})
    world.settle()
    world.decide(flights={"node0": 2})
    world.settle()
    assert world.processes.stall(JOB.id) is not None
    world.decide(flights={"node0": 1})
    world.settle()
    assert set(world.server.pods) == {"flights-master", "flights-1-0", "flights-1-1"}
    assert world.processes.stall(JOB.id) is None


def test_reason_of_a_failed_start_stays_until_another(world: World) -> None:
    messages: list[str] = []

    def stall_message() -> str:
        stall = world.processes.stall(JOB.id)
        return stall.message if stall else ""

    world.server.foreign("flights-1-1")
    world.server.foreign("flights-2-1")
    world.submit()
    world.look()
    for start in (1, 2, 3):
        world.look(10.0)
        world.decide(flights={"node0": 2})
        world.look(0.2)
        failed = start < 3
        assert (world.phase() is Phase.SUSPENDED) == failed
        assert bool(stall_message()) == failed
        world.server.point = lambda: messages.append(stall_message())
    said_in_turn = [words.partition(" is not of")[0] for words, _ in itertools.groupby(messages)]
    assert said_in_turn == ["the Pod team/flights-1-1", "the Pod team/flights-2-1", ""]
    assert len(world.told) >= 3


def test_refused_master_leaves_the_workers_running(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    world.server.vanish("flights-master")
    world.server.refused["flights-master"] = Invalid("POST", Status(code=422, message="no image"))
    assert 3 <= attempts(world, 60.0) <= 9
    stall = world.processes.stall(JOB.id)
    assert stall is not None
    assert stall.reason == "PodsRefused"
    assert "no image" in stall.message
    assert (world.phase(), world.on()) == (Phase.RUNNING, {"node0": 2})


@pytest.mark.parametrize("turns", range(5))
def test_cancellation_ends_a_wait_despite_news(world: World, turns: int) -> None:
    async def work() -> None:
        await world.backend.wait(None)  # which takes what there is to decide already
        waiting = asyncio.create_task(world.backend.wait(None))
        await asyncio.sleep(0.05)
        world.backend.stir()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=60.0)
        assert waiting.cancelled()

    world.run(work)


def on_the_other(name: str, planned: str) -> str:
    """Bind workers where no plan has them."""
    return {"node0": "node1", "node1": "node0"}[planned] if "master" not in name else "node0"


def test_workers_placed_by_others_count_on_any_node(world: World) -> None:
    world.server.bind = on_the_other
    job = world.submit(anywhere=True)
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    assert world.bound() == job.held == {"node1": 2}
    world.decide(flights={"node0": 3})
    world.settle()
    assert world.bound() == job.held == {"node1": 3}
    made_names = list(world.server.made)
    world.decide(flights={"node0": 2, "node1": 1})
    world.settle()
    assert world.server.made == made_names
    world.server.vanish("flights-1-0")
    world.settle()
    assert world.bound() == job.held == {"node0": 1, "node1": 2}
    world.decide(flights={"node1": 1})
    world.settle()
    assert world.bound() == job.held == {"node1": 1}


def test_unbound_worker_is_requested_but_does_not_count(world: World) -> None:
    world.server.bind = lambda name, planned: "" if name == "flights-1-1" else planned
    job = world.submit(anywhere=True)
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    seen = world.backend.jobs._tracking.track(job).seen
    assert (seen.workers, job.target) == ({"node0": 1}, 2)
    made_names = list(world.server.made)
    world.look(60.0)
    world.decide(flights={"node1": 2})
    world.settle()
    assert world.server.made == made_names  # it waits, and none is made beside it
    world.decide(flights={"node1": 1})
    world.settle()
    assert "flights-1-1" not in world.server.pods  # and goes first
    assert world.bound() == {"node0": 1}


def test_workers_placed_by_others_leave_a_draining_node(world: World) -> None:
    world.server.bind = on_the_other
    job = world.submit(anywhere=True)
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    notice = [("aws-node-termination-handler/spot-itn", "NoSchedule")]
    world.server.nodes["node1"] = node("node1", taints=notice)
    world.server.bind = lambda name, planned: "node0"
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    assert world.bound() == job.held == {"node0": 2}
    assert job.starts.launches == 1


class Binder:
    """Binds pods that are pinned to none to any node with room, and others where they are pinned."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._rng = world, random.Random(seed)

    def __call__(self, name: str, planned: str) -> str:
        pods = self._world.server.pods
        taken_slots = Counter(
            made_counts["spec"]["nodeName"]
            for made_counts in pods.values()
            if made_counts["spec"].get("nodeName")
            and made_counts["metadata"]["labels"]["brim.dev/role"] == "worker"
        )
        if "master" in name:
            return "node0"
        pinned = "affinity" in pods[name]["spec"]
        free = [
            node_name
            for node_name in ([planned] if pinned else ["node0", "node1"])
            if taken_slots[node_name] < 4
        ]
        if free:
            return self._rng.choice(free)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        pods[name]["status"]["conditions"] = [condition]
        return ""


@pytest.mark.parametrize("seed", range(8))
def test_pinned_and_unpinned_jobs_share_a_cluster(world: World, seed: int) -> None:
    """Each has its allocation in the end, for any bindings in between."""
    world.server.bind = Binder(world, seed)
    world.server.nodes = {  # with room for masters beside four workers
        name: node(name, allocatable={"cpu": "4500m", "memory": "16Gi", "pods": "110"})
        for name in ("node0", "node1")
    }
    second = KubeJob("team", "other")
    rng = random.Random(seed)
    world.submit(anywhere=True, workers="1:8")
    world.submit(second, workers="1:8")

    async def deciding(own_workers: int) -> None:
        world.watched.catch_up()
        snapshot = await world.backend.observe()
        room = snapshot.cluster.devices
        workers = {
            JOB.id: min(own_workers, room - 1),
            second.id: max(1, min(8 - own_workers, room - own_workers)),
        }
        verdicts = tuple(
            Admitted(job=job, reason=Reason.NO_DEADLINE, promises=False) for job in snapshot.arrived
        )
        decision = Decision(workers=workers, nodes={}, verdicts=verdicts)
        await world.backend.apply(on_nodes(snapshot, decision))

    targets = [rng.randint(1, 7) for _ in range(6)]
    for own_workers in [*targets, *[targets[-1]] * 10]:
        world.look(40.0)  # what was refused is tried again
        world.run(partial(deciding, own_workers))
        world.settle(6)
    assert world.bound().total() == targets[-1]
    assert world.bound("other").total() == 8 - targets[-1]
    assert world.book.jobs[JOB.id].starts.launches == 1


class House(World):
    """Survives: where an operator dies there is another, from the disk and the server."""

    deaths = 0

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            super().run(work)
        except Died:
            self.deaths += 1
            assert isinstance(self.point, Points)
            self.point.dead = False
            self.book._database.close()
            self.live()

    def settle(self, looks: int = 4) -> None:
        super().settle(looks)
        nobody_shares(self)

    def tell_the_story(self) -> None:
        second = KubeJob("team", "other")
        self.submit()
        self.submit(second)
        self.look()
        for plan in (
            {"flights": {"node0": 2}},
            {"flights": {"node0": 1, "node1": 1}, "other": {"node1": 2}},
            {"flights": {"node0": 3}, "other": {"node1": 1}},
            {"flights": {"node0": 3}, "other": {"node1": 1}},
        ):
            self.decide(**plan)
            self.settle()
        self.server.vanish("flights-master")
        self.settle()
        self.decide(flights={"node0": 2, "node1": 1}, other={"node1": 1})
        self.settle(8)
        assert self.on() == {"node0": 2, "node1": 1}
        assert self.on("other") == {"node1": 1}
        assert {"flights-master", "other-master"} < self.server.pods.keys()
        self.run_ends("done")
        self.run_ends("done", second)
        self.settle(8)


def nobody_shares(world: World) -> None:
    """No node has more pods of workers than slots."""
    counts = world.on("flights") + world.on("other")
    assert all(count <= 4 for count in counts.values()), counts


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many there are, in a story in which jobs change places."""
    calm = House(tmp_path_factory.mktemp("calm") / "jobs", points := Points())
    calm.tell_the_story()
    assert calm.server.pods == {}
    assert points.count > 40
    return points.count


PARTS = 4  # of all points, so that a failure says soon where


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
def test_an_operator_may_die_at_every_request(tmp_path: Path, points: int, part: int) -> None:
    for last in range(part, points, PARTS):
        house = House(tmp_path / str(last), Points(last))
        house.tell_the_story()
        assert house.deaths == 1, last
        assert house.server.pods == {}, last
        assert {job.life.phase for job in house.book.jobs.values()} == {Phase.DONE}, last
        names = [name for name in house.server.made if name.startswith("Pod")]
        launches = {job.starts.launches for job in house.book.jobs.values()}
        assert launches <= {1, 2}, "a job was started again though it had processes"
        assert max(Counter(names).values()) <= 3


def test_requests_to_a_lost_server_end_nothing(world: World) -> None:
    world.submit()
    world.look()
    world.decide(flights={"node0": 2})
    world.settle()
    world.server.down = "gone"
    world.decide(flights={"node0": 1})
    world.settle()
    assert world.on() == {"node0": 2}
    world.server.down = ""
    world.settle()
    assert world.on() == {"node0": 1}
