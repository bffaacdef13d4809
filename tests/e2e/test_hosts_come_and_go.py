"""Hosts that join a run, have limits, and are to be free again; nothing of it is on their disks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from e2e.running import (
    DEADLINE,
    LONG_JOB,
    Run,
    check_ledger,
    joining,
    started,
    train,
    undisturbed,
    until,
)
from e2e.test_pods import hurry

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]
SLOW = ("--set", "pause=0.1", "--set", "hurry=/run/hurry")
LISTEN = ("--listen", "10.77.0.1:7077", "--agents", "2")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, ...]]:
    with hosts_in(tmp_path, 3) as three:
        yield three


@pytest.fixture(scope="module")
def calm() -> str:
    """The digest of the same job on one host."""
    return str(undisturbed(*LONG_JOB)["weights_sha256"])


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


def test_a_master_outlives_the_loss_of_all_workers(hosts: tuple[Host, ...], calm: str) -> None:
    """They are all on another host: they are killed, and then that is to be free."""
    path, options = hosts[0].folder / "run", ("--workers", "2", "--workers-here", "0")
    limits = ("--checkpoint-every", "10", "--keep", "99", "--heartbeat-timeout", "1m")
    command = ("train", *LONG_JOB, *SLOW, *options, *limits, *LISTEN)
    with (
        started(path, *command, prefix=hosts[0].prefix) as run,
        guest(path, hosts[1]) as agent,
    ):
        until(lambda: bool(run.events("checkpoint")), "a checkpoint", run)
        checkpoint = run.events("checkpoint")[0]
        assert Path(checkpoint["path"]).parent == path / "checkpoints"
        assert (path / "checkpoints" / f"step-{checkpoint['step']:08}" / "manifest.json").exists()
        # Who comes in their place has the state from there.
        pids = [run.pid_on(hosts, worker) for worker in run.members()]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # none gives its state away
            for pid in pids:
                os.kill(pid, number)
        until(lambda: bool(run.events("restored")), "a restore", run)
        assert run.events("restored")[0]["step"] >= checkpoint["step"]
        assert len(set(agents_of(run).values())) == 1
        run.wait_for_step(run.steps()[-1]["step"] + 3)

        agent.send_signal(signal.SIGTERM)
        summary = run.finish()
        assert agent.wait(timeout=DEADLINE) == 0
    assert summary["exit"] == "suspended"
    stood_at = run.steps()[-1]["step"]
    assert not list((path / "checkpoints.receiving").iterdir())
    hurry(hosts)
    resumed = train(path, *LONG_JOB, "--resume", "--workers", "2", prefix=hosts[0].prefix)
    assert resumed["weights_sha256"] == calm
    assert resumed["steps_redone"] == 0
    assert run.events("restored")[-1]["step"] == stood_at
    check_ledger(path)


def test_hosts_have_no_more_workers_than_they_take(hosts: tuple[Host, ...], calm: str) -> None:
    """Where workers die, and where a host that is to be free gives its own to another."""
    path, options = hosts[0].folder / "run", ("--workers", "3", "--workers-here", "2")
    notice = hosts[1].folder / "leave"
    faults = ("--faults", "kill rank 0 at step 4; kill rank 2 at step 10")
    command = ("train", *LONG_JOB, *SLOW, *options, *LISTEN, *faults)
    with (
        started(path, *command, prefix=hosts[0].prefix) as run,
        guest(path, hosts[1], "--workers", "1", "--notice", str(notice)) as leaver,
    ):
        run.wait_for_step(15)
        assert len(set(agents_of(run).values())) == 2
        redone = sum(event["redone"] for event in run.events("re_formed"))
        with guest(path, hosts[2], "--workers", "1") as guest_run:
            notice.touch()
            assert leaver.wait(timeout=DEADLINE) == 0, leaver.communicate()
            until(lambda: len(set(agents_of(run).values())) == 3, "a worker elsewhere", run)
            until(lambda: len(run.members()) == 3, "all of them", run)
            hurry(hosts)
            summary = run.finish()
            assert guest_run.wait(timeout=DEADLINE) == 0
    assert summary["weights_sha256"] == calm
    agents_here = agents_of(run)
    for event in run.events("round"):
        counts = Counter(agents_here[worker] for worker in event["workers"])
        assert counts.pop("a1") <= 2
        assert set(counts.values()) <= {1}
    assert summary["world_sizes"][-1] == 3
    assert summary["steps_redone"] == redone
    check_ledger(path)


@pytest.mark.long
def test_all_workers_come_again_behind_a_cut_cable(hosts: tuple[Host, ...], calm: str) -> None:
    """All are behind it, and count as lost; they come again once it is mended."""
    path, options = hosts[0].folder / "run", ("--workers", "2", "--workers-here", "0")
    checkpoint_options = ("--checkpoint-every", "10")
    command = ("train", *LONG_JOB, *SLOW, *options, *checkpoint_options, *LISTEN)
    with (
        started(path, *command, prefix=hosts[0].prefix) as run,
        guest(path, hosts[1]) as agent,
    ):
        until(lambda: bool(run.events("checkpoint")), "a checkpoint", run)
        hosts[1].cable.cut()
        until(lambda: set(run.members()) <= lost(run), "that they count as lost", run)
        hosts[1].cable.mend()
        hurry(hosts)
        summary = run.finish()
        assert agent.wait(timeout=DEADLINE) == 0
    assert summary["weights_sha256"] == calm
    check_ledger(path)


def lost(run: Run) -> set[str]:
    """The workers that count as lost."""
    return {event["worker"] for event in run.events("worker") if event["state"] == "lost"}


def test_a_host_waits_for_its_master(tmp_path: Path) -> None:
    """Neither an unknown name nor an address without a listener ends it at once."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "master.json").write_text('{"address": "brim.invalid:4000", "token": "t"}')
    agent = joining(run, "--patience", "2s", stderr=subprocess.PIPE)
    _, explanation = agent.communicate(timeout=DEADLINE)
    assert agent.returncode == 1
    assert "cannot reach the master at brim.invalid:4000" in explanation
