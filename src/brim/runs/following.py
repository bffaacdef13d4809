"""Starts a run from Python and waits for its end.

No signal handlers: an interrupt arrives as KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from brim.backends import local
from brim.clock import sleep
from brim.errors import EnvironmentFault, SpecError
from brim.runs.followers import Followers
from brim.runs.outcome import error_of
from brim.runs.prints import Prints
from brim.runs.starting import Ready
from brim.runs.views import View, choose_view
from brim.storage.journal import set_aside_if_damaged
from brim.telemetry.history import RunReader, read_history

INTERVAL = 0.1


def follow(ready: Ready, *, loggers: Sequence[str] = ()) -> None:
    """Start a run, show it, and return once it is done or was suspended by somebody else.

    An interrupt, as a notebook's stop button sends it, stops the run at its next step with a
    checkpoint; a second one kills it.

    Args:
        loggers: that are told of it, besides those that it had before.

    Raises:
        SpecError, UserCodeError, EnvironmentFault, InternalError: it could not be started, or
            failed.
        KeyboardInterrupt: it was interrupted, after it has ended.
    """
    reader = RunReader(ready.run_dir, keep_steps=False)
    reader.poll()  # an earlier life of the run is known, but not shown again
    damage = set_aside_if_damaged(ready.run_dir / "journal")
    try:
        run = local.start(ready.spec, ready.run_dir, resume=ready.resumes, listen=ready.listen)
    except (SpecError, EnvironmentFault):
        if ready.fresh:
            ready.fresh.withdraw()
        raise
    followers = Followers(ready.run_dir, loggers, ready.spec.directory)
    try:
        with contextlib.closing(choose_view()) as view:
            if damage:
                view.note(damage)
            prints = Prints(ready.run_dir, reader.history) if ready.spec.command else None
            interrupts = _wait(run, reader, view, prints, followers)
            for told in followers.finish() if reader.history.started else ():
                view.note(told)
    except BaseException:
        run.kill()  # nobody would watch it any more, and nobody asked for it to go on alone
        followers.kill()
        raise
    history = read_history(ready.run_dir)
    error = error_of(history, ready.run_dir)
    if isinstance(error, SpecError) and ready.fresh and not history.steps:
        ready.fresh.withdraw()
    if interrupts:
        raise KeyboardInterrupt(
            f"{ready.run_dir} was stopped; brim.Run({str(ready.run_dir)!r}).resume() goes on"
        )
    if error:
        raise error


def _wait(
    run: local.LocalRun, reader: RunReader, view: View, prints: Prints | None, followers: Followers
) -> int:
    """Show the run until all its processes have ended; the number of interrupts."""
    interrupts = 0
    while True:
        try:
            ended = (
                run.poll() is not None
            )  # asked first: what it wrote at its very end is shown as well
            view.show(reader.poll(), reader.history)
            for line in prints.fresh(reader.history) if prints else ():
                view.say(line)
            if ended:
                for line in prints.rest(reader.history) if prints else ():
                    view.say(line)
                return interrupts
            if reader.history.started:
                followers.tend(view)
            sleep(INTERVAL)
        except KeyboardInterrupt:
            interrupts += 1
            _stop(run, view, interrupts)


def _stop(run: local.LocalRun, view: View, interrupts: int) -> None:
    if interrupts == 1:
        view.note("stopping at the next step with a checkpoint; interrupt again to kill")
        run.interrupt()
    else:
        view.note("killing the run")
        run.kill()
