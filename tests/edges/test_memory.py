"""An agent's view of its workers' memory, and its messages on those that end for it; with real
processes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from brim.agent import memory
from brim.agent.conversation import Conversation
from brim.agent.loop import Agent, AgentSettings
from brim.agent.memory import KillCounts, Memory, check_limit, kill_counts
from brim.errors import SpecError
from brim.host.clock import VirtualClock
from brim.host.process import memory_of, own_memory_of
from brim.wire.messages import LoseWorker
from e2e.running import until

MIB = 1 << 20
HOLD = "held = bytearray(b'x') * (200 << 20)"
TELL = "print('ready', flush=True); import sys; sys.stdin.read()"
IN_CHILD = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {f"{HOLD}; {TELL}"!r}])
"""
SHARED = f"""
import os, sys
{HOLD}
pids = [os.getpid()]
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        sys.stdin.read()
        os._exit(0)
    pids.append(pid)
print(*pids, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def counts(tmp_path: Path) -> KillCounts:
    """Counters that a test sets: no host has to run out of memory for it."""
    for name in ("ours", "host"):
        (tmp_path / name).write_text("low 0\noom 0\noom_kill 0\n")
    return KillCounts(own_kills=[tmp_path / "ours"], host=tmp_path / "host")


def kill_by_kernel(counts: KillCounts, *, own_kills: int, host: int) -> None:
    counts.own_kills[0].write_text(f"low 0\noom {own_kills}\noom_kill {own_kills}\n")
    counts.host.write_text(f"nr_free_pages 7\noom_kill {host}\n")


class Holder:
    """A process that holds 200 MiB until it is let go."""

    def __init__(self, program: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().split()

    def let_go(self) -> None:
        self.process.communicate(timeout=300)


@pytest.fixture
def holder(request: pytest.FixtureRequest) -> Iterator[Holder]:
    holder = Holder(request.param)
    yield holder
    holder.let_go()


@pytest.mark.parametrize(
    "holder", [f"{HOLD}; {TELL}", IN_CHILD], indirect=True, ids=["itself", "a child"]
)
def test_workers_over_the_limit_are_named(holder: Holder, counts: KillCounts) -> None:
    workers = {"w1": os.getpid(), "w2": holder.process.pid}
    limit = (own_memory_of(os.getpid()) or 0) + 2048 * MIB
    assert Memory(limit, counts).look(workers, now=0.0) == {}
    assert Memory(None, counts).look(workers, now=0.0) == {}
    (finding,) = Memory(150 * MIB, counts).look({"w2": holder.process.pid}, now=0.0).items()
    assert finding[0] == "w2"
    assert finding[1].startswith("out of memory: it had 2")
    assert finding[1].endswith(" MiB of the 150 MiB that --memory gives a worker")


@pytest.mark.parametrize("holder", [SHARED], indirect=True)
def test_what_four_share_is_counted_once(holder: Holder, counts: KillCounts) -> None:
    """As workers share the pages that their template has loaded."""
    pids = [int(pid) for pid in holder.said]
    assert all((memory_of(pid) or 0) > 200 * MIB for pid in pids)
    workers = {f"w{number}": pid for number, pid in enumerate(pids[1:], start=2)}
    assert Memory(100 * MIB, counts).look(workers, now=0.0) == {}
    assert len(Memory(40 * MIB, counts).look(workers, now=0.0)) == 3


@pytest.mark.parametrize("holder", [SHARED], indirect=True)
def test_expensive_memory_looks_happen_only_near_the_limit(
    holder: Holder, counts: KillCounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    size = 200 * MIB

    def own_memory(pid: int) -> int:
        pids.append(pid)
        return 60 * MIB

    monkeypatch.setattr(memory, "own_memory_of", own_memory)
    monkeypatch.setattr(memory, "memory_of", lambda _: size)
    seen, workers = Memory(100 * MIB, counts), {"w2": int(holder.said[1])}
    for now, grown, looks in (
        (0.0, 0, 1),
        (1.0, 0, 1),
        (2.0, 40, 1),
        (3.0, 41, 2),
        (12.0, 41, 2),
        (13.0, 41, 3),
    ):
        size = (200 + grown) * MIB
        assert seen.look(workers, now=now) == {}
        assert len(pids) == looks


def test_who_is_gone_has_nothing(counts: KillCounts) -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Memory(1, counts).look({"w1": process.pid}, now=0.0) == {}  # a zombie
    finally:
        process.wait()
    assert Memory(1, counts).look({"w1": process.pid}, now=0.0) == {}
    assert (memory_of(process.pid), own_memory_of(process.pid)) == (None, None)


def test_kernel_kills_in_our_group_are_named(counts: KillCounts) -> None:
    seen = Memory(None, counts)
    seen.look({"w1": os.getpid()}, now=0.0)
    kill_by_kernel(counts, own_kills=1, host=1)
    explanation = seen.why_killed("w1", now=0.5)
    assert explanation.startswith("out of memory: the kernel ended it; it had ")
    assert re.search(r"it had [\d.]+ [KMG]iB$", explanation)


def test_who_died_before_anybody_looked_had_just_begun(counts: KillCounts) -> None:
    seen = Memory(None, counts)
    seen.look({}, now=0.0)
    kill_by_kernel(counts, own_kills=1, host=1)
    assert seen.why_killed("w1", now=0.5) == "out of memory: the kernel ended it; it had just begun"


def test_kernel_kills_elsewhere_are_likely_reasons(counts: KillCounts) -> None:
    seen = Memory(None, counts)
    seen.look({"w1": os.getpid()}, now=0.0)
    kill_by_kernel(counts, own_kills=0, host=1)
    assert seen.why_killed("w1", now=0.5).startswith(
        "signal 9, while this host was out of memory; it had "
    )


def test_memory_before_death_is_remembered(
    counts: KillCounts,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    until(lambda: bool(memory_of(process.pid)), "its first pages, which the kernel counts late")
    seen = Memory(None, counts)
    seen.look({"w1": process.pid}, now=0.0)
    process.kill()
    process.communicate()
    kill_by_kernel(counts, own_kills=1, host=1)
    seen.look({"w1": process.pid}, now=1.0)
    explanation = seen.why_killed("w1", now=1.1)
    assert explanation.startswith("out of memory: the kernel ended it; it had ")
    assert re.search(r"it had [\d.]+ [KMG]iB$", explanation)


@pytest.mark.parametrize(
    ("status", "reason", "by_kernel", "phrases"),
    [
        (-9, "signal 9", True, ("host", "out of memory: the kernel ended it; it had just begun")),
        (-9, "signal 9", False, ("", "signal 9")),  # a person, or a fault that was asked for
        (-9, "no progress for 9.0 s, in step 3", True, ("", "no progress for 9.0 s, in step 3")),
        (1, "exit status 1", True, ("", "exit status 1")),
    ],
)
def test_what_an_agent_says_of_an_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counts: KillCounts,
    status: int,
    reason: str,
    by_kernel: bool,
    phrases: tuple[str, str],
) -> None:
    recorder = Said()
    agent = Agent(
        AgentSettings(name="a1", host="", run_dir=tmp_path),
        cast(Conversation, recorder),
        VirtualClock(0.0),
    )
    monkeypatch.setattr(agent, "_memory", Memory(None, counts))
    agent._memory.look({}, now=0.0)
    if by_kernel:
        kill_by_kernel(counts, own_kills=1, host=1)
    agent._on_end("w2", status, reason)
    (lost,) = recorder.messages
    assert isinstance(lost, LoseWorker)
    assert (lost.worker, lost.memory, lost.reason) == ("w2", *phrases)


class Said:
    """The messages of an agent to its master."""

    def __init__(self) -> None:
        self.messages: list[object] = []

    def post(self, message: object) -> None:
        self.messages.append(message)


def test_one_kill_explains_one_end(counts: KillCounts) -> None:
    seen = Memory(None, counts)
    seen.look({}, now=0.0)
    kill_by_kernel(counts, own_kills=1, host=1)
    assert seen.why_killed("w1", now=0.5)
    assert seen.why_killed("w2", now=0.6) == ""
    kill_by_kernel(counts, own_kills=2, host=2)
    assert seen.why_killed("w2", now=0.7)


def test_only_ends_soon_after_kills_are_explained(
    counts: KillCounts,
) -> None:
    """A large process takes a while to end."""
    seen = Memory(None, counts)
    seen.look({}, now=0.0)
    kill_by_kernel(counts, own_kills=1, host=1)
    for now in (1.0, 2.0, 3.0):
        seen.look({}, now=now)
    assert seen.why_killed("w1", now=3.5)
    kill_by_kernel(counts, own_kills=2, host=2)
    for second in range(4, 30):
        seen.look({}, now=float(second))
    assert seen.why_killed("w2", now=29.5) == ""


def test_a_death_that_memory_has_no_part_in(counts: KillCounts) -> None:
    seen = Memory(None, counts)
    seen.look({"w1": os.getpid()}, now=0.0)
    assert seen.why_killed("w1", now=0.5) == ""


def test_this_host_counts_such_kills() -> None:
    """The real files of this host."""
    counts = kill_counts()
    assert "oom_kill " in counts.host.read_text()
    assert all("oom_kill " in path.read_text() for path in counts.own_kills)
    own_kills, host = counts.read()
    assert 0 <= own_kills <= host


def test_where_nobody_tells_a_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_limit(300 * MIB)
    monkeypatch.setattr(memory, "memory_of", lambda _: None)
    check_limit(None)
    with pytest.raises(SpecError, match=r"--memory: got 300 MiB, need a host whose kernel tells"):
        check_limit(300 * MIB)


def test_workers_go_first_and_nobody_is_taken_back() -> None:
    program = (
        "from brim.host.process import go_first_when_memory_is_short as go; from pathlib import Path; "
        "import sys\n"
        "own = Path('/proc/self/oom_score_adj'); own.write_text(sys.argv[1]); go(); "
        "print(own.read_text())"
    )
    for score, expected_score in (("0", 500), ("900", 900)):
        result = subprocess.run(
            [sys.executable, "-c", program, score], capture_output=True, check=True
        )
        assert int(result.stdout) == expected_score
