"""`brim jobs`: the scheduler's jobs; `runs/in_words.py` has the cells of its table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.domain.quantities import counted
from brim.errors import SpecError
from brim.runs.options import STATE, option

if TYPE_CHECKING:
    from brim.client import Client
    from brim.wire.cluster import ClusterView, JobView


_NO_JOBS = "no active jobs (brim jobs --all lists ended ones)"


@click.command()
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--all", "everything", is_flag=True, help="Include jobs that have ended.")
@click.option(
    "--watch",
    is_flag=True,
    help="Keep showing the list until Ctrl-C, even while no scheduler runs.",
)
@STATE
def jobs(as_json: bool, everything: bool, watch: bool, state: Path | None) -> int:
    """List the scheduler's jobs in the order of their submission.

    \b
    brim jobs
    brim jobs --watch
    brim jobs --all --json
    """
    if watch and as_json:
        raise SpecError(
            "--watch", got="--json beside it", need="one of them", hint="brim jobs --json"
        )
    client = client_of(state)
    if watch:
        from brim.cli.shared.screen import keep_showing

        keep_showing(lambda: _screen(client, everything))
        return EXIT_DONE
    views, cluster = _look(client, everything or as_json), client.cluster()
    if as_json:
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins({"jobs": views, "cluster": cluster})))
        return EXIT_DONE
    if cluster.problem:
        click.echo(cluster.problem, err=True)
    if views:
        click.echo(_table(views, cluster))
    else:
        click.echo(_NO_JOBS, err=True)
    return EXIT_DONE


def _look(client: Client, with_ended: bool) -> list[JobView]:
    return client.jobs(unfinished=not with_ended)


def _screen(client: Client, with_ended: bool) -> str:
    """The cluster in a line, and its jobs."""
    views, cluster = _look(client, with_ended), client.cluster()
    running = sum(view.state == "running" for view in views)
    free = cluster.devices - cluster.headroom
    has_cluster = bool(cluster.policy)  # of a namespace of Kubernetes, only its jobs are
    parts = [
        f"{cluster.held} of {counted(free, 'device')}"
        if has_cluster
        else counted(cluster.held, "device"),
        f"{running} running, {cluster.unfinished - running} waiting",
        *([f"policy {cluster.policy}"] if has_cluster else []),
        *([cluster.problem] if cluster.problem else []),
    ]
    return " · ".join(parts) + "\n" + (_table(views, cluster) if views else _NO_JOBS)


def _table(views: Sequence[JobView], cluster: ClusterView) -> str:
    from brim.cli.shared.tables import table
    from brim.runs.in_words import columns_of

    columns = columns_of(cluster)
    return table(tuple(columns), [tuple(cell(view) for cell in columns.values()) for view in views])
