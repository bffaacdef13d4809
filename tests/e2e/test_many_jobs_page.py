"""The account of the scheduler in docs/many-jobs.md agrees with its commands.

Kept true by running them: the commands are read from that page, and each line that is shown is
compared with the present output, numbers apart. Times and numbers of workers depend on the
machine, so of a job's story only the kinds of happenings are compared, and every line must have the
form that the page shows.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from brim.client import Client
from brim_lab.driver import Driver
from e2e.running import DEADLINE, ROOT

pytestmark = pytest.mark.e2e
CHANGE = re.compile(r"\d\d:\d\d:\d\d [a-z]+( \d+ -> \d+)?( \(.+\))?")


def shown_commands() -> list[tuple[str, list[str]]]:
    """The commands of the page on many jobs, each with the lines that are shown below it."""
    page = (ROOT / "docs" / "many-jobs.md").read_text()
    block = page.partition("```console\n$ ")[2].partition("```")[0]
    parts = [part.splitlines() for part in block.split("\n$ ")]
    return [(command, [line for line in lines if line]) for command, *lines in parts]


def form(text: str, state: Path) -> str:
    """A line without the parts that differ from one machine to the next."""
    home = text.replace(str(state), "~/.local/state/brim")
    # Where the first job has been measured by the time of the second, that one is promised at once.
    measured = r"\1: its steps are measured before its deadline can be promised: brim status \1"
    home = re.sub(r"^(\S+): promised \(fits\): .*", measured, home)
    return re.sub(r"\d+(\.\d+)? devices?", "N devices", home)


def kinds(story: list[str]) -> list[str]:
    return [line.split()[1] for line in story]


def test_what_is_shown_of_the_scheduler_is_so(tmp_path: Path) -> None:
    state = tmp_path / "state"
    driver = Driver(ROOT, BRIM_HOME=str(state))

    def brim(command: str) -> list[str]:
        words = shlex.split(command.removeprefix("brim "))
        process = driver.start(*words, stderr=subprocess.STDOUT)
        output, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, output
        return output.splitlines()

    *commands, (explain, story) = shown_commands()
    assert [command.split()[1] for command, _ in commands] == ["up", "submit", "submit"]
    try:
        for command, lines in commands:
            printed = brim(command)
            assert [form(line, state) for line in printed] == [form(line, state) for line in lines]
        job = explain.split()[-1]
        brim(f"brim cancel {lines[0]}")  # the second: it would take as long again
        assert Client(state).wait(job, timeout=DEADLINE).state == "done"
        story_lines = brim(explain)
    finally:
        brim("brim down --kill")
    for line in [*story_lines, *story]:
        assert CHANGE.fullmatch(line), line
    required_events = ("submitted", "workers", "running", "measured", "promised", "done")
    assert set(required_events) <= set(kinds(story_lines)) & set(kinds(story)), story_lines
    assert kinds(story_lines)[0] == kinds(story)[0] == "submitted"
    assert kinds(story_lines)[-1] == kinds(story)[-1] == "done"
