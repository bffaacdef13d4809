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
from brim.host.shortage import words_of_shortage
from brim.loggers import trainjob
from brim.loggers.follower import place_of, recorded_loggers
from brim.storage.files import open_log
from brim.telemetry.logs import last_line

_TO_END = 10.0  # seconds that loggers may take to finish once the run is over
_LONGEST_WAIT = 60.0  # seconds between two starts of a logger that fails
_STEADY = 60.0  # seconds after which a failure is a new one


class _View(Protocol):
    def note(self, text: str) -> None: ...


@dataclass(slots=True)
class _Follower:
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
            run had before, and of what reports progress where this is a pod of a TrainJob.
        directory: that the run was started in: theirs as well, so that relative addresses mean the
            same again.
    """

    def __init__(self, run_dir: Path, loggers: Iterable[str] = (), directory: str = "") -> None:
        self._run_dir, self._directory = run_dir.resolve(), directory or None
        of_pod = [trainjob.NAME] if trainjob.is_wanted() else []
        names = dict.fromkeys([*recorded_loggers(run_dir), *loggers, *of_pod])
        logs = self._run_dir / "logs"
        self._all = [
            _Follower(name, logs / f"logger-{place_of(run_dir, name).stem}.log") for name in names
        ]

    def tend(self, view: _View) -> None:
        """Start those that do not run and are due; never waits."""
        now = monotonic()
        for follower in self._all:
            process = follower.process
            if process is not None and process.poll() and not follower.due:
                end = f"ended and is started again: {_last_line(follower.log)}"
                self._failed(follower, now, view, end)
            elif (process is None or follower.due) and now >= follower.due:
                try:
                    self._start(follower, now)
                except OSError as error:  # the run goes on without it
                    words = words_of_shortage(error) or str(error)
                    self._failed(follower, now, view, f"cannot be started, and is later: {words}")

    def _failed(self, follower: _Follower, now: float, view: _View, end: str) -> None:
        """Have it started again after a while, and say so once."""
        follower.failures = 1 if now - follower.started > _STEADY else follower.failures + 1
        follower.due = now + min(_LONGEST_WAIT, 2.0 ** (follower.failures - 1))
        if follower.failures == 1:
            view.note(f"logger {follower.name} {end}")

    def _start(self, follower: _Follower, now: float) -> None:
        """Raises OSError where that cannot be."""
        command = run_module("brim.loggers", str(self._run_dir), follower.name)
        if follower.process is not None and follower.process.stdin is not None:
            follower.process.stdin.close()
        follower.process, follower.started, follower.due = None, now, 0.0
        follower.log.parent.mkdir(exist_ok=True)
        with open_log(follower.log) as log:
            follower.process = subprocess.Popen(
                [*command, "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._directory,
            )

    def finish(self) -> list[str]:
        """Let them tell the rest, for a few seconds; then end them.

        The notes about those that did not come to it.
        """
        now, notes = monotonic(), []
        for follower in self._all:
            try:
                if follower.process is None or follower.process.poll():
                    # it was killed, or waits to be started again: once more
                    self._start(follower, now)
            except OSError as error:
                notes.append(self._missing(follower, words_of_shortage(error) or str(error)))
                continue
            assert follower.process is not None
            assert follower.process.stdin is not None
            follower.process.stdin.close()
        ends = [self._see_off(follower, now + _TO_END) for follower in self._all]
        return [*notes, *filter(None, ends)]

    def _see_off(self, follower: _Follower, deadline: float) -> str:
        if follower.process is None:
            return ""
        try:
            code = follower.process.wait(max(0.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            follower.process.kill()
            follower.process.wait()
            reason = f"it did not finish within {_TO_END:.0f} s"
        else:
            if code == 0:
                return ""
            reason = _last_line(follower.log)
        return self._missing(follower, reason)

    def _missing(self, follower: _Follower, reason: str) -> str:
        return (
            f"logger {follower.name} has not got all of this run: {reason}\n"
            f"  hint: brim track {self._run_dir} --logger {follower.name}"
        )

    def kill(self) -> None:
        """End them now."""
        for follower in self._all:
            if follower.process is not None:
                follower.process.kill()
                follower.process.wait()
                assert follower.process.stdin is not None
                follower.process.stdin.close()


def _last_line(log: Path) -> str:
    """The last line of a log."""
    return last_line(log) or f"it was killed; see {log}"
