"""A run, or a job of a scheduler, as one thing that people look at, change and wait for.

`brim.Run`, and each verb that changes a RUN or shows its state, use a `Handle`. This module alone
tells a run from a job; code that only reads records finds both by `find_run`.

What reads records is imported where it is used: that takes longer than a scheduler to answer.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from brim import client
from brim.client import Client, jobs_dir, named_scheduler
from brim.domain.job import WorkerRange
from brim.domain.quantities import counted
from brim.errors import BrimError, EnvironmentFault, SpecError
from brim.host.clock import monotonic, sleep
from brim.runs.copies import copy_of_job, copy_of_stored, is_kept_alive
from brim.runs.directories import LATEST, RUNS, claim, find_run, holds_run, not_begun
from brim.runs.in_words import describe_job, describe_resize, describe_run
from brim.runs.starting import Ready, make_ready_again
from brim.storage.file_stores import is_url
from brim.telemetry.logs import Tail
from brim.wire.cluster import JobView

if TYPE_CHECKING:
    from brim.telemetry.history import RunHistory, RunReader


_POLL_INTERVAL = 0.2  # seconds between two looks at a run that somebody waits for
_TO_DECIDE = 1.0  # seconds that a scheduler has for a plan before a resize is described without it
_LOOK_INTERVAL = 0.05  # seconds between two looks at a job that is being resized
_ENDLESS = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A look at a run or a job.

    Args:
        facts: the fields of `brim status --json`.
        text: the same for people.
        warning: what is wrong around it; empty where nothing is.
    """

    facts: dict[str, Any]
    text: str
    warning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a run or a job.

    Args:
        state: `done`, `suspended`, `failed`, `died`, `cancelled` or `refused`.
        facts: the fields of `--json`.
        summary: docs/reference/summary.md; empty where nobody wrote one.
        why: a sentence about an end that is not a good one, or nothing.
        error: the same as an exception; None for an end that is a good one.
    """

    state: str
    facts: dict[str, Any]
    summary: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    error: BrimError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeOptions:
    """The options that a run or a job is told as it goes on.

    Args:
        workers: None for as many as before.
        servers: None for as many as before; of a run alone.
        agents: hosts that a run waits for; None for one.
        listen: `HOST:PORT` at which other hosts can join a run; None for this host alone.
        workers_here: of a run, that this host takes at most; None for what was said before, with
            `listen`.
        insecure: state and gradients of a run are not encrypted between hosts, with `listen`.
        any_kind: an exact job may go on on nodes of another kind than it began on.
    """

    workers: WorkerRange | None = None
    servers: int | None = None
    agents: int | None = None
    listen: str | None = None
    workers_here: int | None = None
    insecure: bool = False
    any_kind: bool = False


class Handle(abc.ABC):
    """A run or a job, as people look at it, change it and wait for it.

    Args:
        name: for people.

    Attributes:
        ended_by: the verb that ends it.
    """

    ended_by = "suspend"

    def __init__(self, name: str) -> None:
        self.name = name
        self._reader: RunReader | None = None

    @property
    @abc.abstractmethod
    def run_dir(self) -> Path:
        """The directory with its records, or with a copy of them."""

    def history(self) -> RunHistory:
        """Return the present content of its records, with every step."""
        if self._reader is None:
            from brim.telemetry.history import RunReader

            self._reader = RunReader(self.run_dir)
        self._reader.poll()
        return self._reader.history

    def job(self) -> JobView | None:
        """Return the scheduler's view of a job; None for a run."""
        return None

    @abc.abstractmethod
    def state(self) -> str:
        """Return its state now, in a word."""

    @abc.abstractmethod
    def look(self) -> Sight:
        """Return all that `brim status` shows.

        Raises:
            SpecError: it has not begun, and is not being prepared.
        """

    @abc.abstractmethod
    def resize(self, workers: WorkerRange | None, *, servers: int | None = None) -> str:
        """Ask for other workers or servers; returns the request, as a part of a sentence.

        Args:
            workers: None for as many as before.
            servers: None for as many as before.

        Raises:
            SpecError: neither is given, or something that only a run or only a job can have.
            EnvironmentFault: it is not running.
        """

    @abc.abstractmethod
    def suspend(self) -> str:
        """Pause it with a checkpoint at its next step.

        Returns the continuing command, as a part of a sentence.

        Raises:
            EnvironmentFault: it is not running.
        """

    @abc.abstractmethod
    def resume(self, options: ResumeOptions) -> Ready | None:
        """Let it go on from its last checkpoint.

        Returns:
            The run for the caller to start and follow; None for a job, which its scheduler starts.

        Raises:
            SpecError: it cannot go on, or not with these.
        """

    @abc.abstractmethod
    def cancel(self) -> None:
        """End a job for good.

        Raises:
            SpecError: it is a run.
        """

    @abc.abstractmethod
    def logs(self, *, worker: str = "", follow: bool = False) -> Iterator[tuple[str, str]]:
        """Yield the output of its processes, as (worker, line).

        Args:
            worker: only the lines of this worker; empty for all.
            follow: go on until it ends.

        Raises:
            SpecError: that worker has no log.
        """

    @abc.abstractmethod
    def stacks(self) -> dict[str, str]:
        """Return the Python stack of each worker, by its name; empty for one that did not answer.

        Raises:
            EnvironmentFault: it is not running, or its workers run a command of their own.
        """

    @abc.abstractmethod
    def wait(self, timeout: float = _ENDLESS) -> Ending:
        """Return how it ended, once it has.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: it has not ended after that time.
            SpecError: its records say nothing yet, and it does not answer.
        """


