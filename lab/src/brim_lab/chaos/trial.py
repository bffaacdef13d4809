"""One trial: a short job, a schedule of faults, and the outcome."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.domain.faults import FROM_OUTSIDE, ON_HOSTS, Fault, FaultKind, describe, parse_faults
from brim.domain.job import WorkerRange
from brim.domain.step_records import StepRecord
from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock
from brim.telemetry.events import FaultPerformed
from brim.telemetry.history import RunReader
from brim_lab.chaos.clocks import JumpingClock
from brim_lab.chaos.disk import can_mount, small_disk
from brim_lab.chaos.hosts import Host, address_of, can_make_hosts, hosts_in
from brim_lab.chaos.outside import Guest, OutsideFaults
from brim_lab.chaos.promises import (
    brim_did_not_stumble,
    nothing_left_behind,
    nothing_left_on,
    result_is_the_calm_one,
    run_directory_is_whole,
    shared_memory,
    why_none_replayed,
)
from brim_lab.chaos.results import Calm, Job, Result, Strike, longest_pause
from brim_lab.chaos.surroundings import Surroundings
from brim_lab.driver import Driver

_TO_CLEAN_UP = 10.0  # seconds that the last process may outlive the command
_TO_GIVE_UP = (
    75.0  # the same for an agent on a host that was cut off: it waits for a master for a minute
)
_PORT = 7077
_SECOND_LEAD = 2  # the host that leads a run whose first host was killed
# A run may end before its end because of these; then it is resumed.
_MAY_END = frozenset(
    {
        FaultKind.KILL_EVERYTHING,
        FaultKind.KILL_COMMAND,
        FaultKind.INTERRUPT,
        FaultKind.FILL_DISK,
        FaultKind.TERM,
    }
)
# Seconds in which the next boundary comes after the command is gone; workers that do not come to it
# are killed after ten.
_TO_STOP = 30.0


def _takes_the_master(fault: Fault) -> bool:
    """Return whether a fault kills the host of the master, whose run goes on elsewhere."""
    return fault.kind is FaultKind.KILL_HOST and fault.host == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run and its faults; `seed` is the one that both were drawn from."""

    seed: int
    workers: WorkerRange
    servers: int = 0
    hosts: int = 1
    faults: tuple[Fault, ...] = ()

    @property
    def setting(self) -> dict[str, str | int]:
        servers = {"servers": self.servers} if self.servers else {}
        return {"workers": str(self.workers), **servers, "hosts": self.hosts}

    @property
    def schedule(self) -> str:
        return "; ".join(map(describe, self.faults))

    def command(self, job: Job) -> str:
        """The command that repeats this trial."""
        words = ["brim", "chaos", job.file, "--workers", str(self.workers), *job.options]
        words += ["--ps", str(self.servers)] if self.servers else []
        words += ["--hosts", str(self.hosts)] if self.hosts > 1 else []
        if FROM_OUTSIDE.isdisjoint(fault.kind for fault in self.faults) and self.hosts == 1:
            words[1] = "train"
        return shlex.join([*words, "--faults", self.schedule])


def kinds_possible_here(hosts: int) -> dict[FaultKind, str]:
    """Return for each kind of fault why it cannot be performed on this machine; "" where it can."""
    found = dict.fromkeys(FaultKind, "")
    for kind in ON_HOSTS:
        found[kind] = "" if hosts > 1 else "needs --hosts 2"
        if not can_make_hosts():
            found[kind] = "needs root, ip and /dev/net/tun"
    if not can_mount():
        found[FaultKind.FILL_DISK] = "needs root, to mount a small disk"
    return found


