"""Two agents on each of two machines, which share no memory, meet there before gradients travel."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from brim_lab.chaos.hosts import DEVICE, Host, can_make_hosts, hosts_in
from e2e.running import (
    BATCHES,
    FILES,
    JOB,
    PACED,
    Run,
    check_ledger,
    joining,
    started,
    undisturbed,
    until,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]
ADDRESS = "10.77.0.1:7077"
OPTIONS = ("--workers", "4", "--spares", "0", "--listen", ADDRESS, "--agents", "4")
BYTES = 4 * 1_971_902  # of the gradients of dies_in_backward.py
TABLES = (str(FILES / "large_embedding.py"), "--epochs", "3", "--global-batch-size", "128")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, ...]]:
    with hosts_in(tmp_path, 2) as host_pair:
        yield host_pair


@contextlib.contextmanager
def four_agents(
    hosts: tuple[Host, ...], name: str, *job: str, meet: bool
) -> Iterator[tuple[Run, list[subprocess.Popen[str]]]]:
    """A run with four agents, two on each host, and the processes of those that joined it."""
    run = hosts[0].folder / name
    first = (*hosts[0].prefix, *(("env", "BRIM_MACHINE=one") if meet else ()))
    with started(run, "train", *job, *OPTIONS, prefix=first) as running:
        agents: list[subprocess.Popen[str]] = []
        try:
            for host, machine in ((hosts[0], "one"), (hosts[1], "two"), (hosts[1], "two")):
                words = ("--machine", machine) if meet else ()
                agents.append(joining(run, *words, address=ADDRESS, prefix=host.prefix))
            yield running, agents
        finally:
            for agent in agents:
                agent.kill()
                agent.wait()


def has_another_round(run: Run, rounds: int) -> bool:
    return len(run.events("round")) > rounds


def bytes_sent(host: Host) -> int:
    command = ["ip", "-n", host.namespace, "-s", "-j", "link", "show", DEVICE]
    (link,) = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return int(link["stats64"]["tx"]["bytes"])


def sent_until(hosts: tuple[Host, ...], run: Run, step: int) -> tuple[int, list[int]]:
    """A step from this one on, and the bytes that each host has sent by then: no other came meanwhile."""
    while True:
        run.wait_for_step(step)
        step = run.steps()[-1]["step"]
        sent = [bytes_sent(host) for host in hosts]
        if run.steps()[-1]["step"] == step:
            return step, sent
        step = run.steps()[-1]["step"] + 1


def bytes_of_a_step(hosts: tuple[Host, ...], run: Run) -> float:
    """The bytes that the busiest host sends for one step; the run hurries from then on."""
    first, sent_before = sent_until(hosts, run, 3)
    last, sent_after = sent_until(hosts, run, first + 10)
    for host in hosts:
        (host.folder / "hurry").touch()
    sent = [after - before for before, after in zip(sent_before, sent_after, strict=True)]
    return max(sent) / (last - first)


def test_one_copy_of_each_machine_crosses_the_network(
    hosts: tuple[Host, ...], tmp_path: Path
) -> None:
    job = (str(FILES / "dies_in_backward.py"), "--epochs", "2", *BATCHES)
    calm = undisturbed(*job)
    slow = ("--set", "pause=0.3", "--set", f"folders={tmp_path}")
    with four_agents(hosts, "apart", *job, *slow, meet=False) as (run, _):
        bytes_apart = bytes_of_a_step(hosts, run)
        assert run.finish()["weights_sha256"] == calm["weights_sha256"]
    for host in hosts:
        (host.folder / "hurry").unlink()
    with four_agents(hosts, "together", *job, *slow, meet=True) as (run, _):
        bytes_together = bytes_of_a_step(hosts, run)
        assert run.finish()["weights_sha256"] == calm["weights_sha256"]
    check_ledger(hosts[0].folder / "together")
    assert 0.9 * BYTES < bytes_together < 1.25 * BYTES
    assert bytes_apart > 1.8 * BYTES


@pytest.mark.long
def test_anyone_on_a_machine_may_die(hosts: tuple[Host, ...], tmp_path: Path) -> None:
    """Each worker, of which ranks 0 and 2 speak with the other machine, and then both its agents."""
    calm = undisturbed(*JOB)
    faults = ("--faults", "; ".join(f"kill rank {r} at step {5 * (r + 1)}" for r in range(4)))
    with four_agents(hosts, "run", *JOB, *PACED, *faults, meet=True) as (run, agents):
        run.wait_for_step(22)
        until(lambda: len(run.members()) == 4, "all are back", run)
        by_agent = [event["agent"] for event in run.events("worker") if event["agent"]]
        assert len(set(by_agent)) == 4
        for number in (1, 2):  # the first of them speaks for its machine
            rounds = len(run.events("round"))
            agents[number].kill()
            until(partial(has_another_round, run, rounds), "a round without it", run)
            run.wait_for_step(run.steps()[-1]["step"] + 3)
        run.hurry()
        summary = run.finish()
    assert summary["weights_sha256"] == calm["weights_sha256"]
    check_ledger(hosts[0].folder / "run")


@pytest.mark.long
def test_tables_meet_on_a_machine_too(hosts: tuple[Host, ...], tmp_path: Path) -> None:
    calm = undisturbed(*TABLES)
    with four_agents(hosts, "run", *TABLES, meet=True) as (run, _):
        summary = run.finish()
    assert summary["weights_sha256"] == calm["weights_sha256"]
