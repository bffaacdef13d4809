"""A fork of the warm process is, from outside and for itself, the program that it stands for."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brim.storage.contact import read_scheduler_contact
from brim_lab import warm
from brim_lab.driver import Driver
from e2e.running import DIGITS, PACED, Run, started

BRIM = (sys.executable, "-m", "brim.cli")


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("paced") / "run"
    warm.end()
    warm.use()
    # A warm process outlives the thread that started it.
    thread = threading.Thread(target=Driver().call, args=["--version"])
    thread.start()
    thread.join()
    with started(folder, "train", DIGITS, "--workers", "2", *PACED) as run:
        run.wait_for_step(1)
        yield run


@pytest.mark.e2e
def test_processes_of_a_run_show_who_they_are(paced: Run) -> None:
    command = psutil.Process(paced.process.pid)
    (agent,) = command.children()
    assert command.ppid() == os.getpid()
    assert command.cmdline()[:4] == [*BRIM, "train"]
    assert agent.cmdline()[:4] == [sys.executable, "-P", "-m", "brim.agent"]
    assert agent.name() == "brim-agent"
    assert os.getsid(agent.pid) == agent.pid
    assert {child.name() for child in agent.children()} >= {"brim-master", "brim-w1", "brim-w2"}
    assert "libtorch" in Path(f"/proc/{command.pid}/maps").read_text()


@pytest.mark.e2e
def test_a_mark_is_in_the_environment_of_each(paced: Run) -> None:
    variables = [
        psutil.Process(pid).environ()["DRIVEN_BY"]
        for pid in (paced.process.pid, paced.pid("w1"), paced.pid("w2"))
    ]
    assert len(set(variables)) == 1
    assert "BRIM_ROOM" not in psutil.Process(paced.pid("w1")).environ()


@pytest.mark.e2e
def test_a_scheduler_is_a_fork(tmp_path: Path) -> None:
    """Its environment has the variables of jobs alone, and so none of certificates."""
    state, roots = tmp_path / "state", str(tmp_path / "roots.pem")
    driver = Driver(tmp_path, BRIM_HOME=str(state), GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=roots)
    try:
        driver.call("up")
        scheduler = read_scheduler_contact(state)
        assert scheduler is not None
        assert "libtorch" in Path(f"/proc/{scheduler.pid}/maps").read_text()
    finally:
        driver.call("down", "--kill")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-P -m brim.backends.up state", True),
        ("-m brim.cli node --join 10.0.0.7:4001", True),
        ("-m brim.cli nodes --json", False),
    ],
)
def test_programs_that_start_others_in_loops(words: str, expected: bool) -> None:
    assert warm._forks_in_loop([sys.executable, *words.split()]) == expected


@pytest.mark.parametrize(
    "words", ["--version", "help status", "nonsense", "train missing.py", "ledger nowhere"]
)
def test_forks_equal_new_interpreters(words: str, tmp_path: Path) -> None:
    with warm.cold():
        anew = Driver(tmp_path).call(*words.split(), codes=())
    forked = Driver(tmp_path).call(*words.split(), codes=())
    assert forked.returncode == anew.returncode
    assert forked.stdout == anew.stdout
    assert forked.stderr == anew.stderr


def test_descriptors_reach_a_fork_under_their_numbers(tmp_path: Path) -> None:
    own_end, other_end = socket.socketpair()
    with own_end, other_end, (tmp_path / "output").open("wb") as output:
        command = [sys.executable, "-m", "brim.worker.template", "--run-dir", str(tmp_path)]
        stacks = os.memfd_create("stacks")
        descriptors = [other_end.fileno(), stacks]
        command += ["--control", str(descriptors[0]), "--stacks", str(descriptors[1])]
        with subprocess.Popen(
            command, pass_fds=descriptors, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as template:
            found = {
                number: os.readlink(f"/proc/{template.pid}/fd/{number}")
                for number in (0, 1, 2, *descriptors)  # others may come and go meanwhile
            }
            other_end.close()
            own_end.close()
            template.kill()
        os.close(stacks)
    assert found[1] == found[2] == str(tmp_path / "output")
    assert found[0] == os.devnull
    assert found[descriptors[0]].startswith("socket:")
    assert found[descriptors[1]].startswith("/memfd:stacks")


def test_a_forks_signal_is_its_status(tmp_path: Path) -> None:
    words = ("agent", "no-such-host.invalid:9", "--patience", "1m")
    process = Driver(tmp_path, BRIM_TOKEN="none").start(*words)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_other_variables_of_the_interpreter_start_it_anew(tmp_path: Path) -> None:
    command = [*BRIM, "ledger", "nowhere"]
    environment = {**os.environ, "PYTHONVERBOSE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "import 'site'" in done.stderr


def test_what_is_not_of_brim_is_started_anew() -> None:
    code = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert "torch" not in json.loads(done.stdout)
