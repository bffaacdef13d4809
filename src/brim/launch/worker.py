"""A worker that keeps a process of any command in place of a model.

It takes part in rounds as all workers do, by the same protocol, and has no state to give: that is in
the command's own checkpoints. Whatever ends a round ends the command's processes, all at once, and
the next round starts them again.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import signal
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from brim.coordination.job.launches import seat_of, variables_of, words_of_surplus
from brim.coordination.job.membership import World
from brim.coordination.job.participant import (
    AskedToLeave,
    AwaitNews,
    BeHeir,
    CatchUp,
    EnterRound,
    FetchState,
    Flow,
    GiveState,
    Incoming,
    LeaveState,
    Look,
    Need,
    Participant,
    Pin,
    Receive,
    RestoreState,
    RoundChanged,
    Wake,
    WriteState,
)
from brim.domain.job import PER_NODE, JobSpec
from brim.domain.reported import Report
from brim.errors import EnvironmentFault, InternalError, SpecError
from brim.host.clock import monotonic
from brim.host.gpus import VISIBLE, take_gpu, visible_gpus
from brim.host.process import adopt_orphans
from brim.launch.command import CommandProcess
from brim.launch.progress import PrintedProgress, ProgressServer
from brim.storage.saved_files import SavedFiles, saved_directory
from brim.train.context import WorkerContext
from brim.train.signals import LeaveRequest
from brim.user_code.command_code import keeps_on_each_host
from brim.wire.link import WorkerLink
from brim.wire.listening import joined_address, split_address, take_port
from brim.wire.messages import (
    Beat,
    CommandProgress,
    Completed,
    Facts,
    Hello,
    Idle,
    InstallRound,
    Warn,
    WorkerMessage,
    failure_of,
)

T = TypeVar("T")

_LOOK = 0.5  # seconds between looks at what no message and no signal tells
_BETWEEN_REPORTS = 1.0  # seconds between two words on a command's progress
# seconds that processes have to end by themselves where another one has died: they wait for it
_AFTER_DEATH = 3.0


class _Place(msgspec.Struct, array_like=True, frozen=True):
    """The free port of a worker's process, and the worker's own GPU; empty where there is no choice."""

    port: int
    gpu: str


def run_command(context: WorkerContext) -> int:
    """Do a worker's part in a job that starts a command again at each change; the exit status."""
    signal.signal(signal.SIGCHLD, lambda *_: None)  # so that its end wakes this process up
    adopt_orphans()  # what the command leaves behind ends with it
    keeper = _Keeper(context)
    try:
        return keeper.work()
    except EnvironmentFault as fault:
        print(f"brim: {fault}", file=sys.stderr)  # noqa: T201 - this is the worker's log
        return 1
    except OSError as error:  # of the directory for checkpoints: full, or not for this account
        print(f"brim: cannot prepare the next start: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except SystemExit as leaving:
        return int(leaving.code or 0)
    finally:
        keeper.close()


class _Keeper:
    """Keeps one process of the command, from round to round."""

    def __init__(self, context: WorkerContext) -> None:
        self._context, self._spec = context, context.spec
        self._leave = LeaveRequest()
        self._link = WorkerLink(context.link, self._leave.wakeup)
        self._participant = Participant(context.worker)
        self._process: CommandProcess | None = None
        self._gpu = self._own_gpu()
        self._saved = SavedFiles(saved_directory(context.spec, context.run_dir))
        self._reports: ProgressServer | None = None  # where this worker is the first of a round
        self._printed: PrintedProgress | None = None
        self._total = 0
        self._start_time = 0.0  # when the command's process was started last
        self._grace = _AFTER_DEATH
        self._beaten = 0.0
        self._beats = 0

    def work(self) -> int:
        """Take part in rounds until the job is done, or this worker is needed no more."""
        self._tell(
            Hello(
                address=joined_address(self._context.host, 0), layout="", facts=_facts(self._spec)
            )
        )
        while True:
            world = self._run(self._participant.next_round())
            try:
                return self._take_part(world)
            except RoundChanged:
                self.end_command(self._grace)
                if world.members[0].worker == self._context.worker:
                    self._tell_of_progress(world)  # the next round must not take it for its own

    def close(self) -> None:
        """End all that this worker has started."""
        self.end_command()
        if self._reports is not None:
            self._reports.close()

    def end_command(self, grace: float = _AFTER_DEATH) -> None:
        """End the command's process, if there is one, and all that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        process.ask_to_end(grace)
        while not process.is_over:
            process.press()
            self._beat()
            self._link.listen(_LOOK / 5)
        process.clear_away(self._helpers)

    @property
    def _helpers(self) -> list[int]:
        """Children of this process that are not the command's."""
        return [self._reports.pid] if self._reports is not None else []

    # In a round -----------------------------------------------------------------------------------

    def _take_part(self, world: World) -> int:
        """Start the command with the others, and see it to its end.

        Raises:
            RoundChanged: another round comes.
        """
        if self._participant.rank == 0:
            self._begin_to_report()
            self._saved.mark(world.round)
        with take_port(
            self._context.host
        ) as listener:  # closed once all are known: theirs from then
            place = _Place(listener.getsockname()[1], self._gpu)
            payloads = self._arrive("begin", msgspec.json.encode(place))
        shares_disk = len(world.hosts) == 1 or self._saved.is_marked(world.round)
        if not shares_disk and not keeps_on_each_host(self._spec.command):
            self._refuse(_own_disk(self._saved.directory))
        self._start(world, [msgspec.json.decode(payload, type=_Place) for payload in payloads])
        self._tell(Idle(round=world.round))  # no step comes to an end: the round may, at any moment
        status = self._wait_for_end(world)
        if status:
            self._fail(status)
        self._arrive("end")
        if self._participant.rank == 0:
            self._tell(Completed(weights_sha256=""))
        self._run(self._participant.await_dismissal())
        return 0

    def _own_gpu(self) -> str:
        """Take one of several GPUs of this host for this worker; empty where there is no choice."""
        gpus = visible_gpus(os.environ) if self._spec.device != "cpu" else []
        return take_gpu(self._context.place, gpus) if len(gpus) > 1 else ""

    def _start(self, world: World, places: list[_Place]) -> None:
        seat = seat_of(world, self._context.worker, self._spec.workers.maximum)
        if seat is None:
            self._tell(Warn(message=words_of_surplus(world.world_size, self._spec.workers.maximum)))
            return
        if self._spec.per == PER_NODE and seat.local_rank:
            return  # the first worker of this host starts the command, and that the processes
        hosts = [split_address(member.address)[0] for member in world.members[: seat.size]]
        environment = os.environ | variables_of(
            seat,
            [joined_address(host, place.port) for host, place in zip(hosts, places, strict=False)],
            host=hosts[0],
            port=places[0].port,
            start=world.round - 1,
            maximum=self._spec.workers.maximum,
            run=Path(self._context.run_dir).name,
        )
        if self._spec.device == "cpu":
            environment[VISIBLE] = ""
        elif self._gpu:  # all of the command's processes here see the same ones, by local rank
            agent = world.members[seat.rank].agent
            here = [n for n in range(seat.size) if world.members[n].agent == agent]
            environment[VISIBLE] = ",".join(dict.fromkeys(places[n].gpu for n in here))
        environment["BRIM_CHECKPOINTS"] = str(self._saved.directory)
        if seat.rank == 0 and self._reports is not None:
            environment |= self._reports.variables(world.round)
        environment.setdefault("OMP_NUM_THREADS", str(self._spec.threads))
        try:
            self._process = CommandProcess(self._spec.command, environment)
        except OSError as error:
            self._refuse(_not_started(self._spec.command[0], error))

    def _wait_for_end(self, world: World) -> int:
        """Return the exit status of the command's process; 0 where this worker has none."""
        look_time = self._start_time = monotonic()
        while self._process is not None and self._process.status is None:
            message = self._receive(_LOOK)
            if message is not None:
                self._participant.take(message)
            self._send_out()
            if monotonic() - look_time > _BETWEEN_REPORTS:
                look_time = monotonic()
                self._process.bury_orphans(self._helpers)
                if self._participant.rank == 0:
                    self._tell_of_progress(world)
        if self._participant.rank == 0:
            self._tell_of_progress(world)
        if self._process is None:
            return 0
        status, process = self._process.status or 0, self._process
        self._process = None
        process.clear_away(self._helpers)
        return status

    def _begin_to_report(self) -> None:
        for name in self._saved.put_aside():
            self._tell(
                Warn(message=f"{name} was not finished and is put aside: {self._saved.aside}")
            )
        if self._reports is None:
            self._reports = ProgressServer()
        if self._spec.progress and self._printed is None:
            log = Path(self._context.run_dir) / "logs" / f"{self._context.worker}.log"
            self._printed = PrintedProgress(log, self._spec.progress)

    def _tell_of_progress(self, world: World) -> None:
        """Tell the last that the command reported, and whether it has saved a checkpoint."""
        reports = [*(self._reports.fresh(world.round) if self._reports else [])]
        reports += self._printed.fresh() if self._printed else []
        saved = self._saved.has_grown()
        if not (reports or saved):
            return
        newest = max(reports, key=attrgetter("step"), default=Report())
        self._total = max((report.total for report in reports), default=0) or self._total
        values = {name: value for report in reports for name, value in report.values.items()}
        self._tell(
            CommandProgress(
                round=world.round,
                step=newest.step,
                total=self._total,
                values=values,
                saved=saved,
                seconds=monotonic() - self._start_time,
            )
        )

    def _fail(self, status: int) -> NoReturn:
        """End as the command's process has ended, so that others see it, and start all again."""
        if status < 0:
            with contextlib.suppress(OSError):  # of SIGKILL nobody can have another idea
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        raise SystemExit(abs(status))

    def _refuse(self, wrong: SpecError) -> NoReturn:
        """End the job: another start would not help."""
        self._tell(failure_of(wrong))
        raise SystemExit(1)

    def _arrive(self, phase: str, payload: bytes = b"") -> list[bytes]:
        return self._run(self._participant.arrive(0, phase, payload)).payloads

    # The protocol ---------------------------------------------------------------------------------

    def _tell(self, message: WorkerMessage) -> None:
        self._participant.say(message)
        self._send_out()

    def _send_out(self) -> None:
        for message in self._participant.outgoing():
            with contextlib.suppress(EnvironmentFault):  # the next look at the link finds out
                self._link.send(message)

    def _run(self, flow: Flow[T]) -> T:
        """Run a flow of the protocol to its end."""
        answer: Any = None
        while True:
            try:
                need = flow.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._send_out()
            answer = self._meet(need)

    def _meet(self, need: Need) -> object:
        """Meet a need of the protocol: there is no state but the command's own."""
        match need:
            case Receive(limit):
                return self._receive(math.inf if limit is None else limit)
            case RestoreState():
                return "", 0
            case FetchState() | CatchUp():
                return 0
            case EnterRound(world):
                return world
            case BeHeir():
                return False
            case GiveState() | WriteState() | LeaveState():
                return None
            case Pin() | Look() | AwaitNews() | Wake():
                raise InternalError(f"{need} of a worker that meets the others at its agent")

    def _receive(self, timeout: float) -> Incoming | None:
        """Hear the next that comes, or None after so many seconds, or where a process has ended."""
        deadline = monotonic() + timeout
        while True:
            if self._leave.is_requested:
                self._leave.is_requested = False
                return AskedToLeave()
            remaining = max(0.0, deadline - monotonic())
            message = self._link.receive(min(remaining, _LOOK))
            if isinstance(message, InstallRound):
                # Where somebody joins, leaves or ends the job, there is time for a checkpoint. Where
                # a process has died, the others wait for it and can write none.
                self._grace = self._spec.grace if self._are_all_in(message) else _AFTER_DEATH
            elif message is not None:
                self._grace = self._spec.grace
            self._beat()
            has_ended = self._process is not None and self._process.status is not None
            if message is not None or remaining <= 0 or has_ended:
                return message

    def _are_all_in(self, named: InstallRound) -> bool:
        """Return whether all members of the present round live and are in the one that is named."""
        if self._participant.world is None:
            return True
        members = {member.worker for member in named.world.members}
        return named.still and all(
            member.worker in members for member in self._participant.world.members
        )

    def _beat(self) -> None:
        """Send a sign of life, and that this worker waits on purpose."""
        now = monotonic()
        if now - self._beaten > self._spec.heartbeat_timeout / 4:
            self._beaten, self._beats = now, self._beats + 1
            with contextlib.suppress(EnvironmentFault):
                self._link.send(Beat(moves=self._beats))


def _facts(spec: JobSpec) -> Facts:
    """Return the facts of a command: none of its data, its steps or its model."""
    return Facts(
        samples=0,
        steps=0,
        steps_per_epoch=0,
        global_batch_size=0,
        epochs=0,
        seed=spec.seed,
        clip_norm=None,
        on_nan=spec.on_nan,
        parameters=0,
        versions={"python": platform.python_version()},
        start_method="exec",
        transport="none",
    )


def _not_started(program: str, error: OSError) -> SpecError:
    return SpecError(
        "COMMAND",
        got=f"{program!r}, which cannot be started ({error.strerror})",
        need="a program that each host has",
        hint="is it installed, and executable?",
    )


def _own_disk(directory: Path) -> SpecError:
    """Return the error of a host whose processes would begin at other steps than those of others."""
    return SpecError(
        "--checkpoints",
        got=f"{str(directory)!r}, which the hosts of this run do not share",
        need="a directory on a disk that all of them share: the command goes on from there",
        hint="--checkpoints DIR, or workers on one host",
    )
