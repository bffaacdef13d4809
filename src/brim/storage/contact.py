"""Contact files of a master and of a scheduler.

They lie in its directory, for permitted readers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from brim.decoding import UNDECODABLE
from brim.errors import SpecError
from brim.host.process import birth_of
from brim.host.procfs import read_proc
from brim.host.untrusted import read_regular
from brim.storage.files import write_whole

CONTACT = "master.json"
SCHEDULER_LOCK = ".scheduler.lock"  # of a state directory, held by its scheduler
_MAX_CONTACT_BYTES = 1 << 16  # bytes of a contact
T = TypeVar("T")

# Signals are sent to it: 0 and less would be many processes.
_Process = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
_Port = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a master, and the callers' credentials.

    Args:
        address: `HOST:PORT`, or that of a Unix socket.
        token: what callers must present.
        pid: its process.
        keeper: the process that starts another master where this one dies.
    """

    address: str
    token: str
    pid: _Process
    keeper: _Process


def write_contact(run_dir: Path, contact: Contact) -> None:
    """Raises OSError where the disk does not take it."""
    write_whole(run_dir / CONTACT, msgspec.json.encode(contact), mode=0o600, is_sole_writer=True)


def read_contact(run_dir: Path) -> Contact | None:
    """The contact of a run that has a master, or had one that was killed."""
    return _read(run_dir / CONTACT, Contact)


def remove_contact(run_dir: Path, *, keeper: int) -> None:
    """Remove the contact of this process's masters; another keeper's contact stays.

    Raises OSError where it cannot be removed.
    """
    contact = read_contact(run_dir)
    if contact is not None and contact.keeper == keeper:
        (run_dir / CONTACT).unlink(missing_ok=True)


def remove_dead_contact(run_dir: Path) -> None:
    """Remove the contact of a run that nobody leads: its master was killed with its keeper.

    One that cannot be removed stays until the next start.
    """
    with contextlib.suppress(OSError):
        (run_dir / CONTACT).unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Return whether a process of this number is alive on this host.

    A dead one that is not reaped yet is not.
    """
    try:
        os.kill(pid, 0)
        state = read_proc(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's, or this host tells nothing of processes
        return True
    return state not in ("Z", "X")


SCHEDULER = "scheduler.json"
METRICS_TOKEN = "metrics-token"  # its file in a state directory
_TOKEN = "token"
_TOKEN_FILE, _TOKEN_HERE = "BRIM_TOKEN_FILE", "BRIM_TOKEN"


class SchedulerContact(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a state directory's scheduler.

    Args:
        birth: when its process was started, as `brim.host.process.birth_of` tells; empty where nobody
            does.
        authority: the certificate of its authority, PEM, where it speaks HTTPS; empty: it does not.
        nodes: `HOST:PORT` at which nodes of other hosts join; empty: none can.
    """

    host: str
    port: _Port
    token: str
    pid: _Process
    birth: str = ""
    authority: str = ""
    nodes: str = ""

    @property
    def is_alive(self) -> bool:
        """Return whether the scheduler's process is alive.

        Another process may have its number by now, and its port: that one gets no token.
        """
        return is_alive(self.pid) and self.birth in ("", birth_of(self.pid))


def token_of(state_dir: Path) -> str:
    """Return the token that callers of a state directory's schedulers present.

    It is made once, and again where the file was removed.

    Raises OSError where the disk does not take it.
    """
    return _kept_token(state_dir / _TOKEN)


def metrics_token_of(state_dir: Path) -> str:
    """Return the token that is good for metrics alone; made, and raises, as `token_of`."""
    return _kept_token(state_dir / METRICS_TOKEN)


def _kept_token(path: Path) -> str:
    with contextlib.suppress(OSError):
        if token := path.read_text().strip():
            return token
    token = secrets.token_hex(16)
    _keep(path, token)
    return token


def keep_token(state_dir: Path, token: str) -> None:
    """Raises OSError where the disk does not take it."""
    _keep(state_dir / _TOKEN, token)


def _keep(path: Path, token: str) -> None:
    write_whole(path, token.encode(), mode=0o600, is_sole_writer=True)


def read_token(environment: Mapping[str, str]) -> str:
    """Return the token that the environment names.

    `BRIM_TOKEN_FILE` names a file with it, or `BRIM_TOKEN` has it.

    Raises:
        SpecError: there is none, the file cannot be read, or others can read it.
    """
    name = environment.get(_TOKEN_FILE, "")
    if not name:
        if token := environment.get(_TOKEN_HERE, ""):
            return token
        need = "a token: the administrator makes one for a tenant with brim token TENANT"
        raise SpecError(_TOKEN_FILE, got="nothing", need=need, hint=f"export {_TOKEN_FILE}=FILE")
    return token_in(Path(name), field=_TOKEN_FILE)


def token_in(path: Path, *, field: str) -> str:
    """The token in a private file.

    Args:
        field: that named the file, for the error.

    Raises:
        SpecError: the file cannot be read, is empty, or others can read it.
    """
    try:
        token, mode = path.read_text().strip(), path.stat().st_mode
    except (OSError, ValueError) as error:
        raise SpecError(field, got=f"{str(path)!r} ({error})", need="a file with a token") from None
    if mode & 0o077:
        need = "a file that only its owner can read: the token grants all rights of its owner"
        raise SpecError(
            field, got=f"{str(path)!r} (mode {mode & 0o777:o})", need=need, hint=f"chmod 600 {path}"
        )
    if not token:
        raise SpecError(field, got=f"{str(path)!r}, which is empty", need="a file with a token")
    return token


def write_scheduler_contact(state_dir: Path, contact: SchedulerContact) -> None:
    """Raises OSError where the disk does not take it."""
    write_whole(
        state_dir / SCHEDULER, msgspec.json.encode(contact), mode=0o600, is_sole_writer=True
    )


def remove_scheduler_contact(state_dir: Path, *, pid: int) -> None:
    """Remove the contact of this process; another scheduler's contact stays."""
    contact = read_scheduler_contact(state_dir)
    if contact is not None and contact.pid == pid:
        (state_dir / SCHEDULER).unlink(missing_ok=True)


def read_scheduler_contact(state_dir: Path) -> SchedulerContact | None:
    """The contact of a scheduler that runs, or was killed."""
    return _read(state_dir / SCHEDULER, SchedulerContact)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(read_regular(path, at_most=_MAX_CONTACT_BYTES), type=kind)
    except (OSError, *UNDECODABLE):
        return None
