"""The name and the end of a process are its own business: no look at it stumbles over them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from brim.agent import loop as agent_loop
from brim.agent.conversation import Conversation
from brim.agent.loop import Agent, AgentSettings
from brim.agent.memory import KillCounts, Memory
from brim.agent.workers import Workers
from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock, VirtualClock
from brim.host.process import (
    birth_of,
    children_of,
    end_family,
    files_for,
    memory_of,
    most_workers,
    name_of,
    open_many_files,
    own_memory_of,
    state_of,
    variable_of,
    work_of,
)
from brim.storage.contact import is_alive
from brim.wire.messages import JobFailed
from brim_lab.driver import MarkedProcesses
from e2e.running import has_ended, until
from edges.test_nodes import Host, host

__all__ = ["host"]

NAMES = {
    "no text": b"\xff\xfe",
    "a bracket": b"a) Z 1 (b",
    "another line": b"\x1cVmRSS:",
    "ends of lines": b"\n\x85\xc2\x85\x1e\n",
    "nothing": b"",
}
CALLED = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]))
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def called(name: bytes) -> Iterator[int]:
    """A process that gave itself a name."""
    command = [sys.executable, "-c", CALLED, name.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_limits_bound_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: (9, 300), resource.RLIMIT_NPROC: (-1, -1)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr("brim.host.process.files_about_us", lambda _: [])
    assert files_for(most_workers()) <= 300 < files_for(most_workers() + 1)
    limits[resource.RLIMIT_NPROC] = (5, 20)
    assert most_workers() == 20
    limits[resource.RLIMIT_NOFILE] = (9, 10)
    assert most_workers() == 0


@pytest.mark.parametrize(("most", "workers"), [("max", 1000), ("50", 8), ("40", 4), ("9", 0)])
def test_a_container_bounds_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str, workers: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, -1))
    monkeypatch.setattr("brim.host.process.files_about_us", lambda name: [tmp_path / name])
    (tmp_path / "pids.max").write_text(f"{most}\n")
    (tmp_path / "pids.current").write_text("10\n")
    assert min(1000, most_workers()) == workers


def test_files_of_an_agent_are_allowed_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: (100, 1000)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    for count, limit in ((50, 100), (200, 200), (2000, 1000)):
        open_many_files(count)
        assert limits[resource.RLIMIT_NOFILE] == (limit, 1000)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_process_may_be_called_anything(name: bytes, tmp_path: Path) -> None:
    with called(name) as pid:
        assert name_of(pid) == name.decode(errors="replace").strip()
        until(lambda: state_of(pid) == "S", "its wait for more to read")
        assert int(birth_of(pid)) > 0
        assert all(map(str.isdigit, work_of(pid).split()))
        assert is_alive(pid)
        assert (memory_of(pid) or 0) > 1 << 20
        assert (own_memory_of(pid) or 0) > 1 << 20
        memory = Memory(1 << 20, KillCounts(own_kills=[], host=tmp_path / "none"))
        assert list(memory.look({"w1": pid}, now=0.0)) == ["w1"]
        assert end_family([pid])


def test_a_variable_may_be_anything() -> None:
    command = [sys.executable, "-c", CALLED, ""]
    environment = {**os.environb, b"BRIM_WORKER": b"\xff"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert variable_of(process.pid, "BRIM_WORKER") == "\ufffd"
        process.kill()


def test_the_census_counts_processes_of_any_name() -> None:
    mark = MarkedProcesses(f"names-{os.getpid()}")
    os.environ |= mark.environment
    try:
        with called(b"\xff\xfe") as pid:
            assert list(mark.alive()) == [pid]
    finally:
        for name in mark.environment:
            del os.environ[name]


LEAVES = """#!/bin/sh
echo $$ > {folder}/$5
setsid {python} -c '{program}' fffe < {folder}/fifo > {folder}/called &
echo $! > {folder}/left
timeout 30 sh -c 'until [ -s {folder}/called ]; do sleep 0.01; done'
"""


def test_leftovers_of_any_name_end(host: Host) -> None:
    """Its name is no text: the agent of the node, which looks at it, must outlive that."""
    os.mkfifo(host.folder / "fifo")
    line = os.open(host.folder / "fifo", os.O_RDWR)
    host.script.write_text(LEAVES.format(folder=host.folder, python=sys.executable, program=CALLED))
    pid = host.up()
    host.begin("job-1")
    note = host.folder / "left"
    until(lambda: note.exists() and note.read_text().endswith("\n"), "what it leaves")
    until(lambda: has_ended(int(note.read_text())), "its end")
    host.script.write_text(f"#!/bin/sh\necho $$ > {host.folder}/$5\nexec sleep 60\n")
    assert not has_ended(host.begin("job-2"))
    assert host.look().pid == pid
    os.close(line)


def test_an_ending_process_has_no_children() -> None:
    """It may end between any two looks at it: threads come and go until it has."""
    churns = "import threading\nwhile True: threading.Thread(target=int).start()"
    for _ in range(20):
        with subprocess.Popen([sys.executable, "-S", "-c", churns]) as process:
            timer = threading.Timer(0.1, process.kill)
            timer.start()
            while process.poll() is None:
                assert children_of(process.pid) == []
            timer.join()
    assert children_of(process.pid) == []


def test_unlistable_threads_have_no_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel says so where a process ends while its threads are listed."""

    def ends(path: object) -> NoReturn:
        raise ProcessLookupError(3, "No such process", path)

    monkeypatch.setattr(os, "listdir", ends)
    monkeypatch.setattr(os, "scandir", ends)
    assert children_of(os.getpid()) == []


