"""Backup of a scheduler in one file, and its restore.

It has the database, tokens, audit log and clock, without run directories.

A backup is a tar of the files as they lie in the state directory, with `backup.json` in front,
which lists them. It is restored in two parts: first everything is made ready in a directory beside,
then that directory is renamed, and its files take the places of those that were there. A
process that dies before the rename has changed nothing; one that dies after it leaves what
`finish_restore` brings to its end.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import shutil
import sqlite3
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

import brim
from brim.decoding import UNDECODABLE
from brim.domain.course import Change
from brim.domain.lifecycle import Happening, next_life
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import EnvironmentFault, SpecError, StorageFault
from brim.storage.book import Book
from brim.storage.contact import SCHEDULER_LOCK
from brim.storage.database import LAST_NUMBER, Database
from brim.storage.files import drafts_beside, is_locked, sync_directory, write_through
from brim.storage.migrations import Progress, copy_database, migrate

_DATABASE = "scheduler.db"
_OTHER_FILES = (
    "token",
    "metrics-token",
    "tenant-tokens.json",
    "authority.pem",
    "nodes.token",
    "audit.jsonl",
    "audit.1.jsonl",
    "clock.json",
)
# What earlier versions left out: tokens elsewhere name the authority, so the one there stays.
_MAY_STAY = {"authority.pem", "nodes.token", "metrics-token"}
_DATABASE_FILES = (
    "scheduler.db-wal",
    "scheduler.db-shm",
)  # of the database that was there: they must not meet another one
_MANIFEST = "backup.json"
_DRAFT, _READY = ".restore-draft", ".restore"
_ASIDE = "aside"
_LARGEST_MANIFEST = 1 << 20  # bytes
_LOCKS = (".agent.lock*", ".journal.lock")  # held while a job has processes
_NUMBER = re.compile(r"-(\d{1,15})$")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description that a backup has of itself.

    Args:
        written: seconds since 1970.
        version: of brim.
        state: the state directory.
        files: that are in it.
        jobs, unfinished: how many there are.
        format: of the backup.
    """

    written: float
    version: str
    state: str
    files: tuple[str, ...]
    jobs: int
    unfinished: int
    format: int = 1


