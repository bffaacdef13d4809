"""`brim resize`: give a run or a job more or fewer workers."""

from __future__ import annotations

from pathlib import Path

import click

from brim.cli.shared.handles import handle_of
from brim.cli.shared.usage import EXIT_DONE
from brim.domain.job import WorkerRange
from brim.runs import completing
from brim.runs.options import STATE, WORKERS, job_option


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completing.runs)
@click.argument("workers", metavar="[WORKERS]", type=WORKERS, required=False)
@job_option(
    "servers",
    default=None,
    envvar=None,
    help="Use this many servers. The run must have been started with some.",
)
@STATE
def resize(run: str, workers: WorkerRange | None, servers: int | None, state: Path | None) -> int:
    """Give RUN this many WORKERS. Training goes on meanwhile; new workers join once they are ready.

    \b
    brim resize latest 8
    brim resize latest --ps 2     (2 servers, and as many workers as before)
    brim resize flights-1 1:8     (a job of the scheduler, which decides within these)
    """
    handle = handle_of(run, state, required=True)
    answer = handle.resize(workers, servers=servers)
    click.echo(f"{handle.name}: {answer}", err=True)
    return EXIT_DONE
