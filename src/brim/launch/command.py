"""The processes of a command that one worker has started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import termios
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from brim.host.clock import monotonic, sleep
from brim.host.process import Orphans, children_of, die_with_parent, end_family
from brim.launch.terminal import Terminal

_TO_DIE = 10.0  # seconds that the kernel has for the end of what was killed
_KILLED_LOOK = 0.01  # seconds between looks at what was killed


class CommandProcess:
    """A command's process, the first of a group of its own, and its descendants.

    Signals go to the group, as torchrun sends them. Descendants that have left it, as torchrun's own
    processes do, are found as children of this process, which adopts them (`adopt_orphans`).

    Args:
        command: the program and its arguments.
        environment: all of its variables.
        terminal: descriptor of a terminal that becomes that of the process's session; None: its
            output goes where this process's does, and it has no input.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        terminal: int | None = None,
    ) -> None:
        # This process has one thread, so that a function may be called between fork and exec.
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=partial(_begin, os.getpid(), at_terminal=terminal is not None),
        )
        self._orphans = Orphans()
        self._deadline: float | None = None

    @property
    def pid(self) -> int:
        """Return the number of its first process."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Return the exit status, negative where a signal ended it; None: it runs."""
        return self._process.poll()

    @property
    def is_over(self) -> bool:
        """Return whether all of its group have ended: a shell ends before what it has started."""
        if self.status is None:
            return False
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def ask_to_end(self, grace: float, *, terminal: Terminal | None = None) -> None:
        """Send SIGTERM, or hang up its terminal; `press` kills it after so many seconds.

        An interactive shell ignores SIGTERM.
        """
        self._deadline = monotonic() + grace
        if terminal is None:
            self._signal(signal.SIGTERM)
        else:
            terminal.hang_up(self._process.pid)

    def kill(self) -> None:
        """Send SIGKILL to its group."""
        self._signal(signal.SIGKILL)

    def press(self) -> None:
        """Kill it where its grace is over."""
        if self._deadline is not None and monotonic() >= self._deadline:
            self.kill()

    def bury_orphans(self, spared: Collection[int] = ()) -> None:
        """Take note of the ends of descendants that this process has adopted.

        Args:
            spared: children of this process that are not the command's.
        """
        self._orphans.clear_away(awaited=(self._process.pid, *spared))

    def clear_away(self, spared: Collection[int] = ()) -> None:
        """Kill all that is left of it: data loaders, servers in the background.

        Args:
            spared: children of this process that are not the command's.
        """
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TO_DIE)
        deadline = monotonic() + _TO_DIE
        while end_family(set(children_of(os.getpid())).difference(spared)):
            if monotonic() >= deadline:
                return
            sleep(_KILLED_LOOK)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _begin(parent: int, *, at_terminal: bool) -> None:
    """Be as a process that nobody of brim has started, but end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which workers ignore, and exec would leave so
    if at_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    die_with_parent(parent)
