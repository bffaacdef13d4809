"""One trial of a cluster: a scheduler, a few short jobs, the faults, and the outcome."""

from __future__ import annotations

import math
import shlex
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from brim.domain.cluster import ClusterSpec
from brim.domain.job import WorkerRange
from brim.domain.quantities import counted
from brim.errors import InternalError
from brim.host.clock import SystemClock
from brim.scheduler.cluster_file import cluster_spec
from brim.storage.book import Book
from brim.storage.database import Database
from brim.telemetry.history import read_history
from brim_lab.chaos.answers import TryOutcome, before_a_front, requests_are_answered
from brim_lab.chaos.census import Census, Recount, take_census
from brim_lab.chaos.cluster_promises import (
    database_is_sound,
    job_is_whole,
    journal_replays,
    service_is_gone,
    state_is_whole,
)
from brim_lab.chaos.deeds import (
    ON_JOB,
    ON_PROCESSES,
    ON_SERVICE,
    SUBMITS,
    Deed,
    DeedKind,
    describe_deed,
)
from brim_lab.chaos.judging import (
    Span,
    deadlines_are_kept,
    disturbed,
    nobody_is_forgotten,
    stories_make_sense,
)
from brim_lab.chaos.keeper import Keeper
from brim_lab.chaos.promises import why_none_replayed
from brim_lab.chaos.results import Calm, Job, Result, Strike, longest_pause
from brim_lab.chaos.surroundings import Surroundings
from brim_lab.chaos.user import PER_REPLICA, User
from brim_lab.driver import send

