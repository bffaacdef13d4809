"""The agents of one job on several nodes: started together, known by their locks, and gone with the
one at its home.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from brim.backends.nodes import Nodes
from brim.backends.processes import Launch
from brim.backends.runs import RunProcesses
from brim.backends.watching import RunWatch
from brim.errors import EnvironmentFault
from brim.storage.contact import Contact, read_contact, write_contact
from brim.telemetry.events import RoundFormed, WorkerChanged
from brim.wire.nodes import Begin, NodeRequest
from submissions import submission


class FakeNodes:
    """Agents of nodes that start nothing, but hold the locks of the agents that they should
    have started.
    """

    def __init__(self) -> None:
        self.begun: dict[str, Begin] = {}
        self.held: dict[str, int] = {}
        self.killed: list[str] = []
        self.down: set[str] = set()

    def ask(self, name: str, request: NodeRequest, descriptors: Sequence[int] = ()) -> None:
        if name in self.down:
            raise EnvironmentFault(f"node {name} has no agent now")
        assert isinstance(request, Begin)
        self.begun[name], self.held[name] = request, os.dup(descriptors[2])

    def kill_job(self, job: str, names: Sequence[str] | None = None) -> None:
        self.killed += sorted(self.held if names is None else names)

    def end(self, name: str) -> None:
        """The agent of the job on this node ends."""
        os.close(self.held.pop(name))


@pytest.fixture
def nodes() -> Iterator[FakeNodes]:
    nodes = FakeNodes()
    yield nodes
    for name in list(nodes.held):
        nodes.end(name)


@pytest.fixture
def launch() -> Launch:
    return Launch(job="job-1", spec=submission("1:4").spec, home="n1", number=1)


def processes(folder: Path, nodes: FakeNodes) -> RunProcesses:
    return RunProcesses(folder, cast(Nodes, nodes))


def test_an_unwritable_directory_affects_one_job(
    tmp_path: Path, nodes: FakeNodes, launch: Launch
) -> None:
    (tmp_path / "job-1").write_text("no directory")
    with pytest.raises(EnvironmentFault, match=r"cannot start job-1: .*File exists"):
        asyncio.run(processes(tmp_path, nodes).start(launch, {"n1": 1}))
    assert not nodes.held


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as others")
def test_an_unreadable_python_is_told_and_starts_nothing(
    tmp_path: Path, nodes: FakeNodes, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.touch(mode=0o700)
    monkeypatch.setattr("brim.backends.runs.PYTHON_FILES", (str(python),))
    words = f"account nobody cannot start job-1: it cannot read {python}: Permission denied"
    with pytest.raises(EnvironmentFault, match=re.escape(words)):
        asyncio.run(processes(tmp_path, nodes).start(replace(launch, user="nobody"), {"n1": 1}))
    assert not nodes.begun


def option(begin: Begin, name: str) -> str:
    return begin.arguments[begin.arguments.index(name) + 1]


def test_the_home_keeps_the_master(tmp_path: Path, nodes: FakeNodes, launch: Launch) -> None:
    runs = processes(tmp_path, nodes)
    asyncio.run(runs.start(launch, {"n1": 2, "n2": 1}))
    home, guest = nodes.begun["n1"], nodes.begun["n2"]
    assert json.loads(option(home, "--places")) == {"n1": 2, "n2": 1}
    assert (option(home, "--name"), option(guest, "--name")) == ("n1", "n2")
    assert option(home, "--local") == option(guest, "--local")
    assert ("--join" in home.arguments, "--join" in guest.arguments) == (False, True)
    assert home.environment["BRIM_TOKEN"] == guest.environment["BRIM_TOKEN"]
    job_file = json.loads((tmp_path / "job-1" / "job.json").read_text())
    assert job_file["workers"] == {"minimum": 3, "maximum": 3}
    assert runs.look(launch).agents == {"n1", "n2"}
    assert processes(tmp_path, nodes).look(launch).agents == {"n1", "n2"}  # the next scheduler


def test_address_of_a_dead_master_is_removed(
    tmp_path: Path, nodes: FakeNodes, launch: Launch
) -> None:
    """It was killed with its keeper, the agent at the home."""
    runs, run_dir = processes(tmp_path, nodes), tmp_path / "job-1"
    asyncio.run(runs.start(launch, {"n1": 1}))
    write_contact(run_dir, Contact(address="127.0.0.1:1", token="t", pid=1, keeper=1))
    assert runs.look(launch).alive
    assert read_contact(run_dir) is not None
    nodes.end("n1")
    assert not runs.look(launch).alive
    assert read_contact(run_dir) is None


def test_who_is_left_without_the_home_is_ended(
    tmp_path: Path, nodes: FakeNodes, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.backends.runs._TO_BEGIN", 0.0)
    asyncio.run(processes(tmp_path, nodes).start(launch, {"n1": 2, "n2": 1}))
    runs = processes(tmp_path, nodes)
    nodes.end("n1")
    assert runs.look(launch).alive
    assert nodes.killed == ["n2"]
    nodes.end("n2")
    assert not runs.look(launch).alive
    assert nodes.killed == ["n2"]
    asyncio.run(runs.start(launch, {"n1": 1}))
    assert runs.look(launch).agents == {"n1"}


def test_agents_that_died_early_are_missed_later(
    tmp_path: Path, nodes: FakeNodes, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.backends.runs._TO_BEGIN", 300.0)
    runs = processes(tmp_path, nodes)
    nodes.down.add("n2")
    asyncio.run(runs.start(launch, {"n1": 2, "n2": 1}))  # those who can begin, begin
    assert runs.look(launch).agents == {"n1", "n2"}
    monkeypatch.setattr("brim.backends.runs._TO_BEGIN", 0.0)
    assert runs.look(launch).agents == {"n1"}
    asyncio.run(runs.leave(launch, "n2"))
    assert nodes.killed == ["n2"]


def changed(worker: str, pid: int, agent: str, **fields: Any) -> WorkerChanged:
    start_event = WorkerChanged(at=0.0, worker=worker, state="started", pid=pid, agent=agent)
    return msgspec.structs.replace(start_event, **fields)


def test_workers_are_counted_and_removed_by_agent(tmp_path: Path) -> None:
    watch = RunWatch(tmp_path)
    for event in (
        changed("w2", 12, "n2"),
        changed("w1", 11, "n1"),
        changed("w3", 13, "n1"),
        changed("w4", 14, "n2"),
    ):
        watch.take(event, 0)
    formed = RoundFormed(
        at=0.0, round=1, world_size=3, workers=["w1", "w3", "w2"], step=0, cause="start"
    )
    watch.take(formed, 0)
    assert watch.by_agent == {"n1": 2, "n2": 2}
    assert watch.beyond({"n1": 1, "n2": 1}) == [13, 14]
    assert sorted(watch.beyond({"n2": 1})) == [11, 13, 14]
    watch.take(changed("w3", 13, "n1", state="lost"), 0)
    assert watch.by_agent == {"n1": 1, "n2": 2}
    watch.take(changed("w2", 22, "n1"), 0)  # names begin again, and not always with w1
    watch.take(changed("w1", 21, "n1"), 0)
    assert watch.workers == {"w2": 22, "w1": 21}
