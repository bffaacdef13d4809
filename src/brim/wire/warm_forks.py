"""The conversation with the warm process of an account, which forks agents of runs.

One connection is one fork. The fork itself reads its request: the warm process never has one in
its memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from brim.errors import EnvironmentFault, ProtocolError
from brim.wire.messages.codec import Codec
from brim.wire.private import PrivateFolder, make_private

_MAX_MESSAGE_BYTES = 1 << 20  # an environment may be long
_MOST_DESCRIPTORS = 8
_BACKLOG = 64
_READY = b"+"


class BecomeAgent(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Be the agent of a run; with its input, its output, and a pipe for its exit status.

    Args:
        arguments: of `python -m brim.agent`.
        environment: all of it.
        directory: where it works.
        listens: a last descriptor is the socket on which other hosts call the run's master.
    """

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    listens: bool = False


_codec: Codec[BecomeAgent] = Codec(BecomeAgent)


def warm_folder() -> Path:
    """Return the folder of this account's warm processes, which only it can enter.

    It is below the directory that the system has for sockets of the account, which goes when it logs
    out, or else below that for temporary files.

    Raises:
        EnvironmentFault: it cannot be made, or is another account's.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError):
        if runtime and os.stat(runtime).st_uid != os.geteuid():
            runtime = ""  # as after `su`
    if runtime and os.access(runtime, os.W_OK):
        return make_private(Path(runtime) / "brim")
    return make_private(Path(tempfile.gettempdir()) / f"brim-{os.geteuid()}")


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[PrivateFolder]:
    """Be the only one who starts a warm process there.

    Raises:
        EnvironmentFault: it is not this account's alone.
    """
    with PrivateFolder(folder) as private:
        descriptor = os.open(private.path("."), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield private
        finally:
            os.close(descriptor)


def listen_for_forks(folder: PrivateFolder, name: str) -> socket.socket:
    """Open the socket of a warm process; raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder.path(name))  # of one that has ended
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    old_umask = os.umask(0o177)
    try:
        listener.bind(folder.path(name))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(old_umask)
    return listener


def call_warm_process(folder: PrivateFolder, name: str) -> socket.socket | None:
    """A connection to the warm process of this name; None where none listens."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_MESSAGE_BYTES)
    try:
        line.setblocking(False)  # it accepts when it is warm, and has room for many until then
        line.connect(folder.path(name))
    except OSError:
        line.close()
        return None
    return line


def is_own_account(line: socket.socket) -> bool:
    """Return whether the other end is a process of this account, or of root."""
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], "little") in (0, os.geteuid())


def has_hung_up(line: socket.socket) -> bool:
    """Return whether the caller only wanted a warm process to be there."""
    try:
        return not line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:  # it waits
        return False
    except OSError:
        return True


def say_ready(line: socket.socket) -> None:
    """Tell the caller that a fork is there for it; raises OSError."""
    line.send(_READY)


def hears_ready(line: socket.socket, *, patience: float) -> bool:
    """Return whether a fork is there within so many seconds."""
    line.settimeout(patience)
    try:
        return line.recv(1) == _READY
    except OSError:
        return False


def become_agent(
    line: socket.socket, request: BecomeAgent, descriptors: Sequence[int], *, patience: float
) -> tuple[int, int] | None:
    """Have a fork that is ready be an agent; its process id, and a descriptor of the process.

    None where it is gone.

    Raises:
        EnvironmentFault: it does not answer, or it is too much to say.
    """
    line.settimeout(patience)
    try:
        socket.send_fds(line, [_codec.encode(request)], descriptors)
        answer, found, _, _ = socket.recv_fds(line, 16, 1)
    except TimeoutError:
        raise EnvironmentFault(
            "a fork of this account's warm process does not answer; BRIM_KEEP_WARM=0 does without"
        ) from None
    except OSError:
        return None
    if not (answer and found):
        return None
    return int(answer), found[0]


def read_request(line: socket.socket) -> tuple[BecomeAgent, list[int]] | None:
    """Return the request to this fork, with its descriptors; None where the caller is gone.

    Raises:
        ProtocolError: it is no such request.
    """
    try:
        data, descriptors, _, _ = socket.recv_fds(line, _MAX_MESSAGE_BYTES, _MOST_DESCRIPTORS)
    except OSError:
        return None
    if not data:
        return None
    request = _codec.decode(data)
    if len(descriptors) != 3 + request.listens:
        raise ProtocolError(f"{len(descriptors)} descriptors for an agent")
    return request, descriptors


def say_begun(line: socket.socket) -> None:
    """Tell the caller which process it has; raises OSError."""
    own = os.pidfd_open(os.getpid())
    try:
        socket.send_fds(line, [str(os.getpid()).encode()], [own])
    finally:
        os.close(own)
