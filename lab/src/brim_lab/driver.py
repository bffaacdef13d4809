"""The one driver of brim from outside: types its verbs in processes of their own, as people do.

Chaos, experiments, benchmarks and end-to-end tests start brim through it. Every process that comes
of it, however it was started and wherever it went, carries a mark, by which it is found and ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from brim.errors import EnvironmentFault
from brim.host.procfs import read_proc

MARK = "DRIVEN_BY"  # names that begin with BRIM_ are reserved
TIMEOUT = 400.0  # seconds that a verb may take which is called and not followed
_POLL = 0.01
_LAST_WORDS = 1.0  # seconds to hear them: what a killed verb has started may hold its output open

Output = int | IO[bytes] | None


class MarkedProcesses:
    """All processes whose environment has this mark, unawaited ones among them.

    Args:
        mark: unique on this machine.
    """

    def __init__(self, mark: str) -> None:
        self.environment = {MARK: mark}
        self._needle = f"{MARK}={mark}".encode()

    def alive(self) -> dict[int, str]:
        """Process id -> command line; a zombie can do nothing any more and is not counted."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended while we looked, or is not ours
                variables = (entry / "environ").read_bytes().split(b"\0")
                if self._needle in variables and _lives(entry):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = command.decode(errors="replace").strip()
        return found

    def kill(self) -> None:
        """SIGKILL, until none is left: processes forked meanwhile are found in the next round."""
        while pids := self.alive():
            for pid in pids:
                send(pid, signal.SIGKILL)
            time.sleep(_POLL)

    def left_after(self, seconds: float) -> dict[int, str]:
        """Wait so many seconds, or until no process is alive; return those that are."""
        deadline = time.monotonic() + seconds
        while (survivors := self.alive()) and time.monotonic() < deadline:
            time.sleep(5 * _POLL)
        return survivors


class Driver:
    """The place where brim's verbs are typed: a folder, an environment without BRIM_…, and a mark.

    Args:
        folder: that commands are typed in; None for the present one.
        variables: of the environment, beside those of this process.
    """

    def __init__(self, folder: Path | None = None, **variables: str) -> None:
        self._folder = folder
        self._prefix: tuple[str, ...] = ()
        self._variables = variables
        self.mark = MarkedProcesses(uuid.uuid4().hex)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this process now, without BRIM_…, and with additions.

        No process is to outlive the run that it was started for.
        """
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("BRIM_")}
        return {**inherited, "BRIM_KEEP_WARM": "0", **self.mark.environment, **self._variables}

    def with_prefix(self, prefix: Sequence[str]) -> Driver:
        """The same driver, but for a prefix of its commands, such as one that enters a host."""
        copied = Driver(self._folder, **self._variables)
        copied._prefix = tuple(prefix)
        copied.mark = self.mark
        return copied

    def command(self, *words: str) -> list[str]:
        """The command of a verb and its words."""
        return [*self._prefix, sys.executable, "-m", "brim.cli", *words]

    def start(
        self,
        *words: str,
        stdout: Output = subprocess.PIPE,
        stderr: Output = subprocess.PIPE,
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a verb, without input.

        Args:
            variables: of its environment alone.
        """
        return subprocess.Popen(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            env={**self.environment, **(variables or {})},
            cwd=self._folder,
        )

    def call(
        self, *words: str, timeout: float | None = TIMEOUT, codes: Sequence[int] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end.

        Args:
            timeout: seconds; None for a verb that may take as long as it likes.
            codes: with which it may end; none for any.

        Raises:
            EnvironmentFault: it ended with another code, or not in time; the message has its last
                words.
        """
        process = self.start(*words)
        try:
            output, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as late:
            process.kill()
            last_words = _last_words(process)
            message = f"brim {' '.join(words)} did not end within {timeout:g} s:\n{last_words}"
            raise EnvironmentFault(message) from late
        except BaseException:
            process.kill()
            raise
        if codes and process.returncode not in codes:
            raise EnvironmentFault(
                f"brim {' '.join(words)} failed with {process.returncode}:\n{err.strip()}"
            )
        return subprocess.CompletedProcess(process.args, process.returncode, output, err)

    def follow(
        self, process: subprocess.Popen[str], look: Callable[[], None], *, deadline: float
    ) -> int | None:
        """Look until a verb has ended, and once more then.

        Args:
            deadline: of the monotonic clock, at which everything is ended.

        Returns:
            Its exit code; None where it came to the deadline.
        """
        while process.poll() is None:
            if time.monotonic() > deadline:
                self.end()
                process.wait()
                return None
            look()
            time.sleep(_POLL)
        look()
        return process.returncode

    def end(self) -> None:
        """Kill all that was started, and all that it has started."""
        self.mark.kill()


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone; 0 is none."""
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _lives(entry: Path) -> bool:
    return read_proc(f"{entry}/stat").rpartition(")")[2].split()[0] not in "ZX"


def _last_words(process: subprocess.Popen[str]) -> str:
    """Return a killed process's output on stderr, as far as available."""
    with process:  # closes its pipes, and waits for it alone
        try:
            return process.communicate(timeout=_LAST_WORDS)[1].strip()
        except subprocess.TimeoutExpired as late:
            printed: Any = late.stderr or b""  # text where some was decoded before
            return str(
                printed.decode(errors="replace") if isinstance(printed, bytes) else printed
            ).strip()
