"""`brim status`: the present state of a run or a job, or its end."""

from __future__ import annotations

import json
from pathlib import Path

import click

from brim.cli.shared.ending import wait_for
from brim.cli.shared.handles import handle_of
from brim.cli.shared.usage import EXIT_DONE
from brim.runs import completing
from brim.runs.options import STATE, option


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completing.runs)
@option("--wait", is_flag=True, help="Wait until the run ends, and exit with its exit code.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def status(run: str | None, wait: bool, as_json: bool, state: Path | None) -> int:
    """Show what RUN, or a job of the scheduler, is doing now or how it ended.

    Without RUN: the latest run.

    \b
    brim status
    brim status flights-20260102-030405 --json
    brim status flights-1 --wait
    """
    handle = handle_of(run, state, required=wait)
    if wait:
        return wait_for(handle, as_json=as_json)
    sight = handle.look()
    if sight.warning:
        click.echo(sight.warning, err=True)
    click.echo(json.dumps(sight.facts) if as_json else sight.text)
    return EXIT_DONE
