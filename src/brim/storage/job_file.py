"""The job of a run in its directory.

The spec, written for each start, and a copy of the user's file.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault, SpecError
from brim.storage.files import write_whole

JOB_FILE = "job.json"
SOURCE = "source.py"


def write_job(run_dir: Path, spec: JobSpec) -> None:
    """Raises EnvironmentFault where the directory cannot be written."""
    try:
        write_whole(run_dir / JOB_FILE, msgspec.json.format(msgspec.json.encode(spec)), alone=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {run_dir}: {error}") from error


def read_job(run_dir: Path) -> JobSpec:
    """Read the spec that `write_job` wrote.

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
    with contextlib.suppress(OSError):  # the process that runs the file says what is wrong with it
        if source is not None and not copy.exists():
            write_whole(copy, source.read_bytes(), alone=True)
    return change_of_source(run_dir, spec)


def change_of_source(run_dir: Path, spec: JobSpec) -> str:
    """Return a warning where the run's file has changed since the run was started.

    Empty where it has not.
    """
    source, copy = _source_of(spec), run_dir / SOURCE
    try:
        if source is None or source.read_bytes() == copy.read_bytes():
            return ""
    except OSError:
        return ""
    return (
        f"{source} has changed since this run began, and is used as it is now: diff {copy} {source}"
    )


def digest_of_source(spec: JobSpec) -> str:
    """The sha256 of the training file, or of the script, as it is now.

    Empty where there is none.
    """
    source = _source_of(spec)
    try:
        return hashlib.sha256(source.read_bytes()).hexdigest() if source else ""
    except OSError:
        return ""


def find_source(spec: JobSpec, here: Path, *, sha256: str) -> Path:
    """Return the directory of the job's file on a host that joins.

    Relative paths of the file start there.

    Args:
        here: where to look, if there is no file in the directory that the job was started in.
        sha256: of the file that the others have; empty where that is not known.

    Raises:
        SpecError: this host does not have the file, or has another one.
    """
    name = _name_of_source(spec)
    there = Path(spec.directory or here)
    if not name:
        return there if there.is_dir() else here
    # The directory may be missing here although the file's path, an absolute one, is not.
    places = [each for each in (there, here) if each.is_dir()]
    found = next((each for each in places if (each / name).is_file()), None)
    if found is None:
        raise SpecError(
            name,
            got=f"no such file on this host, neither in {there} nor in {here}",
            need="the file, and everything it reads, at the same path as on the first host",
            hint="copy it there, or start brim agent in the directory that has it",
        )
    if sha256 and hashlib.sha256((found / name).read_bytes()).hexdigest() != sha256:
        raise SpecError(
            str(found / name),
            got="a different file from that of the first host",
            need="the same bytes on all hosts",
            hint="copy it again",
        )
    return found


def _source_of(spec: JobSpec) -> Path | None:
    """The file of the user that the job is of: what it imports is not looked at."""
    name = _name_of_source(spec)
    return Path(spec.directory, name) if name else None


def _name_of_source(spec: JobSpec) -> str:
    return spec.file or next((word for word in spec.command if word.endswith(".py")), "")
