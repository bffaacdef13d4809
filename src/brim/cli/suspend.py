"""`brim suspend`: pause a run or a job."""

from __future__ import annotations

from pathlib import Path

import click

from brim.cli.shared.handles import handle_of
from brim.cli.shared.usage import EXIT_DONE
from brim.runs import completing
from brim.runs.options import STATE


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completing.runs)
@STATE
def suspend(run: str, state: Path | None) -> int:
    """Pause RUN: write a checkpoint at its next step and release its workers.

    `brim resume` continues it.

    \b
    brim suspend latest
    brim resume latest --workers 8
    """
    handle = handle_of(run, state, required=True)
    click.echo(f"{handle.name}: {handle.suspend()}", err=True)
    return EXIT_DONE
