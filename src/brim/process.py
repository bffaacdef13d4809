"""What a process asks of the kernel for itself, where that is Linux."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import weakref

__all__ = ["be_called", "close_in_children", "die_with_parent"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def be_called(name: str) -> None:
    """Give this process a name of at most 15 bytes, by which `ps` and `top` tell one role, or worker, from another."""
    _prctl(_PR_SET_NAME, name.encode())


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process once its parent is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)


def close_in_children(*sockets: socket.socket) -> None:
    """Have every process that is forked from this one close these, so that our end of them ends with us."""
    _ours.update(sockets)


def _close_ours() -> None:
    for each in list(_ours):
        each.close()
    _ours.clear()


os.register_at_fork(after_in_child=_close_ours)


def _prctl(option: int, value: object) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)
