"""A host with too few processes, threads or bytes: who is told what, and what goes on."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from brim.agent import keeper as keeper_module
from brim.agent.births import Process
from brim.agent.keeper import Keeper
from brim.backends.watching import RunWatch
from brim.cli.__main__ import cli
from brim.errors import EnvironmentFault
from brim.host.clock import VirtualClock
from brim.host.threads import Threads
from brim.node.loop import NodeAgent
from brim.runs.followers import Followers
from brim.runs.plain import PlainView
from brim.scheduler.turns import NoThread, TenantThreads
from brim.storage.bundles import digest_of, pack, unpack
from brim.wire.frames import FrameBuffer, frame
from brim.wire.messages import Codec, JobFailed, TemplateMessage, WorkerForked
from brim.wire.nodes import Begin
from brim.worker.template import TemplateProcess
from edges.test_workers import Bench
from recorded_run import RecordedRun, spec

NO_PROCESS = OSError(errno.EAGAIN, "Resource temporarily unavailable")
NO_THREAD = RuntimeError("can't start new thread")


def refuse(*_: object, **__: object) -> NoReturn:
    raise NO_PROCESS


def refuse_thread(*_: object, **__: object) -> NoReturn:
    raise NO_THREAD


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NO_PROCESS, "brim: [Errno 11] Resource temporarily unavailable; no more processes"),
        (NO_THREAD, "brim: can't start new thread; no more processes or threads are allowed"),
        (MemoryError(), "brim: there is no more memory: see free"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full: see df -h"),
        (OSError(errno.EROFS, "Read-only file system"), "the file system can only be read"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_verbs_name_what_is_short(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr("brim.cli.jobs.client_of", fail)
    result = CliRunner().invoke(cli, ["jobs"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_other_errors_keep_their_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.cli.jobs.client_of", lambda *_: 1 / 0)
    assert isinstance(CliRunner().invoke(cli, ["jobs"]).exception, ZeroDivisionError)


def test_output_without_room_fails_the_command(tmp_path: Path) -> None:
    """Python itself would leave with 120, and with words of its own."""

    def have_no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with (tmp_path / "out").open("wb") as out:
        ended = subprocess.run(
            [sys.executable, "-m", "brim", "help", "jobs"],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=have_no_room,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 1, ended.stderr
    assert (
        ended.stderr
        == "brim: [Errno 27] File too large; no larger file is allowed: see ulimit -f\n"
    )


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_under_progress_ends_no_training() -> None:
    view = PlainView(Full(), clock=VirtualClock())
    view.note("starting")
    view.say("a line")
    view.close()


class Notes(list[str]):
    """Keeps the notes that a view is given."""

    def note(self, text: str) -> None:
        self.append(text)


def test_logger_without_process_is_tried_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run must not end because one of its loggers cannot be started."""
    run = RecordedRun(tmp_path, spec())
    run.begin()
    monkeypatch.setattr("brim.runs.followers.subprocess.Popen", refuse)
    clock, notes = VirtualClock(100.0), Notes()
    monkeypatch.setattr("brim.runs.followers.monotonic", clock.now)
    followers = Followers(tmp_path, ["tensorboard"])
    for _ in range(5):
        followers.tend(notes)
        clock.advance(0.5)
    assert len(notes) == 1
    assert "logger tensorboard cannot be started, and is later: [Errno 11]" in notes[0]
    (missing,) = followers.finish()
    assert "logger tensorboard has not got all of this run: [Errno 11]" in missing
    followers.kill()


def test_work_waits_for_the_threads_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with Threads(4) as threads:
        go_on = threading.Event()
        first = threads.submit(go_on.wait, 60.0)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse_thread)
            others = [threads.submit(int) for _ in range(3)]
        go_on.set()
        assert first.result(60.0)
        assert [work.result(60.0) for work in others] == [0, 0, 0]
    monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Threads(1).submit(int)


def test_refused_threads_give_their_turns_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        threads = TenantThreads("answers", of_caller=1, in_all=1, to_begin=5.0)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse_thread)
            for _ in range(3):
                with pytest.raises(NoThread, match="can't start new thread"):
                    await threads.run("ads", int)
        assert await threads.run("ads", int) == 0

    asyncio.run(ask())


# Workers ------------------------------------------------------------------------------------------


