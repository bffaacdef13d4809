"""`brim usage`: device hours of a month, by tenant, account or job."""

from __future__ import annotations

import csv
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.errors import SpecError
from brim.runs.options import STATE, option

if TYPE_CHECKING:
    from brim.wire.cluster import UsageRow, UsageView

_HOUR = 3600.0
_SHARES = ("owned", "borrowed", "lent")
_LATELY = ("lately", "share", "weight")  # devices, a part of 1, and that of the cluster's file
_IN_CSV = {name: f"{name}_device_hours" for name in ("used", *_SHARES)} | {
    "lately": "lately_devices",
    "share": "lately_share",
}


@click.command()
@option(
    "--by",
    type=click.Choice(("tenant", "user", "job")),
    default="tenant",
    show_default=True,
    help="Add up by tenant, by the account of the jobs' processes, or by job.",
)
@option("--month", metavar="YYYY-MM", default="", help="[default: the present one, in UTC]")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV on stdout.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def usage(by: str, month: str, as_csv: bool, as_json: bool, state: Path | None) -> int:
    """Show for how many hours jobs held devices in a month, and what tenants borrowed and lent.

    In the present month of a cluster with usage_half_life also what each tenant has borrowed lately
    (devices on average), its share of what all have, and its weight.

    \b
    brim usage
    brim usage --by job --month 2026-11
    brim usage --month 2026-11 --csv > usage.csv
    """
    if as_csv and as_json:
        raise SpecError("--csv", got="--json beside it", need="one of them", hint="--csv")
    view = client_of(state).usage(month, group_by=by)
    if as_json:
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(view)))
        return EXIT_DONE
    if note := _note(view):
        click.echo(note, err=True)
    names = (
        *(("tenant",) if by == "job" else ()),
        by,
        "used",
        *(_SHARES if by == "tenant" else ()),
        *(_LATELY if any(row.lately is not None for row in view.rows) else ()),
    )
    rows = [_cells(row, by) for row in view.rows]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["month", *(_IN_CSV.get(name, name) for name in names)])
        writer.writerows([view.month, *map(_not_a_formula, cells)] for cells in rows)
    elif rows:
        from brim.cli.shared.tables import table

        click.echo(table(names, rows))
    return EXIT_DONE


def _cells(row: UsageRow, by: str) -> list[str]:
    shares = (row.owned_seconds, row.borrowed_seconds, row.lent_seconds)
    hours = [row.used_seconds, *(each for each in shares if each is not None)]
    unnamed = {"job": "(forgotten jobs)", "user": "(the scheduler's account)"}
    return [
        *([row.tenant] if by == "job" else []),
        row.name or unnamed.get(by, ""),
        *(f"{seconds / _HOUR:.2f}" for seconds in hours),
        *(_lately(row) if row.lately is not None else ()),
    ]


def _lately(row: UsageRow) -> tuple[str, str, str]:
    weight = "" if row.weight is None else f"{row.weight:g}"  # its tenant is in the file no more
    return f"{row.lately:.2f}", f"{row.lately_share:.2f}", weight


def _not_a_formula(cell: str) -> str:
    """Keep a spreadsheet from computing a name that a user has given to a job.

    >>> _not_a_formula("=HYPERLINK(1)-7"), _not_a_formula("job-7")
    ("'=HYPERLINK(1)-7", 'job-7')
    """
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell


def _note(view: UsageView) -> str:
    """Say what a reader should know of the month."""
    is_over = view.until >= view.end
    until = "" if is_over else f"{view.month} is not over: until {_utc(view.until)}"
    if view.rows:
        return until
    if not view.first_month:
        return f"no usage in {view.month}: nothing was counted yet"
    if view.month < view.first_month:
        return f"no usage in {view.month}: it is counted since {view.first_month}"
    return f"no usage in {view.month}" + (f", until {_utc(view.until)}" if until else "")


def _utc(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"
