"""One trial of a cluster: a scheduler, a few short jobs, what is done to them, and what came of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from brim.chaos.census import Census, Recount, take_census
from brim.chaos.cluster_promises import broken_promises
from brim.chaos.surroundings import Surroundings
from brim.chaos.trial import Calm, Job
from brim.chaos.user import LOCK, User
from brim.clock import SystemClock
from brim.domain.cluster import ClusterSpec
from brim.domain.deeds import BEFALLS, ON_JOB, SUBMITS, Deed, DeedKind, describe_deed
from brim.errors import InternalError
from brim.storage.cluster_file import cluster_spec
from brim.storage.contact import read_contact
from brim.storage.files import is_locked

__all__ = ["ClusterResult", "ClusterTrial", "run_cluster_trial"]

_POLL = 0.02
_GRACE = 10.0
_TO_CLEAN_UP = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTrial:
    """One cluster and what happens to it; `seed` is what it was drawn from."""

    seed: int
    devices: int
    deeds: tuple[Deed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    trial: ClusterTrial
    broken: tuple[str, ...]
    seconds: float
    struck: tuple[Deed, ...]


def run_cluster_trial(
    job: Job, trial: ClusterTrial, calm: Mapping[int, Calm], directory: Path, *, deadline: float
) -> ClusterResult:
    """Run a trial in a new directory, which is kept only where a promise is broken.

    Args:
        calm: how a job ends that nothing is done to, by its epochs.
        deadline: seconds that the whole trial may take, beside what its deeds take themselves.
    """
    began = SystemClock().now()
    directory.mkdir(parents=True)
    end = began + deadline + sum(deed.seconds for deed in trial.deeds)
    run = _Running(job, trial, directory)
    try:
        broken = [*run.to_the_end(end), *run.come_down(end), *broken_promises(run, calm)]
    finally:
        run.close()
    result = ClusterResult(
        trial=trial, broken=tuple(broken), seconds=SystemClock().now() - began, struck=tuple(run.struck)
    )
    if not broken:
        shutil.rmtree(directory)
    return result


@dataclass
class _Running:
    """A trial under way."""

    job: Job
    trial: ClusterTrial
    directory: Path
    struck: list[Deed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        self.began = self.clock.now()
        self.state = self.directory / "state"
        self.around = Surroundings(self.directory)
        file = self.directory / "cluster.yaml"
        file.write_text(yaml.safe_dump(self._cluster(ads=self.trial.devices // 2)))
        self.user = User(self.job, self.state, self.directory, self._applied, self.around.environment)
        self.recount = Recount(self.trial.devices)
        self.waiting = list(self.trial.deeds)
        self.submitted = 0
        self.pause, self.absent_since = 0.0, -1.0
        self.disturbed = False
        self.up: subprocess.Popen[bytes] | None = None
        self.later: list[tuple[float, int]] = []
        self.census = Census()
        self.broken: list[str] = []

    def _cluster(self, *, ads: int) -> dict[str, object]:
        devices = self.trial.devices
        tenants = [{"name": "ads", "guaranteed": ads}, {"name": "web", "guaranteed": devices - ads}]
        return {"nodes": [{"name": "n1", "workers": devices}], "grace": f"{_GRACE}s", "tenants": tenants}

    def _applied(self, deed: Deed) -> ClusterSpec:
        return cluster_spec(self._cluster(ads=deed.ads))

    def close(self) -> None:
        for _, pid in self.later:
            _signal(pid, signal.SIGCONT)
        self.user.close()
        self.around.close()

    # The run -----------------------------------------------------------------------------------------------

    def to_the_end(self, end: float) -> list[str]:
        """Do what is to be done until every job has ended; what is broken about that."""
        self._start("up", "--cluster", str(self.directory / "cluster.yaml"))
        assert self.up is not None
        if self.up.wait(60) != 0:
            return [f"the cluster did not come up: {self._last_words()}"]
        self.began = self.clock.now()
        while self.clock.now() < end:
            self._look()
            for deed in list(self.waiting):
                if deed.at <= self.clock.now() - self.began and self._do(deed):
                    self.waiting.remove(deed)
            if self._is_over():
                return self.broken
            time.sleep(_POLL)
        left = [view.job for view in self.user.views.values() if not view.has_ended]
        return [*self.broken, f"it had not ended by its deadline: {', '.join(left)}"]

    def _is_over(self) -> bool:
        busy = self.user.busy()
        if busy or self.submitted < sum(deed.kind in SUBMITS for deed in self.trial.deeds):
            return False
        return all(self.user.has_ended(job) for job in self.user.ids.values()) and all(
            view.has_ended for view in self.user.views.values()
        )

    def _look(self) -> None:
        self.census = take_census(self.around.marked, self.state / "jobs")
        self.recount.add(self.census)
        now = self.clock.now()
        for at, pid in [each for each in self.later if each[0] <= now]:
            _signal(pid, signal.SIGCONT)
            self.later.remove((at, pid))
        self._keep_up(now)

    def _keep_up(self, now: float) -> None:
        """Bring a scheduler up that was killed or went down, when its time has come."""
        self.disturbed |= self.user.going_down  # who is told to go down the moment it is there, is not up
        if self.up is not None and self.up.poll() is not None:
            if self.up.returncode > 0 and not self.disturbed:
                self.broken.append(f"brim up failed: {self._last_words()}")
            self.up = None
        if self.up is not None:
            return
        if is_locked(self.state / LOCK):
            self.absent_since = -1.0
            return
        self.absent_since = now if self.absent_since < 0 else self.absent_since
        if now - self.absent_since >= self.pause:
            self._start("up")

    def _start(self, *words: str) -> None:
        self.disturbed = False
        with (self.directory / "up.log").open("ab") as log:
            self.up = subprocess.Popen(
                [sys.executable, "-m", "brim.cli", *words, "--state", str(self.state)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.around.environment,
                cwd=self.directory,
            )

    def _last_words(self) -> str:
        return (self.directory / "up.log").read_text()[-1000:]

    # Deeds -------------------------------------------------------------------------------------------------

    def _do(self, deed: Deed) -> bool:
        """Whether it could be done, or never can be."""
        if deed.kind in SUBMITS:
            self.submitted += 1
            self.user.ask(deed, self.submitted)
        elif deed.kind in ON_JOB and deed.job not in self.user.ids:
            return False
        elif deed.kind in ON_JOB and self.user.has_ended(self.user.ids[deed.job]):
            return True
        elif deed.kind not in BEFALLS:
            self.user.ask(deed, 0)
        elif not self._befall(deed):
            return False
        self._note(deed)
        self.struck.append(deed)
        return True

    def _note(self, deed: Deed) -> None:
        with (self.directory / "deeds.log").open("a") as log:
            log.write(f"{self.clock.wall():.3f} {describe_deed(deed)}\n")

    def _befall(self, deed: Deed) -> bool:
        victims = self._victims(deed)
        if not victims:
            return False
        if deed.kind in (DeedKind.STOP_SCHEDULER, DeedKind.STOP_MASTER):
            for pid in victims:
                _signal(pid, signal.SIGSTOP)
                self.later.append((self.clock.now() + deed.seconds, pid))
            return True
        if deed.kind in (DeedKind.KILL_SCHEDULER, DeedKind.KILL_EVERYTHING):
            self.pause, self.disturbed = deed.seconds, True
        if deed.kind is DeedKind.KILL_EVERYTHING:
            self.around.marked.kill()
        for pid in victims:
            _signal(pid, signal.SIGKILL)
        return True

    def _victims(self, deed: Deed) -> list[int]:
        job = self.user.ids[deed.job] if deed.kind in ON_JOB else ""
        match deed.kind:
            case DeedKind.KILL_SCHEDULER | DeedKind.STOP_SCHEDULER | DeedKind.KILL_EVERYTHING:
                return self.census.schedulers
            case DeedKind.KILL_AGENT:
                return self.census.agents.get(job, [])
            case DeedKind.KILL_MASTER | DeedKind.STOP_MASTER:
                return self.census.masters.get(job, [])
            case DeedKind.KILL_WORKER:
                contact = read_contact(self.state / "jobs" / job)
                keeper = contact.keeper if contact else 0
                return [pid for pid in self.census.workers if keeper in _ancestors(pid)][-1:]
            case _:
                raise InternalError(f"{deed.kind} befalls nobody")

    # Its end -----------------------------------------------------------------------------------------------

    def come_down(self, end: float) -> list[str]:
        """Let the scheduler go down as a person would, if there is one."""
        for _, pid in self.later:
            _signal(pid, signal.SIGCONT)
        if self.up is not None:
            self.up.wait(60)
        if not is_locked(self.state / LOCK):
            return []
        done = subprocess.run(
            [sys.executable, "-m", "brim.cli", "down", "--state", str(self.state)],
            capture_output=True,
            text=True,
            env=self.around.environment,
            check=False,
        )
        return [f"brim down failed: {done.stderr[-1000:]}"] if done.returncode else []


def _ancestors(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            found.append(pid)
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
