"""The worker processes of one agent: started through the template, heard over sockets, seen to their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from brim.agent.births import Process, Start, start_anew
from brim.errors import ProtocolError
from brim.wire.frames import FrameBuffer, frame
from brim.wire.messages import (
    Codec,
    Failed,
    TemplateMessage,
    TemplateReady,
    WorkerBound,
    WorkerEnded,
    WorkerForked,
    WorkerMessage,
)

__all__ = ["Template", "Workers", "start_template"]

_UNEXPLAINED = 0.05  # seconds between a closed link and the report of the process's end, before it is killed
_TO_BE_READY = 1800.0  # seconds that a template may take: reading data may take long
_TO_HEAR = 2.0  # seconds for that report after the kill: a template that is stopped sends none
_TO_DIE = 10.0


@dataclass(frozen=True, slots=True)
class Template:
    """The process that workers are forked from, and the socket on which it is asked for them."""

    process: Process
    requests: socket.socket


def start_template(run_dir: Path, host: str, start: Start = start_anew) -> Template:
    """Start the template of a run, whose directory has the file of the job.

    Args:
        host: address of this host.
        start: how; this process may fork no more once it runs an event loop.
    """
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    ours, theirs = socket.socketpair()
    nothing = os.open(os.devnull, os.O_RDONLY)
    with (run_dir / "logs" / "template.log").open("ab") as log, theirs:
        arguments = ["--control", str(theirs.fileno()), "--run-dir", str(run_dir), "--host", host]
        process = start(
            "brim.train.template", arguments, stdin=nothing, output=log.fileno(), keep=[theirs.fileno()]
        )
    os.close(nothing)
    return Template(process, ours)


class _Link(asyncio.Protocol):
    """The agent's end of a worker's socket, or of the template's."""

    def __init__(self, on_frame: Callable[[bytes], None], on_closed: Callable[[], None]) -> None:
        self._frames = FrameBuffer()
        self._on_frame, self._on_closed = on_frame, on_closed

    def data_received(self, data: bytes) -> None:
        for each in self._frames.feed(data):
            self._on_frame(each)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_closed()


@dataclass(slots=True)
class _Process:
    transport: asyncio.Transport
    pid: int = 0
    status: int | None = None
    closed: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Callbacks:
    """Whom to tell what."""

    started: Callable[[str, int], None]
    heard: Callable[[str, WorkerMessage], None]
    gone: Callable[[str, int | None, str], None]
    failed: Callable[[Failed], None]


