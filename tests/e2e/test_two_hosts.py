"""Two agents in two network namespaces train one job over TCP."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from brim.storage.checkpoints import Store
from brim.storage.file_stores import Directory
from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from brim_lab.driver import Driver
from e2e.running import (
    DEADLINE,
    DIGITS,
    FILES,
    PACED,
    Run,
    check_ledger,
    has_ended,
    joining,
    lines,
    started,
    undisturbed,
    until,
)
from tiers import LONG

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]
JOB = (DIGITS, "--epochs", "6", "--global-batch-size", "128")
RULES = ("--set", "optimizer=adamw", "--set", "admit_after=2", "--set", "expire_after=12")
TABLES = [  # and how they are trained where nothing happens
    pytest.param((str(FILES / "large_embedding.py"),), ("--embeddings", "dense"), id="numbers"),
    pytest.param((str(FILES / "keyed_embedding.py"), *RULES), (), id="ids", marks=LONG),
]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, ...]]:
    with hosts_in(tmp_path, 2) as host_pair:
        yield host_pair


@contextlib.contextmanager
def _second_agent(directory: Path, host: Host) -> Iterator[subprocess.Popen[str]]:
    process = joining(
        directory, address="10.77.0.1:7077", prefix=host.prefix, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _have_ended(pids: list[int]) -> bool:
    return all(map(has_ended, pids))


def _pids(run: Run, hosts: tuple[Host, ...]) -> list[int]:
    return [run.pid_on(hosts, worker) for worker in run.members()]


def _agent_of(run: Run, worker: str) -> str:
    return next(
        str(e["agent"]) for e in run.events("worker") if e["worker"] == worker and e["agent"]
    )


def _are_back(run: Run, hosts: tuple[Host, ...]) -> bool:
    return len(run.members()) == 4 and not any(map(has_ended, _pids(run, hosts)))


def test_two_hosts_train_one_job(hosts: tuple[Host, ...], tmp_path: Path) -> None:
    """Workers die, join and leave, and then a host is lost."""
    calm = undisturbed(*JOB)
    options = ("--workers", "4", "--listen", "10.77.0.1:7077", "--agents", "2")
    faults = (
        "--faults",
        "kill rank 0 at step 5; kill rank 3 at step 10; add 1 at step 15; term rank 1 at step 20",
    )
    command = ("train", *JOB, *PACED, *options, *faults)
    with (
        started(hosts[0].folder / "run", *command, prefix=hosts[0].prefix) as run,
        _second_agent(hosts[0].folder / "run", hosts[1]) as agent,
    ):
        run.wait_for_step(25)
        assert len({e["agent"] for e in run.events("worker") if e["agent"]}) == 2
        assert len(run.events("fault")) == 4
        agent.kill()
        run.hurry()
        summary = run.finish()
    assert summary["weights_sha256"] == calm["weights_sha256"]
    check_ledger(hosts[0].folder / "run")


@pytest.mark.long
def test_frozen_weights_are_stored_once(hosts: tuple[Host, ...], tmp_path: Path) -> None:
    """Writers and givers are killed, on both hosts, which have no disk in common."""
    job = (str(FILES / "adapted.py"), "--epochs", "6", "--global-batch-size", "128")
    calm = undisturbed(*job)
    options = ("--workers", "4", "--listen", "10.77.0.1:7077", "--agents", "2")
    kills = "kill rank 0 at step 5; kill rank 3 at step 10; kill rank 0 at step 30"
    faults = ("--faults", f"{kills}; add 1 at step 15; term rank 0 at step 20")
    command = ("train", *job, *options, "--checkpoint-every", "5", *faults)
    with (
        started(hosts[0].folder / "run", *command, prefix=hosts[0].prefix) as run,
        _second_agent(hosts[0].folder / "run", hosts[1]),
    ):
        summary = run.finish()
    assert summary["weights_sha256"] == calm["weights_sha256"]
    check_ledger(hosts[0].folder / "run")
    place = Directory(hosts[0].folder / "run" / "checkpoints")
    assert sum(name.startswith("frozen/") for name in place.names()) == 1
    assert Store(place).drafts() == []


@pytest.mark.parametrize(("file", "arguments_alone"), TABLES)
def test_tables_outlive_workers_and_a_host(
    hosts: tuple[Host, ...], file: tuple[str, ...], arguments_alone: tuple[str, ...], tmp_path: Path
) -> None:
    """One worker dies, then all of a host, several times, another joins, and a host is lost."""
    job = (*file, "--epochs", "6", "--global-batch-size", "128")
    calm = undisturbed(*job, *arguments_alone)
    options = ("--workers", "4", "--spares", "0", "--listen", "10.77.0.1:7077", "--agents", "2")
    faults = ("--faults", "kill rank 0 at step 3; kill rank 3 at step 8")
    slow = ("--set", "pause=0.2")  # longer than ten births of workers on a busy machine
    command = ("train", *job, *slow, *options, *faults)
    with (
        started(hosts[0].folder / "run", *command, prefix=hosts[0].prefix) as run,
        _second_agent(hosts[0].folder / "run", hosts[1]) as agent,
    ):
        run.wait_for_step(10)
        until(partial(_are_back, run, hosts), "all are back", run)
        first, second = sorted({_agent_of(run, worker) for worker in run.members()})
        for agent_of_victims in (second, first, second):
            victims = [
                run.pid_on(hosts, worker)
                for worker in run.members()
                if _agent_of(run, worker) == agent_of_victims
            ]
            assert len(victims) == 2
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            # Until the kernel has ended them, all of the old round seem to be back.
            until(partial(_have_ended, victims), "their end", run)
            until(partial(_are_back, run, hosts), "all are back", run)
            run.wait_for_step(run.steps()[-1]["step"] + 3)
        Driver().with_prefix(hosts[0].prefix).call("resize", str(run.directory), "5")
        until(lambda: len(run.members()) == 5, "another worker", run)
        run.wait_for_step(run.steps()[-1]["step"] + 3)
        agent.kill()
        run.hurry()
        summary = run.finish()
    assert summary["weights_sha256"] == calm["weights_sha256"]
    check_ledger(hosts[0].folder / "run")


@pytest.mark.long
def test_a_death_during_the_exchange_costs_one_step(
    hosts: tuple[Host, ...], tmp_path: Path
) -> None:
    # one micro-batch for each worker: gradients go out in every pass
    words = ("--epochs", "2", "--global-batch-size", "64", "--micro-batches", "4")
    job = (str(FILES / "dies_in_backward.py"), *words)
    calm = undisturbed(*job)
    options = ("--workers", "4", "--listen", "10.77.0.1:7077", "--agents", "2")
    slow = ("--set", "pause=0.3", "--set", f"folders={hosts[0].folder.parent}")
    command = ("train", *job, *options, *slow)
    with (
        started(hosts[0].folder / "run", *command, prefix=hosts[0].prefix) as run,
        _second_agent(hosts[0].folder / "run", hosts[1]) as agent,
    ):
        run.wait_for_step(2)
        for rank in (1, 2, 0):  # one that only computes, and those that trade for their hosts
            worker = run.members()[rank]
            victim, pid = run.pid_on(hosts, worker), run.pid(worker)
            folder = hosts[int(_agent_of(run, worker) != "a1")].folder
            (folder / "dying").write_text(str(pid))
            os.replace(folder / "dying", folder / "die")
            until(partial(has_ended, victim), "its end", run)
            until(partial(_are_back, run, hosts), "all are back", run)
            run.wait_for_step(run.steps()[-1]["step"] + 2)
        for host in hosts:
            (host.folder / "hurry").touch()
        summary = run.finish()
        assert agent.wait(timeout=DEADLINE) == 0, agent.communicate()
    assert summary["weights_sha256"] == calm["weights_sha256"]
    assert summary["steps_redone"] <= 3
    check_ledger(hosts[0].folder / "run")


@pytest.mark.long
def test_rank_0_prints_are_shown_across_hosts(hosts: tuple[Host, ...], tmp_path: Path) -> None:
    run, script = hosts[0].folder / "run", Path(__file__).parent / "files" / "talking_loop.py"
    words = ["run", "--run-dir", str(run), "--workers", "2", "--spares", "0"]
    words += ["--listen", "10.77.0.1:7077", "--agents", "2"]
    words += ["--faults", "term rank 0 at step 20", "--", sys.executable, str(script)]
    driver = Driver().with_prefix(hosts[0].prefix)
    process = driver.start(*words, stderr=subprocess.STDOUT)
    try:
        with _second_agent(run, hosts[1]) as agent:
            output, _ = process.communicate(timeout=DEADLINE)
            assert agent.wait(timeout=DEADLINE) == 0, agent.communicate()
    finally:
        driver.end()
        process.wait()
    assert process.returncode == 0, output
    events = lines(run / "events.jsonl")
    rounds = [event["workers"][0] for event in events if event["kind"] == "round"]
    homes = {event["worker"]: event["agent"] for event in events if event["kind"] == "worker"}
    assert homes[rounds[0]] != homes[rounds[-1]]  # rank 0 went to the other host
    words = output.splitlines()
    assert (
        words.count("begun") == 1
    )  # of the first rank 0; its successor began before it had the rank
    assert {
        step: words.count(f"step {step} of rank 0") for step in range(22, 101)
    } == dict.fromkeys(range(22, 101), 1)
    assert words.count("that was all") == 1
