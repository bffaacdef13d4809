"""Two agents in two network namespaces train one job over TCP."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.running import DIGITS, ledger, started, train, until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]
JOB = (DIGITS, "--epochs", "6", "--global-batch-size", "128")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces, 10.77.0.1 and 10.77.0.2, joined by a cable."""
    tag = uuid.uuid4().hex[:6]
    names = (f"brim-{tag}-a", f"brim-{tag}-b")
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip(
            "link",
            "add",
            f"v{tag}a",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            f"v{tag}b",
            "netns",
            names[1],
        )
        for name, end, address in zip(names, "ab", ("10.77.0.1/24", "10.77.0.2/24"), strict=True):
            _ip("-n", name, "addr", "add", address, "dev", f"v{tag}{end}")
            _ip("-n", name, "link", "set", f"v{tag}{end}", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextlib.contextmanager
def _second_agent(directory: Path, namespace: str) -> Iterator[subprocess.Popen[bytes]]:
    contact = directory / "master.json"
    until(contact.exists, "the master's address")
    token = json.loads(contact.read_text())["token"]
    command = [sys.executable, "-m", "brim.cli", "agent", "10.77.0.1:7077", "--token", token]
    process = subprocess.Popen(["ip", "netns", "exec", namespace, *command], stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_two_hosts_train_one_job(hosts: tuple[str, str], tmp_path: Path) -> None:
    calm = train(tmp_path / "calm", *JOB, "--workers", "1")
    prefix = ("ip", "netns", "exec", hosts[0])
    options = ("--workers", "4", "--listen", "10.77.0.1:7077", "--agents", "2")
    faults = (
        "--faults",
        "kill rank 0 at step 10; kill rank 3 at step 20; add 1 at step 30; term rank 1 at step 40",
    )
    with (
        started(tmp_path / "run", "train", *JOB, *options, *faults, prefix=prefix) as run,
        _second_agent(tmp_path / "run", hosts[1]) as agent,
    ):
        summary = run.finish()
        assert agent.wait(timeout=20) == 0
    assert summary["weights_sha256"] == calm["weights_sha256"]
    assert len({e["agent"] for e in run.events("worker") if e["agent"]}) == 2
    assert ledger(tmp_path / "run")["exact"]


def test_a_host_may_be_lost(hosts: tuple[str, str], tmp_path: Path) -> None:
    calm = train(tmp_path / "calm", *JOB, "--workers", "1")
    prefix = ("ip", "netns", "exec", hosts[0])
    options = ("--workers", "4", "--listen", "10.77.0.1:7077", "--agents", "2")
    with (
        started(tmp_path / "run", "train", *JOB, *options, prefix=prefix) as run,
        _second_agent(tmp_path / "run", hosts[1]) as agent,
    ):
        run.wait_for_step(10)
        agent.kill()
        summary = run.finish()
    assert summary["weights_sha256"] == calm["weights_sha256"]
    assert ledger(tmp_path / "run")["exact"]
