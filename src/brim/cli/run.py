"""`brim run`: run the user's own training loop, or any command."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from brim.cli.shared.follow import follow
from brim.cli.shared.sections import SectionedCommand
from brim.errors import SpecError
from brim.runs import completing
from brim.runs.options import JSON, build_spec, option, options_given, run_options
from brim.runs.starting import make_ready

_AT_TERMINAL = {"tty", "command", "workers", "per", "restart", "progress", "env"}


@click.command(cls=SectionedCommand, context_settings={"allow_interspersed_args": False})
@run_options
@JSON
@option(
    "--prints/--no-prints",
    default=True,
    help="Show what rank 0 prints among the progress. This has no effect with --json.",
)
@option(
    "--tty",
    is_flag=True,
    envvar=None,
    help="Give the command this terminal, as in --tty -- bash: one process, which is started once and "
    "of which nothing is recorded. Exit with its exit code.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=completing.files)
@click.pass_context
def run(
    ctx: click.Context,
    /,
    command: tuple[str, ...],
    prints: bool,
    as_json: bool,
    tty: bool,
    **values: Any,
) -> int:
    """Run COMMAND on every worker: your own training loop that calls brim.join, or any other.

    \b
    brim run --workers 4 -- python loop.py
    brim run --workers 1:4 --faults "term rank 0 at step 20" -- python loop.py --lr 0.1
    brim run --workers 1:4 -- python train.py     (as torchrun would start it)
    brim run --tty -- python -m pdb train.py      (at this terminal)

    Put brim's options before the command. Without brim the same loop runs as: python loop.py

    A loop that calls brim.join is at the exact level. Any other command is at the restart level: at
    each change of its workers it is started again, and continues from its own checkpoints.
    """
    if tty:
        _hand_over(ctx, command, values)
    ready = make_ready(values, options_given(ctx), command=command)
    return follow(ready, as_json=as_json, prints=prints)


def _hand_over(ctx: click.Context, command: tuple[str, ...], values: dict[str, Any]) -> None:
    """Give the command the terminal, in the place of this process.

    Raises:
        SpecError: nobody is at a terminal, the command cannot be started, or an option needs a run.
    """
    from brim.runs.attaching import check_terminal_here, hand_over
    from brim.runs.training_file import check_command

    for param in ctx.command.params:
        if param.name in options_given(ctx) - _AT_TERMINAL:
            name = max(param.opts, key=len)
            raise SpecError(
                "--tty",
                got=f"it beside {name}",
                need="a command of which nothing is recorded, and nothing started again",
                hint=f"leave out {name}, or --tty",
            )
    check_command(command)
    restart = True if values["restart"] is None else values["restart"]
    spec = replace(build_spec({**values, "restart": restart}, command=command), tty=True)
    check_terminal_here()
    hand_over(spec.command, spec.env)
