"""`brim resume`: continue a run, or let a job run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from brim.cli.shared.handles import handle_of
from brim.cli.shared.usage import EXIT_DONE
from brim.domain.job import WorkerRange
from brim.runs import completing
from brim.runs.handle import JobHandle, ResumeOptions
from brim.runs.options import ADDRESS, JSON, PORTS, STATE, job_option, option


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completing.runs)
@job_option("workers", default=None, help="Use this many workers from now on. [default: as before]")
@job_option("servers", default=None, help="Use this many servers from now on. [default: as before]")
@option("--listen", type=ADDRESS, help="Let other hosts join at this address. [default: none can]")
@PORTS
@job_option("workers_here", default=None)
@job_option(
    "agents", default=None, help="Wait for this many hosts before the first step. [default: 1]"
)
@job_option("insecure")
@click.option(
    "--any-kind",
    is_flag=True,
    help="Let an exact job continue on nodes of another kind than those it began on. Its weights then "
    "depend on the step at which it changed.",
)
@JSON
@STATE
def resume(
    run: str,
    workers: WorkerRange | None,
    servers: int | None,
    listen: str | None,
    workers_here: int | None,
    agents: int | None,
    insecure: bool,
    any_kind: bool,
    as_json: bool,
    state: Path | None,
) -> int:
    """Continue RUN, which was paused or killed, from its last checkpoint, and follow it to its end.

    \b
    brim resume latest
    brim resume latest --workers 8
    brim resume flights-1      (a job of the scheduler, which decides when)

    The file, the options and the working directory are those that the run was started with.
    """
    handle = handle_of(run, state, required=True)
    values: dict[str, Any] = {
        "workers": workers,
        "servers": servers,
        "listen": listen,
        "workers_here": workers_here,
        "agents": agents,
        "insecure": insecure,
        "any_kind": any_kind,
    }
    if isinstance(handle, JobHandle):
        # What the environment says of new runs is not meant for a job, which has its own.
        source = click.get_current_context().get_parameter_source
        values = {
            name: value
            for name, value in values.items()
            if source(name) is not ParameterSource.ENVIRONMENT
        }
    ready = handle.resume(ResumeOptions(**values))
    if ready is None:
        click.echo(f"{handle.name}: may run again", err=True)
        return EXIT_DONE
    from brim.cli.shared.follow import follow

    return follow(ready, as_json=as_json)
