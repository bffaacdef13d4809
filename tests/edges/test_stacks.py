"""The stack of another process: in a loop of Python,
and in C code that has Python's lock in hand.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import brim
from brim.host.process import state_of
from brim.host.stacks import Stack, Stacks, imported, readable
from brim.master.stacks import StackTaking
from e2e.running import until

PROGRAM = """
import ctypes, re, sys, time
from brim.host.stacks import show_when_asked

def hang(how):
    if how == "python":
        while True:
            pass
    if how == "lock":
        re.match(r"(a*)*b", "a" * 100)
    time.sleep(3600)

show_when_asked(int(sys.argv[1]))
hang(sys.argv[2])
"""


@pytest.mark.parametrize("manner", ["python", "lock", "sleep"])
def test_wherever_it_hangs(tmp_path: Path, manner: str) -> None:
    program = tmp_path / "hangs.py"
    program.write_text(PROGRAM)
    stacks = Stacks()

    async def stack_of() -> str:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            stack = (await stacks.ask()).text
            if "in hang" in stack and "in <module>" in stack:  # which is written last
                break
            await asyncio.sleep(0.01)
        return stack

    command = [sys.executable, str(program), str(stacks.file), manner]
    with subprocess.Popen(command, pass_fds=[stacks.file]) as process:
        try:
            stack = asyncio.run(stack_of())
            assert stacks.pid == process.pid
            assert state_of(process.pid) in ("R", "S")
        finally:
            process.kill()
    first, second = stack.splitlines()[:2]
    assert first.endswith("in <module>")
    assert str(program) in second
    assert second.endswith("in hang")
    assert state_of(process.pid) == ""


def test_unready_processes_are_not_asked_for_stacks() -> None:
    stacks = Stacks()
    assert asyncio.run(stacks.ask()) == Stack()
    stacks.close()
    assert asyncio.run(stacks.ask()) == Stack()


def test_stopped_process_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question is a signal, and those that a stopped process gets wait in a queue."""
    program = tmp_path / "hangs.py"
    program.write_text(PROGRAM)
    stacks = Stacks()
    command = [sys.executable, str(program), str(stacks.file), "python"]

    def dumped() -> bytes:
        return os.pread(stacks.file, 1 << 20, 0).rstrip()

    def whole_dumps() -> int:
        return dumped().count(b"in <module>")

    with subprocess.Popen(command, pass_fds=[stacks.file]) as process:
        try:
            until(lambda: "in hang" in asyncio.run(stacks.ask()).text, "a stack")
            until(lambda: dumped().endswith(b"in <module>"), "the end of it")
            os.kill(process.pid, signal.SIGSTOP)
            until(lambda: state_of(process.pid) == "T", "its stop")
            monkeypatch.setattr("brim.host.stacks._TO_ANSWER", 0.1)
            dumps_then = whole_dumps()
            assert [asyncio.run(stacks.ask()) for _ in range(3)] == 3 * [Stack()]
            os.kill(process.pid, signal.SIGCONT)
            until(lambda: whole_dumps() > dumps_then, "its answer")
            monkeypatch.setattr("brim.host.stacks._TO_ANSWER", 60.0)
            asyncio.run(stacks.ask())
            until(lambda: whole_dumps() > dumps_then + 1, "another one")
            dumps = whole_dumps() - dumps_then
            until(lambda: "in hang" in asyncio.run(stacks.ask()).text, "what that says")
        finally:
            process.kill()
    assert dumps == 2, "one for the questions while it was stopped"


def test_memory_of_answers_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.host.stacks._LARGEST_FILE", 500)
    program = tmp_path / "hangs.py"
    program.write_text(PROGRAM)
    stacks = Stacks()
    command = [sys.executable, str(program), str(stacks.file), "sleep"]
    with subprocess.Popen(command, pass_fds=[stacks.file]) as process:
        try:
            for _ in range(10):  # again, where a busy host lets it write half of it in time
                until(lambda: "in hang" in asyncio.run(stacks.ask()).text, "a stack")
        finally:
            process.kill()
    assert os.fstat(stacks.file).st_size < 1000


