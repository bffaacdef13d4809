"""`brim cancel`: end a job for good."""

from __future__ import annotations

from pathlib import Path

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.runs import completing
from brim.runs.options import STATE


@click.command()
@click.argument("job", metavar="JOB", shell_complete=completing.jobs)
@STATE
def cancel(job: str, state: Path | None) -> int:
    """End JOB for good; its run directory and its last checkpoint stay.

    \b
    brim cancel flights-1
    """
    client_of(state).cancel(job)
    click.echo(f"{job}: cancelled", err=True)
    return EXIT_DONE
