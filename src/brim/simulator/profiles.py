"""Reads throughput profiles: one CSV per model, steps per second by global batch and workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from brim.domain.scaling import MOST_WORKERS, ScalingCurve
from brim.errors import SpecError, did_you_mean
from brim.simulator.tables import Row, read_table

_HINT = "docs/guides/simulate.md shows the format; leave --profiles out for linear scaling"

Profiles = Mapping[tuple[str, int], ScalingCurve]
"""Scaling curve by (model, global batch size)."""


def read_profiles(folder: Path) -> dict[tuple[str, int], ScalingCurve]:
    """Read every `MODEL.csv` under `folder`.

    The header is `global_batch_size,1,2,4,…`; each row is one batch size.

    An empty cell, `nan` or 0 means that the model does not run there, and so does a count above the
    batch.

    Raises:
        SpecError: no profile there, or a cell that is no number.
    """
    curves: dict[tuple[str, int], ScalingCurve] = {}
    for path in sorted(folder.glob("*.csv")):
        for row in read_table(path, option="--profiles", hint=_HINT):
            first, *columns = row.cells
            batch = row.count(first)
            points = _points(row, columns, limit=batch)
            if points:
                curves[path.stem, batch] = ScalingCurve(points=points)
    if not curves:
        raise SpecError(
            "--profiles", got=str(folder), need="a folder with one CSV per model", hint=_HINT
        )
    return curves


def _points(row: Row, columns: list[str], *, limit: int) -> tuple[tuple[int, float], ...]:
    rates = {_workers(row, column): _rate(row, column) for column in columns}
    return tuple(
        (count, rate) for count, rate in sorted(rates.items()) if count <= limit and rate > 0
    )


def _workers(row: Row, column: str) -> int:
    if not column.isascii() or not column.isdecimal() or not 1 <= int(column) <= MOST_WORKERS:
        table = row.place.partition(", line")[0]
        need = "global_batch_size,1,2,4,…: a number of workers above each column"
        raise SpecError(f"{table}, header", got=repr(column), need=need, hint=_HINT)
    return int(column)


def _rate(row: Row, column: str) -> float:
    return 0.0 if row.text(column).lower() in ("", "nan") else row.number(column, minimum=0.0)


def missing_profile(model: str, batch: int, profiled: Iterable[tuple[str, int]]) -> SpecError:
    """The error for a job whose model was not profiled."""
    names = [f"{name}-{size}" for name, size in profiled]
    return SpecError(
        "--profiles",
        got=f"no profile of {model} at global batch size {batch}",
        need="one for every job of the trace",
        hint=did_you_mean(f"{model}-{batch}", names),
    )
