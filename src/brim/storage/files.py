"""Files that are whole or absent, even if their writer dies."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic, sleep
from brim.host.untrusted import NotRegularError, open_regular

_DRAFT = ".draft"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FILES = (FileNotFoundError, NotADirectoryError, PermissionError)  # of a folder without any
_LOOKERS = 0.5  # seconds: who only looks whether a lock is held has it for a moment


def lock(path: Path) -> int | None:
    """Take the lock that a file stands for; None where a process has it.

    Returns:
        A descriptor. The lock is held for as long as any process has this descriptor, or one
        inherited from it.

    Raises:
        OSError: the file cannot be opened, or is no regular one.
    """
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT, 0o600)
    end = monotonic() + _LOOKERS
    while not _is_locked(descriptor, fcntl.LOCK_EX):
        if monotonic() > end:
            os.close(descriptor)
            return None
        sleep(0.01)
    return descriptor


def is_lock_of(descriptor: int, path: Path) -> bool:
    """Return whether this is the file that a lock is held of.

    False where it was removed, or another is there now.
    """
    try:
        found_file = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # nobody can tell now
    locked_file = os.fstat(descriptor)
    return (locked_file.st_dev, locked_file.st_ino) == (found_file.st_dev, found_file.st_ino)


def is_locked(path: Path) -> bool:
    """Return whether a process has the lock that a file stands for.

    A special file is no lock.

    Raises:
        OSError: nobody can tell now; a caller that took that for "no" would start a second one
            of what has it.
    """
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, NotADirectoryError, NotRegularError):
        return False
    try:
        return not _is_locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_whole(
    path: Path, content: bytes | Iterable[bytes], *, mode: int = 0o666, is_sole_writer: bool = False
) -> None:
    """Write `path` so that a reader, or a host after a power cut, sees all of it or the old one.

    The bytes go into a temporary file beside it (a rename is atomic within one file system only),
    which is synced before it is renamed, and then the directory is synced: a rename that is not on
    disk can be undone.

    Args:
        content: all of it, or pieces of it in order, for a file that is larger than memory.
        mode: its rights, of which the process's umask takes some.
        is_sole_writer: nobody else may be writing it now; so temporary files of earlier writers are left by
            the dead, and go.

    Raises:
        OSError: the directory is missing, full or not writable; nothing is left behind.
    """
    if is_sole_writer:
        for stale_draft in path.parent.glob(f".{path.name}.*{_DRAFT}"):
            stale_draft.unlink(missing_ok=True)
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_DRAFT}")
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    sync_directory(path.parent)


@contextlib.contextmanager
def drafts_beside(path: Path) -> Iterator[Path]:
    """A new directory beside `path`, for drafts of it.

    Others cannot read them, and had no chance to plant any.

    It is removed at the end; and so are, before, those of the dead, where the file system knows
    locks.

    Raises:
        OSError: the directory above is missing, full or not writable.
    """
    with _passing_folder(path.parent, f".{path.name}.", _DRAFT) as folder:
        yield folder


@contextlib.contextmanager
def temporary_folder(beginning: str) -> Iterator[Path]:
    """A new directory for temporary files of this process, which others cannot read.

    It is removed at the end; and so are, before, those of earlier processes of this account that
    had no time for it, where the file system knows locks.

    Args:
        beginning: of its name, which says what it is for.

    Raises:
        OSError: the directory for temporary files is missing, full or not writable.
    """
    with _passing_folder(Path(tempfile.gettempdir()), beginning) as folder:
        yield folder


@contextlib.contextmanager
def _passing_folder(parent: Path, beginning: str, end: str = "") -> Iterator[Path]:
    with contextlib.suppress(PermissionError):  # some let files be made and not be listed
        for stale_folder in parent.iterdir():
            if stale_folder.name.startswith(beginning) and stale_folder.name.endswith(end):
                with contextlib.suppress(OSError):
                    _remove_dead(stale_folder)
    folder, descriptor = _new_folder(parent, beginning, end)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _new_folder(parent: Path, beginning: str, end: str) -> tuple[Path, int]:
    """A directory, and a descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(end, beginning, parent))
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, _FOLDER)
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_lock_of(descriptor, folder):  # else somebody took it for one of the dead
                return folder, descriptor
            os.close(descriptor)


def _remove_dead(folder: Path) -> None:
    """Remove a directory, if it is ours and no process has its lock.

    Raises OSError where there are no locks.
    """
    descriptor = os.open(folder, _FOLDER)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid() and _is_locked(descriptor, fcntl.LOCK_EX):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def write_through(path: Path, content: bytes | bytearray | memoryview) -> None:
    """Write a file without readers yet, down to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_in_place(path: Path, content: bytes) -> None:
    """Write a file that somebody else may have made, and that can then not be replaced.

    Raises:
        OSError: the disk does not take it.
    """
    path.write_bytes(content)


def open_log(path: Path) -> BinaryIO:
    """A file for a process's output, read by people alone."""
    return path.open("ab")


def sync_file(path: Path) -> None:
    """Put the content of a file on disk that something else has written."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def partial_of(path: Path, job: str) -> Path:
    """Return the path at which a job writes a large file before it is whole.

    A successor of a dead writer uses the same path.
    """
    return path.with_name(f".{path.name}.{job}.partial")


def sync_directory(directory: Path) -> None:
    """Put the names of a directory on disk: a rename that is not there can be undone."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def nearby(path: Path, suffixes: tuple[str, ...] = ()) -> str:
    """A hint for a file that is not there: the one that was meant, or where to look.

    Args:
        suffixes: of the files that it could have been; none: any.
    """
    folder = path.parent
    if not folder.is_dir():
        return f"there is no directory {str(folder)!r}"
    names = [child.name for child in folder.iterdir() if not suffixes or child.suffix in suffixes]
    close = difflib.get_close_matches(path.name, sorted(names), n=1)
    return f"did you mean {str(folder / close[0])!r}?" if close else f"ls {folder}"


def sizes_of(folder: Path) -> dict[str, int]:
    """Return the sizes in bytes of all files in a folder and below, by names relative to it.

    Others may write and remove files and folders meanwhile. A folder that is gone, or none, or that
    may not be read, such as a disk's `lost+found`, has no files.

    Raises:
        OSError: the disk gives no answer.
    """
    found = {}
    for subfolder, _, names in os.walk(folder, onerror=_raise_faults):
        for name in names:
            path = Path(subfolder, name)
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    found[str(path.relative_to(folder))] = path.stat().st_size
    return found


def _raise_faults(error: OSError) -> None:
    if not isinstance(error, _NO_FILES):
        raise error


@contextlib.contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Fill a draft that becomes `directory` at the end, whole, or leaves nothing.

    Raises:
        EnvironmentFault: the disk did not take it.
    """
    draft = directory.with_name(f".{directory.name}-{uuid.uuid4().hex[:8]}")
    try:
        draft.mkdir(parents=True)
        yield draft
        if directory.exists():
            directory.rmdir()
        draft.rename(directory)
        sync_directory(directory.parent)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {directory}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