class RestoredBackup(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore.

    Args:
        go_on: unfinished jobs whose run directories are there.
        begin_anew: those whose directories are not.
        unknown: run directories of jobs that the backup does not know.
    """

    go_on: tuple[str, ...]
    begin_anew: tuple[str, ...]
    unknown: tuple[str, ...]


# Writing ------------------------------------------------------------------------------------------


def write_backup(state: Path, path: Path, *, now: float, progress: Progress) -> Manifest:
    """Write a backup, with or without a running scheduler.

    Afterwards there is all of it, or the previous content.

    Raises:
        StorageFault: the database cannot be read, or the disk does not take the backup.
    """
    try:
        with drafts_beside(path) as folder:
            copy, draft = folder / _DATABASE, folder / path.name
            _copy_of(state / _DATABASE, copy, progress)
            other_files = _others_in(state)
            manifest = _manifest(state, copy, other_files, now)
            with _new_file(draft) as file:
                with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as tar:
                    _add(tar, _MANIFEST, msgspec.json.encode(manifest), now)
                    _add_file(tar, _DATABASE, copy, now)
                    for name, content in other_files.items():
                        _add(tar, name, content, now)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            sync_directory(path.parent)
    except (sqlite3.Error, OSError, tarfile.TarError) as error:
        raise StorageFault(f"cannot write {path}: {error}") from error
    return manifest


def _others_in(state: Path) -> dict[str, bytes]:
    """The small files that are there now.

    The audit log may be rotated meanwhile: its newest part is read first.
    """
    found = {}
    for name in _OTHER_FILES:
        with contextlib.suppress(FileNotFoundError):
            found[name] = (state / name).read_bytes()
    return found


def _copy_of(database: Path, copy: Path, progress: Progress) -> None:
    """Raises StorageFault where it is damaged: that must be known before it is needed."""
    with contextlib.closing(
        sqlite3.connect(f"file:{database}?mode=rw", uri=True, isolation_level=None)
    ) as sql:
        copy_database(sql, copy, progress)
    _check_sound(copy, name=str(database))


def _check_sound(database: Path, *, name: str) -> None:
    with contextlib.closing(sqlite3.connect(database)) as sql:
        (verdict,) = sql.execute("pragma quick_check(1)").fetchone()
    if verdict != "ok":
        raise StorageFault(f"{name} is damaged: {verdict}")


def _manifest(state: Path, copy: Path, other_files: Iterable[str], now: float) -> Manifest:
    with contextlib.closing(sqlite3.connect(copy)) as sql:
        contents = [content for (content,) in sql.execute("select record from jobs")]
    ended = sum(_has_ended(content) for content in contents)
    return Manifest(
        written=now,
        version=brim.__version__,
        state=str(state),
        files=(_DATABASE, *other_files),
        jobs=len(contents),
        unfinished=len(contents) - ended,
    )


def _has_ended(content: bytes) -> bool:
    """Return whether a job has ended.

    The record may be of any format. One that cannot be decoded counts as not ended.
    """
    try:
        return msgspec.msgpack.decode(content)["ended"] is not None
    except (LookupError, TypeError, *UNDECODABLE):
        return False


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[io.BufferedWriter]:
    """Open a new file that only its owner can read, since tokens are in it."""
    path.unlink(missing_ok=True)
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
    ) as file:
        yield file


def _add(tar: tarfile.TarFile, name: str, content: bytes, now: float) -> None:
    tar.addfile(_entry(name, len(content), now), io.BytesIO(content))


def _add_file(tar: tarfile.TarFile, name: str, path: Path, now: float) -> None:
    with path.open("rb") as file:
        tar.addfile(_entry(name, path.stat().st_size, now), file)


def _entry(name: str, size: int, now: float) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, int(now), 0o600
    return entry


# Reading ------------------------------------------------------------------------------------------


def read_manifest(path: Path) -> Manifest:
    """Read the description that a backup has of itself.

    Raises:
        SpecError: it is none, or one of a newer version.
    """
    with _opened(path) as tar:
        return _manifest_of(tar, path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """Raises SpecError where the content read within is no backup."""
    need = "a file that brim backup wrote"
    try:
        file = path.open("rb")
    except OSError as error:
        raise SpecError("FILE", got=f"{path} ({error.strerror})", need=need) from None
    with file:
        try:
            with tarfile.open(fileobj=file, mode="r|gz") as tar:
                yield tar
        except (
            tarfile.TarError,
            gzip.BadGzipFile,
            zlib.error,
            EOFError,
            LookupError,
            *UNDECODABLE,
        ) as error:
            raise SpecError("FILE", got=f"{path} ({error})", need=need) from error


def _manifest_of(tar: tarfile.TarFile, path: Path) -> Manifest:
    first = tar.next()
    if first is None or first.name != _MANIFEST or first.size > _LARGEST_MANIFEST:
        raise SpecError(
            "FILE", got=f"{path}, which has no {_MANIFEST}", need="a file that brim backup wrote"
        )
    manifest = msgspec.json.decode(_content(tar, first).read(), type=Manifest)
    if manifest.format != 1 or not set(manifest.files) <= {_DATABASE, *_OTHER_FILES}:
        actual = f"{path}, which brim {manifest.version} wrote"
        raise SpecError(
            "FILE", got=actual, need="a backup that this version can read", hint="use that version"
        )
    return manifest


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> io.BufferedIOBase:
    """Raises StreamError where it is a link or the like."""
    found = tar.extractfile(entry) if entry.isreg() else None
    if found is None:
        raise tarfile.StreamError(f"{entry.name} is no file")
    return found  # type: ignore[return-value]  # a buffered reader, see tarfile.ExFileObject


# Restoring ----------------------------------------------------------------------------------------


def prepare_restore(path: Path, state: Path, *, now: float, aside: str) -> RestoredBackup:
    """Make everything ready to be restored into a state directory; `finish_restore` does the rest.

    Jobs that the backup calls running are suspended: they are started once, by the next scheduler.
    No number is given again that a run directory has: a later job would take its files for its own.

    Args:
        aside: the name of a directory in `state` for the files that are there now.

    Raises:
        SpecError: that is no backup.
        EnvironmentFault: jobs have processes there, or a newer version wrote the database.
        StorageFault: the disk does not take it.
    """
    _check_nobody_trains(state / "jobs")
    draft = state / _DRAFT
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        manifest = _unpack(path, draft)
        _check_sound(draft / _DATABASE, name=f"the database in {path}")
        migrate(draft / _DATABASE)
        restored = _suspended(draft / _DATABASE, state, written=manifest.written, now=now)
        for leftover in draft.glob(f"{_DATABASE}.*"):  # the backup is the copy
            leftover.unlink()
        write_through(draft / _ASIDE, aside.encode())
        sync_directory(draft)
        draft.rename(state / _READY)
        sync_directory(state)
    except (sqlite3.Error, OSError) as error:
        raise StorageFault(f"cannot restore into {state}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return restored


def _check_nobody_trains(jobs: Path) -> None:
    """Raises EnvironmentFault where they would be started twice."""
    alive = [
        run_dir.name
        for run_dir in (sorted(jobs.iterdir()) if jobs.is_dir() else ())
        if _has_processes(run_dir)
    ]
    if alive:
        hint = f"brim up --state {jobs.parent}; brim down --state {jobs.parent}"
        raise EnvironmentFault(
            f"jobs train on in {jobs.parent}, without a scheduler: {', '.join(alive)}\n  hint: "
            f"{hint}"
        )


def _has_processes(run_dir: Path) -> bool:
    """Return whether a job has processes.

    Where that is unknown, it may have.
    """
    try:
        return any(is_locked(lock) for pattern in _LOCKS for lock in run_dir.glob(pattern))
    except OSError:
        return True


def _unpack(path: Path, folder: Path) -> Manifest:
    with _opened(path) as tar:
        manifest = _manifest_of(tar, path)
        write_through(folder / _MANIFEST, msgspec.json.encode(manifest))
        missing = set(manifest.files)
        while (entry := tar.next()) is not None:
            if entry.name not in missing:
                raise tarfile.StreamError(f"{entry.name} is not in its list")
            missing.remove(entry.name)
            with _new_file(folder / entry.name) as file:
                shutil.copyfileobj(_content(tar, entry), file)
                file.flush()
                os.fsync(file.fileno())
        if missing:
            raise tarfile.StreamError(f"{min(missing)} is missing")
    return manifest


def _suspended(path: Path, state: Path, *, written: float, now: float) -> RestoredBackup:
    """Let the records tell the truth: no job has a process."""
    jobs = state / "jobs"
    folders = {folder.name for folder in jobs.iterdir()} if jobs.is_dir() else set()
    numbers = [int(found[1]) for found in map(_NUMBER.search, folders) if found]
    database = Database(path)
    try:
        book = Book(database)
        with book.transaction():
            database.reserve_numbers(max([*numbers, _last_number(state / _DATABASE)]))
            for record in book.unfinished():
                _suspend(book, record, is_there=record.id in folders, now=now)
            age = f"from a backup that was {now - written:.0f} s old"
            book.note(Change(now, event="restored", detail=age))
        unfinished = [record.id for record in book.unfinished()]
        job_names = {*book.jobs, *book.damaged, *book.leavings()}
    finally:
        database.close()
    return RestoredBackup(
        go_on=tuple(id for id in unfinished if id in folders),
        begin_anew=tuple(id for id in unfinished if id not in folders),
        unknown=tuple(sorted(folders - job_names)),
    )


def _last_number(database: Path) -> int:
    """The last that was given there, as far as anybody can tell; 0 where none was."""
    for statement in (LAST_NUMBER, "select coalesce(max(number), 0) from jobs"):  # before format 4
        try:
            with contextlib.closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True)) as sql:
                (last,) = sql.execute(statement).fetchone()
                return int(last)
        except (sqlite3.Error, TypeError):  # it may be why somebody restores
            continue
    return 0


def _suspend(book: Book, record: ScheduledJob, *, is_there: bool, now: float) -> None:
    detail = (
        "continues from its last checkpoint"
        if is_there
        else "its run directory is not here: starts from scratch"
    )
    record.allocation = replace(record.allocation, plan={}, told={}, coming={})
    record.starts = replace(record.starts, not_before=0.0)
    if not is_there:
        record.progress = replace(record.progress, step=0)
    book.note(Change(now, record.id, "restored", detail=detail))
    stopped = next_life(record.life, Happening.STOP) if record.running else None
    if stopped is not None:
        record.life = stopped
        record.ended = now if stopped.ended else None
        book.note(Change(now, record.id, stopped.phase.value, detail="restored from a backup"))
    book.save(record)


def is_half_restored(state: Path) -> bool:
    """Return whether there is a restore to finish."""
    return (state / _READY).is_dir()


def finish_restore(state: Path) -> Path | None:
    """Put restored files in the places of the present ones.

    The caller has the lock of the directory.

    Returns:
        The directory that now has the previous content; None where nothing was to be done.

    Raises:
        StorageFault: the disk does not take it; the next attempt goes on.
    """
    ready = state / _READY
    if not is_half_restored(state):
        return None
    assert is_locked(state / SCHEDULER_LOCK), "another process might restore, too"
    try:
        manifest = msgspec.json.decode((ready / _MANIFEST).read_bytes(), type=Manifest)
        aside = state / (ready / _ASIDE).read_text()
        aside.mkdir(mode=0o700, exist_ok=True)
        # The database comes last: while it is missing, it is seen that this has not come to its
        # end.
        for name in (*_DATABASE_FILES, *_OTHER_FILES, _DATABASE):
            new, present = ready / name, state / name
            if present.exists() and (new.exists() or name not in {*manifest.files, *_MAY_STAY}):
                present.replace(aside / name)
            if new.exists():
                new.replace(present)
        sync_directory(aside)
        sync_directory(state)
        shutil.rmtree(ready)
        with contextlib.suppress(OSError):
            aside.rmdir()  # nothing was there before
    except (OSError, *UNDECODABLE) as error:
        raise StorageFault(f"cannot restore into {state}: {error}") from error
    return aside if aside.exists() else None
