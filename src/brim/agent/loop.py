"""The agent: performs the master's decisions for one node, and is the hub of its workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import msgspec

from brim.agent.conversation import Conversation, Displaced
from brim.agent.memory import Memory, check_limit
from brim.agent.prints import PrintForwarder
from brim.agent.templates import Template, start_template
from brim.agent.workers import Callbacks, Workers, signal_words
from brim.coordination.job.hub import (
    Count,
    Expect,
    Flush,
    Hub,
    HubCommand,
    Open,
    Stands,
    Write,
)
from brim.coordination.job.liveness import Liveness
from brim.coordination.job.turns import Turns
from brim.coordination.job.waits import Doing, Hung, Overdue, Waits
from brim.domain.host_kind import differences, unlike
from brim.domain.job import LOG_LIMIT, JobSpec
from brim.errors import EnvironmentFault, InternalError, ProtocolError, SpecError
from brim.host.own_kind import kind_of_this_host
from brim.host.process import Orphans
from brim.host.stacks import Stack
from brim.interfaces import Clock
from brim.storage.bundles import read_bundle
from brim.storage.file_stores import is_url, location_of
from brim.storage.job_file import change_of_source, read_job, write_bundle, write_job
from brim.storage.saved_files import saved_directory
from brim.telemetry.log_limit import LogLimit
from brim.wire.messages import (
    AgentMessage,
    Arrive,
    ArriveTogether,
    AskToStop,
    Beat,
    CommitRecord,
    Commits,
    Completed,
    Configure,
    Decline,
    Depart,
    Dismissed,
    EndRun,
    FromWorker,
    Hang,
    Hello,
    HoldRound,
    Installed,
    InstallRound,
    JobFailed,
    LoseWorker,
    MasterMessage,
    NowWritten,
    OnTime,
    Refused,
    ReleaseTogether,
    SendCopy,
    ShowStacks,
    SignalWorker,
    Silence,
    StartWorkers,
    ToWorker,
    Warn,
    WorkerMessage,
    WorkerStarted,
    WriteNow,
    failure_of,
    words_of,
)
from brim.wire.messages import Late as LateWorker
from brim.wire.proofs import workers_secret
from brim.wire.run_files import RunFiles, place_at

_TICK = 0.1
_FLUSH = 0.1  # seconds that commits may wait for company on their way to the master
_BEAT = 1.0
_LOOK_AT_MEMORY = 1.0
_TEMPLATE = ""  # its name among those that are waited for
# seconds that a start may take, however soon a step is given up: reading data may take long
_TO_START = 300.0
_PREPARING = Doing(
    kind="template", words="running the file and reading its data", at_least=_TO_START
)
_STARTING = Doing(kind="start", words="starting", at_least=_TO_START)
_STARTS = (_PREPARING.kind, _STARTING.kind)


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that an agent needs before it knows its job.

    Args:
        name: unique in the job; agents are ranked by the order in which they join.
        host: an address of this host that the workers of other hosts can reach.
        run_dir: where logs go, and the file of the job.
        guest: it came to a run of another host, which goes on without it where this host cannot
            take part.
        room: workers that it takes at most; None: as many as are wanted.
        master: `HOST:PORT` of a master on another host, or several with commas between them; empty
            where it is on this one.
        machine: see `brim.coordination.job.messages.agents.JoinJob`.
    """

    name: str
    host: str
    run_dir: Path
    guest: bool = False
    room: int | None = None
    master: str = ""
    machine: str = ""


