"""The host of a run's master dies, or is to be free: another goes on from what agents keep."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from brim_lab.driver import Driver
from e2e.running import (
    DEADLINE,
    DIGITS,
    PACED,
    Run,
    check_ledger,
    joining,
    started,
    train,
    until,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]
JOB = (DIGITS, "--epochs", "6", "--global-batch-size", "128")
FIRST, SECOND = "10.77.0.1:7077", "10.77.0.3:7078"
BOTH = f"{FIRST},{SECOND}"
TOKEN = "a token that the test made up"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, ...]]:
    with hosts_in(tmp_path, 3) as three:
        yield three


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the same job on one host."""
    run = tmp_path_factory.mktemp("calm") / "run"
    return str(train(run, *JOB, "--workers", "1")["weights_sha256"])


@contextlib.contextmanager
def leading(
    directory: Path, host: Host, *arguments: str, listen: str, token: str = TOKEN
) -> Iterator[Run]:
    """Start `brim master`; whatever happens, nothing of it stays."""
    driver = Driver(directory.parent, BRIM_TOKEN=token).behind(host.prefix)
    words = ("master", *arguments, "--run-dir", str(directory), "--listen", listen)
    with driver.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            yield Run(process, directory)
        finally:
            driver.end()


@contextlib.contextmanager
def guest(run: Path, host: Host, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Have a host join a run, whose master may come to be at either address."""
    process = joining(run, *options, address=BOTH, prefix=host.prefix, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def paced(folder: Path) -> tuple[str, ...]:
    """A pace that one file ends, whichever directory the records are in."""
    return (*PACED, "--set", f"hurry={folder / 'hurry'}")


def finish(master: Run) -> dict[str, Any]:
    """The summary of a run that a master leads to its end."""
    _, said = master.process.communicate(timeout=DEADLINE)
    assert master.process.returncode == 0, said
    summary: dict[str, Any] = master.events("run_ended")[-1]["summary"]
    return summary


@pytest.mark.long
def test_a_run_goes_on_where_the_host_of_its_master_is_killed(
    hosts: tuple[Host, ...], tmp_path: Path, calm: str
) -> None:
    first, second = hosts[0].folder / "run", hosts[2].folder / "run"
    options = ("--workers", "4", "--listen", FIRST, "--agents", "3", "--checkpoint-every", "10")
    command = ("train", *JOB, *paced(tmp_path), *options)
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(started(first, *command, prefix=hosts[0].prefix))
        agents = [stack.enter_context(guest(first, host)) for host in hosts[1:]]
        run.wait_for_step(5)
        token = json.loads((first / "master.json").read_text())["token"]
        hosts[0].kill()
        stood_at, round = run.steps()[-1]["step"], run.steps()[-1]["round"]
        master = stack.enter_context(leading(second, hosts[2], listen=SECOND, token=token))
        until(lambda: any(s["round"] > round for s in master.steps()), "a step", master)
        went_on = next(s for s in master.steps() if s["round"] > round)
        (tmp_path / "hurry").touch()
        summary = finish(master)
        assert [agent.wait(timeout=20) for agent in agents] == [0, 0]
    assert stood_at <= went_on["step"] <= stood_at + 1, "a committed step was done again"
    assert master.steps()[: stood_at - 1] == run.steps()[: stood_at - 1]
    assert (summary["exit"], summary["weights_sha256"]) == ("done", calm)
    assert list((second / "checkpoints").glob("step-*")), "its checkpoints came to no host"
    assert (second / "code.tar").read_bytes() == (first / "code.tar").read_bytes()
    check_ledger(second)


def test_a_master_hands_its_run_over(hosts: tuple[Host, ...], tmp_path: Path, calm: str) -> None:
    first, second = hosts[0].folder / "run", hosts[2].folder / "run"
    command = (*JOB, *paced(tmp_path), "--workers", "3", "--agents", "2")
    with contextlib.ExitStack() as stack:
        handing = stack.enter_context(leading(first, hosts[0], *command, listen=FIRST))
        agents = [stack.enter_context(guest(first, host)) for host in hosts[:2]]
        handing.wait_for_step(5)
        handing.process.send_signal(signal.SIGTERM)
        _, said = handing.process.communicate(timeout=30)
        assert handing.process.returncode == 0, said
        master = stack.enter_context(leading(second, hosts[2], listen=SECOND))
        master.wait_for_step(handing.steps()[-1]["step"] + 3)
        (tmp_path / "hurry").touch()
        summary = finish(master)
        assert [agent.wait(timeout=20) for agent in agents] == [0, 0]
    assert (summary["exit"], summary["weights_sha256"]) == ("done", calm)
    assert summary["steps_redone"] == 0
    assert len(master.events("round")) == 1, "nobody was lost, and yet a round was named"
    check_ledger(second)
