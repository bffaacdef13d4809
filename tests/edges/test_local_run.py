"""The processes of a run on this host: whose they are, and what is left of them in their agent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.agent.workers import Callbacks, Workers, start_template
from brim.backends.local import LocalRun
from brim.storage.contact import Contact, write_contact
from brim.storage.job_file import write_job
from recorded_run import spec

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("own", [True, False])
def test_only_the_master_that_its_own_agent_kept_is_waited_for_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeping: subprocess.Popen[bytes], own: bool
) -> None:
    monkeypatch.setattr("brim.backends.local._GRACE", 0.0)
    agent = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    agent.wait()
    keeper = agent.pid if own else os.getpid()
    write_contact(tmp_path, Contact(address="a:1", token="t", pid=sleeping.pid, keeper=keeper))
    run = LocalRun(agent, tmp_path)
    assert run.poll() == (None if own else 1)
    if own:
        assert sleeping.wait(10) == -9
    else:
        assert sleeping.poll() is None


def test_an_agent_that_joins_again_and_again_keeps_nothing_of_its_workers(
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
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(serve())
    assert len(os.listdir("/proc/self/fd")) == before
