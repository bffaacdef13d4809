"""What a run was asked to do, in its directory: its spec, written for each start, and a copy of the user's file."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault
from brim.storage.files import write_whole

__all__ = ["JOB_FILE", "SOURCE", "change_of_source", "keep_source", "read_job", "write_job"]

JOB_FILE = "job.json"
SOURCE = "source.py"


def write_job(run_dir: Path, spec: JobSpec) -> None:
    """Raises EnvironmentFault where the directory cannot be written."""
    try:
        write_whole(run_dir / JOB_FILE, msgspec.json.format(msgspec.json.encode(spec)), alone=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {run_dir}: {error}") from error


def read_job(run_dir: Path) -> JobSpec:
    """What `write_job` wrote.

    Raises:
        EnvironmentFault: it is missing, damaged, or of another version.
        SpecError: it asks for what cannot be.
    """
    path = run_dir / JOB_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=JobSpec)
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error
    except UNDECODABLE as error:
        raise EnvironmentFault(f"{path} is damaged: {error}") from error


def keep_source(run_dir: Path, spec: JobSpec) -> str:
    """Keep a copy of the training file, or of the script, as it is when the run begins.

    Returns:
        Where there is one from an earlier start: how `change_of_source` tells of a change.
    """
    source, copy = _source_of(spec), run_dir / SOURCE
    with contextlib.suppress(OSError):  # whoever runs the file will say what is wrong with it
        if source is not None and not copy.exists():
            write_whole(copy, source.read_bytes(), alone=True)
    return change_of_source(run_dir, spec)


def change_of_source(run_dir: Path, spec: JobSpec) -> str:
    """A warning, where the file that a run was started with is not what it was then; else nothing."""
    source, copy = _source_of(spec), run_dir / SOURCE
    try:
        if source is None or source.read_bytes() == copy.read_bytes():
            return ""
    except OSError:
        return ""
    return f"{source} has changed since this run began, and is used as it is now: diff {copy} {source}"


def _source_of(spec: JobSpec) -> Path | None:
    """The file of the user that the job is of: what it imports is not looked at."""
    name = spec.file or next((word for word in spec.command if word.endswith(".py")), "")
    return Path(spec.directory, name) if name else None
