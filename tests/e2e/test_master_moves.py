"""The host of a run's master dies, or is to be free: another goes on from the copies of agents."""

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
    FILES,
    JOB,
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
FIRST, SECOND = "10.77.0.1:7077", "10.77.0.3:7078"
BOTH = f"{FIRST},{SECOND}"
TOKEN = "a token that the test made up"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, ...]]:
    with hosts_in(tmp_path, 3) as three:
        yield three


@pytest.fixture(scope="module")
def calm() -> str:
    """The digest of the same job on one host."""
    return str(undisturbed(*JOB)["weights_sha256"])


@contextlib.contextmanager
def leading(
    directory: Path, host: Host, *arguments: str, listen: str, token: str = TOKEN
) -> Iterator[Run]:
    """Start `brim master`; in any case, nothing of it stays."""
    driver = Driver(directory.parent, BRIM_TOKEN=token).with_prefix(host.prefix)
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
    # Slow enough for the births of workers and masters on a busy machine.
    return ("--set", "pause=0.3", "--set", f"hurry={folder / 'hurry'}")


def finish(master: Run) -> dict[str, Any]:
    """The summary of a run that a master leads to its end."""
    _, explanation = master.process.communicate(timeout=DEADLINE)
    assert master.process.returncode == 0, explanation
    summary: dict[str, Any] = master.events("run_ended")[-1]["summary"]
    return summary


def has_all(run: Run) -> bool:
    """Whether all four workers have made a step."""
    named, steps = run.events("round"), run.steps()
    return bool(named[-1]["world_size"] == 4 and steps[-1]["round"] == named[-1]["round"])


def rounds(run: Run) -> list[int]:
    return [event["round"] for event in run.events("round")]


def redone(run: Run) -> int:
    """The steps that were done again."""
    return sum(event["redone"] for event in run.events("re_formed"))


def test_a_run_outlives_its_masters_hosts(
    hosts: tuple[Host, ...], tmp_path: Path, calm: str
) -> None:
    """The first is killed with the workers beside it; the second hands the run over."""
    first, second, third = (
        hosts[0].folder / "run",
        hosts[2].folder / "run",
        hosts[0].folder / "last",
    )
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
        until(lambda: has_all(master), "a step of all four", master)

        hosts[0].start()
        master.process.send_signal(signal.SIGTERM)
        _, explanation = master.process.communicate(timeout=DEADLINE)
        assert master.process.returncode == 0, explanation
        handed_on_at = master.steps()[-1]["step"]
        logger = ("--logger", f"{FILES / 'loggers.py'}:Lines")
        last = stack.enter_context(leading(third, hosts[0], *logger, listen=FIRST, token=token))
        last.wait_for_step(handed_on_at + 3)
        (tmp_path / "hurry").touch()
        summary = finish(last)
        assert [agent.wait(timeout=DEADLINE) for agent in agents] == [0, 0]
    assert stood_at <= went_on["step"] <= stood_at + 1, "a committed step was done again"
    assert master.steps()[: stood_at - 1] == run.steps()[: stood_at - 1]
    assert last.steps()[:handed_on_at] == master.steps()
    assert summary["steps_redone"] == redone(master), "a step was done again though nobody was lost"
    assert rounds(last) == rounds(master), "nobody was lost, and yet a round was named"
    assert (summary["exit"], summary["weights_sha256"]) == ("done", calm)
    for path in (second, third):
        assert list((path / "checkpoints").glob("step-*")), "its checkpoints came to no host"
        assert (path / "code.tar").read_bytes() == (first / "code.tar").read_bytes()
    logged = [json.loads(line)[0] for line in (third / "lines.jsonl").read_text().splitlines()]
    assert {step["step"] for step in last.steps()} <= set(logged), "the logger lacks steps"
    check_ledger(third)
