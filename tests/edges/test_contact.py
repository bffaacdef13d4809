"""Whether a run is alive is found out soon, in any state of its processes and of the clock."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from brim.client import Client, resize
from brim.errors import EnvironmentFault
from brim.host.process import birth_of
from brim.storage.contact import (
    Contact,
    SchedulerContact,
    is_alive,
    read_scheduler_contact,
    remove_contact,
    write_contact,
    write_scheduler_contact,
)
from brim.wire.control import ask
from brim.wire.messages import Ask


def test_a_zombie_process_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child.pid)
    child.wait()
    assert not is_alive(child.pid)
    assert is_alive(os.getpid())


def test_waits_for_a_dead_master_ignore_wall_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = time.time
    monkeypatch.setattr(time, "time", lambda: tell() + 3600.0)
    started = time.monotonic()
    with pytest.raises(EnvironmentFault, match="did not answer in 0 s"):
        ask(f"unix:{tmp_path}/master", token="t", question=Ask(verb="status"), timeout=0.3)
    assert time.monotonic() - started < 60.0


def test_run_that_ends_meanwhile_is_said_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contact = Contact(
        address=f"unix:{tmp_path}/master", token="t", pid=os.getpid(), keeper=os.getpid()
    )
    write_contact(tmp_path, contact)

    def ask_in_vain(*_: object, **__: object) -> None:
        remove_contact(tmp_path, keeper=os.getpid())
        raise EnvironmentFault("the master did not answer")

    monkeypatch.setattr("brim.wire.control.ask", ask_in_vain)
    with pytest.raises(EnvironmentFault, match="has ended meanwhile"):
        resize(tmp_path, 2)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A process that is called one, and a port that anybody may have."""
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        contact = SchedulerContact(
            host="127.0.0.1",
            port=listener.getsockname()[1],
            token="the administrators",
            pid=process.pid,
            birth=birth_of(process.pid),
        )
        write_scheduler_contact(tmp_path, contact)
        yield process, listener
        process.kill()


def test_process_reusing_a_schedulers_pid_gets_no_token(
    tmp_path: Path, scheduler: tuple[subprocess.Popen[bytes], socket.socket]
) -> None:
    _, listener = scheduler
    contact = read_scheduler_contact(tmp_path)
    assert contact is not None
    write_scheduler_contact(tmp_path, msgspec.structs.replace(contact, birth=f"{contact.birth}0"))
    with pytest.raises(EnvironmentFault, match="no scheduler runs"):
        Client(tmp_path)
    listener.settimeout(0.0)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_impostor_at_a_schedulers_port_gets_no_token(
    tmp_path: Path,
    scheduler: tuple[subprocess.Popen[bytes], socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process, listener = scheduler
    connect = http.client.HTTPConnection.connect

    def die_first(connection: http.client.HTTPConnection) -> None:
        process.kill()
        process.wait()
        connect(connection)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", die_first)
    client = Client(tmp_path)
    with pytest.raises(EnvironmentFault, match="no scheduler runs") as fault:
        client.cluster()
    assert fault.value.retryable
    with listener.accept()[0] as connection:
        assert connection.recv(100) == b""
