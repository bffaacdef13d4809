"""From a host that goes, or is gone, to the next step, beside torchrun: see README.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, seconds, table
from benchmarks.harness.torchrun import Torchrun
from brim.domain.step_records import StepRecord
from brim.storage.contact import read_contact
from brim.telemetry.events import RoundFormed, WorldReFormed
from brim.telemetry.history import RunReader
from brim_lab.chaos.hosts import DEVICE, Host, hosts_in
from brim_lab.driver import Driver

BENCHMARK = Path(__file__).parent
TRAINING_FILE = BENCHMARK.parent / "harness" / "training_file.py"
BATCH, STEADY = 512, 15
_POLL = 0.01
_PATIENCE = 90.0  # seconds
_FIRST, _NEXT = "10.77.0.1:7077", "10.77.0.2:7078"  # where masters listen
_MASTERS_HOST = "kill -9 of the master's host"


@dataclass(frozen=True, slots=True)
class Loss:
    """A host that went; seconds.

    Attributes:
        next_step: from the event to the first step of the job without it.
        pause: from the last step before to that one.
        redone: steps that were made again.
        status: of its agent.
    """

    next_step: float
    pause: float
    redone: int
    status: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The second host of a run."""

    agent: subprocess.Popen[str]
    host: Host
    first: Host
    token: str


def ask_to_go(host: Joined) -> None:
    host.agent.send_signal(signal.SIGTERM)


def kill(host: Joined) -> None:
    host.host.kill()


def cut(host: Joined) -> None:
    host.host.cable.cut()


EVENTS: dict[str, Callable[[Joined], None]] = {
    "SIGTERM to its agent": ask_to_go,
    "kill -9 of all its processes": kill,
    "its cable is cut": cut,
}


