"""The processes of a command that one worker has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from brim.host.clock import monotonic
from brim.host.process import die_with_parent

_TO_DIE = 10.0  # seconds that the kernel has for the end of what was killed


class CommandProcess:
    """A command's process, the first of a group of its own, and its descendants.

    Signals go to the group, as torchrun sends them.

    Args:
        command: the program and its arguments.
        environment: all of its variables.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # This process has one thread, so that a function may be called between fork and exec.
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        self._deadline: float | None = None

    @property
    def status(self) -> int | None:
        """Return the exit status, negative where a signal ended it; None: it runs."""
        return self._process.poll()

    @property
    def is_ending(self) -> bool:
        """Return whether it was asked to end."""
        return self._deadline is not None

    def ask_to_end(self, grace: float) -> None:
        """Send SIGTERM; `press` kills it once so many seconds have passed."""
        self._deadline = monotonic() + grace
        self._signal(signal.SIGTERM)

    def press(self) -> None:
        """Kill it where its grace is over."""
        if self._deadline is not None and monotonic() >= self._deadline:
            self._signal(signal.SIGKILL)

    def clear_away(self) -> None:
        """Kill all that is left of the group: data loaders, servers in the background."""
        self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TO_DIE)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
