"""People at real terminals, who submit interactive jobs there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

from brim.host.clock import monotonic
from brim.host.process import readable
from brim_lab.driver import Driver
from e2e.running import DEADLINE

# Of a submission, behind its other options; `at_bash` waits for its prompt.
BASH = ("--grace", "2s", "--name", "shell", "--", "bash", "--norc", "--noprofile")


class Person:
    """Somebody who submits an interactive job at a terminal of their own, or runs it there.

    Args:
        driver: of the commands that they type.
        words: behind `brim submit --tty`.
        verb: `run` in its place.
        variables: of the environment.

    Attributes:
        job: its id, once `at_bash` has seen it.
    """

    def __init__(
        self,
        driver: Driver,
        *words: str,
        verb: str = "submit",
        rows: int = 24,
        columns: int = 80,
        **variables: str,
    ) -> None:
        self.terminal, program_end = pty.openpty()
        self.resize(rows, columns)
        self.process = subprocess.Popen(
            driver.command(verb, "--tty", *words),
            stdin=program_end,
            stdout=program_end,
            stderr=program_end,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**driver.environment, "TERM": "vt100", **variables},
        )
        os.close(program_end)
        self.seen = self.job = ""

    def at_bash(self) -> None:
        """Wait until bash has the terminal."""
        self.job = self.sees(r"(shell-\d+): submitted")[1]
        self.sees(r"bash-[\d.]+[$#] ")

    def resize(self, rows: int, columns: int) -> None:
        packed = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, packed)

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def sees(self, pattern: str) -> re.Match[str]:
        """Wait until a pattern is seen behind what was seen before."""
        deadline = monotonic() + DEADLINE
        while (found := re.search(pattern, self.seen)) is None:
            assert monotonic() < deadline, f"no {pattern!r} in {self.seen!r}"
            if readable([self.terminal], 0.5):
                try:
                    self.seen += os.read(self.terminal, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"no {pattern!r} in {self.seen!r}, and the end") from None
        self.seen = self.seen[found.end() :]
        return found

    def runs(self, command: str, pattern: str) -> re.Match[str]:
        """Type a command, and wait for what it prints; its echo does not count."""
        self.type(f"{command}\r")
        self.sees(re.escape(command))
        return self.sees(pattern)

    def ends(self) -> int:
        """Return the exit status, once the command has ended."""
        deadline = monotonic() + DEADLINE
        while self.process.poll() is None:
            assert monotonic() < deadline, self.seen
            self._read_on(0.2)
        while self._read_on(0.0):  # what it has said at last
            pass
        return self.process.returncode

    def _read_on(self, timeout: float) -> bool:
        """Read what is shown next; False: nothing within so many seconds, or never again."""
        if readable([self.terminal], timeout):
            with contextlib.suppress(OSError):
                shown = os.read(self.terminal, 65536)
                self.seen += shown.decode(errors="replace")
                return bool(shown)
        return False

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        os.close(self.terminal)
