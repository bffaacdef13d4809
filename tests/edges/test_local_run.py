"""The processes of a run on this host: their owners, and their traces in their agent."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.agent.templates import start_template
from brim.agent.workers import Callbacks, Workers
from brim.backends.local import LocalRun, start
from brim.errors import EnvironmentFault
from brim.host.process import birth_of
from brim.storage.contact import Contact, write_contact
from brim.storage.job_file import write_job
from recorded_run import spec

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("is_own", [True, False])
def test_only_the_own_agents_master_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeping: subprocess.Popen[bytes], is_own: bool
) -> None:
    monkeypatch.setattr("brim.backends.local._GRACE", 0.0)
    agent = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    agent.wait()
    keeper = agent.pid if is_own else os.getpid()
    write_contact(tmp_path, Contact(address="a:1", token="t", pid=sleeping.pid, keeper=keeper))
    run = LocalRun(agent, tmp_path)
    assert run.poll() == (None if is_own else 1)
    if is_own:
        assert sleeping.wait(10) == -9
    else:
        assert sleeping.poll() is None


def test_repeated_joins_keep_nothing_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "true")  # a template that ends at once
    write_job(tmp_path, spec())
    tell = Callbacks(
        ready=lambda: None,
        started=lambda *_: None,
        heard=lambda *_: None,
        gone=lambda *_: None,
        failed=lambda _: None,
        replaced=lambda _: None,
        spent=lambda _: None,
    )

    async def serve() -> None:
        workers = Workers(tmp_path, start_template(tmp_path, "127.0.0.1"), tell)
        await workers.listen()
        await workers.end()

    asyncio.run(serve())
    gc.collect()  # what others have left open is closed now, and not meanwhile
    descriptors_before = len(os.listdir("/proc/self/fd"))
    asyncio.run(serve())
    assert len(os.listdir("/proc/self/fd")) == descriptors_before


@pytest.fixture
def killed() -> subprocess.Popen[bytes]:
    agent = subprocess.Popen(SLEEP)
    agent.kill()
    agent.wait()
    return agent


def known_as_heir(run_dir: Path, process: subprocess.Popen[bytes], start: str = "s") -> None:
    (run_dir / "heir").write_text(f"{start} {process.pid} {birth_of(process.pid)}")


def test_the_next_agent_waits_for_the_heir(
    tmp_path: Path, sleeping: subprocess.Popen[bytes], killed: subprocess.Popen[bytes]
) -> None:
    known_as_heir(tmp_path, sleeping)
    lives: list[subprocess.Popen[bytes]] = []

    def start_next() -> subprocess.Popen[bytes]:
        assert sleeping.poll() is not None
        lives.append(subprocess.Popen([sys.executable, "-c", ""]))
        return lives[-1]

    run = LocalRun(killed, tmp_path, start_next, "s")
    assert run.poll() is None
    assert not lives
    assert sleeping.poll() is None
    sleeping.kill()
    sleeping.wait()
    assert run.poll() is None
    assert lives[0].wait() == 0
    assert run.poll() == 0
    assert not (tmp_path / "heir").exists()


@pytest.mark.parametrize("reason", ["is stopped", "takes too long", "has nobody to leave it to"])
def test_an_heir_is_ended_that(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sleeping: subprocess.Popen[bytes],
    killed: subprocess.Popen[bytes],
    reason: str,
) -> None:
    known_as_heir(tmp_path, sleeping)
    run = LocalRun(killed, tmp_path, lambda: killed, "s")
    if reason == "is stopped":
        os.kill(sleeping.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, sleeping.pid, os.WSTOPPED | os.WNOWAIT)
    elif reason == "takes too long":
        monkeypatch.setattr("brim.backends.local.PATIENCE", 0.0)
    else:
        run.interrupt()
    assert run.poll() is None
    assert sleeping.wait(10) == -signal.SIGKILL


def test_killing_a_run_ends_only_its_heir(
    tmp_path: Path, sleeping: subprocess.Popen[bytes], killed: subprocess.Popen[bytes]
) -> None:
    known_as_heir(tmp_path, sleeping, start="of another command")
    LocalRun(killed, tmp_path, lambda: killed, "s").kill()
    assert sleeping.poll() is None
    known_as_heir(tmp_path, sleeping)
    LocalRun(killed, tmp_path, lambda: killed, "s").kill()
    assert sleeping.wait(10) == -signal.SIGKILL


def test_an_unstartable_run_frees_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []

    def fails(arguments: list[str], **_: object) -> None:
        ports.append(int(arguments[arguments.index("--listen") + 1].rpartition(":")[2]))
        raise OSError(errno.EAGAIN, "no process can be made")

    monkeypatch.setattr("brim.backends.local.subprocess.Popen", fails)
    words = r"agent cannot be started: \[Errno 11\] no process can be made; no more processes"
    with pytest.raises(EnvironmentFault, match=words) as failed:
        start(spec(), tmp_path, resume=False, listen="127.0.0.1:0")
    socket.create_server(("127.0.0.1", *ports)).close()
    assert failed.tb is not None, "what start had in hand is not gone by itself"
