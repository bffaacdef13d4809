"""`brim.xgboost.train` under `brim run --restart`: the same trees, whatever dies and however many work."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from brim import client
from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from e2e.running import DEADLINE, FILES, ROOT, Run, free_port, has_ended, joining, started, until
from e2e.test_any_command import processes
from e2e.test_bad_days import is_gone

pytestmark = pytest.mark.e2e

BOOSTED = str(FILES / "boosted.py")
FEW, MANY = ("100", "2"), ("300", "10")  # rounds and classes
RANKED, MANY_RANKED, ON_HOSTS = ("100", "0"), ("1000", "0"), ("150", "10")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, str]], str]:
    """The digest that one process without a launcher makes."""

    @cache
    def digest(job: tuple[str, str]) -> str:
        folder = tmp_path_factory.mktemp("alone")
        command_line = command(job, folder)[1:]
        subprocess.run(command_line, check=True, timeout=DEADLINE)
        return (folder / "digest-0-1").read_text()

    return digest


def start_together(size: int, words: Sequence[str]) -> tuple[int, list[subprocess.Popen[bytes]]]:
    """Processes of a command as any launcher would start them, and the port of the first."""
    port = free_port()
    variables = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return port, [
        subprocess.Popen(words, env=os.environ | variables | {"RANK": str(rank)})
        for rank in range(size)
    ]


def test_all_parameters_make_the_same_trees(tmp_path: Path) -> None:
    """One command trains many times, alone and with three workers: trees, metrics and the best round."""
    words = (sys.executable, str(FILES / "boosted_cases.py"), str(tmp_path))
    _, processes = start_together(3, words)
    subprocess.run(words, check=True, timeout=DEADLINE)
    assert [process.wait(DEADLINE) for process in processes] == [0, 0, 0]
    alone = json.loads((tmp_path / "cases-0-1").read_text())
    assert len({digest for digest, *_ in alone.values()}) == len(alone) > 10
    for rank in range(3):
        assert json.loads((tmp_path / f"cases-{rank}-3").read_text()) == alone


def digests(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("digest-*")}


def kept(run: Run) -> int:
    """How many files of rounds there are."""
    return len(list((run.directory / "saved").glob("xgboost-*/rounds-*")))


def command(job: tuple[str, str], folder: Path) -> tuple[str, ...]:
    rounds, classes = job
    return ("--", sys.executable, BOOSTED, rounds, str(folder), classes)


@pytest.mark.parametrize("job", [FEW, RANKED], ids=["classes", "ranks"])
def test_workers_and_deaths_change_no_bit(
    tmp_path: Path, alone: Callable[[tuple[str, str]], str], job: tuple[str, str]
) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    _, pair = start_together(2, command(job, tmp_path)[1:])
    with started(
        tmp_path / "run", "run", "--restart", "--workers", "3", *command(job, tmp_path)
    ) as run:
        until(lambda: kept(run) > 0, "rounds that count", run)
        victim = processes(run, 1)[0]
        victim.kill()
        slow.unlink()
        summary = run.finish()
    assert [process.wait(DEADLINE) for process in pair] == [0, 0]
    assert (summary["exit"], summary["steps"]) == ("done", int(job[0])), run.err
    assert any(event["state"] == "lost" for event in run.events("worker"))
    assert digests(tmp_path) == dict.fromkeys(
        [*(f"digest-{rank}-2" for rank in range(2)), *(f"digest-{rank}-3" for rank in range(3))],
        alone(job),
    )


def connections(process: subprocess.Popen[bytes], status: str) -> set[tuple[str, int]]:
    """Its own ends of the connections of a status."""
    return {
        (str(one.laddr.ip), one.laddr.port)
        for one in psutil.Process(process.pid).net_connections("inet")
        if one.status == status
    }


def test_no_port_stays_open(tmp_path: Path) -> None:
    """XGBoost's tracker and workers would listen on, to anybody."""
    _, pair = start_together(2, command(MANY, tmp_path)[1:])
    try:
        until(
            lambda: (
                all(connections(process, psutil.CONN_ESTABLISHED) for process in pair)
                and not any(connections(process, psutil.CONN_LISTEN) for process in pair)
            ),
            "closed ports",
        )
    finally:
        for process in pair:
            process.kill()
            process.wait()


def wait_for_rounds(saved: Path, run: Run) -> None:
    """Wait for rounds that count beyond those that are there."""
    prior_count = len(list(saved.glob("xgboost-*/rounds-*")))
    until(
        lambda: len(list(saved.glob("xgboost-*/rounds-*"))) > prior_count, "rounds that count", run
    )


def command_on(host: Host) -> list[int]:
    """The processes of the command that are on a host."""
    found = []
    for pid in host.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "BRIM_CHECKPOINTS" in psutil.Process(pid).environ():
                found.append(pid)
    return found


