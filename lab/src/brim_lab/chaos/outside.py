"""Performs faults from outside a job's processes, and undoes them in time."""

from __future__ import annotations

import heapq
import itertools
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from brim.domain.faults import Fault, FaultKind
from brim.errors import InternalError
from brim.host.process import AGENT, MASTER, children_of, name_of
from brim.interfaces import Clock
from brim.storage.contact import is_alive, read_contact
from brim.telemetry.history import RunHistory
from brim_lab.chaos.clocks import CLOCK, JumpingClock
from brim_lab.chaos.disk import SmallDisk
from brim_lab.chaos.hosts import Host
from brim_lab.driver import Driver, send

_TEMPLATE = "brim-template"  # what an agent's template is called
_BEFORE_RESTART = 0.5
_TO_COME_BACK = 5.0  # seconds that a process may take which another one's death has called for


class Guest:
    """The agent of another host than the run's, kept alive as a service manager would.

    It is started when there is a master, and again when it has ended.

    Args:
        host: its host.
        driver: of the trial.
        masters: the `HOST:PORT` of each host that may have the master.
        log: where what it says goes.

    Attributes:
        run_dir: of the run where its master is now, with the token.
        token: of the run; empty before it was started for the first time.
    """

    def __init__(self, host: Host, driver: Driver, masters: str, run_dir: Path, log: Path) -> None:
        self.host = host
        self._driver = driver
        self._masters = masters
        self.run_dir = run_dir
        self.log = log
        self.token = ""
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
        contact = read_contact(self.run_dir)
        if contact is None:
            return  # no master yet, or none any more
        self.token = contact.token
        # The clock that jumps is host 1's.
        variables = {"BRIM_TOKEN": contact.token, CLOCK: ""}
        with self.log.open("ab") as log:
            self._process = self._driver.with_prefix(self.host.prefix).start(
                "agent", self._masters, stdout=log, stderr=log, variables=variables
            )

    def ask_to_go(self) -> None:
        """SIGTERM: it ends once its workers have left."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def kill_host(self) -> None:
        """Kill -9 all processes of its host, which boots again."""
        self.host.kill()
        self.kill()
        self.host.start()


class OutsideFaults:
    """The faults that can strike a trial from outside its job.

    Attributes:
        command: `brim train`, in the present life of the run.
        disk: set where there is one.
        run_dir: of the run in its present life.
        hosts: set where there are several.
        lead: the number of the one that has the command, and the master.
        guests: the agents of the others, by the number of their host.
    """

    def __init__(self, run_dir: Path, driver: Driver, jumping: JumpingClock, clock: Clock) -> None:
        self.run_dir = run_dir
        self._driver = driver
        self._jumping = jumping
        self._clock = clock
        self._numbers = itertools.count()
        self._scheduled: list[tuple[float, int, Callable[[], None]]] = []
        self.command: subprocess.Popen[str] | None = None
        self.disk: SmallDisk | None = None
        self.hosts: Sequence[Host] = ()
        self.lead = 1
        self.guests: dict[int, Guest] = {}

    def poll(self) -> None:
        """Undo due faults, and keep the agents of the other hosts alive."""
        while self._scheduled and self._scheduled[0][0] <= self._clock.now():
            heapq.heappop(self._scheduled)[2]()
        for guest in self.guests.values():
            guest.poll(self._clock.now())

    def wait_for_undone(self, deadline: float) -> None:
        """Wait until everything that has an end is over, or until the deadline."""
        while self._scheduled and self._clock.now() < deadline:
            self.poll()
            time.sleep(0.01)

    def is_alive(self) -> bool:
        """Return whether a master or the agent of host 1 is alive; both may outlive the command."""
        names = (AGENT, MASTER) if self.lead == 1 else (MASTER,)
        return any(
            name_of(pid) in names and (not self.hosts or self._leading.contains(pid))
            for pid in self._driver.mark.alive()
        )

    @property
    def _leading(self) -> Host:
        return self.hosts[self.lead - 1]

    def perform(self, fault: Fault, history: RunHistory) -> None:
        """Strike.

        Args:
            history: of the run so far, which has the process of each rank.
        """
        match fault.kind:
            case FaultKind.KILL_MASTER:
                send(self._master(), signal.SIGKILL)
            case FaultKind.STOP_MASTER:
                self._stop(self._master(), fault.seconds)
            case FaultKind.STOP_AGENT:
                self._stop(self._child(self._command, AGENT), fault.seconds)
            case FaultKind.KILL_EVERYTHING:
                self._driver.end()
            case FaultKind.KILL_AGENT if fault.host == 1:
                send(self._child(self._command, AGENT), signal.SIGKILL)
            case FaultKind.KILL_AGENT if fault.host in self.guests:
                self.guests[fault.host].kill()
            case FaultKind.TERM_AGENT if fault.host in self.guests:
                self.guests[fault.host].ask_to_go()
            case FaultKind.KILL_HOST if fault.host in self.guests:
                self.guests[fault.host].kill_host()
            case FaultKind.KILL_HOST if self.hosts:
                self.hosts[fault.host - 1].kill()
                self.hosts[fault.host - 1].start()
            case FaultKind.KILL_TEMPLATE:
                agent = self._child(self._command, AGENT)
                send(self._child(agent, _TEMPLATE), signal.SIGKILL)
            case FaultKind.KILL_COMMAND:
                send(self._command, signal.SIGKILL)
            case FaultKind.INTERRUPT:
                send(self._command, signal.SIGINT)
            case FaultKind.SLOW:
                self._hold(self._process_of(history, fault.rank), fault, self._clock.now())
            case FaultKind.JUMP_CLOCK:
                self._jumping.jump(fault.by)
            case FaultKind.FILL_DISK if self.disk is not None:
                self.disk.fill()
                self._schedule(fault.seconds, self.disk.free)
            case FaultKind.CUT | FaultKind.CUT_FROM | FaultKind.CUT_TO if self.hosts:
                cable = self.hosts[fault.host - 1].cable
                cable.cut(
                    to_host=fault.kind is not FaultKind.CUT_FROM,
                    from_host=fault.kind is not FaultKind.CUT_TO,
                )
                self._schedule(fault.seconds, cable.mend)
            case FaultKind.DELAY if self.hosts:
                cable = self.hosts[fault.host - 1].cable
                cable.delay(fault.by)
                self._schedule(fault.seconds, cable.mend)
            case _:
                raise InternalError(f"{fault.kind} is not performed from outside, or not here")

    def _stop(self, pid: int, seconds: float) -> None:
        send(pid, signal.SIGSTOP)
        self._schedule(seconds, lambda: send(pid, signal.SIGCONT))

    def _schedule(self, seconds: float, undo: Callable[[], None]) -> None:
        heapq.heappush(self._scheduled, (self._clock.now() + seconds, next(self._numbers), undo))

    def _hold(self, pid: int, fault: Fault, stopped_at: float) -> None:
        """Stop a worker; soon it goes on, and is stopped again until the fault is over."""
        if self._clock.now() >= stopped_at + fault.seconds:
            return
        send(pid, signal.SIGSTOP)
        self._schedule(fault.by, lambda: send(pid, signal.SIGCONT))
        self._schedule(2 * fault.by, lambda: self._hold(pid, fault, stopped_at))

    @property
    def _command(self) -> int:
        """The command's process id; 0 where it has ended."""
        if self.command is None or self.command.poll() is not None:
            return 0
        if not self.hosts:
            return self.command.pid
        return next(iter(children_of(self.command.pid)), 0)  # behind the host's entrance

    def _child(self, parent: int, name: str) -> int:
        """Return the process id of a child by its name; 0 where none comes, or there is no parent.

        Where the child was killed a moment ago, its successor is waited for.
        """
        deadline = self._clock.now() + _TO_COME_BACK
        while parent and self._clock.now() < deadline:
            for pid in children_of(parent):
                if name_of(pid) == name and is_alive(pid):
                    return pid
            time.sleep(0.01)
        return 0

    def _master(self) -> int:
        """Return the master's process id; 0 where none comes.

        Where the master was killed a moment ago, its successor is waited for.
        """
        deadline = self._clock.now() + _TO_COME_BACK
        while self._clock.now() < deadline:
            contact = read_contact(self.run_dir)
            pid = contact.pid if contact is not None else 0
            if pid and self.hosts:
                pid = self._leading.outer_pid(pid)
            if pid and is_alive(pid):
                return pid
            time.sleep(0.01)
        return 0

    def _process_of(self, history: RunHistory, rank: int) -> int:
        """The process of a rank of the present round; 0 where there is none."""
        members = history.round.workers if history.round is not None else ()
        life = history.workers.get(members[rank]) if rank < len(members) else None
        if life is None or life.until is not None or not life.pid:
            return 0
        if not self.hosts:
            return life.pid
        names = {name_of(pid): pid for pid in self._driver.mark.alive()}
        return names.get(f"brim-{members[rank]}", 0)
