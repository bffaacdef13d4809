"""The processes of one job on this host: its master, and one agent that starts the workers."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from brim.clock import SystemClock
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault
from brim.storage.files import write_whole

__all__ = ["LocalRun", "start"]

_GRACE = 15.0  # seconds that the agent has to clean up behind a master that is gone


class LocalRun:
    """A run under way; `start` makes one."""

    def __init__(self, master: subprocess.Popen[bytes], agent: subprocess.Popen[bytes], scratch: str) -> None:
        self._master, self._agent, self._scratch = master, agent, scratch
        self._ended_at: float | None = None

    def poll(self) -> int | None:
        """The exit status of the master once both processes have ended, else None."""
        code = self._master.poll()
        if code is None:
            return None
        self._ended_at = self._ended_at or time.monotonic()
        if self._agent.poll() is None:
            if time.monotonic() - self._ended_at > _GRACE:
                self._agent.kill()
            return None
        shutil.rmtree(self._scratch, ignore_errors=True)
        return code

    def interrupt(self) -> None:
        """Ask the run to stop at its next step boundary, with a checkpoint."""
        self._master.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now. The agent takes its workers with it."""
        for process in (self._master, self._agent):
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def start(spec: JobSpec, run_dir: Path, *, resume: bool, listen: str | None) -> LocalRun:
    """Start a job's master and agent.

    Args:
        spec: what to do; written to `job.json` in the run's directory.
        run_dir: the run's directory; it exists.
        resume: the directory holds checkpoints to go on from; without it, it must hold none.
        listen: `HOST:PORT` where agents of other hosts may join, or None for this host only.

    Raises:
        EnvironmentFault: the directory cannot be written.
    """
    if not resume and (run_dir / "checkpoints").exists():
        raise EnvironmentFault(f"{run_dir} holds checkpoints of another run")
    started = SystemClock().wall()
    run_dir = run_dir.resolve()
    try:
        write_whole(run_dir / "job.json", msgspec.json.format(msgspec.json.encode(spec)))
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {run_dir}: {error}") from error
    scratch = tempfile.mkdtemp(prefix="brim-")  # a socket's path must be short, a run's need not be
    address = f"unix:{scratch}/master"
    environment = {**os.environ, "BRIM_TOKEN": secrets.token_hex(16)}
    (run_dir / "logs").mkdir(exist_ok=True)
    agent_arguments = ["--master", address, "--name", "a1", "--run-dir", str(run_dir)]
    if listen:
        agent_arguments += ["--host", listen.rpartition(":")[0]]
    master_arguments = [str(run_dir), "--local", address, "--started", str(started)]
    if listen:
        master_arguments += ["--listen", listen]
    directory = spec.directory or None
    master = _start(["brim.master", *master_arguments], run_dir, environment, directory)
    agent = _start(["brim.agent", *agent_arguments], run_dir, environment, directory)
    return LocalRun(master, agent, scratch)


def _start(
    module: list[str], run_dir: Path, environment: dict[str, str], directory: str | None
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, so that Ctrl-C reaches the foreground command alone.

    Its standard input is a pipe that we hold: when we are gone, it knows.
    """
    with (run_dir / "logs" / f"{module[0].removeprefix('brim.')}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *module],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