def handle_of(
    name: str | None,
    state: Path | None = None,
    *,
    required: bool = False,
    notice: Callable[[str], None] | None = None,
    connect: Callable[[Path | None], Client] | None = None,
) -> Handle:
    """Find the run or the job that a name is of.

    Args:
        name: a path, a name under `runs`, or the id of a job; None for the latest run.
        state: state directory of the scheduler; None for the usual place.
        required: only the scheduler can do what is asked of one of its jobs, so it has to answer; else
            the records of such a job are looked at without it.
        notice: is told where a scheduler has to be waited for, or does not answer; see `Client`.
        connect: returns the client of a scheduler; None: `Client`.

    Raises:
        SpecError: there is no such run or job, or the environment names no token for its scheduler.
        EnvironmentFault: the scheduler must answer and does not, or the one that the environment
            names does not.
    """
    connect = connect or (lambda state: Client(state, notice=notice))
    scheduler = _scheduler_of(name, state, must=required, notice=notice, connect=connect)
    if scheduler is not None:
        return JobHandle(scheduler, name or "")
    if name is not None and is_url(name):
        return StoredHandle(name)
    return RunHandle(find_run(name, state=state))


def _scheduler_of(
    name: str | None,
    state: Path | None,
    *,
    must: bool,
    notice: Callable[[str], None] | None,
    connect: Callable[[Path | None], Client],
) -> Client | None:
    """Return the scheduler that has a job of this name; None where a run here has the name.

    That is the scheduler of this host, or the one that the environment names.
    """
    if (
        name is None
        or name == LATEST
        or is_url(name)
        or holds_run(Path(name))
        or holds_run(RUNS / name)
    ):
        return None
    named = state is None and bool(named_scheduler())
    scheduler: Client | None = None
    try:
        scheduler = connect(state)
        return scheduler if _has_job(scheduler, name) else None
    except EnvironmentFault as error:
        if named:
            raise
        if must and (jobs_dir(state) / name).is_dir():
            raise EnvironmentFault(f"{name} is a job of a scheduler; {error}") from error
        if scheduler is not None and notice is not None:
            notice(str(error))  # it runs; its job's records are looked at without it
        return None


def _has_job(scheduler: Client, job: str) -> bool:
    try:
        scheduler.job(job)
    except SpecError:
        return False
    return True


