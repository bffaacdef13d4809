"""Other accounts of this host.

A process of root becomes one for good, or touches files with its rights alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from brim.errors import EnvironmentFault, SpecError

# Files that each process of a job reads first: the interpreter, its library, and brim.
PYTHON_FILES = (sys.executable, os.__file__, __file__)

_thread_account = threading.local()


def home(*, field: str = "HOME") -> Path:
    """Return the home of this account.

    Args:
        field: that names another place, for the error.

    Raises:
        SpecError: it has none: containers run accounts that their system does not list.
    """
    try:
        return Path.home()
    except RuntimeError:
        raise SpecError(
            field,
            got="nothing",
            need="a directory, as this account has no home",
            hint=f"export {field}=/a/directory",
        ) from None


def check_account(name: str, *, field: str) -> None:
    """Check that jobs can be run as this account.

    Args:
        field: that names it, for the error.

    Raises:
        SpecError: there is none, it is root, or this process may not become another.
    """
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise SpecError(
            field, got=repr(name), need="an account of this host", hint="getent passwd"
        ) from None
    if found.pw_uid == 0:
        raise SpecError(field, got="root", need="an account that owns nothing but its own jobs")
    if os.geteuid() not in (0, found.pw_uid):
        need = "a scheduler that runs as root, which alone can start processes of others"
        raise SpecError(
            field, got=repr(name), need=need, hint="leave user out: jobs then run as this account"
        )


def check_python(name: str, *, field: str) -> None:
    """Check that an account can run this Python, and import brim: its jobs are run by them.

    Args:
        field: that names it, for the error.

    Raises:
        SpecError: it cannot.
        EnvironmentFault: there is no such account, or we may not act as it.
    """
    fault = unreadable(name, PYTHON_FILES)
    if fault:
        raise SpecError(
            field,
            got=f"{name!r}, which cannot read {fault}",
            need="an account that can run the Python that brim is installed in",
            hint="let it enter the folders above, or install Python and brim elsewhere, such as in /opt",
        )


def unreadable(name: str, paths: Iterable[str]) -> str:
    """Return the first of these files that an account cannot read, and why; empty: it can read all.

    Raises:
        EnvironmentFault: there is no such account, or we may not act as it.
    """
    real_paths = {path: os.path.realpath(path) for path in paths}
    with acting_as(name):
        for path, real_path in real_paths.items():
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                target = f", which is {real_path}" if real_path != path else ""
                return f"{path}{target}: {error.strerror}"
    return ""


def become(name: str) -> None:
    """Be a process of this account, with its groups, and never again another.

    Raises:
        OSError: we may not.
        EnvironmentFault: there is no such account.
    """
    found = _found(name)
    os.initgroups(name, found.pw_gid)
    os.setgid(found.pw_gid)
    os.setuid(found.pw_uid)


@contextlib.contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Give this thread the rights of another account for the files that it opens, makes or removes.

    The thread has no other rights meanwhile.

    So no link that the account has put somewhere leads to what it could not reach itself. Nobody
    may wait within, or the event loop would go on as that account; and a thread that was started
    within would stay that account for good.

    Args:
        name: of the account; empty: with the rights that we have.

    Raises:
        EnvironmentFault: there is no such account, or we may not.
    """
    if not name or os.geteuid() != 0:
        yield
        return
    found = _found(name)
    try:
        _set(found.pw_uid, found.pw_gid)
        _thread_account.uid = found.pw_uid
        yield
    finally:
        del _thread_account.uid
        _set(0, 0)


def acting_uid() -> int:
    """The user id by whose rights this thread touches files."""
    uid: int = getattr(_thread_account, "uid", os.geteuid())
    return uid


def give(path: Path, name: str) -> None:
    """Give a file or a directory to an account.

    Raises OSError, and EnvironmentFault where there is none.
    """
    found = _found(name)
    os.chown(path, found.pw_uid, found.pw_gid, follow_symlinks=False)


def owns(name: str, pid: int) -> bool:
    """Return whether a process belongs to this account.

    The process's number may stand in a file that anybody wrote.
    """
    try:
        return Path(f"/proc/{pid}").stat().st_uid == _found(name).pw_uid
    except OSError:
        return False


def environment_of(name: str) -> dict[str, str]:
    """The variables that a login of this account begins with.

    Raises EnvironmentFault where there is none.
    """
    found = _found(name)
    return {"HOME": found.pw_dir, "USER": name, "LOGNAME": name, "SHELL": found.pw_shell}


def _found(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise EnvironmentFault(f"this host has no account {name!r}") from None


def _set(uid: int, gid: int) -> None:
    """Set the ids of this thread alone.

    The kernel takes root's power over files with them, and gives it back.
    """
    kernel = ctypes.CDLL(None)
    kernel.setfsgid(gid)
    kernel.setfsuid(uid)
    # They tell of no error; asked for an impossible id, they say what is so.
    if (kernel.setfsuid(-1), kernel.setfsgid(-1)) != (uid, gid):
        raise EnvironmentFault(f"cannot touch files as user {uid}")
