"""The last checks before a run starts, and its directory, for `brim train` and `brim.train`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brim.backends.environment import environment_of_jobs
from brim.backends.warm_agents import have_ready
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.kept_run import JOB, LIVENESS_FILE, kept_spec, place_of
from brim.domain.quantities import counted
from brim.errors import EnvironmentFault, SpecError
from brim.host.installation import command_for
from brim.host.process import most_workers
from brim.loggers.named import check_loggers
from brim.runs.directories import (
    RunDirectory,
    check_resumable,
    check_source,
    claim,
    find_run,
    holds_run,
    new_run_dir,
    recorded_spec,
    resumed_spec,
    with_kept_code,
)
from brim.runs.levels import level_of, leveled
from brim.runs.options import build_spec
from brim.runs.training_file import check_command, check_training_file
from brim.user_code.command_code import code_of
from brim.user_code.own_code import SAFE_PATH, module_in, word_after, word_of

_PROBE = ".probe"
_TO_TRY = 10.0  # seconds for an interpreter that does nothing
# Options that hardly any script has.
_OF_BRIM_ALONE = frozenset(
    ("--workers", "--workers-here", "--spares", "--faults", "--run-dir", "--micro-batches")
)
_CONTROL = "control"  # of a run whose master was started, perhaps without agents


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A run that may start.

    Args:
        spec: what to do.
        run_dir: where its records go.
        fresh: the directory, where it was made for this run.
        resumes: there is something to go on from.
        listen: `HOST:PORT` for agents of other hosts, or None.
        loggers: that are told of it, besides those that it had before.
        level: of a command at the restart level, in a sentence; else empty.
        notes: what the user should know of it, in sentences.
    """

    spec: JobSpec
    run_dir: Path
    fresh: RunDirectory | None = None
    resumes: bool = False
    listen: str | None = None
    loggers: tuple[str, ...] = ()
    level: str = ""
    notes: tuple[str, ...] = ()


def make_ready(
    values: Mapping[str, Any],
    given_options: set[str],
    *,
    file: str = "",
    command: tuple[str, ...] = (),
    has_workers: bool = True,
) -> Ready:
    """Check everything that can be checked before a run starts, then find or make its directory.

    Args:
        values: of the options of a run, defaults included.
        given_options: names of the options that the user gave rather than left to their defaults.
        file: the training file.
        command: the user's own loop, or any other command, where there is no file.
        has_workers: it starts on this host, with workers, which somebody may have ready meanwhile.

    Raises:
        SpecError: it cannot be started as asked.
    """
    if file:
        check_training_file(Path(file))
    else:
        check_command(command)
    loggers = check_loggers(values["loggers"])
    level = level_of(command, values["restart"]) if command else None
    if level:
        values = leveled(values, level)
    spec = build_spec(values, file=file, command=command)
    if has_workers:
        have_ready(spec)
    notes = [
        *(level.warnings(spec) if level else ()),
        *notes_on_script(spec),
        *notes_on_python(spec),
        *notes_on_options(command),
    ]
    if values["listen"]:
        bundle_of(spec, warn=notes.append)  # what other hosts are to have
    if not values["resume"]:
        _check_room(spec, listen=values["listen"])
    _check_insecure(spec, listen=values["listen"])
    ready = _with_directory(spec, values, given_options)
    _check_room(ready.spec, listen=values["listen"])
    words = level.describe(ready.spec) if level and ready.spec.restart else ""
    return replace(ready, listen=values["listen"], loggers=loggers, level=words, notes=tuple(notes))


def bundle_of(spec: JobSpec, *, warn: Callable[[str], None]) -> bytes:
    """Return the bundle of a job's code; empty where it names no Python file or module.

    Args:
        warn: is told of the job's visible needs outside of the bundle.

    Raises:
        SpecError: it is too large, or cannot be read, or its Python could not run it.
    """
    from brim.storage.bundles import pack
    from brim.storage.job_file import code_of

    code = code_of(spec)
    if code is None:
        if not spec.tty:  # of a shell that is known
            warn(
                f"{' '.join(spec.command)!r} names no Python file, and no module of this "
                "directory, so no code is sent with the job: each host needs it"
            )
        return b""
    _check_safe_path(spec)
    for sentence in code.not_taken(spec):
        warn(sentence)
    for name, file in sorted(left_behind(code.variables(), os.environ, spec.env).items()):
        warn(f"not sent with the job: the variable {name}, which {file} reads: --env {name}")
    return pack(code.files)


