"""The front of a service: a process of haproxy that outlives its scheduler.

It takes the requests that come to the service's port, has a slot for each replica, and is told by its
socket which of them take requests. The next scheduler finds it by that socket. One that was killed is
started again, with the same replicas. The scheduler keeps its port open meanwhile, so that requests
wait and are not refused. With another certificate a successor takes over, and the one before ends once
it has answered its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.services import GRACE, Service, ServiceReplica
from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import monotonic
from brim.host.process import birth_of, descriptor_of, state_of
from brim.scheduler.front_text import (
    CERTIFICATE,
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
# The account that its package makes, and one for a haproxy of another origin: none goes on as root.
_ACCOUNTS = ("haproxy", "nobody")
_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"  # where it is, and the PATH of most accounts is not
_FILE, _CONTACT, _LOG = "front.cfg", "front.json", "front.log"
_BACKLOG = 1024  # requests that may wait for a front
_TO_ANSWER = 5.0  # seconds for which one that runs may answer no question, before it is replaced
_TO_RETRY = 60.0  # seconds until a certificate that haproxy did not take is tried again
_LOOK = 0.02  # seconds between two looks whether one that was started answers
_TO_DIE = 5.0  # seconds that the kernel has for the end of one that was killed
TO_RETURN = 10.0  # seconds for which a replica that has died may be started again at its address
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


def check_free(address: str, port: int, *, names_holder: bool) -> None:
    """Check that a front could listen there.

    Args:
        names_holder: the error may name the process that listens there.

    Raises:
        SpecError: something else does, or this host has no such address.
    """
    try:
        take_port(address, port).close()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            need = "an address of this host"
            raise SpecError("services: address", got=repr(address), need=need) from None
        holder = holder_of(port) if names_holder else ""
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
        to_return: seconds for which the address of a replica that has died may be its own again. In
            that time, any process that listens there gets requests.
        pem: returns the certificate by which it speaks HTTPS; empty: it speaks plain HTTP.
        grace: seconds for requests that are under way when a successor takes over.

    Attributes:
        problem: why it does not take requests; empty where it does.
    """

    def __init__(
        self,
        folder: Path,
        service: Service,
        *,
        address: str,
        to_return: float = TO_RETURN,
        pem: Callable[[], bytes] = bytes,
        grace: float = GRACE,
    ) -> None:
        self._folder = folder
        self._grace = grace
        # A certificate with which no successor took over, why, and when it is tried again.
        self._refused = (b"", "", 0.0)
        self._replacing = asyncio.Lock()
        self._leavers: list[subprocess.Popen[bytes]] = []  # successors have taken over from these
        self._to_return = to_return
        self._pem = pem
        self._service, self._address = service, address
        self._process: subprocess.Popen[bytes] | None = None
        self._start_time = 0.0  # before which it is not started again
        self._failures = 0
        # Since when it answers no question. Time in which none was asked does not count: a scheduler
        # that was stopped for a while ends no front that is well.
        self._silent_since: float | None = None
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

    def _text(self, service: Service, *, is_encrypted: bool) -> str:
        user, group = _account_of_fronts() if os.geteuid() == 0 else ("", "")
        return front_file(
            service, user=user, group=group, is_encrypted=is_encrypted, grace=self._grace
        )

    async def keep(self, replicas: Sequence[ServiceReplica]) -> Counts | None:
        """Have it run, and share requests out among these; returns its counts.

        None: it does not answer now.
        """
        self._leavers = [process for process in self._leavers if process.poll() is None]
        try:
            counts = await self._share_out(replicas)
            self._silent_since, self._failures, self.problem = None, 0, ""
            if self._listener is None and not self._is_over:
                self._share_listener()
            if await self._renew_certificate():
                counts = await self._share_out(replicas)
        except EnvironmentFault as fault:
            if not self._is_over:
                self._miss(str(fault))
            return None
        self._shorten_log()
        return counts

    async def _share_out(self, replicas: Sequence[ServiceReplica]) -> Counts | None:
        """Have requests go to these replicas. Raises EnvironmentFault where it does not answer."""
        slots = slots_in(await ask_front(self._folder, [SHOW_SLOTS]))
        missed = self._missed(slots, replicas)
        if commands := commands_for(slots, replicas, missed=missed):
            await ask_front(self._folder, commands)
        return counts_in(await ask_front(self._folder, [SHOW_COUNTS]))

    async def _renew_certificate(self) -> bool:
        """Have a successor take over with the certificate of now; False: there is no need, or it cannot."""
        async with self._replacing:
            try:
                pem = self._pem()
            except SpecError as error:  # it goes on with the one that it has
                self.problem = str(error)
                return False
            pid = self._alive()
            if self._is_over or not pid or pem == _content(self._folder / CERTIFICATE):
                return False
            refused, problem, retry_time = self._refused
            if pem == refused and monotonic() < retry_time:
                self.problem = problem
                return False
            if self._listener is None:  # there is no copy of its port for a successor
                _kill(pid)
                self._bury()
                return False
            self.problem = await self._replace(pid)
            self._refused = (pem, self.problem, monotonic() + _TO_RETRY)
            return not self.problem

    async def _replace(self, pid: int) -> str:
        """Start a successor, at whose wish a process answers its requests and ends.

        Returns:
            Why that goes on in its place; empty: the successor answers.
        """
        files = [self._folder / name for name in (CERTIFICATE, _FILE, _CONTACT)]
        contents, process = [*map(_content, files)], self._process
        problem = ""
        try:
            self._start(succeeds=pid)
            problem = await self._answers()
        except (OSError, SpecError) as error:
            problem = str(error)
        if not problem:
            self._leavers += [process] if process is not None else []
            return ""
        if self._process is not process:
            assert self._process is not None
            self._process.kill()
            self._bury()
            self._process = process
        for file, content in zip(files, contents, strict=True):
            write_whole(file, content, mode=0o600)
        return problem

    async def _answers(self) -> str:
        """Wait until the process that was just started answers; else return why it does not."""
        assert self._process is not None
        deadline = monotonic() + _TO_ANSWER
        while monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(EnvironmentFault):
                answer = await ask_front(self._folder, [SHOW_PROCESS])
                if process_in(answer) == self._process.pid:
                    return ""
            await asyncio.sleep(_LOOK)
        return last_line(self._folder / _LOG) or f"it did not answer in {_TO_ANSWER:.0f} s"

    def _missed(
        self, slots: Sequence[Slot], replicas: Sequence[ServiceReplica]
    ) -> list[tuple[str, int]]:
        """Return the addresses whose replicas have died a moment ago."""
        now, served = monotonic(), {(replica.host, replica.port) for replica in replicas}
        places = {(slot.host, slot.port) for slot in slots if slot.state == "ready"} - served
        self._died = {place: self._died.get(place, now) for place in places}
        return [place for place, died in self._died.items() if now - died < self._to_return]

    def _miss(self, fault: str) -> None:
        """Start it, where it has ended; end one that runs and has not answered for long."""
        pid = self._alive()
        now = monotonic()
        if self._silent_since is None:
            self._silent_since = now
        if pid and now - self._silent_since < _TO_ANSWER:
            return
        if pid:
            _kill(pid)
            self._bury()
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

    def _start(self, *, succeeds: int = 0) -> None:
        """Start its process.

        Args:
            succeeds: a process that is to end once this one takes requests; 0: there is none.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = haproxy_path()
        pem = self._pem()
        listener = self.listen()
        write_whole(self._folder / CERTIFICATE, pem, mode=0o600)
        text = self._text(self._service, is_encrypted=bool(pem))
        write_whole(self._folder / _FILE, text.encode(), mode=0o600)
        with open_log(self._folder / _LOG) as log:
            self._process = subprocess.Popen(
                [
                    *(path, "-db", "-f", str(self._folder.resolve() / _FILE)),
                    *(("-sf", str(succeeds)) if succeeds else ()),
                ],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(listener,),
                env={**os.environ, LISTENER: str(listener)},
            )
        self._silent_since = None
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

    def _bury(self) -> None:
        """Take note of the end of the process that was started here, and was killed."""
        if self._process is not None:
            self._process.wait(_TO_DIE)
            self._process = None

    def close(self) -> None:
        """Leave it to the next scheduler."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def end(self) -> None:
        """End it for good."""
        self._is_over = True
        async with self._replacing:
            self.close()
            await end_front(self._folder)
            self._bury()
            for process in self._leavers:
                process.kill()
                process.wait(_TO_DIE)


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
        _kill(pid)
    if forget:
        with contextlib.suppress(OSError):
            remove_run(folder)


def _account_of_fronts() -> tuple[str, str]:
    """Return the account and the group that fronts go on as where the scheduler is root.

    Raises:
        SpecError: this host has no such account.
    """
    for name in _ACCOUNTS:
        with contextlib.suppress(KeyError):
            return name, grp.getgrgid(pwd.getpwnam(name).pw_gid).gr_name
    need = "one of them, which takes requests in place of root"
    actual = f"no account {' or '.join(_ACCOUNTS)} on the scheduler's host"
    raise SpecError("--service", got=actual, need=need, hint="useradd --system haproxy")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _content(file: Path) -> bytes:
    """Return the content of a file; empty where it is not there."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_bytes()
    return b""


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
