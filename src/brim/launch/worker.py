"""A worker that keeps a process of any command in place of a model.

It takes part in rounds as all workers do, by the same protocol, and has no state to give: that is in
the command's own checkpoints. Whatever ends a round ends the command's processes, all at once, and
the next round starts them again.
"""

from __future__ import annotations

import contextlib
import os
import signal
from operator import attrgetter
from pathlib import Path
from typing import NoReturn

import msgspec

from brim.coordination.job.attempts import EXIT_STATUS
from brim.coordination.job.launches import (
    mark_of_start,
    seat_of,
    variables_of,
    words_of_surplus,
)
from brim.coordination.job.membership import World
from brim.coordination.job.participant import Incoming, RoundChanged
from brim.domain.job import PER_NODE
from brim.domain.reported import Report
from brim.errors import SpecError
from brim.host.clock import monotonic
from brim.host.gpus import VISIBLE
from brim.launch.command import CommandProcess
from brim.launch.member import LOOK, CommandMember, not_started, run_member
from brim.launch.progress import PrintedProgress, ProgressServer
from brim.launch.terminal import Terminal
from brim.storage.saved_files import SavedFiles, saved_directory
from brim.train.context import WorkerContext
from brim.user_code.command_code import keeps_on_each_host
from brim.wire.listening import joined_address, split_address, take_port
from brim.wire.messages import CommandProgress, Completed, Idle, InstallRound, JobFailed, Warn
from brim.wire.terminals import call_for_program

_BETWEEN_REPORTS = 1.0  # seconds between two words on a command's progress
# seconds that processes have to end by themselves where another one has died: they wait for it
_AFTER_DEATH = 3.0
_TO_ATTEND = 60.0  # seconds that an interactive job has its device without a person at its terminal


class _Place(msgspec.Struct, array_like=True, frozen=True):
    """The free port of a worker's process, and the worker's own GPU; empty where there is no choice."""

    port: int
    gpu: str


def run_command(context: WorkerContext) -> int:
    """Do a worker's part in a job that starts a command again at each change; the exit status."""
    return run_member(context, _Keeper)


class _Keeper(CommandMember):
    """Keeps one process of the command, from round to round."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._process: CommandProcess | None = None
        self._terminal: Terminal | None = None
        self._saved = SavedFiles(saved_directory(context.spec, context.run_dir))
        self._reports: ProgressServer | None = None  # where this worker is the first of a round
        self._printed: PrintedProgress | None = None
        self._total = 0
        self._start_time = 0.0  # when the command's process was started last
        self._grace = _AFTER_DEATH

    def work(self) -> int:
        """Take part in rounds until the job is done, or this worker is needed no more."""
        self._greet()
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
        if self._terminal is not None:
            self._terminal.close()
        if self._reports is not None:
            self._reports.close()

    def end_command(self, grace: float = _AFTER_DEATH) -> None:
        """End the command's process, if there is one, and all that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        process.ask_to_end(grace, terminal=self._terminal)
        while not process.is_over:
            process.press()
            self._beat()
            self._link.listen(LOOK / 5)
            if self._terminal is not None:
                self._terminal.turn()
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
        self._tell(Idle(round=world.round))  # no step comes to an end: the round may, at any moment
        if self._spec.tty:
            self._terminal = self._attended_terminal()
        self._start(world, [msgspec.json.decode(payload, type=_Place) for payload in payloads])
        status = self._wait_for_end(world)
        if self._terminal is not None:
            self._end_terminal(self._terminal, status)
        elif status:
            self._fail(status)
        self._arrive("end")
        if self._participant.rank == 0:
            self._tell(Completed(weights_sha256=""))
        self._run(self._participant.await_dismissal())
        return 0

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
        if world.round > 1 and not self._spec.tty:
            print(mark_of_start(world.round), flush=True)  # noqa: T201 this is the command's log
        program_end = self._terminal.open() if self._terminal is not None else None
        try:
            self._process = CommandProcess(self._spec.command, environment, terminal=program_end)
        except OSError as error:
            self._refuse(not_started(self._spec.command[0], error))
        finally:
            if program_end is not None:
                os.close(program_end)

    def _attended_terminal(self) -> Terminal:
        """Call the person of an interactive job, and wait until there is one.

        Raises:
            RoundChanged: another round comes.
        """
        deadline = monotonic() + _TO_ATTEND
        try:
            line = call_for_program(
                Path(self._context.run_dir), self._context.secret, address=self._spec.terminal_at
            )
        except OSError as error:
            self._refuse(_no_person(f"a line that cannot be had ({error})"))
        self._terminal = Terminal(line)
        while not self._terminal.is_attended:
            if self._terminal.is_closed:
                self._refuse(_no_person(_HUNG_UP))
            if monotonic() >= deadline:
                self._refuse(_no_person(f"nobody there for {_TO_ATTEND:.0f} s"))
            message = self._receive(LOOK)
            if message is not None:
                self._participant.take(message)
            self._send_out()
        return self._terminal

    def _end_terminal(self, terminal: Terminal, status: int) -> None:
        """Tell the person how the program ended; there is no other start."""
        if terminal.is_closed:
            self._refuse(_no_person(_HUNG_UP))
        terminal.finish(status)
        if status:
            end = f"{EXIT_STATUS} {status}" if status > 0 else signal.Signals(-status).name
            failure = f"{self._spec.command[0]} ended with {end}"
            self._tell(JobFailed(who="user", message=failure))
            raise SystemExit(1)

    def _wait_for_end(self, world: World) -> int:
        """Return the exit status of the command's process; 0 where this worker has none."""
        look_time = self._start_time = monotonic()
        while self._process is not None and self._process.status is None:
            if self._terminal is not None and self._terminal.is_closed:
                self.end_command(self._spec.grace)
                return 0
            message = self._receive(LOOK)
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

    def _arrive(self, phase: str, payload: bytes = b"") -> list[bytes]:
        return self._run(self._participant.arrive(0, phase, payload)).payloads

    def _receive(self, timeout: float) -> Incoming | None:
        """Hear the next that comes, or None after so many seconds, or where a process has ended."""
        deadline = monotonic() + timeout
        while True:
            if request := self._leave_request():
                return request
            remaining = max(0.0, deadline - monotonic())
            terminal = self._terminal
            waker = terminal.descriptor if terminal is not None else -1
            message = self._link.receive(min(remaining, LOOK), waker=waker)
            if terminal is not None:
                terminal.turn()
                if terminal.is_closed and message is None:
                    return None
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


_HUNG_UP = "a terminal that has ended: its person has left, or its program was to move"


def _no_person(actual: str) -> SpecError:
    return SpecError(
        "--tty",
        got=actual,
        need="the command that submitted the job, until the job ends",
        hint="submit it again",
    )


def _own_disk(directory: Path) -> SpecError:
    """Return the error of a host whose processes would begin at other steps than those of others."""
    return SpecError(
        "--checkpoints",
        got=f"{str(directory)!r}, which the hosts of this run do not share",
        need="a directory on a disk that all of them share: the command goes on from there",
        hint="--checkpoints DIR, or workers on one host",
    )
