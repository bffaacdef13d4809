"""What a run was asked to do, in its directory: written once for each start of it, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault
from brim.storage.files import write_whole

__all__ = ["JOB_FILE", "read_job", "write_job"]

JOB_FILE = "job.json"


def write_job(run_dir: Path, spec: JobSpec) -> None:
    """Raises EnvironmentFault where the directory cannot be written."""
    try:
        write_whole(run_dir / JOB_FILE, msgspec.json.format(msgspec.json.encode(spec)))
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