class Agent:
    """One agent from the first message of its master to the last.

    Args:
        settings: what it was started with.
        master: its conversation with the master.
        clock: for heartbeats and for the time of commits.
        template: of its workers; a guest's was started early, since the file of the job is not
            there yet. None: it starts one.
    """

    def __init__(
        self,
        settings: AgentSettings,
        master: Conversation,
        clock: Clock,
        template: Template | None = None,
    ) -> None:
        self._settings, self._master, self._clock = settings, master, clock
        self._template = template
        self._hub = Hub(settings.name)
        self._commits: list[CommitRecord] = []
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flush_after = _FLUSH
        self._workers: Workers | None = None
        self._liveness = Liveness(timeout=0.0)
        self._waits = Waits(limit=None)
        self._moves: dict[str, int] = {}
        self._hung: dict[str, Hang] = {}
        self._memory = Memory(limit=None)
        self._memory.look({}, now=clock.now())  # what was before explains no end of what comes
        self._too_large: set[str] = set()  # who was killed since it had too much memory
        self._suspect: set[str] = set()
        self._layout = ""
        self._joined: set[str] = set()  # who has called brim.join
        self._may_end: set[str] = (
            set()
        )  # who was dismissed: their end without an error is no surprise
        self._spec: JobSpec | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._prints = (
            PrintForwarder(settings.run_dir) if settings.guest else None
        )  # else they are where people look
        self._log_limit = LogLimit(settings.run_dir / "logs", "*.log", limit=LOG_LIMIT)
        self._declined = ""  # why this host cannot take part

    @property
    def has_workers(self) -> bool:
        """Some worker of this host takes part, or is ready to."""
        return self._workers is not None and bool(self._joined & self._workers.pids.keys())

    async def run(self) -> int:
        """Serve the job until its master ends it: 0 where it ended well, else 1.

        Raises:
            EnvironmentFault: there is no master any more, it does not let this agent in, or this
                host cannot take part.
            Displaced: the master counts this agent as lost. Its workers are gone.
        """
        companions = [asyncio.create_task(self._tick()), asyncio.create_task(self._mind_memory())]
        for companion in companions:
            companion.add_done_callback(self._on_task_ended)
        limiting = asyncio.create_task(self._log_limit.keep())
        try:
            if self._template is not None and not self._settings.guest:
                await self._begin(self._template)
            async with contextlib.aclosing(self._master.messages()) as messages:
                async for message in messages:
                    if isinstance(message, EndRun):
                        await self._clean_up()
                        self._pass_on_prints(last=True)
                        await self._master.part(messages)
                        if self._declined:
                            raise EnvironmentFault(self._declined)
                        return 0 if message.well else 1
                    await self._on_master(message)
            raise InternalError("a conversation ended by itself")
        except Displaced as displaced:
            if not self._declined:
                raise
            raise EnvironmentFault(
                f"the run continues without this host: {self._declined}"
            ) from displaced
        finally:
            for task in companions:
                task.cancel()
            await self._clean_up()
            limiting.cancel()

    async def _clean_up(self) -> None:
        """End all workers.

        The master hears of the end of its job only behind it, so that its end is the run's.
        """
        for task in self._tasks:
            task.cancel()
        workers, self._workers = self._workers, None
        self._hub.board = None  # what they still let count on it ends with them
        if workers is not None:
            await workers.end()
        elif self._template is not None:
            self._template.drop()
        self._template = None

    def ask_to_stop(self) -> None:
        """Ask for the end of the run, as this process was asked to."""
        self._post(AskToStop(reason="it was asked to stop"))

    def depart(self) -> None:
        """Have the workers of this host leave at a boundary, and end behind them."""
        if self._workers is not None:
            self._workers.depart()
        self._post(Depart())

    async def _begin(self, template: Template) -> None:
        self._spec = spec = read_job(self._settings.run_dir)
        self._liveness = Liveness(timeout=spec.heartbeat_timeout)
        self._waits = Waits(limit=spec.hang_timeout)
        self._memory.limit = spec.memory
        if spec.asynchronous is not None:
            self._hub.turns = Turns(ahead=spec.asynchronous)
        self._hub.drops_steps = not spec.restart  # who keeps a command's processes makes none
        self._waits.expect(_TEMPLATE, _PREPARING, now=self._clock.now())
        self._log_limit.limit = spec.log_limit
        self._flush_after = 0.0 if spec.faults else _FLUSH
        tell = Callbacks(
            ready=self._template_ready,
            started=self._started,
            heard=self._on_message,
            gone=self._on_end,
            failed=self._failed,
            replaced=self._template_replaced,
            spent=lambda reason: self._post(AskToStop(reason=reason)),
        )
        self._workers = Workers(
            self._settings.run_dir,
            template,
            tell,
            host=self._settings.host,
            meeting=_meeting(spec),
            why_killed=lambda: self._memory.why_killed(_TEMPLATE, now=self._clock.now()),
        )
        if self._workers.board is not None:
            self._hub.waker = self._workers.waker
        await self._workers.listen()
        try:
            check_limit(spec.memory)
        except SpecError as error:
            self._failed(failure_of(error))

    def _failed(self, failed: JobFailed) -> None:
        """Report a failure that no restart on this host will help.

        Where the job is another host's, that need not be its end.
        """
        self._waits.forget(_TEMPLATE)
        failed = self._located(failed)
        if not self._settings.guest:
            self._post(failed)
        elif not self._declined:
            self._declined = words_of(failed)
            self._post(Decline(failure=failed))

    def _located(self, failed: JobFailed) -> JobFailed:
        """Return a failure with the host, where a file that is missing there is the reason.

        Of a run of one host everybody knows which it is.
        """
        if not failed.missing or not (self._settings.guest or (self._spec and self._spec.bundle)):
            return failed
        path = failed.missing if is_url(failed.missing) else os.path.abspath(failed.missing)
        reason = (
            f"on host {socket.gethostname()}, {path} is missing: put it there, or name it by a URL "
            "that all hosts can reach"
        )
        return msgspec.structs.replace(failed, message=f"{failed.message}\n{reason}", missing="")

    def _check_kind(self, configure: Configure) -> None:
        """Compare this host with the first that computes.

        Raises:
            EnvironmentFault: they differ, and the run is to have the same bits on both.
        """
        spec, kind = configure.spec, configure.kind
        if kind is None:
            return
        own_kind = kind_of_this_host({**os.environ, **spec.env})
        hosts = socket.gethostname(), configure.host
        found = differences((own_kind, kind), hosts, device=spec.device, ignored=spec.env)
        if not found:
            return
        difference = unlike(hosts, found, exact=spec.exact)
        if spec.exact:
            raise EnvironmentFault(difference)
        self._post(Warn(message=difference))

    async def _take_part(self, configure: Configure) -> None:
        """Start as a host that comes to a run of others.

        The code is that of the others. It works in the directory in which they started the run,
        where this host has that, else in the agent's.
        """
        try:
            if configure.spec.asynchronous is not None:
                raise _needs_one_host()
            self._check_kind(configure)
            await self._fetch(configure.bundle)
        except (SpecError, EnvironmentFault) as error:
            self._failed(failure_of(error))
            return
        if Path(configure.spec.directory).is_dir():
            os.chdir(configure.spec.directory or ".")
        write_job(self._settings.run_dir, self._kept_by_master(configure))
        if self._template is None:
            self._template = start_template(self._settings.run_dir, self._settings.host)
        else:
            self._template.begin(self._settings.host)
        await self._begin(self._template)

    async def _fetch(self, digest: str) -> None:
        """Fetch the code of the job from the master; `digest` is empty where there is none.

        Raises:
            EnvironmentFault: it cannot be had, or is not what the master says it is.
        """
        if not digest:
            return
        files = RunFiles(self._settings.master, workers_secret(os.environ["BRIM_TOKEN"]))
        try:
            bundle = await asyncio.to_thread(files.bundle)
            read_bundle(bundle, digest)
            write_bundle(self._settings.run_dir, bundle)
        except (OSError, ProtocolError) as error:
            raise EnvironmentFault(f"the code of the job cannot be fetched: {error}") from error
        finally:
            files.close()

    def _kept_by_master(self, configure: Configure) -> JobSpec:
        """Return the spec of the run as this host follows it.

        Checkpoints go to the host that keeps the records, unless they have a place that all hosts
        reach: the folder of this agent is gone with it.
        """
        spec, master = replace(configure.spec, bundle=configure.bundle), self._settings.master
        if spec.restart:  # only a disk that all share will do
            saved = str(saved_directory(spec, configure.run_dir))
            return replace(spec, checkpoints=saved, terminal_at=master if spec.tty else "")
        location = location_of(spec.checkpoints, configure.run_dir)
        if not master or is_url(location):
            return spec
        return replace(spec, checkpoints=place_at(master, location))

    def _template_ready(self) -> None:
        self._on_time(_TEMPLATE)

    def _template_replaced(self, reason: str) -> None:
        assert self._spec is not None
        self._post(
            Warn(
                message="; ".join(
                    filter(None, (reason, change_of_source(self._settings.run_dir, self._spec)))
                )
            )
        )
        self._waits.expect(_TEMPLATE, _PREPARING, now=self._clock.now())

    # To the master --------------------------------------------------------------------------------

    def _post(self, message: AgentMessage) -> None:
        """Say something, after all commits that came before it."""
        self._read_board()
        self._flush()
        self._master.post(message)

    def _flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._commits:
            self._master.post(Commits(records=self._commits))
            self._commits = []

    def _note_commit(self, record: CommitRecord) -> None:
        self._commits.append(record)
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(
                self._flush_after, self._flush
            )

    async def _tick(self) -> None:
        """Find silent workers, and send signs of life."""
        last_beat, now = 0.0, self._clock.now()
        while True:
            await asyncio.sleep(_TICK)
            previous, now = now, self._clock.now()
            if now - previous > _BEAT:
                self._waits.pause(now - previous)
                self._liveness.pause(now - previous, now=now)
            if self._read_board():
                self._flush()
            if self._workers is not None:  # else all are being ended
                self._end_who_is_stopped(self._workers, now)
                for overdue in self._waits.look(now=now):
                    self._spawn(self._on_overdue(self._workers, overdue))
            self._tell_of_silence(set(self._liveness.suspect(now=now)))
            self._pass_on_prints()
            if now - last_beat > _BEAT:
                last_beat = now
                self._master.beat()

    async def _mind_memory(self) -> None:
        """Watch the memory of the workers, and end each that has too much.

        The look is in a thread, since a barrier may be under way here.
        """
        is_reported, orphans = False, Orphans()
        while True:
            try:
                await self._look_at_memory()
                if self._workers is not None and self._settings.guest:  # it keeps no master
                    orphans.clear_away(awaited=self._workers.children)
            except Exception as error:  # noqa: BLE001 - one look that fails must not be the last
                if not is_reported:
                    text = f"brim: cannot tell what workers have in memory: {error!r}; trying again"
                    print(text, file=sys.stderr, flush=True)  # noqa: T201
                is_reported = True
            await asyncio.sleep(_LOOK_AT_MEMORY)

    async def _look_at_memory(self) -> None:
        if self._workers is None:
            return
        now = self._clock.now()
        too_large = await asyncio.to_thread(self._memory.look, self._workers.pids, now=now)
        for worker, reason in too_large.items():
            self._end_who_is_too_large(worker, reason)

    def _end_who_is_too_large(self, worker: str, reason: str) -> None:
        if self._workers is not None and worker in self._workers.pids:
            self._too_large.add(worker)
            self._workers.kill(worker, reason)

    def _pass_on_prints(self, *, last: bool = False) -> None:
        if self._prints is None:
            return
        if text := self._prints.rest() if last else self._prints.fresh():
            self._master.print(self._prints.worker, text)

    def _end_who_is_stopped(self, workers: Workers, now: float) -> None:
        """Kill the silent workers that are stopped.

        A worker that is silent and runs holds Python's lock, or hangs: those who wait for it report
        that. A process that is stopped can still wake and write: it must be dead before others go
        on.
        """
        for worker in self._liveness.lost(now=now):
            if workers.is_stopped(worker):
                silence = self._liveness.silence(worker, now=now)
                self._forget(worker)
                workers.kill(worker, f"stopped, and silent for {silence:.1f} s")

    async def _on_overdue(self, workers: Workers, overdue: Overdue | Hung) -> None:
        worker, doing = overdue.who, overdue.doing
        stack = await workers.stack(worker)
        if isinstance(overdue, Overdue):
            if self._waits.is_late(worker):
                late = LateWorker(
                    worker=worker,
                    doing=doing.words,
                    seconds=overdue.seconds,
                    limit=overdue.limit,
                    stack=stack.text,
                    start=_start_of(overdue, stack),
                )
                self._post(late)
            return
        reason = f"no progress for {overdue.seconds:.1f} s, {doing.words}"
        if worker == _TEMPLATE:
            text = f"the template process was not ready: {reason}; --hang-timeout sets how long"
            workers.end_template(
                text, f"Stack (most recent call last):\n{stack.text}" if stack.text else ""
            )
            return
        self._hung[worker] = Hang(round=doing.round, step=doing.step, stack=stack.text)
        workers.kill(worker, reason)

    def _on_time(self, worker: str, *, now: float | None = None) -> None:
        """Note that a worker is where the job waited for it: it waits itself now."""
        if self._waits.done(worker, now=self._clock.now() if now is None else now):
            self._post(OnTime(worker=worker))

    def _expect(self, worker: str, doing: Doing) -> None:
        """The job waits for it."""
        if self._waits.expect(worker, doing, now=self._clock.now()):
            self._post(OnTime(worker=worker))

    def _tell_of_silence(self, suspect: set[str]) -> None:
        for worker in sorted(suspect ^ self._suspect):
            self._post(Silence(worker=worker, silent=worker in suspect))
        self._suspect = suspect

    # From the workers -----------------------------------------------------------------------------

    def _started(self, worker: str, pid: int) -> None:
        self._expect(worker, _STARTING)
        self._post(WorkerStarted(worker=worker, pid=pid))

    def _on_end(self, worker: str, status: int | None, reason: str) -> None:
        self._seal_board()
        self._perform(self._hub.lose(worker))
        self._forget(worker)
        by_itself = status == 0 and worker not in self._may_end
        if by_itself and worker not in self._joined:  # starting it again would not help
            self._post(failure_of(self._of_one_that_never_joined()))
        if self._prints is not None and status != 0 and (words := self._prints.last_words(worker)):
            self._master.print(worker, words)
        hang = self._hung.pop(worker, None)
        lost = LoseWorker(worker=worker, reason=reason, hang=hang, by_itself=by_itself)
        self._post(self._with_memory(lost, was_killed=status == -signal.SIGKILL))

    def _with_memory(self, lost: LoseWorker, *, was_killed: bool) -> LoseWorker:
        """Return the message about a worker that has ended, with the part that memory had in it."""
        if lost.worker in self._too_large:
            self._too_large.discard(lost.worker)
            return msgspec.structs.replace(lost, memory="limit")
        nobodys = was_killed and lost.reason == signal_words(signal.SIGKILL)
        reason = self._memory.why_killed(lost.worker, now=self._clock.now()) if nobodys else ""
        return msgspec.structs.replace(lost, reason=reason, memory="host") if reason else lost

    def _of_one_that_never_joined(self) -> SpecError:
        spec = self._spec
        if spec is None or spec.file:
            return SpecError(
                spec.file if spec else "the training file",
                got="code that ended its process, with exit status 0, before training began",
                need="functions that return",
                hint="remove exit() and os._exit()",
            )
        return SpecError(
            " ".join(spec.command),
            got="a command that ended without training: it never called brim.join()",
            need="a training loop over job.batches(...) of brim.join()",
            hint="--restart runs a command that never calls it; brim train FILE.py is for a file with "
            "model() and dataset()",
        )

    def _forget(self, worker: str) -> None:
        self._liveness.forget(worker)
        self._suspect.discard(worker)  # what becomes of it now is told otherwise
        self._waits.forget(worker)
        self._moves.pop(worker, None)

    def _on_message(self, worker: str, message: WorkerMessage) -> None:
        now = self._clock.now()
        self._liveness.beat(worker, now=now)
        match message:
            case Arrive():
                self._arrived(worker, message, now=now)
            case Beat(moves=moves):
                self._note_moves(worker, moves)
            case Hello(layout=layout) if self._layout and layout != self._layout:
                detail = (
                    "workers do not train the same network: does model() depend on chance or "
                    "on the host?"
                )
                self._post(JobFailed(who="user", message=detail))
            case Hello(layout=layout):
                self._layout = layout
                self._joined.add(worker)
                self._on_time(worker)
                self._post(FromWorker(worker=worker, message=message))
            case JobFailed() if self._settings.guest and worker not in self._joined:
                self._failed(message)
            case JobFailed():
                self._post(FromWorker(worker=worker, message=self._located(message)))
            case Installed(round=round, step=step):
                self._perform(self._hub.installed(worker, round, step))
                self._post(FromWorker(worker=worker, message=message))
            case NowWritten() | Completed():
                self._on_time(worker)
                self._post(FromWorker(worker=worker, message=message))
            case _:
                self._post(FromWorker(worker=worker, message=message))

    def _note_moves(self, worker: str, moves: int) -> None:
        """A worker that comes on within a long step is slow, and does not hang."""
        if self._moves.get(worker) == moves:
            return
        self._moves[worker] = moves
        if self._waits.moved(worker, now=self._clock.now()):
            self._post(OnTime(worker=worker))

    def _arrived(self, worker: str, arrival: Arrive, *, now: float) -> None:
        if arrival.round == self._hub.round:
            self._seal_board()
            self._on_time(worker, now=now)
        try:
            commands = self._hub.arrived(worker, arrival, now=now, wall=self._clock.wall())
        except ProtocolError as error:
            self._post(JobFailed(who="internal", message=str(error)))
            return
        self._perform(commands)

    def _read_board(self) -> bool:
        """Count what workers have let count on their board; return whether that was anything."""
        board, workers = self._hub.board, self._workers
        if board is None or workers is None or workers.board is None:
            return False
        try:
            notes = workers.board.look(board.generation, with_reports=True)
            if not notes:
                return False
            now, wall = self._clock.now(), self._clock.wall()
            commands = self._hub.noted(notes, now=now, wall=wall)
        except ProtocolError as error:
            self._hub.board = None
            self._post(JobFailed(who="internal", message=str(error)))
            return True
        self._perform(commands)
        return True

    def _seal_board(self) -> None:
        """Keep the barriers of the round here, from the next arrival on."""
        self._perform(self._hub.seal())
        self._read_board()

    def _perform(self, commands: Sequence[HubCommand]) -> None:
        """Carry out the commands of the hub, in order."""
        if records := [command.record for command in commands if isinstance(command, Count)]:
            self._master.foretell(records)  # before anything of it is told
        for command in commands:
            match command:
                case ToWorker(worker=worker, message=message):
                    if self._workers is not None:  # else all are being ended
                        self._workers.send(worker, message)
                case Expect(worker, doing):
                    self._expect(worker, doing)
                case Count(record):
                    self._note_commit(record)
                case Flush():
                    self._flush()
                case ArriveTogether():
                    self._post(command)
                case Stands(worker):
                    self._on_time(worker)
                case Open(generation):
                    if self._workers is not None and self._workers.board is not None:
                        self._workers.board.clear(generation)
                case Write(note):
                    if self._workers is not None and self._workers.board is not None:
                        self._workers.board.pin(note)
                case _:
                    assert_never(command)

    # From the master ------------------------------------------------------------------------------

    async def _on_master(self, message: MasterMessage) -> None:
        if isinstance(message, Configure):
            if self._workers is None and not self._declined and self._settings.room != 0:
                await self._take_part(message)
            return
        if self._workers is None:
            self._answer_without_workers(message)
            return
        match message:
            case StartWorkers(workers=workers, delay=delay):
                for worker in workers:
                    self._spawn(self._workers.start(worker, delay=delay))
            case InstallRound():
                self._install(message)
            case HoldRound(round=round):
                self._perform(self._hub.hold(round))
            case ReleaseTogether():
                self._perform(self._hub.release(message))
            case ToWorker(worker=worker, message=WriteNow() as request):
                self._seal_board()
                self._perform(self._hub.write(worker, request))
            case ToWorker(worker=worker, message=inner):
                if isinstance(inner, Dismissed):
                    self._may_end.add(worker)
                    self._workers.forget_start(worker)
                    self._waits.forget(worker)
                self._workers.send(worker, inner)
            case SignalWorker(worker=worker, reason=reason) if reason:
                self._workers.kill(worker, reason)
            case SignalWorker(worker=worker, signal=number, resume_after=seconds):
                self._workers.signal(worker, number, seconds)
            case ShowStacks():
                self._spawn(self._show_stacks(self._workers))
            case Beat() | Refused() | SendCopy() | EndRun():
                raise ProtocolError(f"{type(message).__name__} has no place in a session")
            case _:
                assert_never(message)

    def _answer_without_workers(self, message: MasterMessage) -> None:
        """Answer for a host that cannot take part.

        The master does not know it yet, or ends the job for it.
        """
        assert self._declined, "Configure comes first"
        match message:
            case SignalWorker(worker=worker) | ToWorker(worker=worker, message=Dismissed()):
                self._post(LoseWorker(worker=worker, reason="it was not started"))
            case ShowStacks():
                self._master.show_stacks({})

    async def _show_stacks(self, workers: Workers) -> None:
        """Tell the master where the Python code of each worker is now."""
        names = list(workers.pids)
        stacks = await asyncio.gather(*map(workers.stack, names))
        self._master.show_stacks(
            {name: stack.text for name, stack in zip(names, stacks, strict=True)}
        )

    def _install(self, named: InstallRound) -> None:
        self._seal_board()
        commands = self._hub.begin(named)
        if self._prints is not None:
            worker_before = self._prints.worker
            if rest := self._prints.begin(named.world):
                self._master.print(worker_before, rest)
        self._perform(commands)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_ended)

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(failure_of(error))  # or the job would wait for ever for what it was to do


def _start_of(overdue: Overdue, stack: Stack) -> str:
    """Return the activity of a process that has not started yet; empty: it hangs."""
    if overdue.seconds >= _TO_START:
        return ""
    if stack.imports:
        return f"importing {stack.imports}"
    return "starting" if overdue.doing.kind in _STARTS and not stack.text else ""


def _meeting(spec: JobSpec) -> int:
    """Return how many workers may meet on a board; 0 where they meet at their agent.

    Faults come at a step's number, which the master must hear of before the next is made. Members
    that keep a command's processes make no steps.
    """
    if spec.faults or spec.servers or spec.asynchronous is not None or spec.restart:
        return 0
    return spec.workers.maximum


def _needs_one_host() -> SpecError:
    return SpecError(
        "--async",
        got="another host",
        need="one host: asynchronous workers share the network in its memory",
        hint="train without --async on several hosts",
    )