def _check_safe_path(spec: JobSpec) -> None:
    """Raises SpecError where a module is sent whose Python, of this host, cannot run its copy."""
    is_module = not spec.file and module_in(spec.command, Path(spec.directory))
    path = shutil.which(spec.command[0]) if is_module else None
    if path is None or os.path.realpath(path) == os.path.realpath(sys.executable):
        return
    try:
        words = [path, SAFE_PATH, "-c", ""]
        tried = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TO_TRY, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # whatever it is, it says so itself
    if tried.returncode and b"nknown option" in tried.stderr:
        raise SpecError(
            "COMMAND",
            got=f"{spec.command[0]}, which does not know {SAFE_PATH}",
            need="Python 3.11 or newer, which can run a module from the copy that is sent",
            hint=f"an older one can run a script: -- {spec.command[0]} FILE.py",
        )


def notes_on_python(spec: JobSpec) -> list[str]:
    """Return a sentence where a command that is run as it is means another Python than brim's."""
    name = Path(spec.command[0]).name if spec.restart else ""
    path = shutil.which(spec.command[0]) if name.startswith("python") else None
    if path is None or Path(path).parent.resolve() == Path(sys.executable).parent.resolve():
        return []
    return [f"{spec.command[0]} is {path}, not the Python that brim runs in: {sys.executable}"]


def notes_on_script(spec: JobSpec) -> list[str]:
    """Return a sentence where a command that is run as it is has a training file for its script."""
    word = word_of(spec) if spec.restart else ""
    with contextlib.suppress(SpecError):
        if word:
            check_training_file(Path(spec.directory, word))
            return [f"{word} looks like a training file: brim train {word}, or brim submit {word}"]
    return []


def notes_on_options(command: tuple[str, ...]) -> list[str]:
    """Return a sentence for each option of brim that is given to a script that never names it."""
    code = code_of(command)
    text = b"\n".join(code.files.values()).decode(errors="replace") if code else ""
    return [
        f"{option} goes to the command, since it comes after it: brim's own options come before"
        for option in (word.partition("=")[0] for word in command[1:])
        if code and option in _OF_BRIM_ALONE and _name_of(option) not in text.replace("-", "_")
    ]


