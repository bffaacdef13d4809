"""Signals and heartbeats of a worker process."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable

from brim.errors import EnvironmentFault
from brim.host.clock import sleep
from brim.storage.heir import PATIENCE


class LeaveRequest:
    """Turns SIGTERM into a flag, and wakes the thread that waits on `wakeup`.

    SIGINT is left to the foreground process.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self.wakeup, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _on_term(self, _signal: int, _frame: object) -> None:
        self.is_requested = True


def beat_forever(beat: Callable[[], None], *, interval: float) -> None:
    """Call `beat` every `interval` seconds.

    A stopped process has no heartbeat; one whose agent is gone ends soon.
    """

    def go_on() -> None:
        stop = threading.Event()
        while not stop.wait(interval):
            try:
                beat()
            except EnvironmentFault:
                sleep(PATIENCE)  # the main thread may have something to leave, or hang
                os._exit(1)

    threading.Thread(target=go_on, name="brim-heartbeat", daemon=True).start()
