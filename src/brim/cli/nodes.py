"""`brim nodes`: each node of the cluster, and how it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.runs.options import STATE, option

if TYPE_CHECKING:
    from brim.wire.cluster import NodeView


@click.command()
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def nodes(as_json: bool, state: Path | None) -> int:
    """Show each node, its devices, how many of them jobs hold, and whether it is up.

    \b
    brim nodes
    brim nodes --json
    """
    views = client_of(state).nodes()
    if as_json:
        import msgspec

        click.echo(json.dumps({"nodes": msgspec.to_builtins(views)}))
        return EXIT_DONE
    click.echo(as_table(views))
    return EXIT_DONE


def as_table(views: Sequence[NodeView]) -> str:
    """Return the nodes as a table."""
    from brim.cli.shared.tables import table

    rows = [
        (
            view.node,
            view.devices,
            view.held,
            view.address or "this host",
            f"{view.state}, drained" if view.drained else view.state,
            view.problem,
        )
        for view in views
    ]
    return table(("node", "devices", "held", "host", "state", ""), rows)
