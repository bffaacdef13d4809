"""Copies of runs that are kept on another host or in a store, for the verbs that read records.

A copy is brought up to date each time that it is asked for. It is in the user's cache, where
nobody else can read it, and may be deleted at any time; one that nobody has asked for in 30 days is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from brim.domain.kept_run import JOB, LIVENESS_FILE, KeptFile
from brim.errors import EnvironmentFault, SpecError
from brim.host.account import home
from brim.host.clock import wall

if TYPE_CHECKING:
    from brim.client import Client


_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]+")
_UNUSED = 30 * 24 * 3600.0  # seconds after which a copy that nobody asks for is removed
_ALIVE = 60.0  # seconds after which a run that nobody adds to counts as ended


class _JobOf:
    """A job of a scheduler, as a run that is kept elsewhere."""

    def __init__(self, scheduler: Client, job: str) -> None:
        self._scheduler, self._job = scheduler, job

    def files(self) -> list[KeptFile]:
        return self._scheduler.files(self._job)

    def read(self, name: str, start: int) -> bytes:
        return self._scheduler.read_file(self._job, name, start)


def copy_of_job(scheduler: Client, job: str, *, checkpoints: bool = False) -> Path:
    """Return a directory with the records of a job.

    Args:
        checkpoints: also its checkpoints.

    Raises:
        EnvironmentFault: the scheduler, or the disk here, does not answer.
    """
    from brim.storage.kept_runs import copy_run

    copy = _folder(scheduler.address, job)
    copy_run(_JobOf(scheduler, job), copy, checkpoints=checkpoints)
    return copy


def copy_of_theirs(job: str, *, checkpoints: bool = False) -> Path | None:
    """Return a copy of a job of the scheduler that `$BRIM_SERVER` names; None where it has none.

    Raises:
        SpecError: the environment names no token for it.
        EnvironmentFault: the scheduler, or the disk here, does not answer.
    """
    from brim.client import Client, named_scheduler

    if not named_scheduler():
        return None
    scheduler = Client()
    try:
        scheduler.job(job)
    except SpecError:
        return None
    return copy_of_job(scheduler, job, checkpoints=checkpoints)


def is_stored_run(url: str) -> bool:
    """Return whether a run is kept at a URL.

    Raises:
        SpecError: it is no URL of a store.
        EnvironmentFault: the store does not answer.
    """
    from brim.storage.file_stores import open_place

    return JOB in open_place(url, field="RUN", patience=0.0).names()


def is_kept_alive(copy: Path) -> bool:
    """Return whether somebody still adds to the run that this is a copy of."""
    try:
        last_kept = float((copy / LIVENESS_FILE).read_text())
    except (OSError, ValueError):
        return False
    return wall() - last_kept < _ALIVE


def copy_of_stored(url: str, *, checkpoints: bool = False, field: str = "RUN") -> Path:
    """Return a directory with the records of a run that is kept in a store.

    Args:
        url: where the run is kept, such as `s3://bucket/runs/flights-20260102-030405`.
        checkpoints: also its checkpoints.
        field: where the URL was given, for the error.

    Raises:
        SpecError: it is no URL of a store, or no run is there.
        EnvironmentFault: the store, or the disk here, does not answer.
    """
    from brim.storage.file_stores import open_place
    from brim.storage.kept_runs import StoredRun, copy_run

    url = url.rstrip("/")
    stored = StoredRun(open_place(url, field=field, patience=0.0))
    if not any(file.name == JOB for file in stored.files()):
        need = "the URL of a run that was kept with --runs"
        hint = "add the run's name to the URL of --runs"
        raise SpecError(field, got=f"{url!r}, where no run is", need=need, hint=hint)
    copy = _folder(url, url.rpartition("/")[2])
    copy_run(stored, copy, checkpoints=checkpoints)
    return copy


def _folder(origin: str, name: str) -> Path:
    """Return the directory of a copy; runs of one name from two places have two.

    Raises:
        EnvironmentFault: it cannot be made, or others may write to it.
    """
    from brim.storage.ownership import check_ours, make_ours

    named = os.environ.get("XDG_CACHE_HOME")
    cache = Path(named) if named else home(field="XDG_CACHE_HOME") / ".cache"
    tag = hashlib.sha256(f"{origin}\0{name}".encode()).hexdigest()[:12]
    folder = cache / "brim" / "runs" / f"{_UNUSUAL.sub('-', name)}-{tag}"
    try:
        with contextlib.suppress(FileExistsError):
            make_ours(folder, mode=0o700)
        check_ours(folder, field="RUN")
        os.utime(folder, (wall(), wall()))
    except OSError as error:
        raise EnvironmentFault(f"cannot make {folder} for a copy: {error.strerror}") from error
    _remove_unused(folder.parent)
    return folder


def _remove_unused(copies: Path) -> None:
    """Remove copies unused for a long time; failures stay."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(copies):
            last_asked = entry.stat(follow_symlinks=False).st_mtime
            if entry.is_dir(follow_symlinks=False) and wall() - last_asked > _UNUSED:
                shutil.rmtree(entry.path, ignore_errors=True)
