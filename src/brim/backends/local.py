"""The processes of one job on this host: its agent keeps the master and starts the workers."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from brim.backends.warm_agents import AgentProcess, start_warm
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock, monotonic
from brim.host.control_groups import groups_of, make_group
from brim.host.process import AGENT, birth_of, name_of, run_module, state_of
from brim.host.shortage import told_in_words
from brim.host.untrusted import open_regular
from brim.storage.contact import is_alive, read_contact
from brim.storage.heir import PATIENCE, SUCCESSION, forget_heir, heir_of
from brim.storage.job_file import keep_code, write_job
from brim.wire.listening import joined_address, listen_on, split_address
from brim.wire.private import control_folder, make_private

_BACKLOG = 128  # calls of other hosts that may wait for a master
_MOST_LIVES = 4  # agents of one run that may be killed before it has failed
_STOPPED = ("T", "t")  # of a process that will not go on by itself
_TO_LEAVE = 1.0  # seconds for what was killed to end; uninterruptible, it ends when it can
_GRACE = 15.0  # seconds that a master has to write down how the run of a dead agent ended


class LocalRun:
    """A run under way; `start` makes one.

    Args:
        agent: its process.
        run_dir: the run's directory.
        restart: starts another agent of the same run; None where the run ends with this one.
        succession: by which these agents' heirs are known.
        listener: the socket on which other hosts call their masters. It is held here, so that the
            port is nobody else's while no master is there; None: no other host can call.
    """

    def __init__(
        self,
        agent: AgentProcess,
        run_dir: Path,
        restart: Callable[[], AgentProcess] | None = None,
        succession: str = "",
        listener: socket.socket | None = None,
    ) -> None:
        self._agent, self._run_dir, self._restart, self._succession = (
            agent,
            run_dir,
            restart,
            succession,
        )
        self._listener = listener
        self._lives = 1
        self._died_at: float | None = None

    def poll(self) -> int | None:
        """0 where the run has ended well, 1 where it has not, None where some of it has not ended.

        Raises:
            EnvironmentFault: the agent was killed, and another one cannot be started.
        """
        code = self._agent.poll()
        if code is None:
            return None
        restart = self._restart if code < 0 and self._lives < _MOST_LIVES else None
        if code != 0 and self._is_outlived(goes_on=restart is not None):
            return None
        if restart is not None:
            self._lives, self._died_at = self._lives + 1, None
            self._agent = restart()
            return None
        forget_heir(self._run_dir, self._succession)
        _end_what_is_left(self._run_dir)
        if self._agent.stdin:
            self._agent.stdin.close()  # a program that goes on keeps nothing of the run
        if self._listener:
            self._listener.close()
        return min(abs(code), 1)

    def _is_outlived(self, *, goes_on: bool) -> bool:
        """Return whether a process is still there that may have something to leave.

        The wait for such a process has an end. What a master that goes had still to write, the next
        one writes from its journal. Where there will be no next one, the master is waited for, and
        else the heir.
        """
        master, heir = self._left_master(), heir_of(self._run_dir, self._succession)
        if not (master or heir):
            return False
        self._died_at = self._died_at or monotonic()
        waited = monotonic() - self._died_at
        if master and (goes_on or waited >= _GRACE):
            _kill(master)
        if heir and (not goes_on or waited >= PATIENCE or state_of(heir) in _STOPPED):
            _kill(heir)
        return True

    def _left_master(self) -> int:
        """The process of this agent's master; 0 where there is none."""
        contact = read_contact(self._run_dir)
        # The file may be one that an earlier start left, or that of another command which resumed
        # the run as well.
        if contact is None or contact.keeper != self._agent.pid or not is_alive(contact.pid):
            return 0
        return contact.pid

    def interrupt(self) -> None:
        """Ask the run to stop at its next step boundary, with a checkpoint."""
        self._restart = None
        self._agent.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now: workers go with their agent, and a master that is left alone ends."""
        self._restart = None
        if self._listener:
            self._listener.close()
        with contextlib.suppress(ProcessLookupError):
            self._agent.kill()
        if heir := heir_of(self._run_dir, self._succession):
            _kill(heir)


def _end_what_is_left(run_dir: Path) -> None:
    """End leftovers of user code of this run, where its agent was killed.

    The agent would have done it. The agent of another command that has resumed the run as well is
    left alone, with all that is in its group.
    """
    for group in groups_of(run_dir):
        if AGENT not in map(name_of, group.members()):
            group.end(patience=_TO_LEAVE)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def start(spec: JobSpec, run_dir: Path, *, resume: bool, listen: str | None) -> LocalRun:
    """Start a job's agent, and with it the master.

    Args:
        spec: what to do; written to `job.json` in the run's directory.
        run_dir: the run's directory; it exists.
        resume: the directory holds checkpoints to go on from; without it, it must hold none.
        listen: `HOST:PORT` where agents of other hosts may join, or None for this host only.

    Raises:
        EnvironmentFault: the directory cannot be written, the port is taken, or this host has no room
            for the processes.
    """
    if not resume and (run_dir / "checkpoints").exists():
        raise EnvironmentFault(f"{run_dir} holds checkpoints of another run")
    run_dir = run_dir.resolve()
    listener = _listen(listen) if listen else None
    keep = [listener.fileno()] if listener else []
    with contextlib.ExitStack() as undo:
        if listener:
            undo.enter_context(listener)  # the port of a run that does not start is free again
        address = _with_port_of(listener, listen) if listener and listen else None
        keep_code(run_dir, spec)
        arguments = prepare(spec, run_dir, listen=address)
        # Only Linux tells a process from another that has its number by now.
        succession = uuid.uuid4().hex if birth_of(os.getpid()) else ""
        environment = {**os.environ, **spec.env, **fresh_token(), SUCCESSION: succession}

        def launch() -> AgentProcess:
            """Launch the agent in a session of its own.

            Ctrl-C reaches the foreground command alone. We hold the other end of the agent's standard
            input: when we are gone, the agent knows.
            """
            _end_what_is_left(run_dir)
            group = make_group(run_dir)
            contained = ["--group", str(group.path)] if group else []
            directory = spec.directory if os.path.isdir(spec.directory) else None
            with told_in_words("the run's agent cannot be started"), agent_log(run_dir) as log:
                warm = start_warm(
                    spec,
                    [*contained, *arguments],
                    environment=environment,
                    directory=directory,
                    output=log.fileno(),
                    listener=keep[0] if keep else None,
                )
                called_at = [f"--listener={descriptor}" for descriptor in keep]
                return warm or subprocess.Popen(
                    run_module("brim.agent", *contained, *called_at, *arguments),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                    cwd=directory,
                    pass_fds=keep,
                )

        run = LocalRun(launch(), run_dir, launch, succession, listener)
        undo.pop_all()
        return run


def prepare(spec: JobSpec, run_dir: Path, *, listen: str | None = None) -> list[str]:
    """Write down the orders for a job's agent; the arguments of `python -m brim.agent`.

    Args:
        spec: what to do; written to `job.json`.
        run_dir: absolute; it exists.
        listen: `HOST:PORT` at which agents of other hosts find its master, or None.

    Raises:
        EnvironmentFault: the directory cannot be written.
    """
    write_job(run_dir, spec)
    attempt = uuid.uuid4().hex
    command = [
        "--run-dir",
        str(run_dir),
        "--local",
        local_address(run_dir),
    ]
    master = ["--attempt", attempt, "--started", str(SystemClock().wall())]
    if listen:
        command += ["--host", split_address(listen)[0]]
        master += ["--listen", listen]
    return [*command, "--", *master]


def local_address(run_dir: Path) -> str:
    """Return where the agents of this host find a run's master; its folder is made."""
    return f"unix:{make_private(control_folder(run_dir))}/master"


def agent_log(run_dir: Path) -> BinaryIO:
    """Open the file that takes the output of a run's agent."""
    (run_dir / "logs").mkdir(exist_ok=True)
    log = run_dir / "logs" / "agent.log"
    return os.fdopen(open_regular(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def fresh_token() -> dict[str, str]:
    """The variable by which the processes of a run know each other."""
    return {"BRIM_TOKEN": secrets.token_hex(16)}


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    hint = "--listen HOST:0 lets the system choose a port"
    return listen_on(host, port, backlog=_BACKLOG, hint=hint)


def _with_port_of(listener: socket.socket, address: str) -> str:
    """The address with the port that was chosen in place of 0."""
    return joined_address(split_address(address)[0], listener.getsockname()[1])
