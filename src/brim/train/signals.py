"""Signals and heartbeats of a worker process."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable

from brim.errors import EnvironmentFault
from brim.wire.link import WorkerLink
from brim.wire.messages import Beat

__all__ = ["LeaveRequest", "beat_forever"]


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


def beat_forever(link: WorkerLink, *, interval: float, moves: Callable[[], int]) -> None:
    """Send heartbeats every `interval` seconds until the link is gone. A stopped process sends none.

    Args:
        moves: counts what the main thread has come by.
    """

    def beat() -> None:
        stop = threading.Event()
        while not stop.wait(interval):
            try:
                link.send(Beat(moves=moves()))
            except EnvironmentFault:
                return

    threading.Thread(target=beat, name="brim-heartbeat", daemon=True).start()
