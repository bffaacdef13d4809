"""An agent's workers, with a template that is a fake and a process that SIGKILL does not end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from brim.agent import workers as agents
from brim.agent.templates import Template
from brim.agent.workers import Callbacks, Workers
from brim.host.process import readable
from brim.host.stacks import Stacks
from brim.storage.trails import SamplesRead, Trail
from brim.wire.frames import READ_BYTES, FrameBuffer, frame
from brim.wire.messages import (
    Codec,
    Hello,
    JobFailed,
    TemplateMessage,
    TemplateReady,
    WorkerForked,
    WorkerMessage,
)
from brim.worker.template import become_program


class Undying:
    """A process in an uninterruptible sleep: signals wait for it to wake."""

    pid, returncode = 1 << 22, None

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "it would be waited for without end"
        raise subprocess.TimeoutExpired("sleeps", timeout)

    def kill(self) -> None:
        pass


class Bench:
    """Workers whose template is a socket of the test's, and their messages."""

    def __init__(self, run_dir: Path, **tell: Any) -> None:
        (run_dir / "logs").mkdir()
        own_end, self.template = socket.socketpair()
        callbacks = dict.fromkeys(
            ("ready", "replaced", "spent", "started", "heard", "gone", "failed"), lambda *_: None
        )
        self.workers = Workers(
            run_dir, Template(Undying(), own_end, Stacks()), Callbacks(**(callbacks | tell))
        )

    def say(self, message: TemplateMessage) -> None:
        """As the template does."""
        codec: Codec[TemplateMessage] = Codec(TemplateMessage)
        self.template.sendall(frame(codec.encode(message)))

    async def begin(self, worker: str) -> socket.socket:
        """Have a worker asked for: its end of the link."""
        link, notice = await self.begin_with_notice(worker)
        os.close(notice)
        return link

    async def begin_with_notice(self, worker: str) -> tuple[socket.socket, int]:
        """Have a worker asked for: its end of the link, and of the pipe that tells of its death."""
        await self.workers.listen()
        self.say(TemplateReady())
        await self.workers.start(worker)
        _, (link, memory, tables, notice, log, stacks), _, _ = socket.recv_fds(
            self.template, 4096, 6
        )
        for descriptor in (memory, tables, log, stacks):
            os.close(descriptor)
        return socket.socket(fileno=link), notice

    async def end(self) -> None:
        await self.workers.end()
        self.template.close()


def test_a_worker_sleeping_through_kill_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays a process and keeps its socket, but no line of its program is executed any more."""
    monkeypatch.setattr(agents, "_TO_DIE", 0.05)
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))

    async def live() -> str:
        lost_worker: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def started(worker: str, pid: int) -> None:
            bench.workers.signal(worker, signal.SIGKILL)

        bench: Bench = Bench(
            tmp_path,
            started=started,
            gone=lambda worker, status, reason: lost_worker.set_result(worker),
        )
        with await bench.begin("w1"):
            bench.say(WorkerForked(worker="w1", pid=4_000_000))
            async with asyncio.timeout(10):
                lost = await lost_worker
                await bench.end()
        return lost

    assert asyncio.run(live()) == "w1"
    assert killed == [(4_000_000, signal.SIGKILL)]


def test_worker_unwanted_before_its_birth_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))

    async def live() -> None:
        born = asyncio.Event()
        bench = Bench(tmp_path, started=lambda *_: born.set())
        with await bench.begin("w1"):
            bench.workers.signal("w1", signal.SIGKILL)
            assert killed == []
            bench.say(WorkerForked(worker="w1", pid=4_000_000))
            async with asyncio.timeout(60):
                await born.wait()
                await asyncio.sleep(0)
            assert killed == [(4_000_000, signal.SIGKILL)]
            await bench.end()

    asyncio.run(live())


def test_workers_without_descriptors_are_told_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real limit, at each of the descriptors that a start needs; none of them stays open."""
    monkeypatch.setattr(agents, "open_many_files", lambda _: None)
    reasons: list[str] = []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def start_with(bench: Bench, free: int) -> None:
        filled: list[int] = []
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    filled.append(os.dup(0))
            for descriptor in filled[:free]:
                os.close(descriptor)
            await bench.workers.start(f"w{free}")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for descriptor in filled[free:]:
                os.close(descriptor)

    async def live() -> None:
        bench = Bench(tmp_path, gone=lambda worker, status, reason: reasons.append(reason))
        await bench.workers.listen()
        bench.say(TemplateReady())
        await bench.workers.start("w")
        for free in range(6):
            open_before = len(os.listdir("/proc/self/fd"))
            await start_with(bench, free)
            await asyncio.sleep(0)
            assert len(os.listdir("/proc/self/fd")) == open_before, f"with {free} free"
        assert len(reasons) == 6
        assert all("it was not started" in r and "Too many open files" in r for r in reasons)
        await start_with(bench, 10)
        assert len(reasons) == 6
        await bench.end()

    asyncio.run(live())