def calm_run(job: Job, directory: Path, *, deadline: float) -> Calm:
    """Run the job undisturbed, by one worker.

    Raises:
        EnvironmentFault: it did not end as it should; the message has its last words.
    """
    directory.mkdir(parents=True)
    trial = Trial(seed=0, workers=WorkerRange(minimum=1, maximum=1))
    run = _Running(job, trial, directory, directory / "run")
    with run:
        run.live(deadline=SystemClock().now() + deadline)
    summary = run.summary()
    if run.code is None:
        raise EnvironmentFault(
            f"{job.file} is too long: it does not end within the {deadline:g} s of --deadline"
        )
    if summary.get("exit") != "done":
        raise EnvironmentFault(f"{job.file} fails even without faults:\n{run.last_words()}")
    kept_bytes = sum(path.stat().st_size for path in run.run_dir.rglob("*") if path.is_file())
    return Calm(summary["weights_sha256"], summary["steps"], kept_bytes)


def copy_files(directory: Path, target: Path) -> None:
    """Copy a run's directory without its sockets, which cannot be copied."""

    def no_files(folder: str, names: list[str]) -> list[str]:
        return [
            name
            for name in names
            if not (path := Path(folder, name)).is_dir() and not path.is_file()
        ]

    shutil.copytree(directory, target, ignore=no_files)


def run_trial(job: Job, trial: Trial, calm: Calm, directory: Path, *, deadline: float) -> Result:
    """Run a trial in a new directory, which is kept only where a promise is broken.

    Args:
        deadline: seconds that the whole trial may take, beside what its faults take themselves.
    """
    clock = SystemClock()
    started, shared_before = clock.now(), shared_memory()
    end = started + deadline + sum(fault.seconds for fault in trial.faults)
    directory.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        place = directory / "host-1" if trial.hosts > 1 else directory
        place.mkdir(exist_ok=True)
        run_dir, disk = place / "run", None
        if any(fault.kind is FaultKind.FILL_DISK for fault in trial.faults):
            disk = stack.enter_context(small_disk(place / "disk", kept_bytes=calm.kept_bytes))
            run_dir = disk.path / "run"
        hosts = stack.enter_context(hosts_in(directory, trial.hosts)) if trial.hosts > 1 else ()
        run = stack.enter_context(_Running(job, trial, place, run_dir))
        run.spread(hosts)
        run.outside_faults.disk = disk
        broken = [*run.to_the_end(end), *run.broken_promises(calm, shared_before, end)]
        still_eager = run.why_none_replayed() if job.is_captured else ""
        if broken and disk is not None and run_dir.exists():
            copy_files(run_dir, directory / "run")
    result = Result(
        trial=trial,
        broken=tuple(broken),
        seconds=clock.now() - started,
        lives=run.lives,
        strikes=tuple(run.strikes()),
        still_eager=still_eager,
    )
    if not broken:
        shutil.rmtree(directory)
    return result