def test_fault_of_an_agents_tick_ends_the_job(tmp_path: Path) -> None:
    """Without that nobody would look for workers that hang, and the job might wait for ever."""
    posted: list[object] = []
    heard = asyncio.Event()

    class FailingWorkers:
        def is_stopped(self, worker: str) -> bool:
            raise OSError(24, "Too many open files")

        async def end(self) -> None:
            pass

    class Quiet:
        """A master that says nothing."""

        def post(self, message: object) -> None:
            posted.append(message)
            heard.set()

        async def messages(self) -> AsyncIterator[None]:
            await heard.wait()
            if posted:
                raise EnvironmentFault("that is enough")
            yield

    settings = AgentSettings(name="a1", host="", run_dir=tmp_path)
    agent = Agent(settings, cast(Conversation, Quiet()), SystemClock())
    agent._workers = cast(Workers, FailingWorkers())
    agent._liveness.beat("w1", now=0.0)
    with pytest.raises(EnvironmentFault, match="enough"):
        asyncio.run(asyncio.wait_for(agent.run(), 60))
    (failed,) = posted
    assert isinstance(failed, JobFailed)
    assert (failed.who, "Too many open files" in failed.message) == ("internal", True)


def test_a_failing_memory_look_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_loop, "_LOOK_AT_MEMORY", 0.001)
    settings = AgentSettings(name="a1", host="", run_dir=tmp_path)
    agent = Agent(settings, cast(Conversation, None), VirtualClock(0.0))
    agent._workers = cast(Workers, SimpleNamespace(pids={"w1": 1}))
    looks = itertools.count(1)
    looked = asyncio.Event()

    class Fails:
        def look(self, workers: object, *, now: float) -> dict[str, str]:
            if next(looks) < 4:
                raise FileNotFoundError("/proc/1")
            loop.call_soon_threadsafe(looked.set)
            return {}

    agent._memory = cast(Memory, Fails())

    async def minding() -> None:
        task = asyncio.create_task(agent._mind_memory())
        done, _ = await asyncio.wait(
            [task, asyncio.create_task(looked.wait())], timeout=10, return_when="FIRST_COMPLETED"
        )
        assert task not in done
        assert looked.is_set()
        task.cancel()

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        runner.run(minding())
    assert capsys.readouterr().err.count("cannot tell what workers have in memory") == 1


def test_only_unawaited_orphans_are_cleared() -> None:
    """In a process of its own, as its forks would be adopted by ours."""
    code = """
import os, time
from brim.host.process import Orphans, adopt_orphans, children_of, state_of
adopt_orphans()
first = os.fork()
if not first:
    if os.fork():
        os._exit(0)
    time.sleep(0.05)
    os._exit(0)
os.waitpid(first, 0)
mine = os.fork() or os._exit(0)
while len([each for each in children_of(os.getpid()) if state_of(each) == "Z"]) < 2:
    time.sleep(0.01)
left = set(children_of(os.getpid()))
orphans = Orphans()
orphans.clear_away(awaited={mine} & left)
assert set(children_of(os.getpid())) == left, "whose parent is about to look"
orphans.clear_away(awaited={mine} & left)
print(len(left), len(children_of(os.getpid())))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["2", "1"], done.stderr


def test_processes_may_open_all_allowed_files() -> None:
    program = """
import resource
from brim.host.process import open_many_files
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
open_many_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == most)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
