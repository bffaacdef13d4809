"""`brim drain`: take jobs off a node, and keep it free."""

from __future__ import annotations

from pathlib import Path

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.runs.options import STATE


@click.command()
@click.argument("node", metavar="NODE")
@click.option("--undo", is_flag=True, help="Let jobs run on the node again.")
@STATE
def drain(node: str, undo: bool, state: Path | None) -> int:
    """Pause the use of NODE: workers there leave at a step boundary, others start elsewhere.

    It stays so, also where the node or the scheduler is started again, until you undo it.

    \b
    brim drain node-3
    brim drain node-3 --undo
    """
    from brim.cli.nodes import as_table

    click.echo(as_table(client_of(state).drain(node, undo=undo)))
    return EXIT_DONE
