"""The agents of nodes: their processes end with them, the scheduler finds them,
and they come back in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import brim
from brim.backends.nodes import Nodes
from brim.coordination.cluster.sightings import NodeSeen
from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock
from brim.wire.nodes import Begin, EndAt, KillJob
from e2e.running import has_ended, until
from groups import needs_groups


class Host:
    """Nodes whose agents have no torch, and so start everything by itself: a shell script instead of
    jobs' agents.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "python"
        self.script.write_text(f"#!/bin/sh\necho $$ > {folder}/$5\nexec sleep 60\n")
        self.script.chmod(0o755)
        self.lives: list[Nodes] = []
        self.revive()

    def revive(self) -> None:
        """Another life of the scheduler."""
        self.nodes = Nodes(self.folder / "nodes", SystemClock())
        self.lives.append(self.nodes)

    def look(self) -> NodeSeen:
        return self.nodes.keep(["n1"])["n1"]

    def up(self) -> int:
        until(lambda: self.look().up, "the node")
        return self.look().pid

    def rest_no_more(self) -> None:
        """Let its agent be started again at once, where that was to come later."""
        self.nodes._nodes["n1"].not_before = 0.0

    def has_answered(self) -> bool:
        return not self.nodes._nodes["n1"].asked

    def begin(self, job: str) -> int:
        """Start the agent of a job; its process."""
        begin = Begin(
            job=job,
            arguments=["--of", job],
            python=(str(self.script), brim.__version__),
            environment=dict(os.environ),
            directory=str(self.folder),
        )
        with open(os.devnull, "r+b") as null:
            self.nodes.ask("n1", begin, [null.fileno(), null.fileno()])
        note = self.folder / job
        until(lambda: note.exists() and note.read_text().endswith("\n"), "the job's agent")
        return int(note.read_text())


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    (tmp_path / "torch.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("brim.backends.nodes._BACKOFF", 0.3)
    host = Host(tmp_path)
    yield host
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if str(tmp_path) in " ".join(process.cmdline()):
                process.kill()
    for nodes in host.lives:
        asyncio.run(nodes.end())


def ended(pid: int) -> Callable[[], bool]:
    return lambda: has_ended(pid)


def test_exhausted_nodes_keep_what_they_have(host: Host) -> None:
    agent = host.up()
    sleeping = host.begin("job-1")
    limits = psutil.Process(agent).rlimit(psutil.RLIMIT_NOFILE)
    begin = Begin(job="job-2", arguments=[], python=("", ""), environment={}, directory="/")
    host.nodes.ask(
        "n1", begin
    )  # without the descriptors that belong to it, as where there are too many
    psutil.Process(agent).rlimit(psutil.RLIMIT_NOFILE, (8, limits[1]))
    with open(os.devnull, "r+b") as null:
        host.nodes.ask("n1", begin, [null.fileno()] * 2)
    log = host.folder / "nodes" / "n1" / "node.log"
    until(lambda: log.read_text().count("not done: Begin: ") == 2, "what it says")
    assert host.look().pid == agent
    assert psutil.pid_exists(sleeping)
    psutil.Process(agent).rlimit(psutil.RLIMIT_NOFILE, limits)
    assert psutil.pid_exists(host.begin("job-3"))


def test_a_killed_node_agent_ends_its_processes(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.backends.nodes._BACKOFF", 30.0)  # longer than any of this takes
    assert not host.look().lost
    first = host.up()
    sleeping = host.begin("job-1")
    os.kill(first, signal.SIGKILL)
    until(ended(sleeping), "the end of what it started")
    seen = host.look()

    def is_gone() -> bool:
        nonlocal seen
        return (seen := host.look()).gone

    until(is_gone, "the loss")
    assert (seen.up, seen.lost, seen.problem) == (False, False, "its agent died")
    assert 0.0 < seen.again <= 30.0
    with pytest.raises(EnvironmentFault, match="node n1 has no agent now"):
        host.nodes.ask("n1", KillJob(job="job-1"))
    host.rest_no_more()
    second = host.up()
    assert second != first
    assert not host.look().gone


def test_nodes_are_lost_after_long_or_repeated_absence(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.backends.nodes._TO_RETURN", 300.0)
    monkeypatch.setattr("brim.backends.nodes._BACKOFF", 30.0)  # longer than any of this takes
    host.up()
    os.kill(host.look().pid, signal.SIGKILL)
    until(lambda: host.look().gone, "its end")
    assert not host.look().lost
    monkeypatch.setattr("brim.backends.nodes._TO_RETURN", 0.1)
    until(lambda: host.look().lost, "the loss")
    host.rest_no_more()
    host.up()
    assert not host.look().lost
    os.kill(host.look().pid, signal.SIGKILL)
    until(lambda: host.look().gone, "its second end")
    assert host.look().lost


def test_the_next_scheduler_finds_running_nodes(host: Host) -> None:
    pid = host.up()
    jobs = [host.begin(f"job-{k}") for k in (1, 2)]
    host.revive()
    assert host.up() == pid
    host.nodes.kill_job("job-1")
    until(ended(jobs[0]), "the end of the first job's agent")
    assert not ended(jobs[1])()
    host.revive()
    host.nodes.keep([])  # it is not wanted any more: it ends once its last job has
    host.nodes.kill_job("job-3")
    assert not ended(pid)()
    host.nodes.kill_job("job-2")
    until(ended(pid), "the end of the node's agent")
    assert ended(jobs[1])()


def test_leftovers_of_killed_nodes_are_ended_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[bool] = [False, False, True]
    answers: list[bool] = []

    class Leftover:
        def end(self) -> bool:
            answers.append(ends[len(answers)])
            return answers[-1]

    monkeypatch.setattr("brim.backends.nodes.groups_of", lambda _: [Leftover()])
    nodes = Nodes(tmp_path, SystemClock())
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / ".lock").touch()
    for _ in range(5):
        nodes.keep([])
    assert answers == ends


def test_an_unresponsive_node_agent_is_killed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = host.up()
    host.nodes.ask("n1", KillJob(job="job-0"))
    until(lambda: host.look().up and host.has_answered(), "its first answer")
    monkeypatch.setattr("brim.backends.nodes._TO_ANSWER", 0.2)
    os.kill(pid, signal.SIGSTOP)
    host.nodes.ask("n1", KillJob(job="job-1"))
    until(lambda: host.look().gone, "its end")
    assert host.look().problem == "it did not answer for 0 s"
    monkeypatch.undo()
    host.up()


def test_a_nodes_agent_that_never_answers_is_killed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = host.up()
    monkeypatch.setattr("brim.backends.nodes._TO_START", 0.2)
    os.kill(pid, signal.SIGSTOP)
    host.nodes.ask("n1", KillJob(job="job-1"))
    until(lambda: host.look().gone, "its end")
    assert host.look().problem == "it did not answer for 0 s"


def test_a_node_agent_may_import_slowly(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = host.folder / "imported"
    (host.folder / "torch.py").write_text(
        "import os, time\n"
        f"while not os.path.exists({str(imported)!r}): time.sleep(0.01)\n"
        "raise ImportError\n"
    )
    monkeypatch.setattr("brim.backends.nodes._TO_ANSWER", 0.2)
    pid, clock = host.up(), SystemClock()
    host.nodes.ask("n1", KillJob(job="job-1"))
    late = clock.now() + 1.0
    until(lambda: not host.look().up or clock.now() > late, "its end")
    assert not has_ended(pid)
    imported.touch()
    until(lambda: host.look().up and host.has_answered(), "its first answer")
    assert host.look().pid == pid


# Of a session of its own, by way of a shell that ends; called as the masters are, which an agent of
# a node leaves time.
LEAVES = """#!/bin/sh
echo $$ > {folder}/$5
cp /bin/sleep {folder}/brim-master
sh -c 'setsid {folder}/brim-master 600 & echo $! > {folder}/left-$0' $5
exec sleep 60
"""


@pytest.fixture
def leaving(host: Host) -> Iterator[Host]:
    """Jobs' agents that start something and leave it."""
    host.script.write_text(LEAVES.format(folder=host.folder))
    yield host
    for note in host.folder.glob("left-*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(note.read_text()), signal.SIGKILL)


def left_by(host: Host, job: str) -> int:
    """The leftover of a job's agent, once it is there."""
    agent, note = host.begin(job), host.folder / f"left-{job}"
    until(lambda: note.exists() and note.read_text().endswith("\n"), "what it leaves")
    pid = int(note.read_text())
    until(lambda: psutil.Process(pid).name() == "brim-master", "its name")
    assert not has_ended(agent)
    return pid


@needs_groups
def test_restarted_node_has_no_leftovers_of_its_jobs(leaving: Host) -> None:
    leftover = left_by(leaving, "job-1") if leaving.up() else 0
    os.kill(leaving.look().pid, signal.SIGKILL)
    until(lambda: leaving.look().gone, "its end")
    assert not has_ended(leftover)
    leaving.up()
    assert has_ended(leftover)


@needs_groups
def test_leftovers_of_a_killed_node_end_unrestarted(leaving: Host) -> None:
    leftover = left_by(leaving, "job-1") if leaving.up() else 0
    os.kill(leaving.look().pid, signal.SIGKILL)
    until(lambda: leaving.look().gone, "its end")
    assert not has_ended(leftover)
    asyncio.run(leaving.nodes.end())
    until(ended(leftover), "the end of what is left")


@needs_groups
def test_killing_a_job_ends_only_its_own_leftovers(leaving: Host) -> None:
    leftover, other_leftover = (
        (left_by(leaving, job) for job in ("job-1", "job-2")) if leaving.up() else (0, 0)
    )
    leaving.nodes.kill_job("job-1")
    until(ended(leftover), "the end of what is left")
    assert not has_ended(other_leftover)


@needs_groups
def test_leftovers_end_before_the_job_restarts(leaving: Host) -> None:
    leftover = left_by(leaving, "job-1") if leaving.up() else 0
    (leaving.folder / "job-1").unlink()
    (leaving.folder / "left-job-1").unlink()
    assert left_by(leaving, "job-1") != leftover
    assert has_ended(leftover)


FORKS = """
import os, subprocess, sys
from brim.agent.births import Forked, fork, perform

log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
kept, closed = os.pipe()
children = [fork("brim.master", words, stdin=0, output=log) for words in (["--help"], [])]
pid = os.fork()
if not pid:
    show = lambda: print(*sorted(set(os.listdir("/proc/self/fd")) - {str(kept)}))
    perform(show, ["show"], stdin=0, output=log, keep=[kept])
children.append(Forked(pid))
print([child.wait(200.0) for child in children], [child.wait() for child in children])
"""


def test_forks_end_and_inherit_like_programs(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", FORKS, str(tmp_path / "log")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout == "[0, 2, 0] [0, 2, 0]\n"
    words = (tmp_path / "log").read_text()
    assert "usage: python -m brim.master" in words
    assert "0 1 2 3\n" in words  # and the one with which it looks


def test_agents_end_without_permission_to_continue(host: Host) -> None:
    """The process that would have is stopped, as by SIGSTOP; the node's agent is not."""
    agent, clock = host.up(), SystemClock()
    sleeping = host.begin("job-1")
    first_end = clock.now() + 1.2
    for end in (first_end, first_end + 300.0):  # as long as it is told to go on, they do
        host.nodes.ask("n1", EndAt(at=end))
    until(lambda: clock.now() > first_end + 0.2, "some time")
    assert psutil.pid_exists(sleeping)
    assert not has_ended(sleeping)
    host.nodes.ask("n1", EndAt(at=clock.now() + 0.1))
    until(ended(sleeping), "its end")
    assert host.look().pid == agent
    host.nodes.ask("n1", EndAt(at=clock.now() + 60.0))
    (host.folder / "job-1").unlink()
    assert not has_ended(host.begin("job-1"))
