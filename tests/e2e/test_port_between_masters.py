"""The port of a run belongs to the process that starts masters: between two of them it is no
stranger's either.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brim.storage.contact import is_alive, read_contact
from brim_lab.driver import Driver
from e2e.running import (
    DEADLINE,
    JOB,
    PACED,
    Run,
    check_ledger,
    joining,
    started,
    undisturbed,
    until,
)
from e2e.strangers import CAN_BE_ANOTHER, stranger

pytestmark = pytest.mark.e2e
COMMAND = ("train", *JOB)
TAKE = """
port, options, tries = int(sys.argv[1]), (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT), 0
print("begun")
while True:
    for host in ("127.0.0.1", "0.0.0.0"):
        for option in options:
            tries += 1
            with socket.socket() as taken:
                if option:
                    taken.setsockopt(socket.SOL_SOCKET, option, 1)
                try:
                    taken.bind((host, port))
                    taken.listen()
                except OSError:
                    continue
                print("it has the port, at attempt", tries)
                time.sleep(60)
"""


@contextlib.contextmanager
def one_who_wants(port: int) -> Iterator[subprocess.Popen[str]]:
    process = stranger(TAKE, str(port))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def master_of(run: Run, *, previous: int = 0) -> int:
    """The process of a master that is there, other than the one before."""
    found: list[int] = []

    def look() -> bool:
        contact = read_contact(run.directory)
        if contact is not None and contact.pid != previous and is_alive(contact.pid):
            found.append(contact.pid)
        return bool(found)

    until(look, "a master", run)
    return found[0]


def agent_of(run: Run) -> psutil.Process:
    children = psutil.Process(run.process.pid).children()
    return next(child for child in children if "brim.agent" in child.cmdline())


@pytest.mark.long
@pytest.mark.skipif(not CAN_BE_ANOTHER, reason="needs another account")
def test_between_two_masters_no_stranger_gets_the_port(tmp_path: Path) -> None:
    calm = undisturbed(*JOB)
    slow = (*PACED, "--set", f"hurry={tmp_path / 'run' / 'hurry'}")  # on the other host as well
    hosts = ("--workers", "2", "--listen", "127.0.0.1:0", "--agents", "2", "--spares", "0")
    with (
        started(tmp_path / "run", *COMMAND, *slow, *hosts) as run,
        joining(tmp_path / "run") as guest,
    ):
        run.wait_for_step(5)
        contact = read_contact(run.directory)
        assert contact is not None
        with one_who_wants(int(contact.address.rpartition(":")[2])) as rival:
            for _ in range(4):
                pid = master_of(run)
                os.kill(pid, signal.SIGKILL)
                master_of(run, previous=pid)
                run.wait_for_step(len(run.steps()) + 2)
            agent_of(run).kill()  # what starts masters goes as well
            until(lambda: "w3" in run.members(), "a worker of the next agent", run)
            assert rival.poll() is None
            rival.kill()
            assert rival.communicate() == ("", "")
        found = read_contact(run.directory)
        assert found is not None
        assert found.address == contact.address
        run.hurry()
        summary = run.finish()
        assert guest.wait(DEADLINE) == 0
    assert summary["weights_sha256"] == calm["weights_sha256"]
    check_ledger(tmp_path / "run")


def test_a_taken_port_is_reported_with_its_owner(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        words = (*COMMAND, "--run-dir", str(tmp_path / "run"), "--listen", address)
        done = Driver().call(*words, codes=(1,))
    assert f"cannot listen on {address}: Address already in use" in done.stderr
    assert f"process {os.getpid()} (" in done.stderr
    assert "--listen HOST:0 lets the system choose a port" in done.stderr
    assert not (tmp_path / "run").exists()
