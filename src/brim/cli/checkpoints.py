"""`brim checkpoints`: which there are, and whether every byte of them is sound."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.shared.usage import EXIT_DONE, EXIT_FAILED
from brim.domain.quantities import counted
from brim.errors import EnvironmentFault, SpecError
from brim.runs import completing
from brim.runs.options import STATE, option

if TYPE_CHECKING:
    from brim.domain.checkpointing import Best
    from brim.domain.table_parts import StoredTable
    from brim.storage.checkpoints import Store


@click.command()
@click.argument("run", required=False, metavar="[RUN|URL]", shell_complete=completing.runs)
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def checkpoints(run: str | None, as_json: bool, state: Path | None) -> int:
    """List the checkpoints of RUN, or at a URL, newest last, and verify every byte of them.

    \b
    brim checkpoints
    brim checkpoints flights-20260102-030405 --json
    brim checkpoints s3://bucket/run

    Exit code 0 if all are whole, else 1.
    """
    from brim.storage.checkpoints import Store
    from brim.storage.file_stores import open_place

    location, best = _place_of(run, state)
    store = Store(open_place(location, field="RUN"))
    rows = [_row(store, step) for step in store.steps()]
    if best is not None:
        chosen = best.of({row["step"]: row.get("metrics", {}) for row in rows})
        for row in rows:
            row["best"] = row["step"] == chosen
    if as_json:
        click.echo(json.dumps({"run": run or location, "place": location, "checkpoints": rows}))
    else:
        click.echo("\n".join(map(_line, rows)) or f"there is no checkpoint at {location} yet")
    return EXIT_DONE if all(row["whole"] for row in rows) else EXIT_FAILED


def _place_of(run: str | None, state: Path | None) -> tuple[str, Best | None]:
    """Return where the checkpoints are, and by which metric the best is kept."""
    from brim.domain.checkpointing import Best
    from brim.runs.copies import is_stored_run
    from brim.runs.directories import find_run
    from brim.storage.file_stores import is_url, location_of
    from brim.storage.saved_files import SAVED
    from brim.telemetry.history import read_history

    if run is not None and is_url(run) and not is_stored_run(run):
        return run, None
    run_dir = find_run(run, state=state, checkpoints=True)
    history = read_history(run_dir)
    if history.verb == "restart":
        raise SpecError(
            str(run_dir),
            got="a command, which writes its own checkpoints",
            need="a run whose checkpoints brim writes",
            hint=f"ls {run_dir / SAVED}",
        )
    spec = history.spec
    best_setting = spec.get("keep_best")
    best = Best(**best_setting) if isinstance(best_setting, dict) else None
    return location_of(str(spec.get("checkpoints") or ""), run_dir), best


def _row(store: Store, step: int) -> dict[str, Any]:
    values = {"step": step, "path": store.location(step)}
    try:
        whole = store.load(step)
        store.check(whole)
    except EnvironmentFault as fault:
        return {**values, "whole": False, "problem": str(fault)}
    return {
        **values,
        "whole": True,
        "bytes": whole.size_bytes,
        "written_at": whole.written_at,
        "metrics": {name: value for name, value in whole.metrics.items() if not math.isnan(value)},
        "versions": dict(whole.versions),
        "tables": list(map(_table, whole.tables)),
        "frozen": {
            "tensors": sum(len(part.tensors) for part in whole.frozen),
            "bytes": whole.frozen_bytes,
        },
    }


def _table(table: StoredTable) -> dict[str, Any]:
    base, *deltas = table.parts
    return {
        "name": table.name,
        "rows": table.rows,
        "bytes": sum(file.size_bytes for file in table.files),
        "base": {"step": base.step, "rows": base.rows, "bytes": base.size_bytes},
        "deltas": [
            {"step": delta.step, "rows": delta.rows, "bytes": delta.size_bytes} for delta in deltas
        ],
    }


def _line(row: dict[str, Any]) -> str:
    if not row["whole"]:
        return f"damaged  step {row['step']:>8,}  {row['problem']}"
    written = datetime.fromtimestamp(row["written_at"]).strftime("%Y-%m-%d %H:%M:%S")
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in row["metrics"].items())
    best = "best  " if row.get("best") else ""
    measured = f"{metrics}  " if metrics else ""
    line = (
        f"whole    step {row['step']:>8,}  {row['bytes'] / 1e6:8.1f} MB  {written}  "
        f"{best}{measured}{row['path']}"
    )
    frozen_lines = [_frozen_line(row["frozen"])] if row["frozen"]["tensors"] else []
    return "\n".join([line, *map(_table_line, row["tables"]), *frozen_lines])


def _frozen_line(frozen: dict[str, Any]) -> str:
    return (
        f"{'':23}{frozen['bytes'] / 1e6:8.1f} MB  {frozen['tensors']:,} frozen tensors, "
        "which other checkpoints may share"
    )


def _table_line(table: dict[str, Any]) -> str:
    base, deltas = table["base"], table["deltas"]
    added = sum(delta["bytes"] for delta in deltas)
    base_text = f", {counted(len(deltas), 'delta')} of {added / 1e6:.1f} MB" if deltas else ""
    parts = f"base of step {base['step']:,}{base_text}"
    return (
        f"{'':23}{table['bytes'] / 1e6:8.1f} MB  {table['name']}, "
        f"{counted(table['rows'], 'row')}: {parts}"
    )
