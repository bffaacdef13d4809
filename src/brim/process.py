"""What a process asks of the kernel for itself, where that is Linux."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

__all__ = ["be_called", "die_with_parent"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def be_called(name: str) -> None:
    """Give this process a name of at most 15 bytes, by which `ps` and `top` tell one role, or worker, from another."""
    _prctl(_PR_SET_NAME, name.encode())


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process once its parent is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)


def _prctl(option: int, value: object) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)
