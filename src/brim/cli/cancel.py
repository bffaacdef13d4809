"""`brim cancel`: end a job for good."""

from __future__ import annotations

from pathlib import Path

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.errors import EnvironmentFault, SpecError
from brim.runs import completing
from brim.runs.options import STATE, option


@click.command()
@click.argument("job", metavar="JOB", shell_complete=completing.jobs)
@option("--array", is_flag=True, envvar=None, help="End all jobs of its array.")
@STATE
def cancel(job: str, array: bool, state: Path | None) -> int:
    """End JOB for good; its run directory and its last checkpoint stay.

    \b
    brim cancel flights-1
    brim cancel flights-1 --array
    """
    client = client_of(state)
    jobs = [job]
    if array:
        first = client.job(job).array
        if not first:
            need = "a job of an array"
            raise SpecError("--array", got=job, need=need, hint=f"brim cancel {job}")
        jobs = [view.job for view in client.jobs(unfinished=True) if view.array == first]
    for each in reversed(jobs):  # so that none takes the place of another
        try:
            client.cancel(each)
        except EnvironmentFault:
            if not array or not client.job(each).has_ended:
                raise
        else:
            click.echo(f"{each}: cancelled", err=True)
    return EXIT_DONE
