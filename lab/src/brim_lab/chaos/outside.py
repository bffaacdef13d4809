"""Performs what no process of a job could do to itself, and undoes it when its time is over."""

from __future__ import annotations

import heapq
import itertools
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from brim.domain.faults import Fault, FaultKind
from brim.errors import InternalError
from brim.interfaces import Clock
from brim.storage.contact import is_alive, read_contact
from brim_lab.chaos.clocks import JumpingClock
from brim_lab.chaos.disk import SmallDisk
from brim_lab.chaos.hosts import Cable
from brim_lab.driver import Driver, send

SECOND_LOG = "agent-2.log"
_BEFORE_RESTART = 0.5
_TO_COME_BACK = 5.0  # seconds that a master may take which another one's death has called for


class SecondAgent:
    """The agent of host 2, kept alive as a service manager would: started when there is a master,
    and again.

    Args:
        driver: on that host.
        master: its `HOST:PORT`.
        run_dir: of the run on host 1, where the token is.
        directory: where its log goes.
    """

    def __init__(self, driver: Driver, master: str, run_dir: Path, directory: Path) -> None:
        self._driver = driver
        self._master = master
        self._run_dir = run_dir
        self._log = directory / SECOND_LOG
        self._process: subprocess.Popen[str] | None = None
        self._not_before = 0.0

    def poll(self, now: float) -> None:
        """Start it where it should be running and is not."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._process, self._not_before = None, now + _BEFORE_RESTART
        if now < self._not_before:
            return
        contact = read_contact(self._run_dir)
        if contact is None:
            return  # no master yet, or none any more
        token = {"BRIM_TOKEN": contact.token}
        with self._log.open("ab") as log:
            self._process = self._driver.start(
                "agent", self._master, stdout=log, stderr=log, variables=token
            )

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Outside:
    """What a trial can be struck with from outside; `cable`, `disk` and `second` are set where
    there is one.
    """

    def __init__(self, run_dir: Path, driver: Driver, jumping: JumpingClock, clock: Clock) -> None:
        self._run_dir = run_dir
        self._driver = driver
        self._jumping = jumping
        self._clock = clock
        self._numbers = itertools.count()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self.cable: Cable | None = None
        self.disk: SmallDisk | None = None
        self.second: SecondAgent | None = None

    def poll(self) -> None:
        """Undo what is due, and keep the second host's agent alive."""
        while self._later and self._later[0][0] <= self._clock.now():
            heapq.heappop(self._later)[2]()
        if self.second is not None:
            self.second.poll(self._clock.now())

    def wait_for_undone(self, deadline: float) -> None:
        """Until all that has an end is over, or the deadline."""
        while self._later and self._clock.now() < deadline:
            self.poll()
            time.sleep(0.01)

    def perform(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.KILL_MASTER:
                send(self._master(), signal.SIGKILL)
            case FaultKind.STOP_MASTER:
                master = self._master()
                send(master, signal.SIGSTOP)
                self._after(fault.seconds, lambda: send(master, signal.SIGCONT))
            case FaultKind.KILL_EVERYTHING:
                self._driver.end()
            case FaultKind.KILL_AGENT if self.second is not None:
                self.second.kill()
            case FaultKind.JUMP_CLOCK:
                self._jumping.jump(fault.by)
            case FaultKind.FILL_DISK if self.disk is not None:
                self.disk.fill()
                self._after(fault.seconds, self.disk.free)
            case FaultKind.CUT | FaultKind.CUT_FROM | FaultKind.CUT_TO if self.cable is not None:
                self.cable.cut(
                    to_second=fault.kind is not FaultKind.CUT_FROM,
                    from_second=fault.kind is not FaultKind.CUT_TO,
                )
                self._after(fault.seconds, self.cable.mend)
            case FaultKind.DELAY if self.cable is not None:
                self.cable.delay(fault.by)
                self._after(fault.seconds, self.cable.mend)
            case _:
                raise InternalError(f"{fault.kind} is not performed from outside, or not here")

    def _after(self, seconds: float, undo: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self._clock.now() + seconds, next(self._numbers), undo))

    def _master(self) -> int:
        """Its process id, also where the one before was killed a moment ago; 0 where none comes."""
        deadline = self._clock.now() + _TO_COME_BACK
        while self._clock.now() < deadline:
            contact = read_contact(self._run_dir)
            if contact is not None and is_alive(contact.pid):
                return contact.pid
            time.sleep(0.01)
        return 0
