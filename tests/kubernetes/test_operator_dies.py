"""An operator that is killed before and after each of its writes, on a real API server.

`BRIM_EVERY_WRITE=1` goes through all of them, which takes a quarter of an hour; `FROM:TO` through some.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from brim.domain.scheduled_job import ScheduledJob
from brim.kubernetes import record
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.objects.identities import JOB, MASTER
from brim.kubernetes.objects.record_text import unpack_record
from brim.storage.mirror import RecordsMirror
from brim.telemetry.record_files import EVENTS, STEPS
from brim_lab.kubernetes.control_plane import ControlPlane
from kube_fakes import FakeFollower
from kubernetes.test_operator import House, plane, run
from recorded_run import RecordedRun, spec

__all__ = ["plane"]

EVERY = os.environ.get("BRIM_EVERY_WRITE", "")
SOME = (57, 105)  # of the points, of which there are 130 and more
PODS_MADE = {"flights master": 2, "flights worker": 10, "other master": 1, "other worker": 4}
FLIGHTS, OTHER = "flights", "other"


class Died(BaseException):
    """The operator, before or after a request that changes something."""


class Mortal:
    """The end of an operator, before or after one of its writes; it asks nothing more then.

    Args:
        last: the number of that point; None: it lives.
    """

    def __init__(self, last: int | None) -> None:
        self.last, self.count, self.dead = last, 0, False

    def live(self, api: ApiServer) -> ApiServer:
        """Return a client of the server for an operator; the second one does not die."""
        if self.dead:
            return api
        ask = api._ask

        async def mortally(method: str, *arguments: Any, **named: Any) -> bytes:
            if method == "GET":
                return await ask(method, *arguments, **named)
            self.point()
            answer = await ask(method, *arguments, **named)
            self.point()
            return answer

        api._ask = mortally  # type: ignore[method-assign]
        return api

    def point(self) -> None:
        self.count += 1
        self.dead = self.dead or self.count - 1 == self.last
        if self.dead:
            raise Died


class Copying(FakeFollower):
    """Follows a run as over the port of its master: its records are copied."""

    def __init__(self, source: Path, target: Path, news: Callable[[], None]) -> None:
        self._of, self._into, self._news = source, target, news

    async def run(self) -> None:
        while True:
            for name in (EVENTS, STEPS):
                source, target = self._of / name, self._into / name
                lines = source.read_bytes() if source.exists() else b""
                lines = lines[: lines.rfind(b"\n") + 1]
                if lines and (not target.exists() or target.stat().st_size < len(lines)):
                    target.write_bytes(lines)
                    self._news()
            await asyncio.sleep(0.02)


class Town(House):
    """A namespace in which masters train, and are followed."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        super().__init__(plane, namespace, folder)
        self.mortal = Mortal(None)
        self.runs: dict[str, RecordedRun] = {}
        self.trains: set[str] = set()  # uids of masters' pods
        self.made: dict[str, set[str]] = {}  # uids by name, of all pods there ever were
        self.copies = self.follow  # type: ignore[assignment]
        self.settle = self.kubelets.settle
        self.kubelets.settle = self.live_on  # type: ignore[method-assign]

    def follow(
        self, mirror: RecordsMirror, address: str, token: str, news: Callable[[], None]
    ) -> Copying:
        return Copying(self.folder / "runs" / mirror._directory.name, mirror._directory, news)

    def live_on(self) -> None:
        """Act as kubelets, masters and the garbage collector."""
        self.settle()
        jobs = {job["metadata"]["uid"] for job in self.plane.api.ask(self.jobs)["items"]}
        for name, pod in self.kubelets.pods().items():
            uid = pod["metadata"]["uid"]
            if pod["metadata"]["ownerReferences"][0]["uid"] not in jobs:
                with contextlib.suppress(Exception):
                    self.kubelets.remove(name)
                continue
            runs = name.endswith("-master") and pod["status"]["phase"] == "Running"
            if runs and uid not in self.trains:
                self.trains.add(uid)
                self._train(name.removesuffix("-master"))
        self.collect_garbage()

    def _train(self, name: str) -> None:
        folder = self.folder / "runs" / f"{self.namespace}.{name}"
        is_new = name not in self.runs
        run = self.runs.setdefault(name, RecordedRun(folder, spec()))
        run.begin(workers=1)
        if not is_new:
            run.restore(run.step)
        run.train(2)

    def end(self, name: str, outcome: str) -> None:
        """A run ends, and so do its pods; its master leaves its last words in its own."""
        summary = self.runs[name].end(outcome)
        words = json.dumps({"exit": outcome, "steps": summary["steps"], "metrics": {}})
        ended = {"exitCode": 0, "finishedAt": "2026-11-24T17:00:00Z", "message": words}
        container = {"name": MASTER, "state": {"terminated": ended}, "ready": False}
        unknown = {"image": "i", "imageID": "", "restartCount": 0}
        for pod in self.kubelets.pods():
            if pod == f"{name}-master":
                statuses = [container | unknown]
                self.kubelets.say(pod, phase="Succeeded", containerStatuses=statuses)
            elif pod.startswith(f"{name}-"):
                self.kubelets.say(pod, phase="Succeeded")

    async def suspend_run(self, address: str, token: str) -> None:
        if not self.mortal.dead:
            self.mortal.point()
        ip = address.rpartition(":")[0]
        for name, pod in (await asyncio.to_thread(self.kubelets.pods)).items():
            if pod["status"].get("podIP") == ip:
                await asyncio.to_thread(self.end, name.removesuffix("-master"), "suspended")
        if self.mortal.last is not None and not self.mortal.dead:
            self.mortal.point()

    def watched(self) -> AbstractAsyncContextManager[None]:
        """Know all pods that are made meanwhile."""

        def notice(pod: KubePod) -> None:
            self.made.setdefault(pod.metadata.name, set()).add(pod.metadata.uid)

        return self.kubelets.followed(notice)

    # What there is --------------------------------------------------------------------------------

    def runs_with(self, count: int, name: str = FLIGHTS) -> bool:
        status = self.job(name).get("status", {})
        ready = status.get("workers", {}).get("ready")
        return (
            status.get("phase") == "Running"
            and ready == count
            and self.workers(name).total() == count
            and status.get("step", 0) > 0
        )

    def record_of(self, name: str = FLIGHTS) -> ScheduledJob:
        thing = self.job(name)
        return unpack_record(thing["status"]["record"], uid=thing["metadata"]["uid"])

    def pods_of(self, name: str) -> set[str]:
        pods = self.kubelets.pods()
        return {
            name_of_pod
            for name_of_pod in pods
            if pods[name_of_pod]["metadata"]["labels"][JOB] == name
        }

    def left(self) -> list[str]:
        """All objects of jobs."""
        policies = f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies"
        kinds = ("pods", "secrets", "configmaps", "services")
        paths = [self.jobs, policies, *(f"{self.core}/{kind}" for kind in kinds)]
        return [
            f"{path.rpartition('/')[2]}/{thing['metadata']['name']}"
            for path in paths
            for thing in self.plane.api.ask(path)["items"]
        ]

    @property
    def folders(self) -> list[str]:
        """Folders of runs that operators have on their disks."""
        return [path.name for path in (self.folder / f"life-{self.lives}" / "jobs").iterdir()]