class RunHandle(Handle):
    """A run without a scheduler: its records have the past, its master the present."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(str(run_dir))
        self._run_dir = run_dir

    @property
    def run_dir(self) -> Path:
        return self._run_dir

    def _ask(self) -> dict[str, Any] | None:
        """Ask its master for knowledge beyond the records; None where there is no master."""
        try:
            return client.status(self._run_dir)
        except EnvironmentFault:
            return None

    def state(self) -> str:
        from brim.runs.outcome import state_of

        alive = self._ask() is not None
        history = self.history()
        return "starting" if alive and history.started is None else state_of(history, alive=alive)

    def look(self) -> Sight:
        from brim.runs.outcome import facts_of, state_of

        live = self._ask()
        history = _last_of_records(self._run_dir)
        values = {**(live or {}), "run": self.name}
        if history.started is None:
            if live is None:
                raise not_begun(self._run_dir)
            text = f"{self.name}: starting, no worker is ready yet"
            return Sight(facts={**values, "state": "starting"}, text=text)
        facts = {
            **values,
            "state": state_of(history, alive=live is not None),
            **facts_of(history),
        }
        return Sight(facts=facts, text="\n".join(describe_run(facts, history)))

    def resize(self, workers: WorkerRange | None, *, servers: int | None = None) -> str:
        _check_something(self.name, workers, servers)
        if workers is not None and workers.minimum != workers.maximum:
            need = "one number: only the scheduler decides within a range"
            hint = f"brim resize {self.name} {workers.maximum}"
            raise SpecError("WORKERS", got=repr(str(workers)), need=need, hint=hint)
        client.resize(self._run_dir, workers.maximum if workers else 0, servers=servers)
        changes = [counted(workers.maximum, "worker")] if workers else []
        changes += [counted(servers, "server")] if servers is not None else []
        return f"going to {' and '.join(changes)}"

    def suspend(self) -> str:
        client.suspend(self._run_dir)
        return f"suspending at the next step; brim resume {self.name} continues it"

    def resume(self, options: ResumeOptions) -> Ready:
        if options.any_kind:
            need = "a job of a scheduler: a run always resumes on this host"
            raise SpecError("--any-kind", got=self.name, need=need, hint=f"brim resume {self.name}")
        return make_ready_again(
            self._run_dir,
            workers=options.workers,
            servers=options.servers,
            agents=options.agents or 1,
            listen=options.listen,
            workers_here=options.workers_here,
            insecure=options.insecure,
        )

    def cancel(self) -> None:
        actual = f"{self.name}, a run without a scheduler"
        raise SpecError("JOB", got=actual, need="a job", hint=f"brim suspend {self.name}")

    def logs(self, *, worker: str = "", follow: bool = False) -> Iterator[tuple[str, str]]:
        tail = Tail(self._run_dir, worker)
        while True:
            # Asked first: what it printed at its very end is read as well.
            ended = not follow or self._ask() is None
            while lines := tail.fresh():
                yield from lines
            if ended:
                return
            sleep(_POLL_INTERVAL)

    def stacks(self) -> dict[str, str]:
        return client.stacks(self._run_dir)

    def wait(self, timeout: float = _ENDLESS) -> Ending:
        from brim.runs.outcome import error_of, state_of, summary_of

        end = monotonic() + timeout
        while self._ask() is not None:
            if monotonic() > end:
                raise TimeoutError(f"{self.name} is {self.state()} after {timeout:g} s")
            sleep(_POLL_INTERVAL)
        history = self.history()
        if not (history.started or history.failed or history.ended):
            raise not_begun(self._run_dir)  # its workers may be on their way
        state, summary = state_of(history, alive=False), summary_of(history, self._run_dir)
        error = error_of(history, self._run_dir)
        return Ending(
            state=state,
            facts=summary,
            summary=summary,
            why="" if error is None else str(error),
            error=error,
        )


class StoredHandle(RunHandle):
    """A run that a store keeps: its hosts may be gone, and are not asked.

    Args:
        url: of the run.
    """

    def __init__(self, url: str) -> None:
        super().__init__(copy_of_stored(url))
        self.name = url

    def _ask(self) -> dict[str, Any] | None:
        """Bring the copy up to date; None where the run does not grow any more."""
        run_dir = copy_of_stored(self.name)
        return {} if is_kept_alive(run_dir) else None

    def _refuse(self, verb: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"{self.name} is a copy: brim {verb} works where the run was started"
        )

    def resize(self, workers: WorkerRange | None, *, servers: int | None = None) -> str:
        raise self._refuse("resize")

    def suspend(self) -> str:
        raise self._refuse("suspend")

    def stacks(self) -> dict[str, str]:
        raise self._refuse("stacks")

    def resume(self, options: ResumeOptions) -> Ready:
        """Let the run go on here, in a directory of its name below `runs`."""
        if self._ask() is not None:
            need = "a run whose hosts are gone, or that has ended"
            raise SpecError("RUN", got=f"{self.name}, which is running", need=need)
        return RunHandle(_bring_here(self.name)).resume(options)


def _bring_here(url: str) -> Path:
    """Make a directory below `runs` of a run that a store keeps, so that it goes on here.

    Raises:
        SpecError: there is such a directory already.
        EnvironmentFault: the store, or the disk here, does not answer.
    """
    from brim.storage.file_stores import open_place
    from brim.storage.kept_runs import StoredRun, copy_run

    directory = RUNS / url.rstrip("/").rpartition("/")[2]
    if directory.exists():
        need = "a run that is in its store alone"
        raise SpecError(
            "RUN",
            got=f"{url!r}, of which there is {directory}",
            need=need,
            hint=f"brim resume {directory}",
        )
    directory.parent.mkdir(exist_ok=True)
    fresh = claim(directory)
    try:
        copy_run(StoredRun(open_place(url, field="RUN")), directory)
    except BaseException:
        fresh.withdraw()
        raise
    return directory


class JobHandle(Handle):
    """A job: its scheduler is asked."""

    ended_by = "cancel"

    def __init__(self, scheduler: Client, job: str) -> None:
        super().__init__(job)
        self._scheduler = scheduler

    @property
    def run_dir(self) -> Path:
        """The job's directory, or a copy of its records where that is another host's."""
        if self._scheduler.is_elsewhere:
            return copy_of_job(self._scheduler, self.name)
        return Path(self.job().run)

    def job(self) -> JobView:
        return self._scheduler.job(self.name)

    def state(self) -> str:
        return self.job().state

    def look(self) -> Sight:
        from brim.runs.outcome import facts_of

        view, cluster = self.job(), self._scheduler.cluster()
        history = _last_of_records(self.run_dir)
        facts = fields_of(view)
        if history.started:
            facts["progress"] = facts_of(history)
        return Sight(
            facts=facts,
            text="\n".join(describe_job(view, cluster, history)),
            warning="" if view.has_ended else cluster.problem,
        )

    def resize(self, workers: WorkerRange | None, *, servers: int | None = None) -> str:
        _check_something(self.name, workers, servers)
        self._check_job(ResumeOptions(servers=servers))
        assert workers is not None
        view = self._scheduler.resize(self.name, workers)
        end = monotonic() + _TO_DECIDE
        while not _is_decided(view, workers) and monotonic() < end:
            sleep(_LOOK_INTERVAL)
            view = self.job()
        return describe_resize(view, workers)

    def suspend(self) -> str:
        self._scheduler.suspend(self.name)
        return f"suspending at the next step; brim resume {self.name} lets it run again"

    def resume(self, options: ResumeOptions) -> None:
        self._check_job(options)
        if options.workers is not None:
            self._scheduler.resize(self.name, options.workers)
        if options.any_kind:
            self._scheduler.any_kind(self.name)
        self._scheduler.resume(self.name)

    def _check_job(self, options: ResumeOptions) -> None:
        """Raises SpecError where something is given that only a run can be told."""
        for option, actual, need in (
            ("--ps", options.servers, "a job has the servers that it was submitted with"),
            ("--agents", options.agents, "a job runs where its scheduler places it"),
            ("--listen", options.listen, "a job runs where its scheduler places it"),
            ("--workers-here", options.workers_here, "a job runs where its scheduler places it"),
            (
                "--insecure",
                options.insecure or None,
                "what a job sends to other hosts is encrypted",
            ),
        ):
            if actual is not None:
                need = f"a run without a scheduler: {need}"
                raise SpecError(option, got=str(actual), need=need, hint=f"leave out {option}")

    def cancel(self) -> None:
        self._scheduler.cancel(self.name)

    def logs(self, *, worker: str = "", follow: bool = False) -> Iterator[tuple[str, str]]:
        return self._scheduler.logs(self.name, worker=worker, follow=follow)

    def stacks(self) -> dict[str, str]:
        return {found.worker: found.stack for found in self._scheduler.stacks(self.name)}

    def wait(self, timeout: float = _ENDLESS) -> Ending:
        view = self._scheduler.wait(self.name, timeout=timeout)
        if not view.has_ended:
            raise TimeoutError(f"{self.name} is {view.state} after {timeout:g} s")
        return ending_of(view)


def ending_of(view: JobView) -> Ending:
    """Return the end of a job that has ended."""
    explanation = ": ".join(part for part in (view.reason, view.detail) if part)
    problem = explanation if view.state == "refused" else view.problem
    return Ending(
        state=view.state,
        facts=fields_of(view),
        summary=view.summary,
        why=problem,
        error=None if view.state == "done" else _error_of(view, problem or view.detail),
    )


def _is_decided(view: JobView, workers: WorkerRange) -> bool:
    """Return whether a job's plan can be that for these workers already."""
    return view.planned == workers.maximum or bool(view.waits) or view.wish == "hold"


