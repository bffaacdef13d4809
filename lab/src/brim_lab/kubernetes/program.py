"""A program that runs beside this process, with its log, and no longer than this process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic, sleep

_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
READY_WITHIN = 180.0  # seconds: alone a cluster takes 10, on a busy machine many times that
_END_TIMEOUT = 10.0  # seconds that a program may take to end when it is asked to
_LAST_LINES = 15


class LoggedProgram:
    """A program that can be started, killed and started again.

    Args:
        name: of its log, in the folder of logs.
        command: to start it with.
        log: all that it says is added to this file.
        environment: what it has beside that of this process.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.log = name, log
        self._command, self._environment = list(command), dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 where it does not run."""
        return self._process.pid if self._process is not None and self.is_up() else 0

    @property
    def pid_at_start(self) -> int:
        """The process id that it was given, whether or not it has ended; 0 before."""
        return self._process.pid if self._process is not None else 0

    def is_up(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, for the first time or after `stop`."""
        if self.is_up():
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_DIES_WITH_US, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,  # Control-C is for us: we end it
            )

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, such as SIGSTOP and SIGCONT."""
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal, and wait until it has ended: with SIGKILL, if it takes too long."""
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def must_be_up(self) -> None:
        """Raise EnvironmentFault where it has ended; the message has its last words."""
        if self._process is not None and self._process.poll() is not None:
            raise EnvironmentFault(
                f"{self.name} ended with {self._process.returncode}:\n{self.last_words()}\n"
                f"  hint: less {self.log}"
            )

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-_LAST_LINES:])


def wait_until(deadline: float, subject: str, *programs: LoggedProgram) -> None:
    """Sleep for a moment, while a deadline has not passed and programs are up.

    Args:
        deadline: of the monotonic clock.
        subject: is waited for.

    Raises:
        EnvironmentFault: the deadline has passed, or a program has ended.
    """
    for program in programs:
        program.must_be_up()
    if monotonic() > deadline:
        output = "".join(f"\n{program.name}:\n{program.last_words()}" for program in programs)
        raise EnvironmentFault(f"{subject} in time{output}")
    sleep(0.02)
