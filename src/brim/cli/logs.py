"""`brim logs`: what the processes of a run, or of a job of the scheduler, printed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import click

from brim.cli.usage import EXIT_DONE
from brim.runs.options import STATE, option

__all__ = ["logs"]

INTERVAL = 0.2


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@option("--follow", "-f", is_flag=True, help="Go on until the run ends.")
@option("--worker", metavar="W", default="", help="Of this worker alone, such as w1.")
@option("--json", "as_json", is_flag=True, help="Print a JSON object for each line, with worker and text.")
@STATE
def logs(run: str | None, follow: bool, worker: str, as_json: bool, state: Path | None) -> int:
    """What the processes of RUN, or of a job of the scheduler, printed, each line under its worker's name.

    \b
    brim logs
    brim logs latest -f --worker w1
    brim logs flights-1 -f
    brim logs flights-1 --json
    """
    from brim.cli.clients import scheduler_of
    from brim.runs.directories import find_run

    scheduler = scheduler_of(run, state)
    if scheduler is not None:
        lines = scheduler.logs(run or "", worker=worker, follow=follow)
    else:
        lines = _lines(find_run(run, state=state), worker, follow=follow)
    for name, text in lines:
        click.echo(json.dumps({"worker": name, "text": text}) if as_json else f"{name} | {text}")
    return EXIT_DONE


def _lines(run_dir: Path, worker: str, *, follow: bool) -> Iterator[tuple[str, str]]:
    from brim.telemetry.logs import Tail

    tail = Tail(run_dir, worker)
    while True:
        ended = not follow or _ended(run_dir)  # asked first: what it printed at its very end is read as well
        while lines := tail.fresh():
            yield from lines
        if ended:
            return
        time.sleep(INTERVAL)


def _ended(run_dir: Path) -> bool:
    from brim import client
    from brim.errors import EnvironmentFault

    try:
        client.status(run_dir)
    except EnvironmentFault:
        return True
    return False
