"""Agents of runs as forks of a warm process of this account, which has imported torch already.

The first run starts the warm process, instead of importing torch for itself; it outlives the run
for some minutes. Wherever it is of no use, an agent is started as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

import brim
from brim.backends.environment import environment_of_jobs
from brim.domain.job import JobSpec
from brim.domain.quantities import parse_duration
from brim.errors import EnvironmentFault
from brim.host.log import VARIABLE as LOG
from brim.host.process import readable, run_module, with_equal_hashes
from brim.host.surroundings import surroundings
from brim.wire.warm_forks import (
    BecomeAgent,
    alone_in,
    become_agent,
    call_warm_process,
    hears_ready,
    listen_for_forks,
    warm_folder,
)

KEEP_WARM = "BRIM_KEEP_WARM"
_IDLE_TIME = 300.0  # seconds without a run after which a warm process ends
_TO_BE_WARM = 20.0  # seconds for its imports: after that an agent is started as usual
_CAN_WATCH = hasattr(os, "pidfd_open")  # a process that is no child: only Linux has it
_TO_BEGIN = 20.0  # seconds for a fork to be an agent
# What a command may have and a job reads later: the same warm process will do.
_OF_NO_CONSEQUENCE = {"TERM", "SHELL", "HOSTNAME", "BRIM_MACHINE", LOG}
_ALSO_READ_AT_IMPORT = (
    "LD_",
    "GRPC_",
    "GLIBC_",
    "HIP_",
    "ROCR_",
    "HSA_",
    "DNNL_",
    "ONEDNN_",
    "ATEN_",
)

_started: list[subprocess.Popen[bytes]] = []  # by this process, whose children they are


@atexit.register
def _leave_them() -> None:
    """Have no warning of processes that are to outlive this one."""
    for process in _started:
        process.returncode = process.returncode or 0


class AgentProcess(Protocol):
    """The methods of an agent that its command needs; `subprocess.Popen` has them."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int, /) -> None: ...

    def kill(self) -> None: ...


class WarmAgent:
    """An agent that is a child of the warm process.

    Args:
        pid: of it.
        process: a descriptor of the process.
        status: the pipe that it writes its exit status to.
        stdin: the other end of its input.
    """

    def __init__(self, pid: int, process: int, status: int, stdin: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self._process, self._status = process, status
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return its exit status; None where it lives.

        Without a word from it, it was killed.
        """
        if self._code is None and readable([self._process], 0):
            word = b""
            with contextlib.suppress(BlockingIOError):  # something has kept its end of the pipe
                word = os.read(self._status, 1)
            self._code = word[0] if word else -signal.SIGKILL
            os.close(self._process)
            os.close(self._status)
        return self._code

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def idle_time() -> float:
    """Return for how many seconds a warm process outlives a run; 0: there is to be none.

    Raises:
        SpecError: the variable says neither.
    """
    text = os.environ.get(KEEP_WARM, "").strip()
    if text in ("0", "no", "none"):
        return 0.0
    return parse_duration(text, field=KEEP_WARM) if text else _IDLE_TIME


def have_ready(spec: JobSpec) -> None:
    """Have a warm process begin its imports, if there is none: this run is to follow.

    Raises:
        SpecError: the variable says neither for how long, nor that there is to be none.
    """
    line = _call(_time_for(spec, os.environ | spec.env))
    if line is not None:
        line.close()


def start_warm(
    spec: JobSpec,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: str | None,
    output: int,
    listener: int | None,
) -> WarmAgent | None:
    """Start the agent of a run as a fork of the warm process; None where that cannot be.

    Args:
        spec: of the run.
        arguments: of `python -m brim.agent`.
        environment: all of it.
        directory: where it works; None: where this process does.
        output: descriptor of its log.
        listener: of the socket on which other hosts call the master, or None.

    Raises:
        SpecError: see `have_ready`.
        EnvironmentFault: a fork was told what to be, and has not answered.
    """
    place = directory or _own_folder()
    line = _call(_time_for(spec, environment)) if place else None
    if line is None:
        return None
    with line:
        if not hears_ready(line, patience=_TO_BE_WARM):
            return None
        stdin, own_stdin = os.pipe()
        status, status_end = os.pipe()
        os.set_blocking(status, False)
        descriptors = [stdin, output, status_end, *([] if listener is None else [listener])]
        request = BecomeAgent(
            arguments=list(arguments),
            environment=dict(environment),
            directory=place,
            listens=listener is not None,
        )
        found = None
        try:
            found = become_agent(line, request, descriptors, patience=_TO_BEGIN)
        finally:
            os.close(stdin)
            os.close(status_end)
            if found is None:
                os.close(own_stdin)
                os.close(status)
    return WarmAgent(*found, status, os.fdopen(own_stdin, "wb")) if found else None


def _own_folder() -> str:
    """Return where this process works; empty where that was deleted."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return ""


def _time_for(spec: JobSpec, environment: Mapping[str, str]) -> float:
    """Return how long a warm process is to outlive a run; 0 where it is of no use to the run."""
    seconds = idle_time() if _CAN_WATCH else 0.0
    return seconds if _imports_torch(spec) and _reads_alike(environment) else 0.0


def _imports_torch(spec: JobSpec) -> bool:
    is_python = Path(spec.command[0]).name.startswith("python") if spec.command else True
    return is_python and spec.start_method != "spawn" and spec.workers_here != 0


def _reads_alike(environment: Mapping[str, str]) -> bool:
    """Return whether a run's own variables leave alone what is read at imports."""
    return _read_at_import(environment) == _read_at_import(os.environ)


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    variables = environment_of_jobs(environment, {})
    found = {name: value for name, value in variables.items() if name not in _OF_NO_CONSEQUENCE}
    more = {n: value for n, value in environment.items() if n.startswith(_ALSO_READ_AT_IMPORT)}
    return with_equal_hashes({**found, **more})


def _call(seconds: float) -> socket.socket | None:
    """A connection to the warm process, which is started where there is none; None: it cannot be."""
    if not seconds:
        return None
    _started[:] = [process for process in _started if process.poll() is None]
    environment = _read_at_import(os.environ)
    own_kind = {"python": sys.executable, "version": sys.version, "brim": brim.__file__}
    name = surroundings({**environment, **own_kind, "release": brim.__version__})
    with contextlib.suppress(EnvironmentFault, OSError):
        folder = warm_folder()
        with alone_in(folder) as private:
            line = call_warm_process(private, name)
            if line is not None:
                return line
            with listen_for_forks(private, name) as listener:
                command = run_module("brim.node.warm_process", "--listener", str(listener.fileno()))
                process = subprocess.Popen(
                    [*command, "--socket", str(folder / name), "--idle-time", str(seconds)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[listener.fileno()],
                    env=environment,
                    cwd="/",
                    start_new_session=True,
                )
            _started.append(process)
            return call_warm_process(private, name)
    return None
