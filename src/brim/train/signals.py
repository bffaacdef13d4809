"""Signals and heartbeats of a worker process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import threading

from brim.errors import EnvironmentFault
from brim.wire.link import WorkerLink
from brim.wire.messages import Beat

__all__ = ["LeaveRequest", "be_called", "beat_forever", "die_with_parent"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


class LeaveRequest:
    """Turns SIGTERM into a flag, and wakes whoever waits on `wakeup`. SIGINT is left to the foreground process."""

    def __init__(self) -> None:
        self.asked = False
        self.wakeup, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _on_term(self, _signal: int, _frame: object) -> None:
        self.asked = True


def beat_forever(link: WorkerLink, *, interval: float) -> None:
    """Send heartbeats every `interval` seconds until the link is gone. A stopped process sends none."""

    def beat() -> None:
        stop = threading.Event()
        while not stop.wait(interval):
            try:
                link.send(Beat())
            except EnvironmentFault:
                return

    threading.Thread(target=beat, name="brim-heartbeat", daemon=True).start()


def _prctl(option: int, value: object) -> None:
    """Ask something of the kernel, where it is Linux."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)


def be_called(name: str) -> None:
    """Give this process a name of at most 15 bytes, by which `ps` and `top` tell one worker from another."""
    _prctl(_PR_SET_NAME, name.encode())


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process once its parent is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)