@dataclass(frozen=True)
class Stage:
    """A part of the story: an act of people, and its consequence."""

    do: Callable[[Town], object]
    holds: Callable[[Town], object]


STORY = (
    Stage(lambda town: town.submit(workers={"min": 5, "max": 5}), lambda town: town.runs_with(5)),
    Stage(
        lambda town: town.submit(OTHER, workers={"min": 4, "max": 4}),
        lambda town: town.phase(OTHER),
    ),
    Stage(
        lambda town: town.change(workers={"min": 2, "max": 2}),
        lambda town: town.runs_with(2) and town.runs_with(4, OTHER),
    ),
    Stage(
        lambda town: town.change(suspend=True),
        lambda town: town.phase() == "Suspended" and not town.pods_of(FLIGHTS),
    ),
    Stage(lambda town: town.change(suspend=False), lambda town: town.runs_with(2)),
    Stage(lambda town: town.delete(OTHER), lambda town: not town.pods_of(OTHER)),
    Stage(lambda town: town.change(workers={"min": 5, "max": 5}), lambda town: town.runs_with(5)),
    Stage(
        lambda town: town.end(FLIGHTS, "done"),
        lambda town: town.phase() == "Done" and not town.pods_of(FLIGHTS),
    ),
    Stage(lambda town: town.delete(), lambda town: not (town.left() or town.folders)),
)


