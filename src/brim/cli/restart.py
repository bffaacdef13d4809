"""`brim restart`: replace all replicas of a service, one after the other."""

from __future__ import annotations

from pathlib import Path

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.runs import completing
from brim.runs.options import STATE


@click.command()
@click.argument("service", metavar="SERVICE", shell_complete=completing.jobs)
@STATE
def restart(service: str, state: Path | None) -> int:
    """Replace all replicas of SERVICE, one after the other, without a lost request.

    Each replica ends once its successor is ready, and its last requests are answered.

    \b
    brim restart web-1
    """
    client_of(state).restart(service)
    click.echo(f"{service}: replacing each replica; brim status {service} shows them", err=True)
    return EXIT_DONE
