"""The processes of one job on this host: an agent, which keeps the master and starts the workers."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import msgspec

from brim.clock import SystemClock
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault
from brim.storage.files import write_whole

__all__ = ["LocalRun", "start"]


class LocalRun:
    """A run under way; `start` makes one."""

    def __init__(self, agent: subprocess.Popen[bytes], run_dir: Path, scratch: str) -> None:
        self._agent, self._run_dir, self._scratch = agent, run_dir, scratch

    def poll(self) -> int | None:
        """0 where the run has ended well, 1 where it has not, None where it has not ended."""
        code = self._agent.poll()
        if code is None:
            return None
        shutil.rmtree(self._scratch, ignore_errors=True)
        return min(abs(code), 1)

    def interrupt(self) -> None:
        """Ask the run to stop at its next step boundary, with a checkpoint."""
        self._agent.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now: workers go with their agent, and a master that is left alone ends."""
        with contextlib.suppress(ProcessLookupError):
            self._agent.kill()


def start(spec: JobSpec, run_dir: Path, *, resume: bool, listen: str | None) -> LocalRun:
    """Start a job's agent, and with it the master.

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
    (run_dir / "logs").mkdir(exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="brim-")  # a socket's path must be short, a run's need not be
    command = ["--run-dir", str(run_dir), "--local", f"unix:{scratch}/master"]
    master = ["--attempt", uuid.uuid4().hex, "--started", str(started)]
    if listen:
        command += ["--host", listen.rpartition(":")[0]]
        master += ["--listen", _with_port(listen)]
    with (run_dir / "logs" / "agent.log").open("ab") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "brim.agent", *command, "--", *master],
            stdin=subprocess.PIPE,  # we hold the other end: when we are gone, it knows
            stdout=log,
            stderr=log,
            env={**os.environ, "BRIM_TOKEN": secrets.token_hex(16)},
            start_new_session=True,  # Ctrl-C reaches the foreground command alone
        )
    return LocalRun(agent, run_dir, scratch)


def _with_port(listen: str) -> str:
    """The address with a free port in place of 0: every life of the master must be found at the same one."""
    host, _, port = listen.rpartition(":")
    if int(port):
        return listen
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host.strip("[]"), 0))
        return f"{host}:{probe.getsockname()[1]}"
