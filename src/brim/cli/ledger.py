"""`brim ledger`: the proof that every sample of each epoch was used exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.shared.usage import EXIT_DONE, EXIT_FAILED
from brim.runs import completing
from brim.runs.directories import read_run
from brim.runs.options import STATE, option

if TYPE_CHECKING:
    from brim.domain.accounting import Ledger


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completing.runs)
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def ledger(run: str | None, as_json: bool, state: Path | None) -> int:
    """Check from RUN's records that every sample of each epoch was used exactly once.

    \b
    brim ledger
    brim ledger flights-20260102-030405 --json

    Exit code 0 if each was, else 1.
    """
    from brim.telemetry.ledger import audit_run

    run_dir, history = read_run(run, state=state)
    account = audit_run(run_dir, history)
    click.echo(json.dumps(_plain(run_dir, account)) if as_json else _render(account))
    return EXIT_DONE if account.exact else EXIT_FAILED


def _plain(run_dir: Path, account: Ledger) -> dict[str, Any]:
    from brim.domain.accounting import as_plain

    return {"run": str(run_dir), **as_plain(account)}


def _render(account: Ledger) -> str:
    lines = [f"{'epoch':>5} {'samples':>12} {'applied once':>13} {'missing':>10} {'repeated':>10}"]
    lines += [
        f"{epoch.epoch:>5} {epoch.samples:>12,} {epoch.applied_once:>13,}"
        f" {epoch.missing:>10,} {epoch.repeated:>10,}"
        for epoch in account.epochs
    ]
    problems = account.problems[:10]
    lines += [f"problem: {problem}" for problem in problems]
    if len(account.problems) > len(problems):
        lines.append(f"… and {len(account.problems) - len(problems):,} more problems")
    if account.exact and account.counted == "positions":
        lines.append("exact: every position of each epoch's order was applied exactly once")
    elif account.exact and account.counted == "contents":
        lines.append("exact: every sample that the stream has in an epoch was applied exactly once")
    elif account.exact:
        lines.append("exact: every sample of every epoch was applied exactly once")
    else:
        lines.append("not exact: see missing, repeated and the problems above")
    return "\n".join(lines)