@pytest.mark.parametrize("number", [b"-1", b"no number"])
def test_process_without_a_valid_number_is_not_asked(number: bytes) -> None:
    stacks = Stacks()
    os.pwrite(stacks.file, number.rjust(20) + b"\n", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brim.host.stacks.os.kill", lambda *_: pytest.fail("a signal"))
        assert asyncio.run(stacks.ask()) == Stack()
    stacks.close()


def test_process_that_is_another_program_survives_questions(tmp_path: Path) -> None:
    program = tmp_path / "becomes.py"
    program.write_text(
        "import os, sys\nfrom brim.host.stacks import show_when_asked\n"
        "show_when_asked(int(sys.argv[1]))\nos.execvp('sleep', ['sleep', '3600'])\n"
    )
    stacks = Stacks()
    command = [sys.executable, str(program), str(stacks.file)]
    with subprocess.Popen(command, pass_fds=[stacks.file]) as process:
        try:
            name = Path(f"/proc/{process.pid}/comm")
            until(lambda: name.read_text() == "sleep\n", "the other program")
            assert [asyncio.run(stacks.ask()) for _ in range(3)] == 3 * [Stack()]
            # It has its name before it has read its libraries: until then it runs.
            until(lambda: state_of(process.pid) == "S", "a sleep")
        finally:
            process.kill()


def test_first_frames_of_brim_are_left_out() -> None:
    folder = Path(brim.__file__).parent
    places = f"{folder}/worker/process.py", f"{folder}/node/loop.py"
    dump = "".join(f'  File "{place}", line 3 in f\n' for place in ("a.py", *places))
    assert readable(dump) == '  File "a.py", line 3, in f'


DUMP = (
    f'  File "{__file__}", line 1 in of_a_question_before\n'
    "Stack (most recent call first):\n"
    '  File "/x/site-packages/torch/hub.py", line 9 in load\n'
    "  File ???, line 10 in f\n"
    '  File "<frozen importlib._bootstrap>", line 4 in _load\n'
    '  File "train.py", line 3 in <module>\n'
)


def test_whole_frames_of_torn_dumps_are_read() -> None:
    whole_lines = readable(DUMP).splitlines()
    assert [line.rpartition(" in ")[2] for line in whole_lines] == ["<module>", "f", "load"]
    begin = DUMP.index("Stack") + len("Stack (most recent call first):\n")
    for end in range(len(DUMP)):
        imported(DUMP[:end])
        lines = readable(DUMP[:end]).splitlines()
        if end >= begin:
            assert lines == whole_lines[len(whole_lines) - len(lines) :], DUMP[:end]


def test_interrupted_stack_is_read_once_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses within a line, longer than a look takes."""
    stacks, torn = Stacks(), DUMP.index("train.py")
    os.pwrite(stacks.file, b"%20d\n" % os.getpid(), 0)

    def write(*_: int) -> None:
        os.write(stacks.file, DUMP[:torn].encode())
        threading.Timer(0.3, os.write, (stacks.file, DUMP[torn:].encode())).start()

    monkeypatch.setattr("brim.host.stacks._catches", lambda _: True)
    monkeypatch.setattr("brim.host.stacks._TO_ANSWER", 60.0)
    monkeypatch.setattr("brim.host.stacks.os.kill", write)
    assert asyncio.run(stacks.ask()).text == readable(DUMP)
    stacks.close()


def test_stacks_of_silent_agents_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.master.stacks._TO_SHOW", 0.05)
    monkeypatch.setattr("brim.master.stacks._MOST_IN_ALL", 10)
    taking = StackTaking(["a1", "a2"], begin=0.0)
    taking.take("a1", {"w1": "six of", "w2": "seven f", "w3": "ten"})
    taking.take("a1", {"w1": "again"})
    taking.take("a9", {"w4": "a stranger"})
    found = asyncio.run(taking.stacks_of(["w1", "w2", "w3", "w4"]))
    assert found == {"w1": "six of", "w2": "", "w3": "ten", "w4": ""}
    assert asyncio.run(StackTaking([], begin=0.0).stacks_of([])) == {}
