"""`brim tenants`: each tenant's quota, and its devices."""

from __future__ import annotations

import json
from pathlib import Path

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.runs.options import STATE, option


@click.command()
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def tenants(as_json: bool, state: Path | None) -> int:
    """Show how many devices each tenant owns, holds and has borrowed, now and lately.

    \b
    brim tenants
    brim tenants --json
    """
    views = client_of(state).tenants()
    if as_json:
        import msgspec

        click.echo(json.dumps({"tenants": msgspec.to_builtins(views)}))
        return EXIT_DONE
    from brim.cli.shared.tables import table

    has_recent_use = any(v.lately is not None for v in views)
    rows = [
        (
            v.tenant,
            v.cohort,
            v.guaranteed,
            v.exclusive,
            "" if v.limit is None else v.limit,
            v.holds,
            v.borrows,
            *([f"{v.lately or 0.0:.1f}"] if has_recent_use else []),
            v.jobs,
        )
        for v in views
    ]
    names = (
        "tenant",
        "cohort",
        "guaranteed",
        "exclusive",
        "limit",
        "holds",
        "borrows",
        *(["lately"] if has_recent_use else []),
        "jobs",
    )
    click.echo(table(names, rows))
    return EXIT_DONE
