"""Follows a run from its first line to its end: polls its records, shows them, and passes Ctrl-C on."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from brim.cli.followers import Followers
from brim.cli.invite import Invitation
from brim.cli.usage import EXIT_DONE, EXIT_FAILED, EXIT_USAGE
from brim.domain.accounting import StepRecord, lasting
from brim.telemetry.history import RunHistory, RunReader
from brim.telemetry.records import Event, ReFormed, RoundFormed

__all__ = ["Handle", "View", "exit_code", "summary_of", "watch"]

# Fast enough to look live, slow enough to cost nothing beside training.
INTERVAL = 0.1


class Handle(Protocol):
    """What `brim.backends.local.start` gives."""

    def poll(self) -> int | None: ...

    def interrupt(self) -> None: ...

    def kill(self) -> None: ...


class View(Protocol):
    """Shows a run to a person."""

    def show(self, fresh: list[Event | StepRecord], history: RunHistory) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def watch(
    run: Handle,
    reader: RunReader,
    view: View,
    invitation: Invitation | None = None,
    followers: Followers | None = None,
) -> int:
    """Show the run until all its processes have ended.

    Args:
        invitation: tells how to join, for a run that listens for agents of other hosts.
        followers: the processes of its loggers, which begin once the run does.

    Returns:
        The exit code that the runtime reports.
    """
    try:
        with _signals(run, view):
            while (code := run.poll()) is None:
                view.show(reader.poll(), reader.history)
                if invitation and (text := invitation.text()):
                    view.note(text)
                if followers and reader.history.started:
                    followers.tend(view)
                time.sleep(INTERVAL)
            # What it wrote between our last look and its end.
            view.show(reader.poll(), reader.history)
            return code
    except BaseException:
        # Nobody would watch it any more, and nobody asked for it to go on alone.
        run.kill()
        if followers:
            followers.kill()
        raise
    finally:
        view.close()


@contextlib.contextmanager
def _signals(run: Handle, view: View) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) asks the run to stop at the next step, the second kills it."""
    asked = False

    def handle(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            view.note("killing the run")
            run.kill()
            return
        asked = True
        view.note("stopping at the next step with a checkpoint; Ctrl-C again to kill")
        run.interrupt()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(code: int, history: RunHistory) -> int:
    """The command's exit code: 2 where the spec was wrong after all, 1 where the run failed."""
    if history.failed and history.failed.who == "spec":
        return EXIT_USAGE
    ended = history.ended.summary.get("exit") if history.ended else "failed"
    if history.failed or ended == "failed" or code != 0:
        return EXIT_FAILED
    return EXIT_DONE


def summary_of(history: RunHistory, run_dir: Path) -> dict[str, Any]:
    """The run's summary, or what can be said of a run that could not write one."""
    if history.ended:
        return dict(history.ended.summary)
    steps = lasting(history.steps, history.restores)
    sizes = {event.world_size for event in history.events if isinstance(event, RoundFormed)}
    last = history.epochs[max(history.epochs)] if history.epochs else None
    re_forming = sum(event.seconds for event in history.events if isinstance(event, ReFormed))
    total = sum(session.end - session.start for session in history.sessions)
    first = history.steps[0].at - history.sessions[0].start if history.steps and history.sessions else None
    return {
        "run": str(run_dir),
        "exit": "failed",
        "metrics": dict(last.metrics) if last else {},
        "steps": history.step,
        "samples_per_epoch": history.dataset.samples if history.dataset else None,
        "steps_redone": len(history.steps) - len(steps),
        "world_sizes": sorted(sizes),
        "weights_sha256": None,
        "samples_per_second": None,
        "seconds": {"total": total, "to_first_step": first, "re_forming": re_forming},
    }
