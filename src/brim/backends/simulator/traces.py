"""Reads job traces: Microsoft's ITP clusters, Philly, ElasticFlow's generator and our own."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from brim.backends.simulator.profiles import Profiles, missing_profile
from brim.domain.scaling import ScalingCurve
from brim.domain.workload import Job, Priority
from brim.errors import SpecError

__all__ = ["needed_profiles", "read_trace"]

# our word -> the words of the formats in circulation, in order of preference
_COLUMNS = {
    "submitted": ("submission_time", "submit_time"),
    "work": ("num_iteration", "iteration"),
    "deadline": ("deadline", "ddl"),
    "model": ("model_name",),
    "batch": ("batch_size",),
    "requested": ("num_gpu",),
    "duration": ("duration",),
}


def read_trace(path: Path, profiles: Profiles | None = None) -> tuple[Job, ...]:
    """Every job of the trace at `path`, by time of submission then row.

    The optional columns are best_effort (1: the deadline is dropped), tenant, priority, minimum and maximum.
    Ids keep the row's order when sorted as text, so that ties break as in the file: `00012` or `00012-uuid`.

    Args:
        profiles: curves by model and batch; None makes every job scale linearly up to what it requested.

    Raises:
        SpecError: a missing column, a cell that is no number, or a model without a profile.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        raise SpecError("--trace", got=str(path), need="a file that exists") from None
    if not rows:
        raise SpecError("--trace", got=f"{path} without a row", need="at least one job")
    columns = {ours: _column(path, ours, theirs, rows[0]) for ours, theirs in _COLUMNS.items()}
    width = len(str(len(rows) - 1))
    jobs = []
    for number, row in enumerate(rows):
        try:
            jobs.append(_job(row, columns, f"{number:0{width}}", profiles))
        except ValueError as error:
            raise SpecError(f"{path}, line {number + 2}", got=str(error), need="a number") from error
    return tuple(sorted(jobs, key=lambda job: (job.submitted, job.id)))


def needed_profiles(path: Path) -> frozenset[tuple[str, int]]:
    """(model, global batch size) of every job of the trace at `path`; empty where it cannot be read."""
    try:
        with path.open(newline="") as file:
            return frozenset(
                (row["model_name"], int(float(row["batch_size"]))) for row in csv.DictReader(file)
            )
    except (OSError, KeyError, ValueError):
        return frozenset()


def _column(path: Path, ours: str, theirs: tuple[str, ...], row: Mapping[str, str]) -> str:
    for name in theirs:
        if name in row:
            return name
    raise SpecError(str(path), got=", ".join(row), need=f"a column {' or '.join(theirs)} ({ours})")


def _job(row: Mapping[str, str], columns: Mapping[str, str], number: str, profiles: Profiles | None) -> Job:
    cell = {ours: row[theirs] for ours, theirs in columns.items()}
    model, batch = cell["model"], int(float(cell["batch"]))
    requested, duration, work = int(cell["requested"]), float(cell["duration"]), float(cell["work"])
    if profiles is None:
        curve = ScalingCurve.linear(rate=work / (duration * requested), maximum=requested)
    elif (model, batch) in profiles:
        curve = profiles[model, batch]
    else:
        raise missing_profile(model, batch, profiles)
    name = row.get("job_id", "")
    return Job(
        id=number if not name or name == str(int(number)) else f"{number}-{name}",
        submitted=float(cell["submitted"]),
        work=work,
        curve=curve,
        deadline=None if row.get("best_effort", "0") == "1" else float(cell["deadline"]),
        requested=requested,
        duration=duration,
        minimum=int(row.get("minimum") or 1),
        maximum=int(row["maximum"]) if row.get("maximum") else None,
        tenant=row.get("tenant") or "default",
        priority=Priority[(row.get("priority") or "preemptible").upper()],
        label=f"{model}-{batch}",
    )