class Records:
    """The records of a run, as they grow."""

    def __init__(self, run: Path) -> None:
        self._reader = RunReader(run)

    def until(self, subject: str, found: Callable[[], Any]) -> Any:
        """Follow the records until there is something; raises RuntimeError after a while."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                self._reader.poll()
            if value := found():
                return value
            time.sleep(_POLL)
        raise RuntimeError(f"no {subject} within {_PATIENCE:g} s")

    @property
    def steps(self) -> list[StepRecord]:
        return self._reader.history.steps

    @property
    def round(self) -> RoundFormed | None:
        return self._reader.history.round

    def steady(self, workers: int) -> bool:
        """Whether a round of so many has made some steps."""
        now = self.round
        recent_steps = [step for step in self.steps[-STEADY:] if now and step.round == now.round]
        return now is not None and now.world_size == workers and len(recent_steps) == STEADY

    def hosts_of(self, round: int) -> set[str]:
        """The agents whose workers are in a round."""
        events = self._reader.history.events
        named = next(e for e in events if isinstance(e, RoundFormed) and e.round == round)
        workers = self._reader.history.workers
        return {workers[name].agent for name in named.workers if name in workers}

    def redone(self, first_round: int) -> int:
        """The steps made again in rounds behind this one."""
        events = self._reader.history.events
        return sum(
            e.redone for e in events if isinstance(e, WorldReFormed) and e.round > first_round
        )


@contextlib.contextmanager
def run_on_two_hosts() -> Iterator[tuple[Records, Joined]]:
    """A run of four workers, two on each of two hosts."""
    folder = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    os.environ["PYTHONPATH"] = str(repository())
    with hosts_in(folder, 2) as hosts:
        run = hosts[0].folder / "run"
        first = Driver(folder).with_prefix(hosts[0].prefix)
        words = ["train", str(TRAINING_FILE), "--run-dir", str(run), "--workers", "4"]
        words += ["--global-batch-size", str(BATCH), "--spares", "0", "--checkpoint-every", "1h"]
        words += ["--listen", _FIRST, "--agents", "2"]
        process = first.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        agent = None
        try:
            token = token_of(run)
            agent = join(token, hosts[1])
            records = Records(run)
            records.until("steady world", lambda: records.steady(4))
            yield records, Joined(agent, hosts[1], hosts[0], token)
        finally:
            first.end()
            process.wait()
            if agent is not None:
                hosts[1].kill()
                agent.wait()
    shutil.rmtree(folder, ignore_errors=True)


def token_of(run: Path) -> str:
    """The token of a run, once there is a master."""
    deadline = time.monotonic() + _PATIENCE
    while (contact := read_contact(run)) is None and time.monotonic() < deadline:
        time.sleep(_POLL)
    assert contact is not None
    return contact.token


def join(token: str, host: Host) -> subprocess.Popen[str]:
    """Start the agent of the second host."""
    driver = Driver(BRIM_TOKEN=token).with_prefix(host.prefix)
    return driver.start("agent", f"{_FIRST},{_NEXT}", stdout=subprocess.DEVNULL, stderr=None)


def lose_host(event: Callable[[Joined], None]) -> Loss:
    """Have something happen to the second host, and follow the consequences."""
    with run_on_two_hosts() as (records, host):
        round_before = records.round
        assert round_before is not None
        (stays,) = {"a1"} & records.hosts_of(round_before.round)
        event_time = time.time()
        event(host)

        def first_without() -> StepRecord | None:
            later_steps = (
                step for step in records.steps[-3000:] if step.round > round_before.round
            )
            return next((s for s in later_steps if records.hosts_of(s.round) == {stays}), None)

        first = records.until("step without the host", first_without)
        last = max((step for step in records.steps if step.at < first.at), key=lambda step: step.at)
        records.until("record of the round", lambda: records.redone(round_before.round) >= 0)
        status = host.agent.wait(timeout=60) if event is not cut else 0
        return Loss(
            first.at - event_time, first.at - last.at, records.redone(round_before.round), status
        )


def lose_first_host() -> Loss:
    """Kill the host of the master; another is started at once on the second host."""
    with run_on_two_hosts() as (records, host):
        round_before = records.round
        assert round_before is not None
        event_time = time.time()
        host.first.kill()
        with contextlib.suppress(FileNotFoundError):
            records.until("last record", lambda: True)
        last = records.steps[-1]
        taken_over = host.host.folder / "taken"
        driver = Driver(host.host.folder, BRIM_TOKEN=host.token).with_prefix(host.host.prefix)
        words = ("master", "--listen", _NEXT, "--run-dir", str(taken_over))
        process = driver.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            later_records = Records(taken_over)
            first = later_records.until(
                "step with another master",
                lambda: next(
                    (s for s in later_records.steps[-3000:] if s.round > round_before.round), None
                ),
            )
            later_records.until(
                "record of the round", lambda: later_records.redone(round_before.round) >= 0
            )
            redone = later_records.redone(round_before.round)
        finally:
            driver.end()
            process.wait()
        return Loss(first.at - event_time, first.at - last.at, redone, 0)


def lose_host_under_torchrun() -> float:
    """Seconds from the kill of the second host to the first step of all ranks that are left."""
    folder = Path(tempfile.mkdtemp(prefix="torchrun-benchmark-"))
    meet = ["--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-id", "brim"]
    meet += ["--rdzv-endpoint", "10.77.0.1:29500", "--local-addr"]
    with hosts_in(folder, 2) as hosts:
        runs = [
            Torchrun(
                workers=2,
                batch=BATCH,
                directory=host.folder / "torchrun",
                prefix=[*host.prefix, "env", f"GLOO_SOCKET_IFNAME={DEVICE}"],
                meet=[*meet, host.address, "--rdzv-conf", f"is_host={int(not number)}"],
            )
            for number, host in enumerate(hosts)
        ]
        for run in runs:
            run.directory.mkdir()
        with runs[0] as first, runs[1]:
            steps_of_world(runs, 4)
            killed = time.time()
            hosts[1].kill()
            took = steps_of_world([first], 2, start=killed) - killed
    shutil.rmtree(folder, ignore_errors=True)
    return took


def steps_of_world(runs: Sequence[Torchrun], world: int, *, start: float = 0.0) -> float:
    """When the last rank of a world of this size has made a step; raises RuntimeError."""
    deadline = time.monotonic() + 2 * _PATIENCE
    while time.monotonic() < deadline:
        all_lines = (line for run in runs for line in run.lines())
        lines = [line for line in all_lines if line.world == world and line.at > start]
        firsts = {rank: [line.at for line in lines if line.rank == rank] for rank in range(world)}
        if all(len(steps_of_rank) >= (1 if start else 60) for steps_of_rank in firsts.values()):
            return max(steps_of_rank[0] for steps_of_rank in firsts.values())
        time.sleep(_POLL)
    raise RuntimeError(f"torchrun made no step with {world} workers")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="once each, and no report")
    quick = parser.parse_args().quick
    report = Report(BENCHMARK, "A host goes, or is gone", seed=0)
    repetitions = 1 if quick else 5
    found: dict[str, list[Loss]] = {name: [] for name in (*EVENTS, _MASTERS_HOST)}
    peer: list[float] = []
    for turn in range(repetitions):
        for name, event in EVENTS.items():
            report.say(f"brim, {name}, {turn + 1} of {repetitions}")
            found[name].append(lose_host(event))
        report.say(f"brim, {_MASTERS_HOST}, {turn + 1} of {repetitions}")
        found[_MASTERS_HOST].append(lose_first_host())
        if turn < 3:
            report.say("torchrun, kill -9 of all its processes")
            peer.append(lose_host_under_torchrun())
    rows = [
        [
            name,
            len(losses),
            seconds([loss.next_step for loss in losses]),
            seconds([loss.pause for loss in losses]),
            max(loss.redone for loss in losses),
        ]
        for name, losses in found.items()
    ]
    rows.append(["kill -9, torchrun", len(peer), seconds(peer), "–", "–"])
    head = ["what happens", "times", "to the next step (s)", "pause (s)", "steps redone"]
    report.add(table(head, rows))
    if not quick:
        data = {
            "brim": {name: [asdict(loss) for loss in losses] for name, losses in found.items()},
            "torchrun": peer,
        }
        report.write(data)


if __name__ == "__main__":
    main()
