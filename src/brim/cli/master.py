"""`brim master`: lead a run from any host, without workers beside it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, TextIO

import click
from click.core import ParameterSource

from brim.cli.agent import given_token, no_token
from brim.domain.options import DURATION
from brim.errors import SpecError
from brim.runs import completing
from brim.runs.directories import claim, holds_run, new_run_dir
from brim.runs.options import given, option, run_options
from brim.runs.starting import make_ready
from brim.runs.values import Value
from brim.storage.ownership import check_ours

# what has a meaning without a FILE too
_WITHOUT_FILE = {"listen", "run_dir", "token_file", "patience"}


@click.command()
@click.argument("file", metavar="[FILE]", required=False, shell_complete=completing.files)
@option(
    "--token-file",
    type=click.File(),
    metavar="F",
    help="Read the run's token from this file; - is standard input. [default: BRIM_TOKEN; with FILE "
    "a new one]",
)
@option(
    "--patience",
    type=Value(DURATION),
    default="10m",
    show_default=True,
    help="Wait this long for an agent, at first and where all are gone.",
)
@run_options
@click.pass_context
def master(
    ctx: click.Context,
    /,
    file: str | None,
    token_file: TextIO | None,
    patience: float,
    **values: Any,
) -> int:
    """Lead a run, with no workers on this host.

    With FILE it begins a run, with the options of brim train; hosts join it with brim agent. Without
    FILE it goes on with a run whose master, or its host, is gone: its agents keep copies of all that
    the master wrote, and call here once this is one of their addresses. Make sure that the other
    master is gone: where it only cannot be reached, two masters would lead two runs.

    SIGTERM hands the run over: it exits with status 0, workers go on as far as they can, and wait for
    the next brim master. brim suspend pauses the run.

    \b
    brim master flights.py --listen 10.0.0.7:4000 --workers 8 --agents 3
    BRIM_TOKEN=8c1f… brim master --listen 10.0.0.8:4000
    BRIM_TOKEN=8c1f… brim agent 10.0.0.7:4000,10.0.0.8:4000       (on each host with workers)
    """
    from brim.clock import wall
    from brim.master.alone import LoneMaster, stand_alone
    from brim.master.records import JOURNAL

    if not values["listen"]:
        raise SpecError(
            "--listen", got="nothing", need="an address for agents", hint="--listen 10.0.0.7:4000"
        )
    token, fresh = given_token(token_file), None
    if file is None:
        _check_given(ctx)
        token = token or no_token("it is the one that the run's agents have")
        spec, path = None, Path(values["run_dir"] or new_run_dir("taken-over", wall()))
        if holds_run(path):
            check_ours(path, field="--run-dir")
        else:
            fresh = claim(path)
            path = fresh.path
    else:
        ready = make_ready(values, given(ctx), file=file)
        token = token or secrets.token_hex(16)
        spec, path, fresh = ready.spec, ready.run_dir, ready.fresh
    click.echo(f"brim: the run's directory is {path}", err=True)
    settings = LoneMaster(
        run_dir=path.absolute(),
        listen=values["listen"],
        token=token,
        spec=spec,
        patience=patience,
    )
    try:
        return stand_alone(settings)
    finally:
        if fresh is not None and not (path / JOURNAL).exists():
            fresh.withdraw()  # no run has begun, or come, there


def _check_given(ctx: click.Context) -> None:
    """Raises SpecError where options are typed of a run that begins."""
    for name in ctx.params:
        typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in _WITHOUT_FILE or not typed:
            continue
        raise SpecError(
            f"--{name.replace('_', '-')}",
            got="an option of a run that begins",
            need="nothing of the kind: the run goes on as it was begun",
            hint="leave it out, or name the FILE of a run that begins here",
        )
