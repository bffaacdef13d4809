"""The front of a service: a process of haproxy that outlives its scheduler.

It takes the requests that come to the service's port, has a slot for each replica, and is told by its
socket which of them take requests. The next scheduler finds it by that socket. One that was killed is
started again, with the same replicas. The scheduler keeps its port open meanwhile, so that requests
wait and are not refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.services import Service, ServiceReplica
from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import monotonic
from brim.host.process import birth_of, descriptor_of, state_of
from brim.scheduler.front_text import (
    LISTENER,
    SHOW_COUNTS,
    SHOW_PROCESS,
    SHOW_SLOTS,
    Counts,
    Slot,
    commands_for,
    counts_in,
    front_file,
    process_in,
    slots_in,
)
from brim.storage.files import open_log, write_whole
from brim.storage.removing import remove_run
from brim.telemetry.logs import last_line
from brim.wire.haproxy import ask_front
from brim.wire.listening import holder_of, take_port

_PROGRAM = "haproxy"
_ACCOUNT = "haproxy"  # that its package makes
_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"  # where it is, and the PATH of most accounts is not
_FILE, _CONTACT, _LOG = "front.cfg", "front.json", "front.log"
_BACKLOG = 1024  # requests that may wait for a front
_TO_ANSWER = 5.0  # seconds for which one that runs may not answer, before it is replaced
_TO_RETURN = 10.0  # seconds for which a replica that has died may be started again at its address
_FIRST_REST, _LONGEST_REST = 0.5, 10.0  # seconds before another start; doubled each time
_LARGEST_LOG = 4 << 20  # bytes, of those that a front prints of its replicas


class _Contact(msgspec.Struct, frozen=True):
    pid: int
    birth: str
    listener: int


def haproxy_path() -> str:
    """Return where haproxy is on this host.

    Raises:
        SpecError: it is not installed.
    """
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), _FOLDERS))
    found = shutil.which(_PROGRAM, path=path)
    if found is None:
        raise SpecError(
            "--service",
            got=f"no {_PROGRAM} on the scheduler's host",
            need=f"{_PROGRAM}, which takes the requests of services and shares them out",
            hint=f"apt-get install {_PROGRAM}",
        )
    return found


def check_free(address: str, port: int) -> None:
    """Check that a front could listen there.

    Raises:
        SpecError: something else does, or this host has no such address.
    """
    try:
        take_port(address, port).close()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            need = "an address of this host"
            raise SpecError("services: address", got=repr(address), need=need) from None
        holder = holder_of(port)
        holder_note = f" (it is {holder}'s)" if holder else ""
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SpecError(
            "port",
            got=f"{port}, which cannot be had on {address}: {reason}{holder_note}",
            need="a port that nothing listens on",
            hint="port: another one",
        ) from None


class Front:
    """The front of one service.

    Args:
        folder: its own, which only this account can read.
        service: that it is of.
        address: on which it listens.

    Attributes:
        problem: why it does not take requests; empty where it does.
    """

    def __init__(self, folder: Path, service: Service, *, address: str) -> None:
        self._folder = folder
        self._service, self._address = service, address
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._start_time = 0.0  # before which it is not started again
        self._failures = 0
        self._answer_time = monotonic()
        self._listener: socket.socket | None = None
        self._is_over = False
        self._died: dict[tuple[str, int], float] = {}  # since when nobody knows of these replicas
        self.problem = ""

    @property
    def address(self) -> str:
        """Return the address on which it listens."""
        return self._address

    @property
    def has_died(self) -> bool:
        """Return whether the process that was started here has ended."""
        return self._process is not None and self._process.poll() is not None

    @property
    def is_alive(self) -> bool:
        """Return whether it has a process, of this scheduler's or of an earlier one's."""
        return bool(self._alive())

    def _text(self, service: Service) -> str:
        user = ""
        if os.geteuid() == 0:
            with contextlib.suppress(KeyError):
                user = pwd.getpwnam(_ACCOUNT).pw_name
        return front_file(service, user=user)

    async def keep(self, replicas: Sequence[ServiceReplica]) -> Counts | None:
        """Have it run, and share requests out among these; returns its counts.

        None: it does not answer now.
        """
        try:
            slots = slots_in(await ask_front(self._folder, [SHOW_SLOTS]))
            missed = self._missed(slots, replicas)
            if commands := commands_for(slots, replicas, missed=missed):
                await ask_front(self._folder, commands)
            counts = counts_in(await ask_front(self._folder, [SHOW_COUNTS]))
        except EnvironmentFault as fault:
            if not self._is_over:
                self._miss(str(fault))
            return None
        self._answer_time, self._failures, self.problem = monotonic(), 0, ""
        if self._listener is None and not self._is_over:
            self._share_listener()
        self._shorten_log()
        return counts

    def _missed(
        self, slots: Sequence[Slot], replicas: Sequence[ServiceReplica]
    ) -> list[tuple[str, int]]:
        """Return the addresses whose replicas have died a moment ago."""
        now, served = monotonic(), {(replica.host, replica.port) for replica in replicas}
        places = {(slot.host, slot.port) for slot in slots if slot.state == "ready"} - served
        self._died = {place: self._died.get(place, now) for place in places}
        return [place for place, died in self._died.items() if now - died < _TO_RETURN]

    def _miss(self, fault: str) -> None:
        """Start it, where it has ended; end one that runs and has not answered for long."""
        pid = self._alive()
        now = monotonic()
        if pid and now - max(self._answer_time, self._started) < _TO_ANSWER:
            return
        if pid:
            self._end(pid)
        if now < self._start_time:
            return
        if self._failures:
            self.problem = last_line(self._folder / _LOG) or fault
        rest = min(_LONGEST_REST, _FIRST_REST * 2.0 ** min(10, self._failures))
        self._failures += 1
        self._start_time = now + rest
        try:
            self._start()
        except (OSError, SpecError) as error:
            self.problem = str(error)

    def _start(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = haproxy_path()
        listener = self.listen()
        write_whole(self._folder / _FILE, self._text(self._service).encode(), mode=0o600)
        with open_log(self._folder / _LOG) as log:
            self._process = subprocess.Popen(
                [path, "-db", "-f", str(self._folder.resolve() / _FILE)],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(listener,),
                env={**os.environ, LISTENER: str(listener)},
            )
        self._started = monotonic()
        contact = _Contact(self._process.pid, birth_of(self._process.pid), listener)
        write_whole(self._folder / _CONTACT, msgspec.json.encode(contact), mode=0o600)

    def listen(self) -> int:
        """Listen at the port; returns the descriptor of the socket.

        Raises:
            OSError: something else does.
        """
        if self._listener is None:
            self._listener = take_port(self._address, self._service.port, backlog=_BACKLOG)
        return self._listener.fileno()

    def _share_listener(self) -> None:
        """Have the socket of a front that an earlier scheduler has started, where the kernel gives it."""
        contact = _contact_in(self._folder)
        if contact is None or not self._alive():
            return
        descriptor = descriptor_of(contact.pid, contact.listener)
        if descriptor is None:
            return
        listener = socket.socket(fileno=descriptor)
        is_inet = listener.family in (socket.AF_INET, socket.AF_INET6)
        if is_inet and listener.getsockname()[1] == self._service.port:
            self._listener = listener
            self._address = listener.getsockname()[0]  # the rules may name another one now
        else:
            listener.close()

    def _alive(self) -> int:
        """Return the number of its process; 0: it has ended."""
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else 0
        return _process_in(self._folder)

    def _shorten_log(self) -> None:
        log = self._folder / _LOG
        with contextlib.suppress(OSError):
            if log.stat().st_size > _LARGEST_LOG:
                os.truncate(log, 0)

    def _end(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(_TO_ANSWER)
            self._process = None

    def close(self) -> None:
        """Leave it to the next scheduler."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def end(self) -> None:
        """End it for good."""
        self._is_over = True
        self.close()
        await end_front(self._folder)
        if self._process is not None:
            self._process.wait(_TO_ANSWER)


async def end_front(folder: Path, *, forget: bool = False) -> None:
    """End the front in a folder, also one of an earlier scheduler's.

    Args:
        forget: remove the folder.
    """
    pid = _process_in(folder)
    if not pid:  # its scheduler had no time to write that down
        with contextlib.suppress(EnvironmentFault):
            pid = process_in(await ask_front(folder, [SHOW_PROCESS]))
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if forget:
        with contextlib.suppress(OSError):
            remove_run(folder)


def _contact_in(folder: Path) -> _Contact | None:
    try:
        content = (folder / _CONTACT).read_bytes()
        return msgspec.json.decode(content, type=_Contact)
    except (OSError, *UNDECODABLE):
        return None


def _process_in(folder: Path) -> int:
    """Return the number of the front's process that was written down; 0: it has ended."""
    contact = _contact_in(folder)
    if contact is None:
        return 0
    is_same = bool(contact.birth) and birth_of(contact.pid) == contact.birth
    return contact.pid if is_same and state_of(contact.pid) not in ("", "Z", "X") else 0
