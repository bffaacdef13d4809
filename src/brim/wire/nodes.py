"""Messages from a scheduler to a node agent.

Whole messages with descriptors, on a Unix socket of its owner alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from brim.errors import EnvironmentFault
from brim.wire.messages.codec import Codec

_SOCKET = "socket"
_MAX_MESSAGE_BYTES = 1 << 20  # bytes of a message: an environment may be long
_MOST_DESCRIPTORS = 8


class Begin(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Start an agent of a job; with its standard input, its output, and other open files.

    Args:
        job: names it in `KillJob`.
        arguments: of `python -m brim.agent`.
        python: the interpreter that it needs, and of which version brim is there.
        environment: all of it.
        directory: where it works.
        fallback: where it works if that directory is not there; empty: nowhere else. The agent itself
            looks: a file system that does not answer holds up its own job alone.
        user: the account that it is to be of; empty: that of the node agent.
        listens: the last descriptor is the socket on which other hosts call the job's master.
    """

    job: str
    arguments: list[str]
    python: tuple[str, str]
    environment: dict[str, str]
    directory: str
    fallback: str = ""
    user: str = ""
    listens: bool = False


class KillJob(msgspec.Struct, frozen=True, tag="Kill", kw_only=True):
    """End the agent of a job at once, and so its master and workers."""

    job: str


class LeaveNode(msgspec.Struct, frozen=True, tag="Part", kw_only=True):
    """End as soon as no agent is left."""


class EndAt(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """End all agents at that time, unless another one is said before.

    Args:
        at: by the monotonic clock, which all processes of a host have in common.
    """

    at: float


NodeRequest = Begin | KillJob | LeaveNode | EndAt
_codec: Codec[NodeRequest] = Codec(NodeRequest)


def listen_on_node(folder: Path) -> socket.socket:
    """Open the socket of a node agent. Raises OSError."""
    with _short(folder) as path, contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # of an earlier life
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    old_umask = os.umask(0o177)
    try:
        with _short(folder) as path:
            listener.bind(path)
    finally:
        os.umask(old_umask)
    listener.listen(8)
    return listener


def call_node(folder: Path) -> socket.socket | None:
    """A connection to the node agent of this folder; None where none listens."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.setblocking(False)  # it answers when it has time, and nobody waits for it
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_MESSAGE_BYTES)
    try:
        with _short(folder) as path:
            line.connect(path)
    except OSError:
        line.close()
        return None
    return line


def pid_of(line: socket.socket) -> int:
    """The process at the other end of a connection."""
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], "little", signed=True)


def send(line: socket.socket, request: NodeRequest, descriptors: Sequence[int] = ()) -> None:
    """Raises EnvironmentFault where it cannot be said now."""
    try:
        socket.send_fds(line, [_codec.encode(request)], descriptors)
    except OSError as error:
        raise EnvironmentFault(f"the agent of the node does not listen: {error}") from error


def receive(line: socket.socket) -> tuple[NodeRequest, list[int]] | None:
    """The next request with its descriptors; None where the other end is gone.

    Raises:
        ProtocolError: it is none.
    """
    data, descriptors = b"", list[int]()
    for _ in range(
        2
    ):  # who hung up without hearing our answers is told of once, in front of its last words
        with contextlib.suppress(ConnectionError):
            data, descriptors, _, _ = socket.recv_fds(line, _MAX_MESSAGE_BYTES, _MOST_DESCRIPTORS)
            break
    if not data:
        return None
    try:
        return _codec.decode(data), descriptors
    except BaseException:
        for descriptor in descriptors:  # nobody else knows of them
            os.close(descriptor)
        raise


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A path of the socket that is short enough for one, wherever the folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_SOCKET}"
    finally:
        os.close(descriptor)