class Workers:
    """Starts workers and tells of them.

    Args:
        run_dir: the run's directory, with the file of the job; logs go to `logs/` in it.
        template: that they are forked from.
        tell: whom to tell what.
    """

    def __init__(self, run_dir: Path, template: Template, tell: Callbacks) -> None:
        self._run_dir, self._tell = run_dir, tell
        self._processes: dict[str, _Process] = {}
        self._from_worker: Codec[WorkerMessage] = Codec(WorkerMessage)
        self._to_worker: Codec[WorkerBound] = Codec(WorkerBound)
        self._from_template: Codec[TemplateMessage] = Codec(TemplateMessage)
        self._memory = _anonymous_file()
        self._ready = asyncio.Event()
        self._waiting: set[str] = set()
        self._ending = False
        self._template_gone = False
        self._template, self._requests = template.process, template.requests

    async def listen(self) -> None:
        """Begin to hear the template."""
        loop = asyncio.get_running_loop()
        reader = self._requests.dup()
        await loop.create_connection(lambda: _Link(self._on_template, self._on_template_gone), sock=reader)

    # The template ------------------------------------------------------------------------------------------

    def _on_template(self, data: bytes) -> None:
        match self._from_template.decode(data):
            case TemplateReady():
                self._ready.set()
            case WorkerForked(worker=worker, pid=pid):
                if worker in self._processes:
                    self._processes[worker].pid = pid
                    self._tell.started(worker, pid)
            case WorkerEnded(worker=worker, status=status):
                self._on_ended(worker, status)
            case Failed() as failed:
                self._tell.failed(failed)

    def _on_template_gone(self) -> None:
        """Its workers die with it, and nobody is left to say how: their closed links say enough."""
        self._template_gone = True
        if self._ending:
            return
        log = self._run_dir / "logs" / "template.log"
        self._tell.failed(Failed(who="environment", message=f"the template process died: see {log}"))
        for worker in sorted(self._waiting):
            self._tell.gone(worker, None, "it was not started")
        self._waiting.clear()
        for worker, process in list(self._processes.items()):
            if process.closed:
                self._lose(worker)

    async def start(self, worker: str, *, delay: float = 0.0) -> None:
        """Start a worker after so many seconds; the answer is a call of `started`, `gone` or `failed`."""
        self._waiting.add(worker)
        await asyncio.sleep(delay)
        try:
            await asyncio.wait_for(self._ready.wait(), _TO_BE_READY)
        except TimeoutError:
            where = self._run_dir / "logs" / "template.log"
            message = f"the template process was not ready in {_TO_BE_READY:.0f} s: see {where}"
            self._tell.failed(Failed(who="environment", message=message))
            return
        if worker not in self._waiting:
            return
        self._waiting.remove(worker)
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        transport, _ = await loop.create_connection(
            lambda: _Link(lambda data: self._on_worker(worker, data), lambda: self._on_closed(worker)),
            sock=ours,
        )
        self._processes[worker] = _Process(transport)
        with theirs, (self._run_dir / "logs" / f"{worker}.log").open("ab") as log:
            descriptors = [theirs.fileno(), self._memory, log.fileno()]
            with contextlib.suppress(
                BrokenPipeError
            ):  # then the template is gone, and that is told elsewhere
                socket.send_fds(self._requests, [frame(worker.encode())], descriptors)

    # Workers -----------------------------------------------------------------------------------------------

    def send(self, worker: str, message: WorkerBound) -> None:
        process = self._processes.get(worker)
        if process is not None and not process.closed:
            process.transport.write(frame(self._to_worker.encode(message)))

    def forget_start(self, worker: str) -> None:
        """Do not start a worker that has not been started yet."""
        if worker in self._waiting:
            self._waiting.remove(worker)
            self._tell.gone(worker, None, "it was not started")

    def signal(self, worker: str, number: int, resume_after: float = 0.0) -> None:
        """Send a signal, and SIGCONT after so many seconds (0: never)."""
        if number == signal.SIGKILL:
            self.forget_start(worker)
        process = self._processes.get(worker)
        if process is None or not process.pid or process.status is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        if number == signal.SIGKILL:
            # In an uninterruptible sleep it stays a process, but no line of its program is executed any more.
            later = asyncio.get_running_loop().call_later(_TO_DIE, self._lose, worker)
            process.timers.append(later)
        if resume_after:
            later = asyncio.get_running_loop().call_later(resume_after, self.signal, worker, signal.SIGCONT)
            process.timers.append(later)

    def _on_worker(self, worker: str, data: bytes) -> None:
        try:
            message = self._from_worker.decode(data)
        except ProtocolError:
            self.signal(worker, signal.SIGKILL)
            raise
        self._tell.heard(worker, message)

    def _on_closed(self, worker: str) -> None:
        """No process holds the worker's end any more: it is dead, or has left the job. In doubt it is killed."""
        process = self._processes.get(worker)
        if process is None:
            return
        process.closed = True
        if process.status is not None or self._template_gone:
            self._lose(worker)
            return
        loop = asyncio.get_running_loop()
        process.timers.append(loop.call_later(_UNEXPLAINED, self.signal, worker, signal.SIGKILL))
        process.timers.append(loop.call_later(_UNEXPLAINED + _TO_HEAR, self._lose, worker))

    def _on_ended(self, worker: str, status: int) -> None:
        process = self._processes.get(worker)
        if process is None:
            return
        process.status = status
        if process.closed:
            self._lose(worker)
            return
        # Its last words may still be on their way; a grandchild that inherited the link must not hold them up.
        later = asyncio.get_running_loop().call_later(1.0, process.transport.abort)
        process.timers.append(later)

    def _lose(self, worker: str) -> None:
        process = self._processes.pop(worker, None)
        if process is None:
            return
        for timer in process.timers:
            timer.cancel()
        self._tell.gone(worker, process.status, _reason(process.status))

    async def end(self) -> None:
        """Kill what is left and wait for it."""
        self._ending = True
        for process in self._processes.values():
            if process.pid and process.status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        self._requests.shutdown(socket.SHUT_RDWR)  # the template ends, and its children with it
        try:
            await asyncio.to_thread(self._template.wait, _TO_DIE)
        except subprocess.TimeoutExpired:
            self._template.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # uninterruptible: it ends when it can
                await asyncio.to_thread(self._template.wait, _TO_DIE)
        self._requests.close()
        os.close(self._memory)  # an agent that joins anew has other workers


def _reason(status: int | None) -> str:
    if status is None:
        return "its connection closed"
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _anonymous_file() -> int:
    """Memory that has no name, so that nothing is left of it once its processes are gone."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("brim")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
