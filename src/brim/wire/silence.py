"""Settings of a connection by which the kernel tells that the other host is gone.

Gone is a host whose kernel does not answer. That is no matter of how busy it is, or of what its
processes do: kernels answer each other.
"""

from __future__ import annotations

import socket

_PROBE = 1  # seconds between two questions


def ask_while_idle(peer: socket.socket, seconds: float) -> None:
    """Have a connection on which nothing is under way break once its host is silent for so long."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = max(1, round(seconds) - _PROBE)
    options = (("TCP_KEEPIDLE", _PROBE), ("TCP_KEEPINTVL", _PROBE), ("TCP_KEEPCNT", probes))
    for name, value in options:
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def give_up_after(peer: socket.socket, seconds: float) -> None:
    """Have a connection break once its host is silent for so long, busy or not.

    Also where the process there reads nothing for so long: not for one that may be busy otherwise.
    """
    ask_while_idle(peer, seconds)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * seconds))
