"""The processes that tell a run's loggers.

They are started beside the run, and again when they end. The run does not wait for them while it
trains.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from brim.host.clock import monotonic
from brim.host.process import run_module
from brim.loggers.follower import place_of, recorded_loggers
from brim.storage.files import open_log
from brim.telemetry.logs import last_line

_TO_END = 10.0  # seconds that loggers may take to finish once the run is over
_LONGEST_WAIT = 60.0  # seconds between two starts of a logger that fails
_STEADY = 60.0  # seconds after which a failure is a new one


class _View(Protocol):
    def note(self, text: str) -> None: ...


@dataclass(slots=True)
class _One:
    name: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    due: float = 0.0


class Followers:
    """The processes of one run's loggers.

    Args:
        run_dir: of the run.
        loggers: names, as another process understands them, besides those of the loggers that the
            run had before.
        directory: that the run was started in: theirs as well, so that relative addresses mean the
            same again.
    """

    def __init__(self, run_dir: Path, loggers: Iterable[str] = (), directory: str = "") -> None:
        self._run_dir, self._directory = run_dir.resolve(), directory or None
        names = dict.fromkeys([*recorded_loggers(run_dir), *loggers])
        logs = self._run_dir / "logs"
        self._all = [
            _One(name, logs / f"logger-{place_of(run_dir, name).stem}.log") for name in names
        ]

    def tend(self, view: _View) -> None:
        """Start those that do not run and are due; never waits."""
        now = monotonic()
        for one in self._all:
            if one.process is None:
                self._start(one, now)
            elif one.process.poll() and not one.due:
                one.failures = 1 if now - one.started > _STEADY else one.failures + 1
                wait = min(_LONGEST_WAIT, 2.0 ** (one.failures - 1))
                one.due = now + wait
                if one.failures == 1:
                    view.note(f"logger {one.name} ended and is started again: {_why(one.log)}")
            elif one.due and now >= one.due:
                self._start(one, now)

    def _start(self, one: _One, now: float) -> None:
        command = run_module("brim.loggers", str(self._run_dir), one.name)
        one.log.parent.mkdir(exist_ok=True)
        if one.process is not None and one.process.stdin is not None:
            one.process.stdin.close()
        with open_log(one.log) as log:
            one.process = subprocess.Popen(
                [*command, "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._directory,
            )
        one.started, one.due = now, 0.0

    def finish(self) -> list[str]:
        """Let them tell the rest, for a few seconds; then end them.

        What to say about those that did not come to it.
        """
        now = monotonic()
        for one in self._all:
            if one.process is None or one.process.poll():
                self._start(one, now)  # it was killed, or waits to be started again: once more
            assert one.process is not None
            assert one.process.stdin is not None
            one.process.stdin.close()
        return [told for one in self._all if (told := self._see_off(one, now + _TO_END))]

    def _see_off(self, one: _One, deadline: float) -> str:
        assert one.process is not None
        try:
            code = one.process.wait(max(0.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
            why = f"it did not finish within {_TO_END:.0f} s"
        else:
            if code == 0:
                return ""
            why = _why(one.log)
        return (
            f"logger {one.name} has not got all of this run: {why}\n"
            f"  hint: brim track {self._run_dir} --logger {one.name}"
        )

    def kill(self) -> None:
        """End them now."""
        for one in self._all:
            if one.process is not None:
                one.process.kill()
                one.process.wait()
                assert one.process.stdin is not None
                one.process.stdin.close()


def _why(log: Path) -> str:
    """The last line of a log."""
    return last_line(log) or f"it was killed; see {log}"
