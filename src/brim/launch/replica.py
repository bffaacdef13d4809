"""A worker that keeps a replica of an online service.

It takes part in rounds as all workers do, but a round that ends does not end the replica's process:
others come, go and die beside it. A replica that is to leave says so, waits until no request is under
way, and ends then. A successor is started beside it, and takes over once it is ready.

```
 starting ──▶ ready ──▶ leaving ──▶ (gone)
    │ dies, or is not ready in time   ▲ told to leave, or its successor is ready
    ▼            │ dies, or is not healthy any more
 (gone, started again later) ◀────────┘
```
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from brim.coordination.job.participant import Incoming, RoundChanged
from brim.domain.services import CPU, HANGS_AFTER, Service
from brim.errors import EnvironmentFault, InternalError
from brim.host.clock import monotonic
from brim.host.gpus import VISIBLE
from brim.host.process import processor_seconds
from brim.launch.command import CommandProcess
from brim.launch.member import LOOK, CommandMember, not_started, run_member
from brim.telemetry.logs import last_line
from brim.train.context import WorkerContext
from brim.wire.listening import foreign_listener, joined_address, take_port
from brim.wire.messages import Idle, RenewReplica, ReplicaNews
from brim.wire.probe import Probe, connections_to

_CHECK_INTERVAL = 1.0  # seconds between two checks of a replica that is ready
_FIRST_CHECK = 0.05  # seconds from its start to the first one; the next ones come later and later
_MOST_FAILED_CHECKS = 3  # in a row, after which a replica is replaced
_TO_ANSWER = HANGS_AFTER / _MOST_FAILED_CHECKS  # seconds for each of them
_TO_BE_READY = 300.0  # seconds from the start of a replica
_STEADY = 10.0  # seconds for which one is ready that is no failed start
_LONGEST_DELAY = 30.0  # seconds before it is started again
_MOST_STARTS = 5  # failed ones in a row, where none was ever ready
_TO_BE_HEARD = 1.0  # seconds until the front sends nothing more to a replica that is leaving
_BUSY = 0.05  # seconds between looks at a replica that starts, or leaves
_BETWEEN_REPORTS = 2.0  # seconds between two measurements of its processors
_NEWS = 0.1  # of a measurement: a smaller change is none
_TO_DIE = 10.0  # seconds that the kernel has for the end of a process that was killed
_TO_END = 3.0  # seconds from SIGTERM to SIGKILL for what nobody needs any more


def run_replica(context: WorkerContext) -> int:
    """Do a worker's part in an online service; the exit status."""
    return run_member(context, _ReplicaKeeper)


