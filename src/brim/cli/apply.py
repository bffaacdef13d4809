"""`brim apply`: change the cluster."""

from __future__ import annotations

from pathlib import Path

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.domain.quantities import counted
from brim.runs.options import STATE


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@STATE
def apply(file: Path, state: Path | None) -> int:
    """Change the cluster to what FILE says: nodes, tenants, quotas, policy, headroom.

    Running jobs are not stopped.

    \b
    brim apply cluster.yaml
    """
    from brim.scheduler.cluster_file import read_cluster_file

    spec = read_cluster_file(file)
    view = client_of(state).apply(spec)
    text = (
        f"{counted(view.devices, 'device')}, {counted(len(spec.tenants), 'tenant')}, policy "
        f"{view.policy}"
    )
    click.echo(f"applied {file}: {text}", err=True)
    return EXIT_DONE
