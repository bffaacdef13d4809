"""The stack of another process: in a loop of Python,
and in C code that has Python's lock in hand.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brim.host.process import state_of
from brim.host.stacks import Stack, Stacks

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
        while "in hang" not in (stack := (await stacks.ask()).text) and time.monotonic() < deadline:
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
