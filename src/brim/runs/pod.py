"""A pod of an indexed Job as a host of a run: its agent, and in the first pod the run's master, too.

All pods have one command. A process is started again here after a kill; a pod that ends before the
run has a status by which the Job puts another in its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from brim.domain.job import JobSpec, WorkerRange
from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import sleep
from brim.host.process import run_module
from brim.loggers import trainjob
from brim.runs.levels import level_of, leveled
from brim.runs.options import build_spec
from brim.runs.starting import bundle_of, notes_on_python, notes_on_script
from brim.runs.training_file import check_command, check_training_file
from brim.storage.bundles import digest_of
from brim.storage.files import write_in_place
from brim.storage.job_file import JOB_FILE, write_bundle, write_job
from brim.wire.listening import split_address

DONE, FAILED, USAGE = 0, 1, 2  # exit statuses, after which no other pod is needed
TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: another pod may do better
LEFT = 128 + signal.SIGTERM  # it was asked to leave: so is it that this is no success

_MASTER, _AGENT = "master", "agent"
_PATIENCE = "7d"  # that a master waits for its agents, and an agent for its master
_AGAIN = 1.0  # seconds until a process that was killed is started again
_TO_END = 30  # seconds for the other process where one has come to its end


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """The place of a pod in its Job.

    Args:
        index: from 0; the first one leads.
        pods: of the Job.
        workers: of each pod.
        first: `HOST:PORT` at which all of them find the first one.
        failures: of this index, before this pod; None: nobody knows.
        run_dir: of the run, in the first pod.
    """

    index: int
    pods: int
    workers: int
    first: str
    failures: int | None
    run_dir: str


def write_work(
    folder: Path,
    values: Mapping[str, Any],
    *,
    file: str,
    command: tuple[str, ...],
    most: int,
    warn: Callable[[str], None],
) -> Path:
    """Write the job and its code, as `brim master` reads them; the file of the job.

    Args:
        values: of options of a job.
        file: the training file; empty where there is a command.
        most: workers that the pods have in all; a job that names no number has as many.
        warn: hears of visible needs of the job beside its code.

    Raises:
        SpecError: it cannot be run as asked.
    """
    values = {**values, "workers": values["workers"] or WorkerRange(minimum=1, maximum=most)}
    level = None
    if command:
        check_command(command)
        level = level_of(command, values["restart"])
        values = leveled(values, level)
    else:
        check_training_file(Path(file))
    spec = build_spec(values, file=file, command=command)
    _check_room(spec, most)
    level_notes = (level.describe(spec), *level.warnings(spec)) if level else ()
    for note in (*level_notes, *notes_on_script(spec), *notes_on_python(spec)):
        warn(note)
    _write(folder, spec, bundle_of(spec, warn=warn))
    return folder / JOB_FILE


def _check_room(spec: JobSpec, most: int) -> None:
    if spec.workers.minimum > most:
        raise SpecError(
            "--workers",
            got=f"{spec.workers.minimum:,}, and {most:,} in all pods together",
            need="room for the minimum number, or the run never begins",
            hint=f"--workers {most}, or more pods, or more workers in each",
        )


def _write(folder: Path, spec: JobSpec, bundle: bytes) -> None:
    try:
        if bundle:
            write_bundle(folder, bundle)
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {folder}: {error.strerror}") from error
    write_job(folder, replace(spec, bundle=digest_of(bundle) if bundle else ""))


def take_part(place: PodPlace, *, job: Path | None, summary: Path | None) -> int:
    """Be a host of the run until its end, or until SIGTERM; the exit status of the pod.

    Args:
        job: the file of it, for the first pod.
        summary: a file to which the first pod writes the summary of a run that has ended.
    """
    agent = ["agent", place.first, "--workers", str(place.workers), "--patience", _PATIENCE]
    commands: dict[str, list[str]] = {}
    ended = None
    if job is not None:
        ended = job.with_name("summary.json")
        port = split_address(place.first)[1]
        master = ["master", str(job), "--auto-resume", "--run-dir", place.run_dir]
        master += ["--listen", f"0.0.0.0:{port}", "--patience", _PATIENCE]
        master += ["--summary-file", str(ended)]
        if place.failures == 0:  # no agent can have a copy of what was never begun
            master += ["--rejoin-timeout", "none"]
        ended.touch()
        commands[_MASTER] = master
    commands[_AGENT] = agent
    status = _PodProcesses(commands, ended).stay()
    if summary is not None and ended is not None and (content := ended.read_bytes()):
        with contextlib.suppress(OSError):  # the records have it, too
            write_in_place(summary, content)
    return status


def exit_status(outcome: str, codes: Sequence[int], *, is_leaving: bool) -> int:
    """Return the exit status of a pod, by which its Job decides about another one.

    Args:
        outcome: of the run; empty where it has not ended, or the first pod alone knows.
        codes: exit statuses of the pod's processes, the master's first.
        is_leaving: it was asked to end.

    >>> exit_status("done", [0, 0], is_leaving=True), exit_status("failed", [1], is_leaving=False)
    (0, 1)
    >>> exit_status("", [0], is_leaving=True), exit_status("", [2, 0], is_leaving=False)
    (143, 2)
    >>> exit_status("", [0], is_leaving=False), exit_status("", [-9, 0], is_leaving=False)
    (0, 75)
    """
    if outcome:
        return DONE if outcome == "done" else FAILED
    if is_leaving:
        return LEFT
    if USAGE in codes:
        return USAGE
    return DONE if codes[0] == 0 else TRY_AGAIN


@dataclass(slots=True)
class _PodProcesses:
    """The processes of a pod; their parent is the first process of the container.

    Args:
        commands: of brim, by role.
        ended: the file for the master's summary of the run; None: it is in another pod.
    """

    commands: Mapping[str, Sequence[str]]
    ended: Path | None
    _roles: dict[int, str] = field(default_factory=dict)  # by process id
    _codes: dict[str, int] = field(default_factory=dict)  # of those that have ended, by role
    _is_leaving: bool = False  # it was asked to
    _is_ending: bool = False  # one of them has come to its end
    _is_hurried: bool = False  # and the other one was asked to

    def stay(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._leave)
        signal.signal(signal.SIGALRM, self._hurry)
        for role in self.commands:
            self._start(role)
        while self._roles:
            pid, status = os.wait()
            role = self._roles.pop(pid, "")  # empty: an orphan of this container
            if role:
                self._take(role, os.waitstatus_to_exitcode(status))
        signal.alarm(0)
        return self._status()

    def _take(self, role: str, code: int) -> None:
        """Take note of the end of a process: start it again, or have the other one end, too."""
        if code < 0 and not self._is_leaving and not self._is_ending:
            print(f"brim: the {role} was killed, and is started again", file=sys.stderr)  # noqa: T201
            sleep(_AGAIN)
            if not self._is_leaving:
                self._start(role)
                return
        self._codes[role] = code
        if self._is_leaving or self._is_ending:
            return
        if role == _AGENT and code == 0 and _MASTER in self.commands:
            return  # by the end of the run, or by a resize: the master ends this pod
        self._is_ending = True
        if role == _MASTER and not self._outcome():  # the agent is told of no end
            self._send(signal.SIGTERM)
        signal.alarm(_TO_END)

    def _start(self, role: str) -> None:
        variables = dict(os.environ)
        if role == _AGENT:  # progress is the master's to report: see brim.loggers.trainjob
            for name in trainjob.VARIABLES:
                variables.pop(name, None)
        process = subprocess.Popen(
            run_module("brim", *self.commands[role]), stdin=subprocess.DEVNULL, env=variables
        )
        process.returncode = 0  # its end is for `stay` to take note of
        self._roles[process.pid] = role
        if self._is_leaving:
            self._send(signal.SIGTERM)

    def _leave(self, *_: object) -> None:
        self._is_leaving = True
        self._send(signal.SIGTERM)

    def _hurry(self, *_: object) -> None:
        """End what has not come to its end in time."""
        self._send(signal.SIGKILL if self._is_hurried else signal.SIGTERM)
        self._is_hurried = True
        signal.alarm(_TO_END)

    def _send(self, number: signal.Signals) -> None:
        for pid in list(self._roles):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _status(self) -> int:
        return exit_status(
            self._outcome(),
            [self._codes[role] for role in self.commands if role in self._codes],
            is_leaving=self._is_leaving,
        )

    def _outcome(self) -> str:
        """Return how the run ended; empty where it has not, or the first pod knows."""
        if self.ended is None:
            return ""
        content = self.ended.read_bytes()
        return str(json.loads(content)["exit"]) if content else ""