class _Replica:
    """One process of the service, and its health.

    Args:
        id: of the replica, which no other has.
        port: where it answers.
        process: that was started for it.
    """

    def __init__(self, id: str, host: str, port: int, process: CommandProcess) -> None:
        self.id, self.host, self.port, self.process = id, host, port, process
        self.started = monotonic()
        self.ready_since: float | None = None
        self.left_at: float | None = None  # since when it is leaving
        self.is_asked_to_end = False
        self._probe: Probe | None = None
        self._pause = _FIRST_CHECK
        self._check_time = self.started + self._pause
        self._failed_checks = 0

    @property
    def address(self) -> str:
        return joined_address(self.host, self.port)

    @property
    def waker(self) -> int:
        """Return a descriptor that is readable once its check has an answer; -1: none is under way."""
        return self._probe.fileno() if self._probe is not None else -1

    def check(self, path: str) -> str:
        """Go on with the checks; returns why it has to be replaced, or nothing."""
        now = monotonic()
        if self._probe is None:
            if now < self._check_time:
                return ""
            self._probe = Probe(self.host, self.port, path, timeout=_TO_ANSWER)
        healthy = self._probe.look()
        if healthy is None:
            return ""
        self._probe.close()
        self._probe = None
        is_ready = self.ready_since is not None
        self._pause = _CHECK_INTERVAL if is_ready else min(_CHECK_INTERVAL, 1.5 * self._pause)
        self._check_time = now + self._pause
        if healthy:
            if not is_ready or self._failed_checks:  # else its own process has listened on
                stranger = foreign_listener(self.host, self.port)
                if stranger:
                    return f"{stranger} listens on its port {self.port}"
            self._failed_checks = 0
            self.ready_since = self.ready_since or now
        elif not is_ready:
            limit = f"it was not ready in {_TO_BE_READY:.0f} s"
            return limit if now - self.started > _TO_BE_READY else ""
        else:
            self._failed_checks += 1
            if self._failed_checks >= _MOST_FAILED_CHECKS:
                return f"it failed {_MOST_FAILED_CHECKS} checks in a row"
        return ""

    def close(self) -> None:
        """Check no more."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None


class _ReplicaKeeper(CommandMember):
    """Keeps a replica, from round to round."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        if context.spec.service is None:
            raise InternalError("a replica of no service")
        self._service: Service = context.spec.service
        self._count = 0  # of starts here
        self._current: _Replica | None = None
        self._successor: _Replica | None = None
        self._leaving: list[_Replica] = []
        self._failures = 0  # in a row
        self._was_ready = False
        self._start_time = 0.0  # before which no replica is started
        self._port = 0  # for the next one: of one that was ready
        self._renews = False
        self._measured = (0.0, 0.0)  # when its processors were read last, and the seconds
        self._cpu = 0.0

    def work(self) -> int:
        """Keep a replica until this worker is needed no more."""
        try:
            # A replica that makes room for this one goes on until this one is ready.
            while not self._was_ready:
                self._hear_for_a_while()
            self._greet()
            while True:
                try:
                    world = self._run(self._participant.next_round())
                    self._tell(Idle(round=world.round))  # no step comes to an end
                    while True:
                        self._hear_for_a_while()
                except RoundChanged:
                    continue
        except SystemExit:
            self._send_out()
            self._see_off()
            return 0

    def _hear_for_a_while(self) -> None:
        """Take the next message, if one comes; meanwhile, the replica is tended."""
        message = self._receive(LOOK)
        if message is not None:
            self._participant.take(message)
        self._send_out()

    def close(self) -> None:
        """End all that this worker has started."""
        for replica in self._replicas():
            replica.close()
            replica.process.ask_to_end(_TO_END)
        deadline = monotonic() + _TO_END + _TO_DIE
        while monotonic() < deadline and any(
            not replica.process.is_over for replica in self._replicas()
        ):
            for replica in self._replicas():
                replica.process.press()
            self._link.listen(_BUSY)
        for replica in self._replicas():
            replica.process.clear_away()

    def _replicas(self) -> Iterator[_Replica]:
        yield from filter(None, (self._current, self._successor))
        yield from self._leaving

    # Starting -------------------------------------------------------------------------------------

    def _start(self, wanted_port: int = 0) -> _Replica | None:
        """Start a process of the service; None where that is impossible."""
        self._count += 1
        host, id = self._context.host, f"{self._context.worker}-{self._count}"
        try:
            port = self._free_port(wanted_port)
        except (OSError, EnvironmentFault) as error:  # another replica of this worker may be well
            self._failed(id, str(error))
            return None
        environment = {**os.environ, "HOST": host, "PORT": str(port), "BRIM_REPLICA": id}
        if self._spec.device == "cpu":
            environment[VISIBLE] = ""
        elif self._gpu:
            environment[VISIBLE] = self._gpu
        environment.setdefault("OMP_NUM_THREADS", str(self._spec.threads))
        try:
            process = CommandProcess(self._spec.command, environment)
        except OSError as error:
            self._failures = max(self._failures, _MOST_STARTS - 1)  # no other start is better
            self._failed(id, str(not_started(self._spec.command[0], error)))
            return None
        return _Replica(id, host, port, process)

    def _free_port(self, wanted: int) -> int:
        """Return a port for a replica. Raises OSError or EnvironmentFault where none is free."""
        if wanted:
            with contextlib.suppress(OSError), take_port(self._context.host, wanted):
                return wanted
        with take_port(self._context.host) as listener:
            return int(listener.getsockname()[1])

    def _failed(self, id: str, reason: str) -> None:
        """Note that a replica has come to nothing, and start the next one later and later."""
        self._failures += 1
        wait = 0.0 if self._failures == 1 else min(_LONGEST_DELAY, 2.0 ** (self._failures - 2))
        self._start_time = monotonic() + wait
        is_hopeless = self._failures >= _MOST_STARTS and not self._was_ready
        state = "failed" if is_hopeless else "gone"
        self._tell(ReplicaNews(replica=id, state=state, reason=reason))

    # Tending --------------------------------------------------------------------------------------

    def _tend(self, *, starts: bool = True) -> None:
        """Take the next steps with all processes; none is waited for."""
        if self._current is None and starts and monotonic() >= self._start_time:
            self._current = self._start(self._port)
        if self._current is not None and self._tend_one(self._current):
            # A front that nobody tells of another address finds the next replica at this one, however
            # often it has died. At one where none was ever ready, another process may be in the way.
            self._port = self._current.port if self._current.ready_since is not None else 0
            self._current, self._successor = self._successor, None
        if self._renews:
            self._renew()
        self._measure()
        self._leaving = [replica for replica in self._leaving if not self._has_left(replica)]

    def _tend_one(self, replica: _Replica) -> bool:
        """Check a replica that serves, or is to; returns whether it is gone."""
        was_ready = replica.ready_since is not None
        reason = self._end_of(replica) or replica.check(self._service.health)
        if reason:
            self._clear_away(replica)
            self._failed(replica.id, reason)
            return True
        if replica.ready_since is None:
            return False
        if not was_ready:
            self._was_ready = True
            self._tell(ReplicaNews(replica=replica.id, state="ready", address=replica.address))
        if monotonic() - replica.ready_since > _STEADY and not self._renews:
            self._failures = 0
        return False

    def _end_of(self, replica: _Replica) -> str:
        """Say how its process has ended; empty where it has not."""
        status = replica.process.status
        if status is None:
            replica.process.bury_orphans(
                [other_replica.process.pid for other_replica in self._replicas()]
            )
            return ""
        ended = f"signal {-status}" if status < 0 else f"exit status {status}"
        if replica.ready_since is not None:
            return ended
        log = Path(self._context.run_dir) / "logs" / f"{self._context.worker}.log"
        words = last_line(log) if log.exists() else ""
        return f"{ended}: {words}" if words else ended

    def _clear_away(self, replica: _Replica) -> None:
        """Kill the rest of a replica, and, where it is the last, all that has left its group."""
        replica.close()
        if any(other_replica is not replica for other_replica in self._replicas()):
            replica.process.kill()
        else:
            replica.process.clear_away()

    def _is_steady(self, replica: _Replica | None) -> bool:
        return replica is not None and replica.ready_since is not None

    def _renew(self) -> None:
        """Have a successor take over from the current replica, once it is ready."""
        if self._current is None or self._current.ready_since is None:
            # It serves nobody, and the next one is a new one.
            if self._current is not None and self._successor is None:
                self._clear_away(self._current)
                self._tell(ReplicaNews(replica=self._current.id, state="gone"))
                self._current = None
            self._renews = self._successor is not None
            return
        if self._successor is None:
            if monotonic() < self._start_time:
                return
            self._successor = self._start()
            return
        if self._tend_one(self._successor):
            self._successor = None
        elif self._successor.ready_since is not None:
            assert self._current is not None, "it is steady"
            self._leave_with(self._current)
            self._current, self._successor = self._successor, None
            self._renews = False

    def _measure(self) -> None:
        """Tell how many processors the replica keeps busy, where its number follows from that."""
        replica, now = self._current, monotonic()
        if self._service.load != CPU or replica is None or replica.ready_since is None:
            return
        last_time, last_seconds = self._measured
        if now - last_time < _BETWEEN_REPORTS:
            return
        seconds = processor_seconds(replica.process.pid)
        self._measured = now, seconds
        cpu = max(0.0, seconds - last_seconds) / (now - last_time) if last_time else 0.0
        if abs(cpu - self._cpu) > _NEWS * max(self._cpu, 0.5):
            self._cpu = cpu
            news = ReplicaNews(
                replica=replica.id, state="ready", address=replica.address, cpu=round(cpu, 2)
            )
            self._tell(news)

    # Leaving --------------------------------------------------------------------------------------

    def _leave_with(self, replica: _Replica) -> None:
        """Have a replica leave: its front is told first, then requests end, then it does."""
        replica.close()
        replica.left_at = monotonic()
        self._leaving.append(replica)
        self._tell(ReplicaNews(replica=replica.id, state="leaving", address=replica.address))

    def _has_left(self, replica: _Replica) -> bool:
        """Take the next step of a replica that is leaving; returns whether it is gone."""
        assert replica.left_at is not None
        waited, process = monotonic() - replica.left_at, replica.process
        if process.status is not None and process.is_over:
            self._clear_away(replica)
            self._tell(ReplicaNews(replica=replica.id, state="gone", reason="it was to leave"))
            return True
        if replica.is_asked_to_end:
            process.press()
        elif waited >= self._spec.grace or (
            waited >= _TO_BE_HEARD and not connections_to(replica.port)
        ):
            replica.is_asked_to_end = True
            process.ask_to_end(self._spec.grace)
        return False

    def _see_off(self) -> None:
        """Have all replicas leave, and wait for them."""
        for replica in filter(None, (self._current, self._successor)):
            if replica.ready_since is None:
                self._clear_away(replica)
                self._tell(ReplicaNews(replica=replica.id, state="gone"))
            else:
                self._leave_with(replica)
        self._current = self._successor = None
        while self._leaving and not self._link.is_over:
            self._tend(starts=False)
            self._beat()
            self._link.listen(_BUSY)

    # Hearing --------------------------------------------------------------------------------------

    def _receive(self, timeout: float) -> Incoming | None:
        """Hear the next that comes, or None after so many seconds; meanwhile, tend the replica."""
        deadline = monotonic() + timeout
        while True:
            if request := self._leave_request():
                return request
            self._tend()
            self._send_out()
            remaining = max(0.0, deadline - monotonic())
            message = self._link.receive(min(remaining, self._pause), waker=self._waker)
            self._beat()
            if isinstance(message, RenewReplica):
                self._renews = True
                continue
            if message is not None or remaining <= 0:
                return message

    @property
    def _pause(self) -> float:
        is_steady = self._is_steady(self._current) and not self._leaving and not self._renews
        return LOOK if is_steady else _BUSY

    @property
    def _waker(self) -> int:
        return max((replica.waker for replica in self._replicas()), default=-1)
