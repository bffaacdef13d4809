"""Run directories: naming a new one, finding an old one, and taking one back."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.domain.job import OPTIONS, JobSpec
from brim.errors import EnvironmentFault, SpecError, did_you_mean
from brim.host.clock import monotonic, sleep

if TYPE_CHECKING:
    from brim.telemetry.history import RunHistory


RUNS, LATEST = Path("runs"), "latest"
_RECORDS = "events.jsonl"
_TO_END = 5.0  # seconds that the master of a run that was killed may take to end


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A directory that a new run may write to.

    `previous` is the earlier target of `runs/latest`.
    """

    path: Path
    link: Path | None
    previous: str | None

    def withdraw(self) -> None:
        """Take it all back, for a run that turned out to be wrong before it trained."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.link:
            with contextlib.suppress(OSError):
                self.link.unlink()
                if self.previous:
                    self.link.symlink_to(self.previous)


def holds_run(path: Path) -> bool:
    return (path / _RECORDS).is_file()


def new_run_dir(subject: str, now: float) -> Path:
    """Make `runs/<stem>-<date>-<time>`.

    A number stands behind it where two runs begin in one second.
    """
    stamp = datetime.fromtimestamp(now).strftime("%Y%m%d-%H%M%S")
    from brim.storage.ownership import make_ours

    base = f"{Path(subject).stem or 'run'}-{stamp}"
    path, number = RUNS / base, 2
    while True:
        try:
            # Making it, not looking whether it is there, is what decides between two commands at
            # once.
            make_ours(path)
            return path
        except FileExistsError:
            path, number = RUNS / f"{base}-{number}", number + 1
        except OSError:
            return path  # `claim` says what is wrong with it


def claim(path: Path, *, newest: bool = True) -> RunDirectory:
    """Make the directory of a new run.

    Args:
        newest: let `runs/latest` point to it: a run that trains is what people mean by the latest.

    Raises:
        SpecError: it holds a run or other files, or it cannot be made or written.
    """
    if holds_run(path):
        raise SpecError(
            "--run-dir",
            got=f"{str(path)!r}, which holds a run",
            need="a new directory",
            hint="--resume continues that run; or choose another directory",
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        obstacle = "a directory with other files in it" if path.is_dir() else "a file"
        raise SpecError(
            "--run-dir",
            got=f"{str(path)!r}, {obstacle}",
            need="a new or empty directory",
            hint=f"--run-dir {path}-1",
        )
    from brim.storage.ownership import check_ours, make_ours

    try:
        if not path.is_dir():
            make_ours(path)
        check_ours(path, field="--run-dir")
        (path / ".probe").touch()
        (path / ".probe").unlink()
    except OSError as error:
        raise SpecError(
            "--run-dir",
            got=f"{str(path)!r}, which cannot be written ({error.strerror})",
            need="a directory that can be made and written",
            hint="--run-dir runs/mine, or run brim where you may write",
        ) from None
    return _link(path) if newest else RunDirectory(path, None, None)


def _link(path: Path) -> RunDirectory:
    """Point `runs/latest` at the run, atomically, where there is a `runs`."""
    if not RUNS.is_dir():
        return RunDirectory(path, None, None)
    link = RUNS / LATEST
    previous = os.readlink(link) if link.is_symlink() else None
    if link.exists() and not link.is_symlink():
        return RunDirectory(path, None, None)
    fresh = RUNS / f".{LATEST}.{os.getpid()}"
    is_listed = path.parent.resolve() == RUNS.resolve()
    fresh.symlink_to(path.name if is_listed else path.resolve())
    fresh.replace(link)
    return RunDirectory(path, link, previous)


def find_run(
    name: str | None, *, field: str = "RUN", state: Path | None = None, checkpoints: bool = False
) -> Path:
    """The directory of a run: a path, a name under `runs`, a job of the scheduler, or the latest.

    Where the run is kept in a store (`name` is its URL, or its path in a folder), or is a job of the scheduler that
    `$BRIM_SERVER` names, that is a copy, and up to date.

    Args:
        state: of the scheduler; None: the usual place.
        checkpoints: a copy has its checkpoints as well.

    Raises:
        SpecError: there is no such run.
        EnvironmentFault: the place of which a copy is needed does not answer.
    """
    from brim.client import jobs_dir
    from brim.runs.copies import copy_of_stored, copy_of_theirs
    from brim.storage.file_stores import is_url

    if name is not None and is_url(name):
        return copy_of_stored(name, checkpoints=checkpoints, field=field)
    if name and (Path(name) / _RECORDS).is_dir():  # as a folder that --runs names keeps them
        url = f"file://{Path(name).resolve()}"
        return copy_of_stored(url, checkpoints=checkpoints, field=field)
    places = [Path(), RUNS]
    with contextlib.suppress(SpecError):  # this account has no home, and so no scheduler
        places.append(jobs_dir(state))
    for path in (
        [RUNS / LATEST] if name in (None, LATEST) else [place / (name or "") for place in places]
    ):
        if holds_run(path):
            while path.is_symlink():  # people should see the run's own name, not that of a link
                path = path.parent / os.readlink(path)
            return path
    if name not in (None, LATEST) and state is None:
        copy = copy_of_theirs(name or "", checkpoints=checkpoints)
        if copy is not None:
            return copy
    names = [path.parent.name for place in places[1:] for path in place.glob(f"*/{_RECORDS}")]
    hint = "there is none here yet: brim train FILE.py"
    if names and name in (None, LATEST) and not any(RUNS.glob(f"*/{_RECORDS}")):
        hint = "no run is here, but the scheduler has jobs: brim jobs lists them"
    elif names:
        hint = did_you_mean(name or "", names)
    need = "a run: a path, a name under runs, latest, or a job of a scheduler that is up"
    raise SpecError(field, got=repr(name or LATEST), need=need, hint=hint)


def read_run(name: str | None, *, state: Path | None = None) -> tuple[Path, RunHistory]:
    """The directory of a run that has begun, and the content of its records.

    Raises:
        SpecError: there is no such run, or its records do not say how it started.
    """
    from brim.telemetry.history import read_history

    run_dir = find_run(name, state=state)
    history = read_history(run_dir)
    if history.started is None:
        raise not_begun(run_dir)
    return run_dir, history


def not_begun(run_dir: Path) -> SpecError:
    """The error for a run whose records say nothing yet."""
    return SpecError(
        str(run_dir),
        got="a run whose workers are not ready yet, or never were",
        need="one that began",
        hint=f"brim logs {run_dir}",
    )


def check_resumable(run_dir: Path, history: RunHistory, *, field: str) -> None:
    """Check that a run of ours has ended before its end.

    Raises:
        SpecError: it is still alive, it is done, it never began, or other accounts may change it.
    """
    from brim.storage.job_file import JOB_FILE
    from brim.storage.ownership import check_ours

    check_ours(run_dir, field=field)
    done = history.ended is not None and history.ended.summary.get("exit") == "done"
    if done or (history.started is None and not (run_dir / JOB_FILE).is_file()):
        raise SpecError(
            field,
            got=f"{run_dir}, which is done" if done else f"{run_dir}, which never began",
            need="a run that stopped early",
            hint="brim train FILE.py starts a new run",
        )
    if not _is_running(run_dir):
        return
    raise SpecError(
        field,
        got=f"{run_dir}, which is running",
        need="a run that has ended",
        hint=f"brim status {run_dir} shows it, brim suspend {run_dir} ends it",
    )


def recorded_spec(run_dir: Path, history: RunHistory) -> JobSpec:
    """Return the spec of a run from its records.

    Raises:
        SpecError: they do not say, or not as this version writes it.
    """
    import msgspec

    from brim.decoding import UNDECODABLE
    from brim.storage.job_file import JOB_FILE, read_job

    try:
        if history.started is not None:
            return msgspec.convert(history.spec, JobSpec)
        return read_job(run_dir)
    except (EnvironmentFault, *UNDECODABLE) as error:
        raise SpecError(
            str(run_dir / JOB_FILE),
            got=str(error),
            need="the spec of a run of this version",
            hint="brim train FILE.py starts a new run",
        ) from error


def check_source(spec: JobSpec) -> None:
    """Check that the file or command that a run was started with is still there.

    Raises:
        SpecError: it is not, or the directory that it was started in is gone.
    """
    from brim.runs.training_file import check_command, check_training_file

    if spec.bundle:
        return  # what runs is what the run keeps
    directory = Path(spec.directory)
    if not directory.is_dir():
        raise SpecError(
            str(directory),
            got="no such directory",
            need="the directory in which the run was started: its relative paths begin there",
            hint=f"mkdir -p {directory}, and put its files back",
        )
    with contextlib.chdir(directory):
        check_training_file(Path(spec.file)) if spec.file else check_command(spec.command)


def with_kept_code(run_dir: Path, spec: JobSpec, *, warn: Callable[[str], None]) -> JobSpec:
    """Return the spec of a run with the code that the run keeps, where its file is gone.

    Args:
        warn: is told so.
    """
    from brim.storage.job_file import from_kept_code
    from brim.user_code.own_code import word_after, word_of

    code_spec = from_kept_code(run_dir, spec)
    if code_spec is None:
        return spec
    module = "" if spec.file else word_after("-m", spec.command)
    word = f"module {module}" if module else str(Path(spec.directory, word_of(spec)))
    warn(f"{word} is gone: the copy that {run_dir} keeps is used")
    return code_spec


def _is_running(run_dir: Path) -> bool:
    """Return whether a master answers, or one that is ending does not come to its end.

    Two masters must not write one run.
    """
    from brim import client
    from brim.storage.journal import has_writer

    with contextlib.suppress(EnvironmentFault):
        client.status(run_dir)
        return True
    deadline = monotonic() + _TO_END
    while has_writer(run_dir / "journal"):
        if monotonic() > deadline:
            return True
        sleep(0.05)
    return False


# What a run's result depends on cannot change when the run is resumed.
_FIXED = {
    "file": "FILE",
    "command": "COMMAND",
    **{name: option.named for name, option in OPTIONS.items() if option.decides},
}


# Which hosts there are may change: without --listen nobody could come who was there before.
_OF_EACH_START = ("agents", "workers_here", "insecure")


def resumed_spec(spec: JobSpec, recorded: Mapping[str, Any], named_options: set[str]) -> JobSpec:
    """Return the spec to resume with.

    Values not given are as recorded; those that decide the result must be equal.

    Args:
        spec: what the command line says, defaults included.
        recorded: the spec in the run's records.
        named_options: the names that the user gave rather than left to their defaults.

    Raises:
        SpecError: an option was given that differs from the run's.
    """
    import msgspec

    directory = Path(str(recorded.get("directory", "")))
    # As the records have it: a round through JSON makes lists of tuples.
    fields = msgspec.json.decode(msgspec.json.encode(spec))
    for name, field in _FIXED.items():
        if name not in recorded or name not in {*named_options, "file", "command"}:
            continue
        if not _check_same(name, fields[name], recorded[name], directory):
            raise SpecError(
                field,
                got=_as_text(fields[name]),
                need=f"{_as_text(recorded[name])}, as the run to resume has it",
                hint=f"leave {field} out to continue as before, or start a new run"
                if field.startswith("--")
                else "name the same file, or start a new run without --resume",
            )
    own_names = {*named_options, *_OF_EACH_START}
    old_values = {
        name: value for name, value in recorded.items() if name in fields and name not in own_names
    }
    # Faults were for the first life: they would strike again at steps that are redone.
    merged: dict[str, Any] = {**fields, **old_values}
    if "faults" not in named_options:
        merged["faults"] = []
    return msgspec.convert(merged, JobSpec)


def _check_same(name: str, value: object, recorded: object, directory: Path) -> bool:
    if name == "file" and value and recorded:
        return Path(str(value)).resolve() == (directory / str(recorded)).resolve()
    return value == recorded


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={item}" for name, item in sorted(value.items())) or "nothing"
    if isinstance(value, (list, tuple)):
        return repr(" ".join(map(str, value)))
    return repr(value)