def test_template_outlives_a_refused_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, control = socket.socketpair()
    template = TemplateProcess(
        control, spec(), str(tmp_path), "127.0.0.1", secret=b"", begin_again=None
    )
    codec: Codec[TemplateMessage] = Codec(TemplateMessage)
    monkeypatch.setattr(os, "fork", refuse)
    with agent, control:
        for worker in ("w1", "w2"):
            count = len(os.listdir("/proc/self/fd"))
            with open(os.devnull) as null:
                socket.send_fds(agent, [frame(f"{worker} 0".encode())], [null.fileno()] * 6)
            assert template._take_request()
            assert len(os.listdir("/proc/self/fd")) == count
            (message,) = FrameBuffer().feed(agent.recv(4096))
            told = codec.decode(message)
            assert isinstance(told, WorkerForked)
            assert (told.worker, told.pid) == (worker, 0)
            assert "no more processes or threads are allowed here" in told.problem


def test_unforked_worker_is_lost_with_its_reason(tmp_path: Path) -> None:
    ends: list[tuple[str, str]] = []

    async def live() -> None:
        lost = asyncio.Event()

        def gone(worker: str, status: int | None, reason: str) -> None:
            ends.append((worker, reason))
            lost.set()

        bench = Bench(tmp_path, gone=gone)
        with await bench.begin("w1"):
            bench.say(WorkerForked(worker="w1", pid=0, problem="no more processes"))
            async with asyncio.timeout(60):
                await lost.wait()
            await bench.end()

    asyncio.run(live())
    assert ends == [("w1", "it was not started: no more processes")]


@pytest.mark.parametrize("refusals", [2, 100])
def test_keeper_tries_again_to_start_a_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(keeper_module, "_LONGEST_WAIT", 0.0)
    starts = 0

    def dies(*_: object, **__: object) -> Process:
        return subprocess.Popen(["false"])

    def start(*_: object, **__: object) -> Process:
        nonlocal starts
        starts += 1
        if starts <= refusals:
            raise NO_PROCESS
        return subprocess.Popen(["true"])

    monkeypatch.setattr(keeper_module, "start_anew", start)
    keeper = Keeper([], tmp_path, dies)
    if refusals == 2:
        asyncio.run(keeper.run())
        assert starts == 3
    else:
        with pytest.raises(EnvironmentFault, match=r"before it began: \[Errno 11\].*ulimit -u"):
            asyncio.run(keeper.run())


@pytest.mark.parametrize(
    ("printed", "killed", "end"),
    [
        ("", "out of memory: the kernel ended it", "; out of memory: the kernel ended it"),
        ("one\nImportError: cannot map\n", "", "; ImportError: cannot map"),
        ("", "", "template.log"),
    ],
)
def test_dead_template_is_told_with_its_reason(
    tmp_path: Path, printed: str, killed: str, end: str
) -> None:
    failures: list[str] = []

    async def live() -> None:
        is_told = asyncio.Event()

        def failed(failure: JobFailed) -> None:
            failures.append(failure.message)
            is_told.set()

        bench = Bench(tmp_path, failed=failed)
        bench.workers._why_killed = lambda: killed
        (tmp_path / "logs" / "template.log").write_text(printed)
        await bench.workers.listen()
        bench.template.close()
        async with asyncio.timeout(60):
            await is_told.wait()
        await bench.end()

    asyncio.run(live())
    (message,) = failures
    assert message.startswith("the template process died: see ")
    assert message.endswith(end)


# Jobs ---------------------------------------------------------------------------------------------


def test_last_words_of_processes_are_told(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "agent.log"
    log.write_text("of an earlier start\n")
    watch = RunWatch(tmp_path)
    watch.begin(1.0)
    assert watch.seen(alive=False, workers={}).problem == ""
    with log.open("a") as file:
        file.write("first\nno more processes\n")
    assert watch.seen(alive=True, workers={}).problem == ""
    words = "its processes died; the last line of their log: no more processes"
    assert watch.seen(alive=False, workers={}).problem == words


def test_node_tells_why_no_job_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, caller = socket.socketpair()
    begin = Begin(
        job="job-1",
        arguments=[],
        python=(sys.executable, ""),
        environment={},
        directory=str(tmp_path),
        fallback="",
        user="",
        listens=False,
    )
    monkeypatch.setattr(os, "fork", refuse)
    with node, caller, (tmp_path / "log").open("wb") as log, socket.socket() as listener:
        output = os.dup(log.fileno())
        monkeypatch.setattr(
            "brim.node.loop.receive", lambda _: (begin, [os.dup(0), output, os.dup(0)])
        )
        assert NodeAgent(listener)._serve(node)
    text = (tmp_path / "log").read_text()
    assert text.startswith("brim: not started by its node: Begin: [Errno 11]")
    assert "no more processes or threads are allowed here" in text


def test_code_is_unpacked_without_temporary_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_folder() -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.gettempdir", refuse_folder)
    bundle = pack({"a.py": b"1"})
    assert (unpack(bundle, digest_of(bundle)) / "a.py").read_bytes() == b"1"
