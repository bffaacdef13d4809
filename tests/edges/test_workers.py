"""An agent's workers, with a template that is a fake and a process that SIGKILL does not end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from brim.agent import workers as agents
from brim.agent.workers import Callbacks, Template, Workers
from brim.stacks import Stacks
from brim.wire.frames import frame
from brim.wire.messages import Codec, TemplateMessage, TemplateReady, WorkerForked


class Undying:
    """A process in an uninterruptible sleep: signals wait for it to wake."""

    pid, returncode = 1 << 22, None

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "it would be waited for without end"
        raise subprocess.TimeoutExpired("sleeps", timeout)

    def kill(self) -> None:
        pass


def test_a_worker_that_sleeps_through_its_kill_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays a process and keeps its socket, but no line of its program is executed any more."""
    monkeypatch.setattr(agents, "_TO_DIE", 0.05)
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    (tmp_path / "logs").mkdir()
    codec: Codec[TemplateMessage] = Codec(TemplateMessage)

    async def live() -> str:
        ours, theirs = socket.socketpair()
        gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        workers = Workers(
            tmp_path,
            Template(Undying(), ours, Stacks()),
            Callbacks(
                ready=lambda: None,
                replaced=lambda why: None,
                spent=lambda why: None,
                started=lambda worker, pid: workers.signal(worker, signal.SIGKILL),
                heard=lambda worker, message: None,
                gone=lambda worker, status, reason: gone.set_result(worker),
                failed=lambda failed: None,
            ),
        )
        await workers.listen()
        theirs.sendall(frame(codec.encode(TemplateReady())))
        await workers.start("w1")
        theirs.sendall(frame(codec.encode(WorkerForked(worker="w1", pid=4_000_000))))
        async with asyncio.timeout(10):
            lost = await gone
            await workers.end()
        theirs.close()
        return lost

    assert asyncio.run(live()) == "w1"
    assert killed == [(4_000_000, signal.SIGKILL)]
