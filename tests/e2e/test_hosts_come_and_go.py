"""Hosts that join a run, have limits, and are to be free again; nothing of it is on their disks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from e2e.running import DIGITS, PACED, Run, check_ledger, joining, started, train, until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]
JOB = (DIGITS, "--epochs", "6", "--global-batch-size", "128")
LISTEN = ("--listen", "10.77.0.1:7077", "--agents", "2")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, ...]]:
    with hosts_in(tmp_path, 2) as both:
        yield both


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the same job on one host."""
    run = tmp_path_factory.mktemp("calm") / "run"
    return str(train(run, *JOB, "--workers", "1")["weights_sha256"])


@contextlib.contextmanager
def guest(run: Path, host: Host, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Have another host join a run."""
    process = joining(
        run,
        *options,
        address="10.77.0.1:7077",
        prefix=host.prefix,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def agents_of(run: Run) -> dict[str, str]:
    """The agent of each worker."""
    return {e["worker"]: e["agent"] for e in run.events("worker") if e["agent"]}


@pytest.mark.long
def test_a_host_keeps_the_records_and_checkpoints_of_workers_that_are_all_elsewhere(
    hosts: tuple[Host, ...], calm: str
) -> None:
    path, options = hosts[0].folder / "run", ("--workers", "2", "--workers-here", "0")
    every = ("--checkpoint-every", "10")
    command = ("train", *JOB, *PACED, *options, *every, *LISTEN)
    with (
        started(path, *command, prefix=hosts[0].prefix) as run,
        guest(path, hosts[1]) as agent,
    ):
        until(lambda: bool(run.events("checkpoint")), "a checkpoint", run)
        checkpoint = run.events("checkpoint")[0]
        assert Path(checkpoint["path"]).parent == path / "checkpoints"
        assert (path / "checkpoints" / f"step-{checkpoint['step']:08}" / "manifest.json").exists()
        for worker in run.members():  # who comes in their place has the state from there
            os.kill(run.pid_on(hosts, worker), signal.SIGKILL)
        until(lambda: bool(run.events("restored")), "a restore", run)
        run.hurry()
        summary = run.finish()
        assert agent.wait(timeout=60) == 0
    assert run.events("restored")[0]["step"] >= checkpoint["step"]
    assert summary["weights_sha256"] == calm
    assert len(set(agents_of(run).values())) == 1
    assert not list((path / "checkpoints.receiving").iterdir())
    check_ledger(path)


def test_a_host_that_is_to_be_free_gives_its_workers_to_another(
    hosts: tuple[Host, ...], calm: str
) -> None:
    path = hosts[0].folder / "run"
    command = ("train", *JOB, *PACED, "--workers", "3", *LISTEN)
    with (
        started(path, *command, prefix=hosts[0].prefix) as run,
        guest(path, hosts[1], "--workers", "1") as agent,
    ):
        run.wait_for_step(5)
        assert len(set(agents_of(run).values())) == 2
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(timeout=60) == 0, agent.communicate()
        run.hurry()
        summary = run.finish()
    assert summary["weights_sha256"] == calm
    assert summary["steps_redone"] == 0
    assert summary["world_sizes"][-1] == 3
    check_ledger(path)


@pytest.mark.long
def test_a_run_whose_last_host_is_to_be_free_pauses_with_a_checkpoint(
    hosts: tuple[Host, ...], calm: str
) -> None:
    path, options = hosts[0].folder / "run", ("--workers", "2", "--workers-here", "0")
    command = ("train", *JOB, *PACED, *options, *LISTEN)
    with (
        started(path, *command, prefix=hosts[0].prefix) as run,
        guest(path, hosts[1]) as agent,
    ):
        run.wait_for_step(5)
        agent.send_signal(signal.SIGTERM)
        summary = run.finish()
        assert agent.wait(timeout=60) == 0
    assert summary["exit"] == "suspended"
    stood_at = run.steps()[-1]["step"]
    run.hurry()
    resumed = train(path, *JOB, "--resume", "--workers", "2", prefix=hosts[0].prefix)
    assert resumed["weights_sha256"] == calm
    assert resumed["steps_redone"] == 0
    assert run.events("restored")[-1]["step"] == stood_at
    check_ledger(path)


@pytest.mark.long
def test_a_host_has_no_more_workers_than_it_takes(hosts: tuple[Host, ...], calm: str) -> None:
    path = hosts[0].folder / "run"
    command = ("train", *JOB, "--workers", "3", "--workers-here", "2", *LISTEN)
    faults = ("--faults", "kill rank 0 at step 8; kill rank 2 at step 20")
    with (
        started(path, *command, *faults, prefix=hosts[0].prefix) as run,
        guest(path, hosts[1], "--workers", "1") as agent,
    ):
        summary = run.finish()
        assert agent.wait(timeout=60) == 0
    assert summary["weights_sha256"] == calm
    here = agents_of(run)
    for event in run.events("round"):
        at = [here[worker] for worker in event["workers"]]
        assert at.count("a1") <= 2
        assert len(at) - at.count("a1") <= 1
    check_ledger(path)


@pytest.mark.long
def test_a_master_without_workers_beside_it_outlives_a_cable_that_is_cut(
    hosts: tuple[Host, ...], calm: str
) -> None:
    """All workers are behind the cable, and count as lost; they come again once it is mended."""
    path, options = hosts[0].folder / "run", ("--workers", "2", "--workers-here", "0")
    every = ("--checkpoint-every", "10")
    command = ("train", *JOB, *PACED, *options, *every, *LISTEN)
    with (
        started(path, *command, prefix=hosts[0].prefix) as run,
        guest(path, hosts[1]) as agent,
    ):
        until(lambda: bool(run.events("checkpoint")), "a checkpoint", run)
        hosts[1].cable.cut()
        time.sleep(13.0)
        hosts[1].cable.mend()
        run.hurry()
        summary = run.finish()
        assert agent.wait(timeout=60) == 0
    assert summary["weights_sha256"] == calm
    check_ledger(path)


@pytest.mark.long
def test_a_host_waits_for_a_master_that_is_not_there_yet(tmp_path: Path) -> None:
    """Neither a name that nobody knows nor an address that nobody listens on ends it at once."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "master.json").write_text('{"address": "brim.invalid:4000", "token": "t"}')
    agent = joining(run, "--patience", "2s", stderr=subprocess.PIPE)
    _, said = agent.communicate(timeout=20)
    assert agent.returncode == 1
    assert "cannot reach the master at brim.invalid:4000" in said
