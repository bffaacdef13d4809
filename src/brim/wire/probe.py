"""Asks a replica of a service on this host whether it is healthy, and counts its connections."""

from __future__ import annotations

import contextlib
import socket

from brim.host.clock import monotonic
from brim.host.procfs import read_proc
from brim.wire.listening import joined_address

_TO_CONNECT = 0.5  # seconds; of a host to itself it takes none
_STATUS_BYTES = 64
_ESTABLISHED = "01"  # in the kernel's tables of sockets
_HEALTHY = range(200, 400)


class Probe:
    """One question to a replica, which is not waited for.

    Args:
        host, port: of the replica.
        path: that a healthy one answers well; empty: a connection is enough.
        timeout: seconds that it has to answer.
    """

    def __init__(self, host: str, port: int, path: str, *, timeout: float) -> None:
        self._socket: socket.socket | None = None
        self._received = b""
        self._deadline = monotonic() + timeout
        self.outcome: bool | None = None
        """Whether it is healthy; None: it has not answered yet."""
        try:
            self._socket = socket.create_connection((host, port), timeout=_TO_CONNECT)
            if not path:
                self._end(healthy=True)
                return
            lines = (
                f"GET {path} HTTP/1.1",
                f"Host: {joined_address(host, port)}",
                "User-Agent: brim",
                "Connection: close",
            )
            self._socket.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())
            self._socket.setblocking(False)
        except OSError:
            self._end(healthy=False)

    def fileno(self) -> int:
        """Return the descriptor that is readable once there is an answer; -1: there is one."""
        return self._socket.fileno() if self._socket is not None else -1

    def look(self) -> bool | None:
        """Read the answer as far as it has come; returns the outcome, None where there is none yet."""
        if self.outcome is None and self._socket is not None:
            try:
                data = self._socket.recv(_STATUS_BYTES)
                self._received += data
                if not data or b"\n" in self._received or len(self._received) >= _STATUS_BYTES:
                    self._end(healthy=_is_well(self._received))
            except BlockingIOError:
                if monotonic() > self._deadline:
                    self._end(healthy=False)
            except OSError:
                self._end(healthy=False)
        return self.outcome

    def close(self) -> None:
        """Ask no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _end(self, *, healthy: bool) -> None:
        self.close()
        self.outcome = healthy


def _is_well(line: bytes) -> bool:
    """Return whether the first line of an answer says so.

    >>> _is_well(b"HTTP/1.0 200 OK"), _is_well(b"HTTP/1.1 503 Busy"), _is_well(b"hello")
    (True, False, False)
    """
    words = line.split(None, 2)
    is_http = len(words) > 1 and words[0].startswith(b"HTTP/1.") and words[1].isdigit()
    return is_http and int(words[1]) in _HEALTHY


def connections_to(port: int) -> int:
    """Count the connections to a TCP port of this host."""
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in read_proc(table).splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                count += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
    return count