def test_a_fast_worker_is_heard_after_its_start(
    tmp_path: Path,
) -> None:
    """It forked the worker and did not get the processor back before the worker was ready."""
    order: list[str] = []

    async def live() -> None:
        ready = asyncio.Event()

        def on_message(worker: str, message: WorkerMessage) -> None:
            order.append(type(message).__name__)
            ready.set()

        bench = Bench(
            tmp_path, started=lambda worker, pid: order.append("started"), heard=on_message
        )
        codec: Codec[WorkerMessage] = Codec(WorkerMessage)
        with await bench.begin("w1") as link:
            link.sendall(frame(codec.encode(Hello(address="", layout="", facts=None))))
            async with asyncio.timeout(10):
                while not bench.workers._processes["w1"].early:  # until the agent has read it
                    await asyncio.sleep(0)
                bench.say(WorkerForked(worker="w1", pid=4_000_000))
                await ready.wait()
                await bench.end()

    asyncio.run(live())
    assert order == ["started", "Hello"]


def test_links_share_the_memory_of_their_reads() -> None:
    """Two workers send messages longer than a read, piece by piece in turns."""
    messages = [bytes([number]) * (2 * READ_BYTES + number) for number in (1, 2)]
    heard: list[list[bytes]] = [[], []]

    async def live() -> None:
        loop = asyncio.get_running_loop()
        ends = []
        for frames in heard:
            own_end, end = socket.socketpair()
            await loop.create_connection(
                partial(agents._Link, frames.append, lambda: None), sock=own_end
            )
            end.setblocking(False)
            ends.append(end)
        async with asyncio.timeout(10):
            for start in range(0, 3 * READ_BYTES, READ_BYTES // 2):
                for end, message in zip(ends, messages, strict=True):
                    await loop.sock_sendall(end, frame(message)[start : start + READ_BYTES // 2])
            while not all(heard):
                await asyncio.sleep(0)
        for end in ends:
            end.close()

    asyncio.run(live())
    assert heard == [[message] for message in messages]


LARGE = """
import mmap, os, sys, threading
from brim.host.death_notice import give_notice
from brim.tensors.memory import have_mapped

file = os.memfd_create("large")
os.truncate(file, 64 << 20)
os.pwrite(file, bytes(64 << 20), 0)
for _ in range(48):  # as page tables have it, 3 GiB
    mapped = mmap.mmap(file, 64 << 20)
    have_mapped(mapped, file, range(len(mapped)))
    globals().setdefault("all", []).append(mapped)
link, notice = map(int, sys.argv[1:])
if notice >= 0:
    give_notice(notice)
os.write(link, WORDS)
while True:
    pass
"""
CLOSES = """
import os, sys, time
from brim.host.death_notice import give_notice
give_notice(int(sys.argv[2]))
os.close(int(sys.argv[1]))
print("closed", flush=True)
time.sleep(60)
"""
TO_AGENT: Codec[WorkerMessage] = Codec(WorkerMessage)
WORDS = frame(TO_AGENT.encode(Hello(address="", layout="", facts=None)))


def test_death_counts_before_memory_is_cleared(
    tmp_path: Path,
) -> None:
    """Others wait for it, and the kernel takes the longer the larger its tables are.

    Its last message is heard, and the kernel clears it away behind others.
    """
    order: list[str] = []
    niceness: list[int] = []

    async def live(run_dir: Path) -> tuple[int | None, str, bool]:
        lost: asyncio.Future[tuple[int | None, str, bool]] = (
            asyncio.get_running_loop().create_future()
        )

        def on_message(worker: str, message: WorkerMessage) -> None:
            order.append(type(message).__name__)
            process.kill()

        def on_lost(worker: str, status: int | None, reason: str) -> None:
            lost.set_result((status, reason, bool(readable([end], 0))))
            niceness.append(os.getpriority(os.PRIO_PROCESS, process.pid))

        bench = Bench(run_dir, heard=on_message, gone=on_lost)
        link, notice = await bench.begin_with_notice("w1")
        code = LARGE.replace("WORDS", repr(WORDS))
        command = [sys.executable, "-c", code, str(link.fileno()), str(notice)]
        with link:
            process = subprocess.Popen(command, pass_fds=[link.fileno(), notice])
        os.close(notice)
        end = os.pidfd_open(process.pid)
        bench.say(WorkerForked(worker="w1", pid=process.pid))
        try:
            async with asyncio.timeout(60):
                found = await lost
                await bench.end()
        finally:
            process.kill()
            process.wait()
            os.close(end)
        return found

    for attempt in range(10):  # a busy host may turn to this process only once all is cleared
        run_dir = tmp_path / str(attempt)
        run_dir.mkdir()
        order.clear()
        niceness.clear()
        status, reason, is_cleared = asyncio.run(live(run_dir))
        if not is_cleared:
            break
    assert (status, reason, is_cleared) == (-signal.SIGKILL, "signal 9", False)
    assert order == ["Hello"]
    assert niceness == [max(10, os.getpriority(os.PRIO_PROCESS, 0))]


def test_an_early_closed_link_is_no_fault(
    tmp_path: Path,
) -> None:
    """As where one of its threads ends late: its link has been closed, and there is nothing left to
    hear on it.
    """
    stumbles: list[Any] = []

    async def live() -> tuple[int | None, str]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: stumbles.append(context))
        lost: asyncio.Future[tuple[int | None, str]] = loop.create_future()
        bench = Bench(
            tmp_path, gone=lambda worker, status, reason: lost.set_result((status, reason))
        )
        link, notice = await bench.begin_with_notice("w1")
        with link:
            process = subprocess.Popen(
                [sys.executable, "-c", CLOSES, str(link.fileno()), str(notice)],
                pass_fds=[link.fileno(), notice],
                stdout=subprocess.PIPE,
            )
        os.close(notice)
        bench.say(WorkerForked(worker="w1", pid=process.pid))
        try:
            async with asyncio.timeout(60):
                assert process.stdout is not None
                await asyncio.to_thread(process.stdout.readline)
                while not bench.workers._processes["w1"].closed:
                    await asyncio.sleep(0.001)
                process.kill()
                found = await lost
                await bench.end()
        finally:
            process.kill()
            process.communicate()
        return found

    assert asyncio.run(live()) == (-signal.SIGKILL, "signal 9")
    assert not stumbles


def test_killed_workers_leave_no_trail(tmp_path: Path) -> None:
    """Where others looked for it, it was not gone yet."""
    child = os.fork()
    if not child:
        Trail(tmp_path, "w1").note(SamplesRead(size=8, epoch=0, start=0, stop=4))
        os._exit(0)
    os.waitpid(child, 0)
    assert list(tmp_path.glob(".reading-*"))

    async def live() -> None:
        bench = Bench(tmp_path)
        with await bench.begin("w2"):
            await bench.end()

    asyncio.run(live())
    assert not list(tmp_path.glob(".reading-*"))


@pytest.mark.parametrize(
    ("mode", "reason"), [(0o644, "Permission denied"), (None, "No such file or directory")]
)
def test_a_program_that_cannot_be_started_is_told(
    tmp_path: Path, mode: int | None, reason: str
) -> None:
    """A worker that only ended would be started again and again."""
    program, (agent, worker) = tmp_path / "python", socket.socketpair()
    if mode is not None:
        program.touch(mode)
    with pytest.raises(SystemExit):
        become_program((str(program), "train.py"), worker.detach())
    with agent:
        (message,) = FrameBuffer().feed(agent.recv(4096))
    failed = Codec[WorkerMessage](WorkerMessage).decode(message)
    assert isinstance(failed, JobFailed)
    assert failed.message.startswith(
        f"COMMAND: got '{program}', which cannot be started ({reason})"
    )
