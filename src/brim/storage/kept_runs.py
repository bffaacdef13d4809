"""Runs in more than one place: kept in a store while they train, and copied from where they are.

A file that grows is read on from the place where the last reader was; any other file is replaced
where it has changed. Lines of records that are not complete yet are left for the next time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from brim.domain.kept_run import (
    CHECKPOINTS,
    LIVENESS_FILE,
    PART,
    KeptFile,
    grows,
    is_kept,
    part_name,
    whole_and_part,
)
from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.host.holes import free_front, hole_of
from brim.host.untrusted import open_regular
from brim.storage.file_stores import FileStore
from brim.storage.files import lock, write_whole

_COMPARED_BYTES = 256  # bytes at a place by which two files are told apart: a record has a time
_TO_COPY = 60.0  # seconds that another process, which copies the same run, is waited for
_LOCK = ".copy.lock"  # in a copy: held by who brings it up to date
_VERSIONS = ".versions"  # in a copy: the versions of its files, a directory of small files
_MANIFEST = "manifest.json"  # makes a checkpoint official: it is copied behind what it names


class _AnotherRun(Exception):
    """The run of which there is a copy is gone, and another has its name."""


class KeptRun(Protocol):
    """A run that is kept elsewhere. Both methods raise EnvironmentFault."""

    def files(self) -> list[KeptFile]:
        """List its files, those that `is_kept` knows and perhaps others."""
        ...

    def read(self, name: str, start: int) -> bytes:
        """Return some bytes of a file from a place on; none where there are no more.

        Raises:
            FileNotFoundError: it is gone.
        """
        ...


def files_of(run_dir: Path, *, checkpoints: bool = False) -> list[KeptFile]:
    """List the files of a run's directory that are kept, by name; links are none.

    Args:
        checkpoints: also those of its checkpoints.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    for folder, folders, names in os.walk(run_dir):
        depth = len(Path(folder).relative_to(run_dir).parts)
        folders[:] = sorted(folders) if depth < len(("checkpoints", "step")) else []
        for file in names:
            path = Path(folder, file)
            name = str(path.relative_to(run_dir))
            # One that was brought here from a store has that store's word on who adds to it.
            if name == LIVENESS_FILE or not is_kept(name, checkpoints=checkpoints):
                continue
            with contextlib.suppress(FileNotFoundError):  # it was just removed, or replaced
                seen = path.lstat()
                if not stat.S_ISREG(seen.st_mode):
                    continue
                version = "" if grows(name) else f"{seen.st_size}-{seen.st_mtime_ns}"
                begin = _hole_of(path) if grows(name) else 0
                found.append(KeptFile(name=name, size=seen.st_size, version=version, begin=begin))
    return sorted(found, key=lambda file: file.name)


