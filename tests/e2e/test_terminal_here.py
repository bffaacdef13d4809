"""`brim run --tty`: a person at a real terminal, and a command of this host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brim_lab.driver import Driver
from e2e.people import Person
from e2e.running import until

SHELL = ("--", "bash", "--norc", "--noprofile")
LONG = f"1001.{os.getpid()}"  # seconds that nobody else sleeps
PROMPT = r"bash-[\d.]+[$#] "
pytestmark = pytest.mark.e2e


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path, TERM="vt100")


@pytest.fixture
def shell(driver: Driver) -> Iterator[Person]:
    """A person at bash."""
    words = ("--env", "GREETING=hello", *SHELL)
    person = Person(driver, *words, verb="run", rows=31, columns=97)
    person.sees(PROMPT)
    yield person
    person.close()


def sleeping() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] == ["sleep", LONG]
    ]


def test_command_has_the_terminal(shell: Person, tmp_path: Path) -> None:
    size = shell.runs("stty size; tty", r"(\d+ \d+)\s+/dev/pts/\d+")
    assert size[1] == "31 97"
    shell.resize(40, 120)
    shell.runs("until [ \"$(stty size)\" = '40 120' ]; do sleep 0.1; done; echo wi''de", "wide")
    shell.runs("echo $GREETING $RANK of $WORLD_SIZE", "hello 0 of 1")
    shell.runs("yes | head -1; echo status ${PIPESTATUS[0]}", "status 141")  # SIGPIPE is as usual
    shell.type(f"sleep {LONG}\r")
    until(lambda: bool(sleeping()), "sleep")
    shell.type("\x03")
    shell.runs("echo status $?", "status 130")
    assert not sleeping()
    shell.type("exit 7\r")
    assert shell.ends() == 7
    assert not list(tmp_path.iterdir()), "nothing is recorded"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--", "true"), "standard input or output that is no terminal"),
        (("--workers", "2", "--", "bash"), "--workers 2"),
        (("--no-restart", "--", "bash"), "--no-restart"),
        (("--run-dir", "x", "--", "bash"), "--run-dir"),
        (("--json", "--", "bash"), "--json"),
        (("--", "no-such-program"), "no-such-program"),
        ((), "COMMAND"),
    ],
)
def test_wrong_uses_are_refused(driver: Driver, words: tuple[str, ...], problem: str) -> None:
    done = driver.call("run", "--tty", *words, codes=(2,))
    assert problem in done.stderr