def _error_of(view: JobView, problem: str) -> BrimError:
    """Return why a job did not end well, by its records where they are on this host."""
    from brim.runs.outcome import error_of, spec_error_in
    from brim.telemetry.history import read_history

    if view.state == "failed":
        with contextlib.suppress(OSError):
            history = read_history(Path(view.run))
            recorded_error = error_of(history, Path(view.run)) if history.failed else None
            if recorded_error is not None:
                return recorded_error
        # What is wrong with a job that never began can be mended by its user.
        wrong = spec_error_in(view.problem) if view.step == 0 else None
        if wrong is not None and wrong.hint:
            return wrong
    return EnvironmentFault(f"{view.job}: {view.state}{f': {problem}' if problem else ''}")


def fields_of(view: JobView) -> dict[str, Any]:
    """The job, with the fields of `brim train --json` beside its own."""
    fields: dict[str, Any] = msgspec.to_builtins(view)
    return {**fields.pop("summary"), **fields}


def _last_of_records(run_dir: Path) -> RunHistory:
    """Read records without all their steps; an empty history where they are not here."""
    from brim.telemetry.history import RunReader

    reader = RunReader(run_dir, keep_steps=False)
    reader.poll()
    return reader.history


def _check_something(name: str, workers: WorkerRange | None, servers: int | None) -> None:
    if workers is None and servers is None:
        raise SpecError(
            "WORKERS",
            got="nothing",
            need="a number of workers, or --ps N",
            hint=f"brim resize {name} 4",
        )