def _hole_of(path: Path) -> int:
    """Return how much at the front of a file was given back to the disk. Raises OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        return hole_of(os.fstat(file.fileno()), file.fileno())


def read_file(run_dir: Path, name: str, start: int, *, at_most: int = PART) -> bytes:
    """Return bytes of a kept file of a run's directory; no link is followed.

    Raises:
        OSError: it is not there, or no regular file.
    """
    with os.fdopen(open_regular(run_dir / name), "rb") as file:
        file.seek(start)
        return file.read(at_most)


def copy_run(run: KeptRun, directory: Path, *, checkpoints: bool = False) -> None:
    """Make a copy of a run, or bring it up to date; where another run has its name, start from scratch.

    Args:
        directory: the directory of the copy; made where it is missing.
        checkpoints: also its checkpoints, where they are in the run's directory.

    Raises:
        EnvironmentFault: the run, or the disk here, does not answer.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone_in(directory):
            _bring_up_to_date(run, directory, checkpoints=checkpoints)
    except OSError as error:
        raise EnvironmentFault(f"cannot write the copy {directory}: {error}") from error


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Keep other processes from the copy meanwhile.

    Raises:
        EnvironmentFault: one is at it, for too long.
    """
    deadline = monotonic() + _TO_COPY
    while (lock_file := lock(directory / _LOCK)) is None:
        if monotonic() > deadline:
            raise EnvironmentFault(
                f"another process has been copying to {directory} for {_TO_COPY:.0f} s: wait for it, or "
                "end it",
                retryable=True,
            )
    try:
        yield
    finally:
        os.close(lock_file)


def _bring_up_to_date(run: KeptRun, directory: Path, *, checkpoints: bool) -> None:
    """Copy the growth since the last time, as `copy_run` says. Raises OSError too."""
    files = [file for file in run.files() if is_kept(file.name, checkpoints=checkpoints)]
    # By its records it is seen whether it is the same run; a manifest names other files.
    files.sort(key=lambda file: (not grows(file.name), file.name.endswith(_MANIFEST)))
    try:
        _copy_files(run, files, directory)
    except _AnotherRun:
        _empty(directory)
        _copy_files(run, files, directory)
    if LIVENESS_FILE not in {file.name for file in files}:
        (directory / LIVENESS_FILE).unlink(missing_ok=True)
    if checkpoints:
        _remove_others(directory, {file.name for file in files})


def _copy_files(run: KeptRun, files: list[KeptFile], directory: Path) -> None:
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # it was just removed
            _copy_file(run, file, directory)


def _empty(folder: Path) -> None:
    """Remove all that is in a copy. Raises OSError."""
    for path in folder.iterdir():
        if path.name == _LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _copy_file(run: KeptRun, file: KeptFile, directory: Path) -> None:
    path = directory / file.name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if grows(file.name):
        _read_on(run, file, path)
        return
    noted = directory / _VERSIONS / file.name
    with contextlib.suppress(FileNotFoundError):
        if file.version and path.exists() and noted.read_text() == file.version:
            return
    write_whole(path, _pieces(run, file.name, 0), mode=0o600)
    if not file.version:
        return
    noted.parent.mkdir(parents=True, exist_ok=True)
    write_whole(noted, file.version.encode(), mode=0o600)


def _read_on(run: KeptRun, file: KeptFile, path: Path) -> None:
    """Append a file's growth since it was copied last; only whole lines of records."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as copy:
        place = copy.seek(0, os.SEEK_END)
        is_record = file.name.endswith(".jsonl")
        if place == file.size and not is_record:
            return
        if not _goes_on(run, file, copy.fileno(), place):
            if is_record and not _begins_alike(run, file, copy.fileno()):
                raise _AnotherRun
            copy.truncate(0)
            copy.truncate(file.begin)
            place = copy.seek(file.begin)
        elif file.begin:
            with contextlib.suppress(OSError):  # the next time, then
                free_front(copy.fileno(), file.begin)
        for piece in _pieces(run, file.name, place):
            copy.write(piece)
        if is_record:
            copy.flush()
            _cut_behind_last_line(copy.fileno(), place)


def _goes_on(run: KeptRun, file: KeptFile, descriptor: int, place: int) -> bool:
    """Return whether a copy that ends at a place is a prefix of the run's file."""
    if not file.begin <= place <= file.size:
        return False
    start = max(file.begin, place - _COMPARED_BYTES)
    copied_end = os.pread(descriptor, place - start, start)
    return _bytes_of(run, file.name, start, len(copied_end)) == copied_end


def _begins_alike(run: KeptRun, file: KeptFile, descriptor: int) -> bool:
    """Return whether a copy may be of this run, though it does not end as the run's file does."""
    run_start = _bytes_of(run, file.name, 0, min(_COMPARED_BYTES, os.fstat(descriptor).st_size))
    return os.pread(descriptor, len(run_start), 0) == run_start


def _bytes_of(run: KeptRun, name: str, start: int, size: int) -> bytes:
    """Return so many bytes of a run's file, or as many as there are."""
    found = b""
    while len(found) < size and (piece := run.read(name, start + len(found))):
        found += piece
    return found[:size]


def _cut_behind_last_line(descriptor: int, whole: int) -> None:
    """Cut off a line without its end.

    Args:
        whole: bytes of the file that are whole lines.
    """
    end = os.fstat(descriptor).st_size
    while end > whole:
        start = max(whole, end - PART)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            whole = start + found + 1
        end = start
    os.ftruncate(descriptor, whole)