@dataclass
class _Running:
    """A trial under way: its processes, and its observations."""

    job: Job
    trial: Trial
    directory: Path
    run_dir: Path
    lives: int = 0
    code: int | None = None
    began: float = 0.0
    commits: list[tuple[float, int]] = field(default_factory=list)
    struck: list[tuple[float, Fault]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        self.began = self.clock.now()
        jumping = JumpingClock(self.directory / "clock")
        self.surroundings = Surroundings(self.directory, **jumping.environment)
        self.driver = self.surroundings.driver
        self.outside_faults = OutsideFaults(self.run_dir, self.driver, jumping, self.clock)
        self.reader = RunReader(self.run_dir)
        # the step, and the number of the job's own faults, that were seen on another host
        self._commits_before = 0, 0
        self.own = sorted(
            (f for f in self.trial.faults if f.kind not in FROM_OUTSIDE), key=lambda f: f.step
        )
        self.others = sorted(
            (f for f in self.trial.faults if f.kind in FROM_OUTSIDE), key=lambda f: f.step
        )

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.surroundings.close()
        for guest in self.outside_faults.guests.values():
            guest.kill()

    def spread(self, hosts: Sequence[Host]) -> None:
        """Run on several hosts: the command on the first, an agent on each of the others."""
        self.outside_faults.hosts = hosts
        leading = hosts[: _SECOND_LEAD if len(hosts) > _SECOND_LEAD else 1]
        masters = ",".join(f"{host.address}:{_PORT}" for host in leading)
        for host in hosts[1:]:
            log = self.directory / f"agent-{host.number}.log"
            self.outside_faults.guests[host.number] = Guest(
                host, self.driver, masters, self.run_dir, log
            )

    @property
    def _own_driver(self) -> Driver:
        """The driver on the host of the command."""
        hosts, lead = self.outside_faults.hosts, self.outside_faults.lead
        return self.driver.with_prefix(hosts[lead - 1].prefix) if hosts else self.driver

    def _move(self) -> None:
        """Have another host lead the run, in a directory of its own, from agents' copies."""
        self._commits_before = (
            self.commits[-1][1],
            sum(f.kind not in FROM_OUTSIDE for _, f in self.struck),
        )
        self.outside_faults.lead = _SECOND_LEAD
        self.run_dir = self.outside_faults.hosts[_SECOND_LEAD - 1].folder / "run"
        self.reader = RunReader(self.run_dir)
        self.outside_faults.run_dir = self.run_dir
        for guest in self.outside_faults.guests.values():
            guest.run_dir = self.run_dir

    # The run --------------------------------------------------------------------------------------

    def to_the_end(self, end: float) -> list[str]:
        """Live as often as needed; the promises broken about that."""
        while True:
            self.live(deadline=end)
            if self.code is None:
                return [
                    f"it had not ended by its deadline, {end - self.began:.0f} s after its start"
                ]
            if not self.has_stopped():
                return [f"life {self.lives} went on for {_TO_STOP:g} s without its command"]
            if self.summary().get("exit") == "done":
                return []
            ending = [
                fault
                for fault in self._faults_struck
                if fault.kind in _MAY_END or _takes_the_master(fault)
            ]
            if self.lives > len(ending):  # each of them ends one life
                explanation = f"{len(ending)} of the faults until then could end one"
                return [
                    f"life {self.lives} ended with code {self.code}, and {explanation}: "
                    f"{self.last_words()}"
                ]
            self.outside_faults.wait_for_undone(end)

    def has_stopped(self) -> bool:
        """Return whether all processes of a run whose command has ended are gone in good time."""
        deadline = self.clock.now() + _TO_STOP
        while self.outside_faults.is_alive():
            if self.clock.now() > deadline:
                return False
            self._look()
            time.sleep(0.01)
        return True

    def live(self, *, deadline: float) -> None:
        """Start or resume the run, and follow it until it ends.

        `code` is None where it had to be killed.
        """
        if self.outside_faults.lead == 1 and any(map(_takes_the_master, self._faults_struck)):
            self._move()
        words = self._words()
        tokens = {guest.token for guest in self.outside_faults.guests.values()} - {""}
        token = {"BRIM_TOKEN": tokens.pop()} if self.outside_faults.lead != 1 else {}
        self.lives += 1
        with (
            (self.directory / f"summary-{self.lives}.json").open("wb") as output,
            (self.directory / f"stderr-{self.lives}.log").open("wb") as err,
        ):
            process = self._own_driver.start(*words, stdout=output, stderr=err, variables=token)
        self.outside_faults.command = process
        self.code = self.driver.follow(process, self._look, deadline=deadline)

    @property
    def _faults_struck(self) -> list[Fault]:
        return [fault for _, fault in self.struck]

    def _words(self) -> list[str]:
        if self.outside_faults.lead != 1:
            listen = f"{address_of(self.outside_faults.lead)}:{_PORT}"
            return ["master", "--run-dir", str(self.run_dir), "--listen", listen]
        words = ["train", str(Path(self.job.file).resolve()), "--run-dir", str(self.run_dir)]
        words += ["--json", "--workers", str(self.trial.workers)]
        words += ["--ps", str(self.trial.servers), *self.job.options]
        if self.trial.hosts > 1:
            words += ["--listen", f"{address_of(1)}:{_PORT}", "--agents", str(self.trial.hosts)]
        remaining = self.own[sum(fault.kind not in FROM_OUTSIDE for _, fault in self.struck) :]
        if remaining:
            words += ["--faults", "; ".join(map(describe, remaining))]
        return [*words, "--resume"] if self.lives else words

    def _look(self) -> None:
        now, (step, faults) = self.clock.now(), self._commits_before
        for record in self.reader.poll():
            if isinstance(record, StepRecord) and record.step > step:
                self.commits.append((now, record.step))
            elif isinstance(record, FaultPerformed) and faults:
                self._commits_before = step, (faults := faults - 1)
            elif isinstance(record, FaultPerformed):
                self.struck.append((now, parse_faults(record.text)[0]))
        while self.others and self.commits and self.others[0].step <= self.commits[-1][1]:
            fault = self.others.pop(0)
            self.struck.append((self.clock.now(), fault))
            self.outside_faults.perform(fault, self.reader.history)
        self.outside_faults.poll()

    # What came of it ------------------------------------------------------------------------------

    def broken_promises(self, calm: Calm, shared_before: frozenset[str], end: float) -> list[str]:
        """Return all that is not as it should be now that the run is over."""
        self.outside_faults.wait_for_undone(end)
        survivors = self.driver.mark.left_after(
            _TO_GIVE_UP if self.trial.hosts > 1 else _TO_CLEAN_UP
        )
        logs = (self.run_dir / "logs").glob("[am]*.log")  # of agent and master
        return [
            *(f"process left over: {pid} {command}" for pid, command in survivors.items()),
            *result_is_the_calm_one(self.run_dir, self.summary(), calm.digest),
            *run_directory_is_whole(self.run_dir),
            *brim_did_not_stumble([*logs, *(g.log for g in self.outside_faults.guests.values())]),
            *nothing_left_behind(
                self.surroundings.scratch, shared_before, killed=self.agents_killed
            ),
            *(
                word
                for host in self.outside_faults.hosts
                for word in nothing_left_on(
                    host, killed=self.agents_killed, leads=host.number == self.outside_faults.lead
                )
            ),
        ]

    def why_none_replayed(self) -> str:
        """Return why no step was replayed on any host; empty where one was."""
        folders = {self.run_dir, *(host.folder / "run" for host in self.outside_faults.hosts)}
        return why_none_replayed(log for folder in folders for log in folder.glob("logs/w*.log"))

    def summary(self) -> dict[str, Any]:
        """Return the last life's summary, from its records where its command was killed."""
        text = (self.directory / f"summary-{self.lives}.json").read_text()
        if self.outside_faults.lead == 1 and (text.strip() or self.code != -signal.SIGKILL):
            return dict(json.loads(text)) if text.strip() else {}
        ended = self.reader.history.ended
        return dict(ended.summary) if ended is not None else {}

    def last_words(self) -> str:
        return (self.directory / f"stderr-{self.lives}.log").read_text()[-2000:].strip()

    @property
    def agents_killed(self) -> int:
        """The number of agents that were killed.

        Each leaves the directory that its socket or its logs were in.
        """
        killed = [fault.kind for fault in self._faults_struck]
        return killed.count(FaultKind.KILL_EVERYTHING) * self.trial.hosts + killed.count(
            FaultKind.KILL_AGENT
        )

    def strikes(self) -> list[Strike]:
        times = [moment for moment, _ in self.commits]
        ends = [*(moment for moment, _ in self.struck), math.inf][1:]
        return [
            Strike(fault.kind, describe(fault), longest_pause(times, moment, end))
            for (moment, fault), end in zip(self.struck, ends, strict=True)
        ]
