"""Reads throughput profiles: one CSV per model, steps per second by global batch and workers."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from brim.domain.scaling import ScalingCurve
from brim.errors import SpecError, did_you_mean

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
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        try:
            counts = [int(cell) for cell in rows[0][1:]]
            for row in rows[1:]:
                if row:
                    batch = int(row[0])
                    points = _points(counts, row[1:], limit=batch)
                    if points:
                        curves[path.stem, batch] = ScalingCurve(points=points)
        except (ValueError, IndexError, OSError) as error:
            raise SpecError(
                f"--profiles {path}",
                got=str(error),
                need="global_batch_size,1,2,4,… and numbers",
                hint=_HINT,
            ) from error
    if not curves:
        raise SpecError(
            "--profiles", got=str(folder), need="a folder with one CSV per model", hint=_HINT
        )
    return curves


def _points(counts: list[int], cells: list[str], *, limit: int) -> tuple[tuple[int, float], ...]:
    rates = [float(cell) if cell.strip() else 0.0 for cell in cells]
    return tuple(
        (count, rate)
        for count, rate in zip(counts, rates, strict=False)
        if count <= limit and math.isfinite(rate) and rate > 0
    )


def missing_profile(model: str, batch: int, known: Iterable[tuple[str, int]]) -> SpecError:
    """The error for a job whose model was not profiled."""
    names = [f"{name}-{size}" for name, size in known]
    return SpecError(
        "--profiles",
        got=f"no profile of {model} at global batch size {batch}",
        need="one for every job of the trace",
        hint=did_you_mean(f"{model}-{batch}", names),
    )
