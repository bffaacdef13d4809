"""The worker processes of one agent.

The workers are started through the template, heard over sockets, and seen to their end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from brim.agent.templates import TO_PART, Template, start_template
from brim.coordination.job.attempts import EXIT_STATUS
from brim.errors import ProtocolError
from brim.host.anonymous import anonymous_file
from brim.host.death_notice import clear_away_behind_others, signal_that_ended
from brim.host.process import (
    WORKER,
    children_of,
    end_family,
    files_for,
    open_many_files,
    state_of,
    variable_of,
)
from brim.host.stacks import Stack, Stacks
from brim.storage.files import open_log
from brim.storage.trails import trails_of_the_dead
from brim.telemetry.logs import last_line
from brim.wire.board_file import BoardFile, open_board, open_wakers
from brim.wire.frames import READ_BYTES, FrameBuffer, frame
from brim.wire.messages import (
    Codec,
    JobFailed,
    TemplateMessage,
    TemplateReady,
    WorkerBound,
    WorkerForked,
    WorkerMessage,
)

_UNEXPLAINED = 0.05  # seconds between a closed link and the end of the process, before it is killed
_TO_HEAR = 2.0  # seconds for that end after the kill, where this process is not told of it
_TO_DIE = 10.0
_END_POLL_INTERVAL = 0.001  # seconds between looks at a process whose first threads have ended
_LOOKS = 100
# seconds from the end of a process to its burial: while it still is on its way off a processor, where
# those who train go first, the kernel has the caller of waitpid wait for it, also with WNOHANG
_TO_BURY = 1.0
_TO_LEAVE = 0.5  # seconds from a worker's end to that of what it has started
_MOST_TEMPLATES = 3  # that die, one after the other, before they are ready

_STOPPED = ("", "T", "t", "Z", "X")  # of a process that will not speak again by itself


class _Link(asyncio.BufferedProtocol):
    """The agent's end of a worker's socket, or of the template's."""

    # Of all links, since what was read is taken out at once. A plain protocol is handed new bytes for
    # each message, for which asyncio asks the kernel for 256 KiB of memory: longer than all else.
    _room = memoryview(bytearray(READ_BYTES))

    def __init__(self, on_frame: Callable[[bytes], None], on_closed: Callable[[], None]) -> None:
        self._frames = FrameBuffer()
        self._on_frame, self._on_closed = on_frame, on_closed

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.take_in(self._room[:nbytes])

    def take_in(self, data: bytes | memoryview) -> None:
        for message in self._frames.feed(data):
            self._on_frame(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_closed()


def free_place(places: Iterable[int]) -> int:
    """Return the first place on a host that no worker has.

    >>> free_place([]), free_place([0, 2, 1]), free_place([1, 2])
    (0, 3, 0)
    """
    used = set(places)
    return next(place for place in count() if place not in used)


@dataclass(slots=True)
class _Process:
    transport: asyncio.Transport
    stacks: Stacks
    place: int  # on this host, which no other has while this one lives
    pid: int = 0
    end: int = -1  # a descriptor that is readable once it has ended and been cleared away
    notice: int = -1  # a pipe that closes once it is dead
    gives_notice: bool = False  # by this pipe
    status: int | None = None
    closed: bool = False
    condemned: str = ""  # why it was killed
    is_unwanted: bool = False  # it is to be killed as soon as it is there
    early: list[bytes] = field(
        default_factory=list
    )  # what it said before the template said that it is there
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Callbacks:
    """Functions that are called with events of workers and of the template.

    Args:
        ready: the template can be asked for workers.
        started, heard, gone: a worker's process is there, said something, has ended (its exit
            status, and in words).
        failed: what the template found to be wrong: no restart will help.
        replaced: the template died, and another one is being started.
        spent: there is no template any more, and there will be none.
    """

    ready: Callable[[], None]
    started: Callable[[str, int], None]
    heard: Callable[[str, WorkerMessage], None]
    gone: Callable[[str, int | None, str], None]
    failed: Callable[[JobFailed], None]
    replaced: Callable[[str], None]
    spent: Callable[[str], None]


class Workers:
    """Starts workers and tells of them.

    Args:
        run_dir: the run's directory, with the file of the job; logs go to `logs/` in it.
        template: that they are forked from.
        tell: whom to tell what.
        host: address of this host.
        meeting: workers that may meet on a board; 0 where they meet at this agent.
        why_killed: the part that memory had in the end of a process, or nothing.
    """

    def __init__(
        self,
        run_dir: Path,
        template: Template,
        tell: Callbacks,
        *,
        host: str = "",
        meeting: int = 0,
        why_killed: Callable[[], str] = lambda: "",
    ) -> None:
        self._run_dir, self._tell, self._host = run_dir, tell, host
        self._why_killed = why_killed
        self._processes: dict[str, _Process] = {}
        self._dying: dict[
            int, int
        ] = {}  # pids of those that are dead and not cleared away, with what tells of it
        self._ended: set[int] = set()  # and of those that are, until they are buried
        self._from_worker: Codec[WorkerMessage] = Codec(WorkerMessage)
        self._to_worker: Codec[WorkerBound] = Codec(WorkerBound)
        self._last_message: WorkerBound | None = None
        self._last_frame = b""
        self._from_template: Codec[TemplateMessage] = Codec(TemplateMessage)
        self._memory, self._tables = anonymous_file("brim"), anonymous_file("brim-tables")
        self._wakers = open_wakers(meeting)
        self._board = open_board() if self._wakers else []
        self.board = BoardFile(*self._board) if self._wakers else None
        self._ready = asyncio.Event()
        self._waiting: set[str] = set()
        self._unanswered: set[str] = set()  # the template has not answered yet
        self._sweeping: asyncio.TimerHandle | None = None
        self._ending = self._departing = False
        self._was_ever_ready = False
        self._templates = 0  # that died before they were ready, one after the other
        self._template = template

    async def listen(self) -> None:
        """Begin to hear the template."""
        template = self._template
        loop, reader = asyncio.get_running_loop(), template.requests.dup()
        await loop.create_connection(
            lambda: _Link(self._on_template, lambda: self._on_template_gone(template)), sock=reader
        )

    # The template ---------------------------------------------------------------------------------

    def _on_template(self, data: bytes) -> None:
        match self._from_template.decode(data):
            case TemplateReady():
                self._templates, self._was_ever_ready = 0, True
                self._ready.set()
                self._tell.ready()
            case WorkerForked(worker=worker, pid=0, problem=problem):
                self._lose(worker, f"it was not started: {problem}")
            case WorkerForked(worker=worker, pid=pid):
                self._unanswered.discard(worker)
                if worker in self._processes:
                    self._begin(worker, pid)
            case JobFailed() as failed:
                self._tell.failed(failed)

    def depart(self) -> None:
        """Replace the template no more: this host is to be free, and all its processes may be asked to end."""
        self._departing = True

    def _on_template_gone(self, template: Template) -> None:
        """Replace a template that has ended; its workers live on.

        A worker that the template was asked for and did not fork is started again, by another
        template.
        """
        if self._ending or self._departing:
            return
        was_ready = self._ready.is_set()
        self._ready.clear()
        self._templates += not was_ready
        log = self._run_dir / "logs" / "template.log"
        why = self._why_killed() or last_line(log)
        place = f"see {log}{f'; {why}' if why else ''}"
        for worker in sorted(self._unanswered):
            self._lose(worker, "it was not started")
        if self._templates and not self._was_ever_ready:
            self._tell.failed(
                JobFailed(who="environment", message=f"the template process died: {place}")
            )
            return
        if self._templates >= _MOST_TEMPLATES:
            self._tell.spent(
                f"no worker can be started any more, the template process died: {place}"
            )
            return
        self._tell.replaced(f"the template process died; another one is started: {place}")
        spawned = asyncio.ensure_future(self._replace(template))
        spawned.add_done_callback(lambda task: task.result() if not task.cancelled() else None)

    async def _replace(self, template: Template) -> None:
        """Start another template, which runs the file and reads its data again."""
        template.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(template.process.wait, _TO_DIE)
        template.requests.close()
        template.stacks.close()
        if not self._ending:
            self._template = start_template(self._run_dir, self._host)
            await self.listen()

    async def start(self, worker: str, *, delay: float = 0.0) -> None:
        """Start a worker after so many seconds.

        The answer is a call of `started`, `gone` or `failed`.
        """
        self._waiting.add(worker)
        await asyncio.sleep(delay)
        await self._ready.wait()
        if worker not in self._waiting:
            return
        self._waiting.remove(worker)
        try:
            await self._request(worker)
        except OSError as error:  # there is no descriptor left, no room for its log, or no template
            reason = f"it was not started: {error}"
            if worker in self._processes:
                self._lose(worker, reason)
            else:
                self._tell.gone(worker, None, reason)

    async def _request(self, worker: str) -> None:
        """Ask the template for a worker.

        Raises:
            OSError: it could not be asked.
        """
        loop = asyncio.get_running_loop()
        open_many_files(files_for(len(self._processes) + 1))
        with contextlib.ExitStack() as handed_over, contextlib.ExitStack() as kept:
            log = handed_over.enter_context(open_log(self._run_dir / "logs" / f"{worker}.log"))
            own_end, worker_end = socket.socketpair()
            kept.enter_context(own_end)
            handed_over.enter_context(worker_end)
            notice, gives_notice = os.pipe()
            kept.callback(os.close, notice)
            handed_over.callback(os.close, gives_notice)
            stacks = kept.enter_context(contextlib.closing(Stacks()))
            transport, _ = await loop.create_connection(
                lambda: _Link(
                    lambda data: self._on_worker(worker, data), lambda: self._on_closed(worker)
                ),
                sock=own_end,
            )
            place = free_place(
                process.place for process in self._processes.values() if process.status is None
            )
            self._processes[worker] = _Process(transport, stacks, place, notice=notice)
            kept.pop_all()  # `_lose` closes them
            os.set_blocking(notice, False)
            loop.add_reader(notice, self._on_notice, worker)
            self._unanswered.add(worker)
            descriptors = [
                worker_end.fileno(),
                self._memory,
                self._tables,
                gives_notice,
                log.fileno(),
                stacks.file,
                *self._board,
                *self._wakers,
            ]
            request = frame(f"{worker} {place}".encode())
            socket.send_fds(self._template.requests, [request], descriptors)

    def end_template(self, reason: str, stack: str) -> None:
        """Give the template up, which is not ready after all this time."""
        self._template.process.kill()
        self._ready.clear()
        self._ending = True
        self._tell.failed(JobFailed(who="environment", message=reason, trace=stack))

    # Workers --------------------------------------------------------------------------------------

    def send(self, worker: str, message: WorkerBound) -> None:
        process = self._processes.get(worker)
        if process is not None and not process.closed:
            if message is not self._last_message:  # one for all who stand at a point
                self._last_message = message
                self._last_frame = frame(self._to_worker.encode(message))
            process.transport.write(self._last_frame)

    def forget_start(self, worker: str) -> None:
        """Do not start a worker that has not been started yet."""
        if worker in self._waiting:
            self._waiting.remove(worker)
            self._tell.gone(worker, None, "it was not started")

    def waker(self, worker: str) -> int | None:
        """Return the number of the descriptor that wakes a worker; None where it has none."""
        process = self._processes.get(worker)
        if process is None or process.place >= len(self._wakers):
            return None
        return process.place

    @property
    def pids(self) -> dict[str, int]:
        """The processes of workers that have not ended, by their names."""
        return {
            worker: process.pid
            for worker, process in self._processes.items()
            if process.pid and process.status is None
        }

    @property
    def children(self) -> set[int]:
        """Children of this process whose end is waited for here."""
        processes = {process.pid for process in self._processes.values()}
        return {self._template.process.pid, *processes, *self._dying, *self._ended}

    def is_stopped(self, worker: str) -> bool:
        """Return whether a worker's process will not go on by itself.

        A process that runs, or sleeps, is only silent.
        """
        process = self._processes.get(worker)
        return process is not None and state_of(process.stacks.pid or process.pid) in _STOPPED

    async def stack(self, worker: str) -> Stack:
        """Return the Python stack of a worker, or of the template where there is no name."""
        process = self._processes.get(worker)
        stacks = process.stacks if process else None if worker else self._template.stacks
        return await stacks.ask() if stacks else Stack()

    def kill(self, worker: str, reason: str) -> None:
        """End a worker; the records give this reason."""
        if worker in self._processes and not self._processes[worker].condemned:
            self._processes[worker].condemned = reason
        self.signal(worker, signal.SIGKILL)

    def signal(self, worker: str, number: int, resume_after: float = 0.0) -> None:
        """Send a signal, and SIGCONT after so many seconds (0: never)."""
        if number == signal.SIGKILL:
            self.forget_start(worker)
        process = self._processes.get(worker)
        if process is None or process.status is not None:
            return
        if not process.pid:  # it is being forked
            process.is_unwanted |= number == signal.SIGKILL
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        if number == signal.SIGKILL:
            # In an uninterruptible sleep it stays a process, but no line of its program is executed
            # any more.
            timer = asyncio.get_running_loop().call_later(_TO_DIE, self._lose, worker)
            process.timers.append(timer)
        if resume_after:
            timer = asyncio.get_running_loop().call_later(
                resume_after, self.signal, worker, signal.SIGCONT
            )
            process.timers.append(timer)

    def _begin(self, worker: str, pid: int) -> None:
        """Note that a worker's process is there.

        A worker can speak before the template does: nothing of it is told before its start is.
        """
        self._watch(worker, pid)
        self._tell.started(worker, pid)
        if self._processes[worker].is_unwanted:
            self.signal(worker, signal.SIGKILL)
        for data in self._processes[worker].early:
            self._on_worker(worker, data)

    def _on_worker(self, worker: str, data: bytes) -> None:
        if worker in self._unanswered:
            self._processes[worker].early.append(data)
            return
        try:
            message = self._from_worker.decode(data)
        except ProtocolError:
            self.signal(worker, signal.SIGKILL)
            raise
        self._tell.heard(worker, message)

    def _on_closed(self, worker: str) -> None:
        """Handle the end of a worker's link: no process holds the worker's end any more.

        The worker is dead, or has left the job. In doubt it is killed.
        """
        process = self._processes.get(worker)
        if process is None:
            return
        process.closed = True
        if process.status is not None:
            self._lose(worker)
            return
        self._look_for_end(worker)
        loop = asyncio.get_running_loop()
        process.timers.append(loop.call_later(_UNEXPLAINED, self.signal, worker, signal.SIGKILL))
        process.timers.append(loop.call_later(_UNEXPLAINED + _TO_HEAR, self._lose, worker))

    def _watch(self, worker: str, pid: int) -> None:
        """Learn how it ends: it is a child of this process, though the template forked it."""
        process = self._processes[worker]
        process.pid = pid
        try:
            process.end = os.pidfd_open(pid)
        except OSError:  # it is gone, or there are no descriptors: its closed link must do
            return
        asyncio.get_running_loop().add_reader(process.end, self._on_ended, worker)

    def _on_notice(self, worker: str) -> None:
        """Handle a notice of the worker that its pipe will close once it is dead.

        The pipe may have closed already.
        """
        process = self._processes[worker]
        if os.read(process.notice, 1):
            process.gives_notice = True
        else:
            self._stop_reading_notice(process)
            self._look_for_end(worker)

    def _look_for_end(self, worker: str, looks: int = _LOOKS) -> None:
        """Look for the end of a killed worker without a wait for the kernel.

        The kernel may need long to clear away a large memory.
        """
        process = self._processes.get(worker)
        if process is None or process.status is not None or not process.gives_notice:
            return
        number = signal_that_ended(process.pid)
        if number is not None:
            process.status = -number
            clear_away_behind_others(process.pid)
            self._clear_away_later(process)
            try:
                self._hear_last_words(process)
            finally:
                self._lose(worker)
        elif looks:  # its other threads have to hear of the signal, each on some processor
            timer = asyncio.get_running_loop().call_later(
                _END_POLL_INTERVAL, self._look_for_end, worker, looks - 1
            )
            process.timers.append(timer)

    def _clear_away_later(self, process: _Process) -> None:
        pid, end, process.end = process.pid, process.end, -1
        if end >= 0:
            self._dying[pid] = end
            asyncio.get_running_loop().add_reader(end, self._clear_away, pid)

    def _clear_away(self, pid: int) -> None:
        end = self._dying.pop(pid)
        asyncio.get_running_loop().remove_reader(end)
        os.close(end)
        self._bury_later(pid)

    def _bury_later(self, pid: int) -> None:
        """Take its number from a child that has ended, once it has left its processor."""
        self._ended.add(pid)
        asyncio.get_running_loop().call_later(_TO_BURY, self._bury, pid)

    def _bury(self, pid: int) -> None:
        self._ended.discard(pid)
        _is_there(pid)

    def _hear_last_words(self, process: _Process) -> None:
        """Read the last words of a process that has ended.

        All that it has said is there, and its link may close later.
        """
        if process.closed:  # then all was heard
            return
        link = process.transport.get_protocol()
        assert isinstance(link, _Link)
        descriptor = process.transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError):  # there is no more
            while not process.closed and (data := os.read(descriptor, READ_BYTES)):
                link.take_in(data)

    def _on_ended(self, worker: str) -> None:
        process = self._processes[worker]
        self._stop_watching(process)
        process.status = _status_of(process.pid)
        self._bury_later(process.pid)
        if process.closed:
            self._lose(worker)
            return
        # Its last words may still be on their way; a grandchild that inherited the link must not
        # hold them up.
        timer = asyncio.get_running_loop().call_later(1.0, process.transport.abort)
        process.timers.append(timer)

    def _stop_watching(self, process: _Process) -> None:
        if process.end >= 0:
            asyncio.get_running_loop().remove_reader(process.end)
            os.close(process.end)
            process.end = -1

    def _stop_reading_notice(self, process: _Process) -> None:
        if process.notice >= 0:
            asyncio.get_running_loop().remove_reader(process.notice)
            os.close(process.notice)
            process.notice = -1

    def _lose(self, worker: str, reason: str = "") -> None:
        self._unanswered.discard(worker)
        process = self._processes.pop(worker, None)
        if process is None:
            return
        process.condemned = process.condemned or reason
        # should there be a process after all, it learns that nobody wants it
        process.transport.abort()
        for timer in process.timers:
            timer.cancel()
        self._stop_watching(process)
        self._stop_reading_notice(process)
        process.stacks.close()
        self._sweep_later()
        self._tell.gone(worker, process.status, _reason(process))

    def _sweep_later(self) -> None:
        self._sweeping = self._sweeping or asyncio.get_running_loop().call_later(
            _TO_LEAVE, self._sweep
        )

    def _sweep(self) -> None:
        """End leftovers of workers that are gone: they may still use their devices."""
        self._sweeping = None
        if self._ending:
            return
        own_pids = {process.pid for process in self._processes.values()}
        orphans = {
            pid: variable_of(pid, WORKER) for pid in children_of(os.getpid()) if pid not in own_pids
        }
        if end_family(
            pid for pid, worker in orphans.items() if worker and worker not in self._processes
        ):
            self._sweep_later()

    async def end(self) -> None:
        """Kill all remaining processes and wait for them."""
        self._ending = True
        for process in self._processes.values():
            if process.pid and process.status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        await self._end_template()
        ends = [process.pid for process in self._processes.values() if process.status is None]
        await self._see_off([*ends, *self._dying])
        for pid in list(self._dying):
            self._clear_away(pid)
        for process in self._processes.values():
            self._stop_watching(process)
            self._stop_reading_notice(process)
            process.stacks.close()
        for _ in trails_of_the_dead(self._run_dir):
            pass  # who died last was not gone yet when the others looked
        os.close(self._memory)
        for descriptor in (*self._board, *self._wakers):
            os.close(descriptor)
        os.close(self._tables)  # an agent that joins again has other workers

    async def _end_template(self) -> None:
        process, requests = self._template.process, self._template.requests
        if self._ready.is_set():
            with contextlib.suppress(OSError):  # it is gone
                requests.shutdown(socket.SHUT_RDWR)  # it ends behind what it is at: a fork
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, TO_PART)
        if process.returncode is None:
            process.kill()  # what the user's file is at in there may take for ever
        with contextlib.suppress(subprocess.TimeoutExpired):  # uninterruptible: it ends when it can
            await asyncio.to_thread(process.wait, _TO_DIE)
        requests.close()
        self._template.stacks.close()

    async def _see_off(self, pids: list[int]) -> None:
        """Wait until the processes that were killed are gone.

        A process in an uninterruptible state ends when it can.
        """
        deadline = asyncio.get_running_loop().time() + _TO_DIE
        remaining = [pid for pid in pids if pid and _is_there(pid)]
        while remaining and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
            remaining = [pid for pid in remaining if _is_there(pid)]


def _is_there(pid: int) -> bool:
    """Return whether a child has not ended.

    A child that has ended is no more than its number, and this call takes that from it.
    """
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def _status_of(pid: int) -> int | None:
    """Return the exit status of a child that has ended; None where another caller was told."""
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _reason(process: _Process) -> str:
    status = process.status
    if process.condemned and status in (None, -signal.SIGKILL):
        return process.condemned
    if status is None:
        return "its connection closed"
    return signal_words(-status) if status < 0 else f"{EXIT_STATUS} {status}"


def signal_words(number: int) -> str:
    """Return words for the end of a worker by a signal that this agent did not send."""
    return f"signal {number}"