@pytest.mark.netns
@pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun")
def test_lost_worker_and_host_change_no_bit(
    tmp_path: Path, alone: Callable[[tuple[str, str]], str]
) -> None:
    """Of two hosts without a common disk: the first one's rounds come back from the second."""
    with contextlib.ExitStack() as undo:
        hosts = undo.enter_context(hosts_in(tmp_path, 2))
        for host in hosts:
            (host.root / "tmp" / "slow").touch()
        run, agent = undo.enter_context(run_on(hosts, "/tmp"))
        saved = run.directory / "saved"
        # The first time there is one round alone, and the other host may lack the last.
        for _ in range(3):
            wait_for_rounds(saved, run)
        starts, victim = len(run.events("round")), command_on(hosts[1])[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: has_ended(victim), "its end", run)
        until(lambda: is_gone(saved), "its removal, whoever writes there still", run)
        until(lambda: len(run.events("round")) > starts, "another start", run)
        wait_for_rounds(saved, run)
        first = min(path.name for path in saved.glob("xgboost-*/rounds-*"))
        assert first.startswith("rounds-00000000-")
        assert int(first.rpartition("-")[2]) > 1  # several at once: they were not made again
        assert command_on(hosts[1])
        hosts[1].kill()
        (hosts[0].root / "tmp" / "slow").unlink()
        summary = run.finish()
        agent.wait()
        found = digests(hosts[0].root / "tmp")
    check_hosts(run, summary)
    assert set(found.values()) == {alone(ON_HOSTS)}


@pytest.mark.long
@pytest.mark.netns
@pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun")
def test_cut_cable_changes_no_bit(tmp_path: Path, alone: Callable[[tuple[str, str]], str]) -> None:
    """Of two hosts that share a disk, over IPv6."""
    shared = tmp_path / "shared"
    shared.mkdir()
    options = ("--checkpoints", str(shared / "saved"))
    with hosts_in(tmp_path, 2, shared=shared) as hosts:
        address = f"[{hosts[0].address6}]:7077"
        with run_on(hosts, str(shared), *options, address=address) as (run, _):
            wait_for_rounds(shared / "saved", run)
            assert command_on(hosts[1])
            hosts[1].cable.cut()
            summary = run.finish()
    check_hosts(run, summary)
    assert set(digests(shared).values()) == {alone(ON_HOSTS)}


@contextlib.contextmanager
def run_on(
    hosts: Sequence[Host], folder: str, *options: str, address: str = ""
) -> Iterator[tuple[Run, subprocess.Popen[str]]]:
    """A run of three workers on two hosts, and the agent of the second one."""
    address = address or f"{hosts[0].address}:7077"
    words = ("run", "--restart", "--workers", "3", "--listen", address, "--agents", "2", *options)
    directory = hosts[0].folder / "run"
    words += command(ON_HOSTS, Path(folder))
    with started(directory, *words, prefix=hosts[0].prefix) as run:
        agent = joining(directory, address=address, prefix=hosts[1].prefix)
        try:
            yield run, agent
        finally:
            agent.kill()
            agent.wait()


def check_hosts(run: Run, summary: dict[str, Any]) -> None:
    """Check that both hosts have taken part, and that all rounds were made."""
    assert (summary["exit"], summary["steps"]) == ("done", int(ON_HOSTS[0])), run.err
    assert len({event["agent"] for event in run.events("worker") if event["agent"]}) == 2


@pytest.mark.long
def test_resizes_lose_no_round(tmp_path: Path, alone: Callable[[tuple[str, str]], str]) -> None:
    """SIGTERM comes between two rounds, and all of them are kept."""
    with started(
        tmp_path / "run", "run", "--restart", "--workers", "1:6", *command(MANY, tmp_path)
    ) as run:
        for size in (3, 1, 2):
            prior_count = kept(run)
            until(lambda: kept(run) > prior_count, "rounds that count", run)  # noqa: B023
            client.resize(run.directory, size)
            until(lambda: run.events("round")[-1]["world_size"] == size, f"{size} workers", run)  # noqa: B023
        summary = run.finish()
    assert summary["exit"] == "done", run.err
    assert set(digests(tmp_path).values()) == {alone(MANY)}
    assert not any(event["state"] == "lost" for event in run.events("worker"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "seed"), [(MANY, 0), (MANY, 1), (MANY, 2), (MANY_RANKED, 3), (MANY_RANKED, 4)]
)
def test_random_deaths_change_no_bit(
    tmp_path: Path, alone: Callable[[tuple[str, str]], str], job: tuple[str, str], seed: int
) -> None:
    chance = random.Random(seed)
    size = chance.choice([2, 3, 4])
    with started(
        tmp_path / "run", "run", "--restart", "--workers", str(size), *command(job, tmp_path)
    ) as run:
        for _ in range(3):
            prior_count = kept(run)
            until(lambda: kept(run) > prior_count, "rounds that count", run)  # noqa: B023
            time.sleep(chance.uniform(0, 1))
            for victim in processes(run, chance.randrange(size)):
                victim.kill()
                until(lambda: has_ended(victim.pid), "its end", run)  # noqa: B023
        assert run.finish()["exit"] == "done", run.err
    assert set(digests(tmp_path).values()) == {alone(job)}


@pytest.mark.long
def test_booster_needs_no_brim(tmp_path: Path) -> None:
    """The example's file, in a fresh process that has plain xgboost alone."""
    example = ROOT / "examples" / "10-xgboost" / "flights.py"
    model = tmp_path / "model.json"
    subprocess.run([sys.executable, str(example), "5", str(model)], check=True, timeout=300)
    script = f"""
import sys, numpy, xgboost
booster = xgboost.Booster(model_file={str(model)!r})
print(booster.num_boosted_rounds(), booster.feature_names[0])
assert not any(name.split(".")[0] == "brim" for name in sys.modules)
"""
    found = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert found.stdout == "5 month\n"
