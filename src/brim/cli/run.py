"""`brim run`: run the user's own training loop, or any command."""

from __future__ import annotations

from typing import Any

import click

from brim.cli.shared.follow import follow
from brim.cli.shared.sections import SectionedCommand
from brim.runs import completing
from brim.runs.options import JSON, option, options_given, run_options
from brim.runs.starting import make_ready


@click.command(cls=SectionedCommand, context_settings={"allow_interspersed_args": False})
@run_options
@JSON
@option(
    "--prints/--no-prints",
    default=True,
    help="Show what rank 0 prints among the progress. This has no effect with --json.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=completing.files)
@click.pass_context
def run(
    ctx: click.Context, /, command: tuple[str, ...], prints: bool, as_json: bool, **values: Any
) -> int:
    """Run COMMAND on every worker: your own training loop that calls brim.join, or any other.

    \b
    brim run --workers 4 -- python loop.py
    brim run --workers 1:4 --faults "term rank 0 at step 20" -- python loop.py --lr 0.1
    brim run --workers 1:4 -- python train.py     (as torchrun would start it)

    Put brim's options before the command. Without brim the same loop runs as: python loop.py

    A loop that calls brim.join is at the exact level. Any other command is at the restart level: at
    each change of its workers it is started again, and continues from its own checkpoints.
    """
    ready = make_ready(values, options_given(ctx), command=command)
    return follow(ready, as_json=as_json, prints=prints)
