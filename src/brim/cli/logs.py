"""`brim logs`: the output of the processes of a run, or of a job of the scheduler."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click

from brim.cli.shared.handles import handle_of
from brim.cli.shared.usage import EXIT_DONE
from brim.runs import completing
from brim.runs.options import STATE, option

INTERVAL = 0.2


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completing.runs)
@option(
    "--follow",
    "-f",
    is_flag=True,
    help="Follow the logs until the run ends, and show its progress on stderr.",
)
@option(
    "--worker",
    metavar="W",
    default="",
    shell_complete=completing.workers,
    help="Show only the lines of this worker, such as w1.",
)
@option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object for each line, with worker and text.",
)
@STATE
def logs(run: str | None, follow: bool, worker: str, as_json: bool, state: Path | None) -> int:
    """Show what the processes of RUN, or of a job of the scheduler, print.

    Each line begins with its worker's name. Of a command that was started again, a line such as
    `[start 2 of the command]` comes before the lines of each further start.

    \b
    brim logs
    brim logs latest -f --worker w1
    brim logs flights-1 -f
    brim logs flights-1 --json
    """
    handle = handle_of(run, state)
    run_dir = handle.run_dir
    lines = handle.logs(worker=worker, follow=follow)
    # A job of another account, or of another host, has its records elsewhere.
    shows_progress = follow and not as_json and os.access(run_dir, os.R_OK | os.X_OK)
    with _progress(run_dir) if shows_progress else contextlib.nullcontext():
        for name, text in lines:
            click.echo(
                json.dumps({"worker": name, "text": text}) if as_json else f"{name} | {text}"
            )
    return EXIT_DONE


@contextlib.contextmanager
def _progress(run_dir: Path) -> Iterator[None]:
    """Show the run's progress on stderr, for a user who waits for lines on stdout."""
    from brim.host.clock import SystemClock
    from brim.runs.plain import PlainView
    from brim.telemetry.history import RunReader

    reader, view = RunReader(run_dir, keep_steps=False), PlainView(sys.stderr, clock=SystemClock())
    is_over = threading.Event()
    reader.poll()  # what was before is in the report
    if reader.history.steps:
        view.show([reader.history.steps[-1]], reader.history)

    def follow() -> None:
        while not is_over.wait(INTERVAL):
            view.show(reader.poll(), reader.history)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        view.show(reader.poll(), reader.history)