def _name_of(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def left_behind(
    read: Mapping[str, str], environment: Mapping[str, str], sent: Mapping[str, str]
) -> dict[str, str]:
    """Return those of the variables that code reads which are set here alone, with its files.

    Args:
        read: files by the variables that they read.
        environment: the environment of this process.
        sent: the variables that go with the job.

    >>> here = {"HF_TOKEN": "s", "PATH": "/bin", "BRIM_SERVER": "h", "SEED": "1"}
    >>> left_behind(dict.fromkeys(("HF_TOKEN", "PATH", "BRIM_SERVER", "SEED", "X"), "a.py"), here, {"SEED": "1"})
    {'HF_TOKEN': 'a.py'}
    """
    inherited = environment_of_jobs(environment, sent)
    return {
        name: file
        for name, file in read.items()
        if name in environment and name not in inherited and not name.startswith("BRIM_")
    }


def _check_room(spec: JobSpec, *, listen: str | None) -> None:
    """Raises SpecError where no host can have the workers that a run needs."""
    most = most_workers()
    if not listen and spec.workers.maximum > most:
        raise SpecError(
            "--workers",
            got=str(spec.workers),
            need=f"at most {most:,}: more processes or open files are not allowed on this host",
            hint=f"--workers {min(most, 4)}, or as many as the host has cores"
            if most
            else "ulimit -Hn, ulimit -Hu and the pids.max of a container are the limits, which an "
            "administrator can raise",
        )
    if spec.workers_here is not None and spec.workers_here < spec.workers.minimum and not listen:
        raise SpecError(
            "--workers-here",
            got=f"{spec.workers_here} of at least {counted(spec.workers.minimum, 'worker')}",
            need="an address at which other hosts can join",
            hint="--listen HOST:PORT",
        )


def _check_insecure(spec: JobSpec, *, listen: str | None) -> None:
    """Raises SpecError where something would not be encrypted that should be, or nothing anyway."""
    if spec.insecure and not listen:
        raise SpecError(
            "--insecure",
            got="a run of one host",
            need="other hosts, to which something is sent",
            hint="leave it out, or --listen HOST:PORT",
        )
    if spec.transport != "distributed" or spec.insecure or not listen:
        return
    from brim.wire.listening import is_loopback, split_address

    if not is_loopback(split_address(listen)[0]):
        raise SpecError(
            "--transport distributed",
            got=f"--listen {listen}, which other hosts can reach: NCCL and gloo neither encrypt nor "
            "authenticate",
            need="a private network",
            hint="add --insecure if the network is private, or leave --transport out",
        )


def name_of(spec: JobSpec) -> str:
    """The file, module or program that a run or a job is named after."""
    module = "" if spec.file else word_after("-m", spec.command).rpartition(".")[2]
    if module_in(spec.command, Path(spec.directory)):
        return module
    return word_of(spec) or module or spec.command[0]


def _with_directory(spec: JobSpec, values: Mapping[str, Any], given_options: set[str]) -> Ready:
    from brim.host.clock import SystemClock
    from brim.telemetry.history import read_history

    require_train_extra()
    from_elsewhere = _resumes_elsewhere(values)
    if not values["resume"] or from_elsewhere:
        if spec.checkpoints:
            check_place(spec.checkpoints, holds=from_elsewhere)
        path = values["run_dir"] or new_run_dir(name_of(spec), SystemClock().wall())
        fresh = claim(Path(path))
        if spec.runs and not from_elsewhere:
            check_new_place(spec, fresh)
        spec = kept_spec(spec, fresh.path.name)
        return Ready(spec=spec, run_dir=fresh.path, fresh=fresh, resumes=values["resume"])
    run_dir = find_run(values["run_dir"], field="--resume")
    history = read_history(run_dir)
    check_resumable(run_dir, history, field="--resume")
    spec = resumed_spec(spec, history.spec, given_options)
    if spec.checkpoints:
        check_place(spec.checkpoints, holds=None)
    return Ready(spec=spec, run_dir=run_dir, resumes=True)


@contextlib.contextmanager
def taken_back_if_stopped(ready: Ready) -> Iterator[None]:
    """Leave nothing of a new run that is stopped before it has begun: `latest` is the one before."""
    try:
        yield
    except KeyboardInterrupt:
        if ready.fresh and not holds_run(ready.run_dir):
            ready.fresh.withdraw()
        raise


def make_ready_again(
    run_dir: Path,
    *,
    workers: WorkerRange | None = None,
    servers: int | None = None,
    agents: int = 1,
    listen: str | None = None,
    workers_here: int | None = None,
    insecure: bool = False,
) -> Ready:
    """Prepare a run that ended before its end to go on, as it was but for its workers.

    Args:
        workers: from now on; None for as many as it had.
        servers: from now on; None for as many as it had.
        workers_here: that this host takes at most; None for what was said before where others can
            join, and else for as many as are wanted.
        insecure: state and gradients are not encrypted between hosts from now on.

    Raises:
        SpecError: it cannot go on.
    """
    from brim.telemetry.history import read_history

    require_train_extra()
    history = read_history(run_dir)
    check_resumable(run_dir, history, field="RUN")
    spec = recorded_spec(run_dir, history)
    servers = spec.servers if servers is None else servers
    spec = replace(
        spec,
        workers=workers or spec.workers,
        servers=servers,
        agents=agents,
        workers_here=spec.workers_here if listen and workers_here is None else workers_here,
        insecure=insecure,
        faults=(),
    )
    _check_room(spec, listen=listen)
    _check_insecure(spec, listen=listen)
    notes: list[str] = []
    spec = with_kept_code(run_dir, spec, warn=notes.append)
    check_source(spec)
    return Ready(spec=spec, run_dir=run_dir, resumes=True, listen=listen, notes=tuple(notes))


def make_ready_anyhow(
    spec: JobSpec, run_dir: Path, given_options: set[str], *, code: bytes = b""
) -> Ready | None:
    """Prepare a run to begin, or to go on from its remains; None where it is done.

    That is its directory, its records where they are kept, or its newest checkpoint.

    Args:
        spec: what to do.
        run_dir: its directory, which may be missing.
        given_options: names of the fields of the spec that count, where the records say otherwise.
        code: the bundle that the spec names.

    Raises:
        SpecError: it cannot begin, or go on, as asked.
        EnvironmentFault: a place that the spec names does not answer.
    """
    from brim.storage.job_file import write_bundle
    from brim.storage.ownership import check_ours
    from brim.telemetry.history import read_history

    require_train_extra()
    spec = kept_spec(spec, run_dir.name)
    notes = []
    if holds_run(run_dir) or (run_dir / _CONTROL).is_dir():
        check_ours(run_dir, field="--run-dir")
        fresh = None
    else:
        fresh = claim(run_dir)
        notes.append(_bring_back(spec, run_dir))
    if holds_run(run_dir):
        history = read_history(run_dir)
        if history.ended is not None and history.ended.summary.get("exit") == "done":
            return None
        if history.started is not None:
            spec = resumed_spec(spec, history.spec, given_options)
    if code:
        write_bundle(run_dir, code)
    notes.append(_newest_checkpoint(spec, run_dir))
    return Ready(spec=spec, run_dir=run_dir, fresh=fresh, notes=tuple(filter(None, notes)))


def _bring_back(spec: JobSpec, run_dir: Path) -> str:
    """Have the records of a run in its directory that are kept elsewhere; say so, or nothing."""
    from brim.storage.file_stores import open_place
    from brim.storage.kept_runs import StoredRun, copy_run

    if not spec.runs:
        return ""
    location = place_of(spec.runs, run_dir.name)
    stored = StoredRun(open_place(location, field="--runs", patience=0.0))
    if not any(file.name == JOB for file in stored.files()):
        return ""
    copy_run(stored, run_dir)
    (run_dir / LIVENESS_FILE).unlink(missing_ok=True)
    return f"its records were brought back from {location}"


def _newest_checkpoint(spec: JobSpec, run_dir: Path) -> str:
    """Say from which checkpoint a run goes on; empty where there is none."""
    from brim.storage.checkpoints import Store
    from brim.storage.file_stores import location_of, open_place

    location = location_of(spec.checkpoints, run_dir)
    if spec.checkpoints:
        check_place(spec.checkpoints, holds=None)
    elif not Path(location).is_dir():
        return ""
    store = Store(open_place(location, patience=0.0))
    steps = store.steps()
    return f"it goes on from its newest checkpoint, {store.location(steps[-1])}" if steps else ""


def _resumes_elsewhere(values: Mapping[str, Any]) -> bool:
    """Return whether a new run is to go on from the checkpoints of another that is lost.

    The new run has a directory of its own.
    """
    new = bool(values["run_dir"]) and not holds_run(Path(values["run_dir"]))
    return bool(values["resume"] and values["checkpoints"] and new)


def check_place(location: str, *, holds: bool | None) -> None:
    """Check that checkpoints can be written to the user's place, and their owner.

    Args:
        location: the path or the URL.
        holds: whether there must be checkpoints or must be none; None where either will do.

    Raises:
        SpecError: it does not answer or cannot be written, or it holds what it should not, or not
            what it should.
    """
    from brim.storage.checkpoints import Store
    from brim.storage.file_stores import open_place

    place = open_place(location, patience=0.0)
    need = "a place that all workers can write to"
    try:
        place.write(_PROBE, b"")
        place.remove(_PROBE)
        steps = Store(place).steps()
    except EnvironmentFault as fault:
        raise SpecError(
            "--checkpoints", got=str(fault), need=need, hint="is the address right?"
        ) from None
    if holds and not steps:
        raise SpecError(
            "--checkpoints",
            got=f"{location!r}, which holds no checkpoints",
            need="some to continue from",
        )
    if steps and holds is False:
        raise SpecError(
            "--checkpoints",
            got=f"{location!r}, which holds checkpoints of another run",
            need="a place that no other run uses",
            hint=f"--checkpoints {location.rstrip('/')}-2, or --resume to continue from them",
        )


def check_new_place(spec: JobSpec, fresh: RunDirectory) -> None:
    """Check that a run can be kept where the user said, and that no other run is there.

    Raises:
        SpecError: it cannot, or one is; the run's directory is gone then.
    """
    url = place_of(spec.runs, fresh.path.name).removeprefix("file://")
    if "://" not in url and Path(url).resolve().is_relative_to(fresh.path.resolve()):
        fresh.withdraw()
        raise SpecError(
            "--runs",
            got=f"{spec.runs!r}, in which this run is already",
            need="a place for another copy of it",
            hint="leave out --runs, or --run-dir PATH has the run elsewhere",
        )
    from brim.storage.file_stores import open_place

    location = place_of(spec.runs, fresh.path.name)
    try:
        place = open_place(location, field="--runs", patience=0.0)
        place.write(_PROBE, b"")
        place.remove(_PROBE)
        is_taken = bool(place.names())
    except SpecError:
        fresh.withdraw()
        raise
    except EnvironmentFault as fault:
        fresh.withdraw()
        need = "a place that this host can write to"
        hint = "is the address right?"
        raise SpecError("--runs", got=str(fault), need=need, hint=hint) from None
    if is_taken:
        fresh.withdraw()
        actual = f"{location!r}, where something is"
        need = "a place without a run of this name"
        raise SpecError("--runs", got=actual, need=need, hint="--run-dir names a run differently")


def require_train_extra() -> None:
    """Raises SpecError where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise SpecError(
            "torch",
            got="no such package",
            need="the extra 'train'",
            hint=command_for("train"),
        )