_POLL = 0.02
_GRACE = "10s"
_TO_CLEAN_UP = 15.0  # seconds that the last process may outlive the scheduler
_TO_BE_WHOLE = 30.0  # seconds for a service to have its replicas once everything is left alone
_LATELY = 3.0  # seconds within which each replica of a service that is whole has answered
# What a service may do to a deadline that was promised to a job of lower priority.
_TAKES_DEVICES = ("submitted", "scaled", "resized")
_ENDS_SCHEDULER = frozenset({DeedKind.KILL_SCHEDULER, DeedKind.KILL_EVERYTHING})
_ENDS_REPLICAS = frozenset(
    {
        DeedKind.KILL_REPLICA,
        DeedKind.KILL_WORKER,
        DeedKind.KILL_AGENT,
        DeedKind.KILL_NODE,
        DeedKind.KILL_EVERYTHING,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTrial:
    """One cluster and its faults; `seed` is the one that it was drawn from.

    Args:
        workers: the range that those of jobs were drawn from; its maximum is the cluster's devices.
        nodes: that these devices are on: named n1, n2 …, as many on each as on the others or one
            more.
    """

    seed: int
    workers: WorkerRange
    nodes: int = 1
    deeds: tuple[Deed, ...]

    @property
    def devices(self) -> dict[str, int]:
        """The number of devices of each node, by the node's name."""
        devices_each, remainder = divmod(self.workers.maximum, self.nodes)
        return {f"n{k}": devices_each + (k <= remainder) for k in range(1, self.nodes + 1)}

    @property
    def setting(self) -> dict[str, str | int]:
        return {"devices": self.workers.maximum, "nodes": self.nodes}

    @property
    def schedule(self) -> str:
        return "; ".join(map(describe_deed, self.deeds))

    def command(self, job: Job) -> str:
        """The command that repeats this trial."""
        words = [
            "brim",
            "chaos",
            job.file,
            "--cluster",
            "--workers",
            str(self.workers),
            *job.options,
        ]
        return shlex.join([*words, "--nodes", str(self.nodes), "--faults", self.schedule])


def run_cluster_trial(
    job: Job, trial: ClusterTrial, calm: Mapping[int, Calm], directory: Path, *, deadline: float
) -> Result:
    """Run a trial in a new directory, which is kept only where a promise is broken.

    Args:
        calm: how a job ends that nothing is done to, by its epochs.
        deadline: seconds that the whole trial may take, beside what its deeds take themselves.
    """
    started = SystemClock().now()
    directory.mkdir(parents=True)
    end = started + deadline + sum(deed.seconds for deed in trial.deeds)
    run = _Running(job, trial, directory)
    try:
        broken = [*run.to_the_end(end), *run.come_down(), *run.broken_promises(calm)]
        logs = run.jobs.glob("*/logs/w*.log")
        still_eager = why_none_replayed(logs) if job.is_captured else ""
        strikes = tuple(run.strikes())
    finally:
        run.close()
    if not broken:
        shutil.rmtree(directory)
    seconds = SystemClock().now() - started
    attempts = [attempt for load in run.user.loads.values() for attempt in load.attempts]
    return Result(
        trial=trial,
        broken=tuple(broken),
        seconds=seconds,
        lives=run.keeper.lives,
        strikes=strikes,
        still_eager=still_eager,
        requests=sum(attempt.outcome is TryOutcome.RIGHT for attempt in attempts),
        tries=len(attempts),
    )


@dataclass
class _Running:
    """A trial under way: its user, its faults, and its observations."""

    job: Job
    trial: ClusterTrial
    directory: Path
    struck: list[tuple[float, Deed]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        self.state, self.jobs = self.directory / "state", self.directory / "state" / "jobs"
        file = self.directory / "cluster.yaml"
        file.write_text(yaml.safe_dump(self._cluster(ads=self.trial.workers.maximum // 2)))
        self.surroundings = Surroundings(self.directory)
        self.keeper = Keeper(self.state, file, self.surroundings.driver, self.clock)
        self.user = User(self.job, self.state, self._applied, self.surroundings.driver)
        self.recount = Recount(self.trial.devices)
        self.waiting = list(self.trial.deeds)
        self.stopped: list[tuple[float, int]] = []
        self.left_alone = math.inf  # since when nothing is done to services any more
        self.ended_services: dict[int, str] = {}  # what each lacked
        self.submitted = 0
        self.census = Census()

    def _cluster(self, *, ads: int) -> dict[str, object]:
        web = self.trial.workers.maximum - ads
        tenants = [{"name": "ads", "guaranteed": ads}, {"name": "web", "guaranteed": web}]
        nodes = [{"name": name, "workers": count} for name, count in self.trial.devices.items()]
        return {"nodes": nodes, "grace": _GRACE, "tenants": tenants}

    def _applied(self, deed: Deed) -> ClusterSpec:
        return cluster_spec(self._cluster(ads=deed.ads))

    def close(self) -> None:
        self._let_go_on(math.inf)
        self.surroundings.driver.end()
        self.user.close()
        self.surroundings.close()

    # The run --------------------------------------------------------------------------------------

    def to_the_end(self, end: float) -> list[str]:
        """Do the deeds until every job has ended; the promises broken about that."""
        started = math.inf
        while self.clock.now() < end:
            self._look()
            started = min(started, self.clock.now()) if self.keeper.lives else started
            for deed in [deed for deed in self.waiting if deed.at <= self.clock.now() - started]:
                if self._perform(deed):
                    self.waiting.remove(deed)
            if self._is_over():
                return [*self.keeper.failures, *filter(None, self.ended_services.values())]
            time.sleep(_POLL)
        unfinished = [view.job for view in self.user.views.values() if not view.has_ended]
        busy = f" and {self.user.pending}" if self.user.pending else ""
        return [
            *self.keeper.failures,
            *filter(None, self.ended_services.values()),
            f"it had not ended by its deadline: {', '.join(unfinished)}{busy}",
        ]

    def _is_over(self) -> bool:
        if self.user.busy() or self.submitted < sum(
            deed.kind in SUBMITS for deed in self.trial.deeds
        ):
            return False
        views = self.user.views
        are_known = {*self.user.ids.values()} <= views.keys()
        have_ended = are_known and all(view.has_ended or view.service for view in views.values())
        for load in self.user.loads.values():  # else a service may leave no room for what is left
            load.rests = not (have_ended or self.waiting)
        return have_ended and (not self.user.loads or self._services_are_over())

    def _services_are_over(self) -> bool:
        """End each service as soon as it is whole; return whether all have ended."""
        if self.waiting or self.stopped:
            return False
        now = self.clock.now()
        self.left_alone = min(self.left_alone, now)
        for index, load in self.user.loads.items():
            if index in self.ended_services:
                continue
            lack = self._lack_of(index)
            if lack and now < self.left_alone + _TO_BE_WHOLE:
                return False
            self.ended_services[index] = lack and f"{lack}, {_TO_BE_WHOLE:.0f} s after all faults"
            load.close()
            self.user.ask(Deed(kind=DeedKind.CANCEL, at=0.0, job=index))
        return all(
            self.user.has_ended(self.user.ids[index])
            and not self.census.fronts.get(self.user.ids[index])
            for index in self.ended_services
        )

    def _lack_of(self, index: int) -> str:
        """Say what a service lacks of the replicas that its load needs; empty where it has them."""
        job, load = self.user.ids[index], self.user.loads[index]
        view = self.user.views[job]
        assert view.service is not None
        service, processes = view.service, len(self.census.replicas.get(job, []))
        needed = min(service.maximum, max(service.minimum, math.ceil(load.rate / PER_REPLICA)))
        ready = {replica.replica for replica in service.replicas if replica.state == "ready"}
        answering = load.replicas_since(self.clock.wall() - _LATELY)
        counts = {len(ready), service.ready, service.wanted, view.workers, processes}
        if counts == {service.wanted} and service.wanted >= needed and answering == ready:
            return ""
        return (
            f"{job} has {counted(view.workers, 'worker')}, {counted(processes, 'replica')}, "
            f"{', '.join(sorted(ready))} of "
            f"{service.wanted} ready, {needed} needed, answers of {', '.join(sorted(answering))}"
        )

    def _look(self) -> None:
        self.census = take_census(self.surroundings.driver.mark, self.state)
        self.recount.add(self.census, now=self.clock.now())
        self._let_go_on(self.clock.now())
        self.keeper.poll(told_to_go=self.user.going_down)

    def _let_go_on(self, now: float) -> None:
        for wake_at, pid in [stopped for stopped in self.stopped if stopped[0] <= now]:
            send(pid, signal.SIGCONT)
            self.stopped.remove((wake_at, pid))

    # Deeds ----------------------------------------------------------------------------------------

    def _perform(self, deed: Deed) -> bool:
        """Do a deed where that is possible now; return whether it is done, or can never be."""
        if deed.kind in SUBMITS:
            self.submitted += 1
            self.user.ask(deed, self.submitted)
            return True
        if deed.kind in ON_JOB:
            if deed.job not in self.user.ids:
                return False
            if deed.kind in ON_SERVICE and not self._has_answered(deed.job):
                return False
            if self.user.has_ended(self.user.ids[deed.job]):
                return True
        if deed.kind in ON_PROCESSES and not self._strike(deed):
            return False
        if deed.kind not in ON_PROCESSES:
            self.user.ask(deed)
        self.struck.append((self.clock.wall(), deed))
        return True

    def _has_answered(self, service: int) -> bool:
        return service in self.user.loads and bool(self.user.loads[service].attempts)

    def _strike(self, deed: Deed) -> bool:
        """Stop or kill the processes that a deed is aimed at; return whether there were any."""
        victims = self._victims(deed)
        if deed.kind in _ENDS_SCHEDULER and victims:
            self.keeper.expect_death(deed.seconds)
        if deed.kind is DeedKind.KILL_EVERYTHING and victims:
            self.surroundings.driver.end()
        for pid in victims:
            if deed.kind in (DeedKind.STOP_SCHEDULER, DeedKind.STOP_MASTER):
                send(pid, signal.SIGSTOP)
                self.stopped.append((self.clock.now() + deed.seconds, pid))
            else:
                send(pid, signal.SIGKILL)
        return bool(victims)

    def _victims(self, deed: Deed) -> list[int]:
        job = self.user.ids[deed.job] if deed.kind in ON_JOB else ""
        match deed.kind:
            case DeedKind.KILL_SCHEDULER | DeedKind.STOP_SCHEDULER | DeedKind.KILL_EVERYTHING:
                return self.census.schedulers
            case DeedKind.KILL_NODE:
                return self.census.nodes.get(f"n{deed.node}", [])
            case DeedKind.KILL_AGENT:
                return self.census.agents.get(job, [])[-1:]
            case DeedKind.KILL_MASTER | DeedKind.STOP_MASTER:
                return self.census.masters.get(job, [])
            case DeedKind.KILL_WORKER:
                return self.census.workers.get(job, [])[-1:]
            case DeedKind.KILL_REPLICA:
                return self.census.replicas.get(job, [])[-1:]
            case DeedKind.KILL_FRONT:
                return self.census.fronts.get(job, [])
            case _:
                raise InternalError(f"{deed.kind} hits no process")

    # What came of it ------------------------------------------------------------------------------

    def come_down(self) -> list[str]:
        """Let the scheduler go down as a person would, if there is one."""
        self._let_go_on(math.inf)
        if not self.keeper.is_up():
            return []
        done = self.surroundings.driver.call(
            "down", "--state", str(self.state), timeout=None, codes=()
        )
        return [f"brim down failed: {done.stderr[-1000:]}"] if done.returncode else []

    def broken_promises(self, calm: Mapping[int, Calm]) -> list[str]:
        """Return all that is not as it should be now that the scheduler is down."""
        survivors = self.surroundings.driver.mark.left_after(_TO_CLEAN_UP)
        broken = [f"process left over: {pid} {command}" for pid, command in survivors.items()]
        broken += [*self.recount.broken, *database_is_sound(self.state / "scheduler.db")]
        database = Database(self.state / "scheduler.db")
        book = Book(database)
        stories = book.stories()
        services = [self.user.ids[index] for index in self.user.loads]
        applied = [moment for moment, deed in self.struck if deed.kind is DeedKind.APPLY]
        applied += [
            line.at
            for id in services
            for line in stories.get(id, ())
            if line.event in _TAKES_DEVICES
        ]
        losses = list(self._losses_of_fronts())
        for index, load in self.user.loads.items():
            id, pauses = self.user.ids[index], self.user.pauses[index]
            broken += service_is_gone(self.jobs / id, load.port)
            unopened = before_a_front(load.attempts, self.keeper.absences)
            problems = requests_are_answered(
                load.attempts, [*losses, *unopened], pauses, self._deaths_of_replicas()
            )
            broken += [f"{id}: {problem}" for problem in problems]
        broken += [
            *nobody_is_forgotten(self.user.acknowledged, book.jobs),
            *stories_make_sense(stories, book.jobs),
            *deadlines_are_kept(stories, book.jobs, list(self._disturbances()), applied),
            *journal_replays(database),
            *state_is_whole(self.state),
        ]
        database.close()
        for record in book.jobs.values():
            broken += job_is_whole(self.jobs / record.id, record, calm)
        return broken + [
            f"left behind in TMPDIR: {path.name}" for path in self.surroundings.scratch.iterdir()
        ]

    def _commits(self) -> dict[str, list[tuple[float, int]]]:
        found = {}
        for path in self.jobs.iterdir() if self.jobs.is_dir() else ():
            found[path.name] = [(step.at, step.step) for step in read_history(path).steps]
        for index, load in self.user.loads.items():  # each answer is a step
            ends = [tried.end for tried in load.attempts if tried.outcome is TryOutcome.RIGHT]
            found[self.user.ids[index]] = [(end, n) for n, end in enumerate(sorted(ends), 1)]
        return found

    def _deaths_of_replicas(self) -> list[float]:
        """Return when processes were killed with which replicas end."""
        return [moment for moment, deed in self.struck if deed.kind in _ENDS_REPLICAS]

    def _losses_of_fronts(self) -> Iterator[Span]:
        """Yield when fronts were killed, or had to end, and from when on they could be started."""
        for moment, deed in self.struck:
            if deed.kind in (DeedKind.KILL_FRONT, DeedKind.KILL_EVERYTHING):
                yield moment, moment
        for moment in self.user.downs:
            ends = [end for _, end in self.keeper.absences if end >= moment]
            yield moment, min(ends, default=math.inf)

    def _disturbances(self) -> Iterator[Span]:
        yield from (*self.keeper.absences, *self.user.short)
        commits, end = self._commits(), self.clock.wall()
        for moment, deed in self.struck:
            if deed.kind is DeedKind.STOP_SCHEDULER:
                yield moment, moment + deed.seconds
            for job, done in commits.items():
                if deed.kind not in ON_JOB or self.user.ids.get(deed.job) == job:
                    yield disturbed(moment, done, end=min(end, done[-1][0]) if done else end)

    def strikes(self) -> Iterator[Strike]:
        """Yield each deed with the time for which its job, or all jobs, stood still."""
        commits = self._commits()
        services = {self.user.ids[index] for index in self.user.loads}
        ends = [*(moment for moment, _ in self.struck), math.inf][1:]
        for (moment, deed), end in zip(self.struck, ends, strict=True):
            job_struck = self.user.ids.get(deed.job, "") if deed.kind in ON_JOB else ""
            times = sorted(
                committed_at
                for job, done in commits.items()
                if job_struck == job or (not job_struck and job not in services)
                for committed_at, _ in done
            )
            yield Strike(deed.kind, describe_deed(deed), longest_pause(times, moment, end))
