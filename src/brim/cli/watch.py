"""Follows a run from its first line to its end: polls its records, shows them, and passes Ctrl-C
on.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Protocol

from brim.cli.invite import Invitation
from brim.cli.usage import EXIT_DONE, EXIT_FAILED, EXIT_USAGE
from brim.clock import sleep
from brim.runs.followers import Followers
from brim.runs.prints import Prints
from brim.runs.views import View
from brim.telemetry.history import RunHistory, RunReader

# Fast enough to look live, slow enough to cost nothing beside training.
INTERVAL = 0.1


class Handle(Protocol):
    """What `brim.backends.local.start` gives."""

    def poll(self) -> int | None: ...

    def interrupt(self) -> None: ...

    def kill(self) -> None: ...


def watch(
    run: Handle,
    reader: RunReader,
    view: View,
    invitation: Invitation | None = None,
    followers: Followers | None = None,
    prints: Prints | None = None,
) -> int:
    """Show the run until all its processes have ended.

    Args:
        invitation: tells how to join, for a run that listens for agents of other hosts.
        followers: the processes of its loggers, which begin once the run does.
        prints: what rank 0 prints, where that is to be shown.

    Returns:
        The exit code that the runtime reports.
    """
    try:
        with _signals(run, view):
            while (code := run.poll()) is None:
                _show(reader, view, prints)
                if invitation and (text := invitation.text()):
                    view.note(text)
                if followers and reader.history.started:
                    followers.tend(view)
                sleep(INTERVAL)
            # What it wrote between our last look and its end.
            _show(reader, view, prints)
            for line in prints.rest(reader.history) if prints else ():
                view.say(line)
            return code
    except BaseException:
        # Nobody would watch it any more, and nobody asked for it to go on alone.
        run.kill()
        if followers:
            followers.kill()
        raise
    finally:
        view.close()


def _show(reader: RunReader, view: View, prints: Prints | None) -> None:
    view.show(reader.poll(), reader.history)
    for line in prints.fresh(reader.history) if prints else ():
        view.say(line)


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