def _pieces(run: KeptRun, name: str, start: int) -> Iterator[bytes]:
    while piece := run.read(name, start):
        yield piece
        start += len(piece)


def _remove_others(directory: Path, names: set[str]) -> None:
    """Remove checkpoints from a copy that the run has no more."""
    for path in sorted((directory / CHECKPOINTS).glob("*/*"), reverse=True):
        if str(path.relative_to(directory)) not in names:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it has other files
                path.parent.rmdir()


class StoredRun:
    """A run that is kept in a store: files that grow are there in parts.

    Args:
        place: of this run alone.
    """

    def __init__(self, place: FileStore) -> None:
        self._place = place
        self._listed: dict[str, int] = {}

    def files(self) -> list[KeptFile]:
        begins: dict[str, int] = {}
        ends: dict[str, int] = {}
        found = []
        self._listed = self._place.names()
        for name, size in self._listed.items():
            part = whole_and_part(name)
            if part is None:
                # A store tells no versions; a file of a checkpoint never changes.
                version = str(size) if name.startswith(CHECKPOINTS) else ""
                found.append(KeptFile(name=name, size=size, version=version))
            else:
                begin = part[1] * PART
                begins[part[0]] = min(begins.get(part[0], begin), begin)
                ends[part[0]] = max(ends.get(part[0], 0), begin + size)
        growing = (KeptFile(name=name, size=ends[name], begin=begins[name]) for name in ends)
        return [*found, *growing]

    def read(self, name: str, start: int) -> bytes:
        number, offset = divmod(start, PART)
        stored_name, offset = (part_name(name, number), offset) if grows(name) else (name, start)
        if offset >= self._listed.get(stored_name, 0):
            return b""
        return self._place.read(stored_name)[offset:]


class Keeping:
    """Keeps the files of a run in a store, as it grows.

    Args:
        run_dir: the directory of the run.
        place: of this run alone; its checkpoints go there by themselves.
    """

    def __init__(self, run_dir: Path, place: FileStore) -> None:
        self._run_dir, self._place = run_dir, place
        self._versions: dict[str, str] | None = (
            None  # what each object was made of; None: not asked
        )

    def bring_up_to_date(self) -> None:
        """Write the growth since the last time.

        Raises:
            EnvironmentFault: the store does not answer, or the run's directory cannot be read.
        """
        if self._versions is None:
            self._versions = {name: f"{size}" for name, size in self._place.names().items()}
        try:
            for file in files_of(self._run_dir):
                if grows(file.name):
                    self._keep_parts(file)
                else:
                    self._keep(file.name, file.version, file.name, 0, file.size)
        except OSError as error:
            raise EnvironmentFault(f"cannot read {self._run_dir}: {error}") from error

    def note_alive(self, now: float) -> None:
        """Say in the store that somebody adds to the run.

        Args:
            now: seconds since 1970.

        Raises:
            EnvironmentFault: the store does not answer.
        """
        self._place.replace(LIVENESS_FILE, f"{now:.0f}".encode())

    def note_end(self) -> None:
        """Say in the store that the run does not grow any more.

        Raises:
            EnvironmentFault: the store does not answer.
        """
        self._place.remove(LIVENESS_FILE)

    def _keep_parts(self, file: KeptFile) -> None:
        """Write the parts of a file that are not there, or not as long.

        A part that is full does not change any more; the last one may be shorter than it was, where
        a torn line was cut off. Parts that are gone from the front of a log go here, too.
        """
        assert self._versions is not None
        first = file.begin // PART
        for number in range(first):
            if self._versions.pop(part_name(file.name, number), None) is not None:
                self._place.remove(part_name(file.name, number))
        for number in range(first, -(-file.size // PART)):
            size = min(PART, file.size - number * PART)
            self._keep(part_name(file.name, number), str(size), file.name, number * PART, size)

    def _keep(self, stored_name: str, version: str, name: str, start: int, size: int) -> None:
        assert self._versions is not None
        if self._versions.get(stored_name) == version:
            return
        with contextlib.suppress(FileNotFoundError):  # it was just removed
            content = b"" if not size else read_file(self._run_dir, name, start, at_most=size)
            self._place.replace(stored_name, content)
            self._versions[stored_name] = version