@dataclass(frozen=True)
class End:
    """The outcome of it.

    Args:
        pods: how many pods were made of each role of each job.
        record: of the job, before its object was deleted, without times and words.
    """

    points: int
    died: bool
    pods: Mapping[str, int]
    record: tuple[object, ...]


async def tell_the_story(town: Town, last: int | None, *, keep: bool = True) -> End:
    """Tell the story; where the operator dies, another one comes.

    Args:
        keep: the next operator has the disk of the first one.
    """
    town.mortal = mortal = Mortal(last)
    stage, stage_begun, ended = 0, -1, None
    async with town.watched():
        while stage < len(STORY):
            first = not mortal.dead
            async with town.operator(mortal.live, keep=keep or first):
                town.task = None  # it may end, and shall be seen to be dead

                def is_over(first: bool = first) -> bool:
                    return first and mortal.dead

                while stage < len(STORY) and not is_over():
                    if stage_begun < stage:
                        stage_begun = stage
                        await asyncio.to_thread(STORY[stage].do, town)
                    await town.until(lambda: is_over() or STORY[stage].holds(town))  # noqa: B023
                    if not is_over():
                        stage += 1
                        if stage == len(STORY) - 1:
                            ended = town.record_of()
    assert ended is not None
    roles = Counter[str]()
    for name, uids in town.made.items():
        job, _, rest = name.partition("-")
        roles[f"{job} {'master' if rest == 'master' else 'worker'}"] += len(uids)
    return End(mortal.count, mortal.dead, dict(roles), without_times(ended))


def without_times(record: ScheduledJob) -> tuple[object, ...]:
    """The parts that are the same for any writer and time.

    Not so its setbacks: a start of which nothing was made yet counts as one.
    """
    state = record.allocation
    return (
        record.life,
        record.submission,
        record.progress.step,
        record.starts.vain,
        dict(state.told),
        record.summary.get("exit"),
        record.problem,
    )


@pytest.fixture(autouse=True)
def _progress_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_PROGRESS", 0.2)


def test_operator_may_die_before_and_after_each_write(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    async def work() -> None:
        points: Sequence[int] = SOME
        records = set[str]()
        if EVERY:
            calm = await tell_the_story(Town(plane, f"{namespace}-calm", tmp_path / "calm"), None)
            assert calm.pods == PODS_MADE
            first, _, end = EVERY.partition(":")
            points = range(int(first), int(end)) if end else range(calm.points)
            records = {repr(calm.record)}
        for last in points:
            town = Town(plane, f"{namespace}-{last}", tmp_path / str(last))
            # Nothing is left behind: the story ends with that.
            ending = await tell_the_story(town, last, keep=last % 4 < 2)
            assert (last, ending.pods) == (last, PODS_MADE), town.made  # nothing is started twice
            assert ending.died or EVERY, "the story has fewer writes"
            records.add(repr(ending.record))
        assert len(records) == 1, records

    run(work)
