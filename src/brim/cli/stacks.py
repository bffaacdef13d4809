"""`brim stacks`: where the Python code of each worker is now."""

from __future__ import annotations

import json
from pathlib import Path

import click

from brim.cli.shared.handles import handle_of
from brim.cli.shared.usage import EXIT_DONE
from brim.runs import completing
from brim.runs.in_words import describe_stack
from brim.runs.options import JSON, STATE


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completing.runs)
@STATE
@JSON
def stacks(run: str, state: Path | None, as_json: bool) -> int:
    """Show where each worker of RUN is now: the Python stack of its main thread.

    Training goes on meanwhile. A worker that hangs in C code, or holds Python's lock, answers as
    well; one that does not answer within a second is shown without a stack. Workers that run a
    command of their own, at the restart level, are not shown.

    \b
    brim stacks latest
    brim stacks flights-1
    """
    found = handle_of(run, state, required=True).stacks()
    if as_json:
        click.echo(json.dumps(found))
        return EXIT_DONE
    for worker, stack in found.items():
        click.echo(describe_stack(worker, stack))
    return EXIT_DONE
