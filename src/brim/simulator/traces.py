"""Reads job traces: Microsoft's ITP clusters, Philly, ElasticFlow's generator and our own."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from brim.domain.scaling import ScalingCurve
from brim.domain.workload import Job, Priority
from brim.errors import SpecError, did_you_mean
from brim.simulator.profiles import Profiles, missing_profile
from brim.storage.files import nearby

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

_HINT = (
    "brim simulate generate --profiles DIR --out trace.csv makes one; docs/guides/simulate.md "
    "has the columns"
)


def read_trace(path: Path, profiles: Profiles | None = None) -> tuple[Job, ...]:
    """Every job of the trace at `path`, by time of submission then row.

    The optional columns are best_effort (1: the deadline is dropped), tenant, priority, minimum and
    maximum. Ids keep the row's order when sorted as text, so that ties break as in the file:
    `00012` or `00012-uuid`.

    Args:
        profiles: curves by model and batch; None makes every job scale linearly up to what it
            requested.

    Raises:
        SpecError: a missing column, a cell that is no number, or a model without a profile.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        meant = nearby(path)
        hint = meant if meant.startswith("did") else _HINT
        raise SpecError("--trace", got=f"{path}: no such file", need="a trace", hint=hint) from None
    except OSError as error:
        raise SpecError(
            "--trace", got=f"{path} ({error.strerror})", need="a file that can be read", hint=_HINT
        ) from None
    except (UnicodeDecodeError, csv.Error):
        raise SpecError(
            "--trace", got=f"{path}, which is not text", need="a CSV file", hint=_HINT
        ) from None
    if not rows:
        raise SpecError("--trace", got=f"{path} without a row", need="at least one job", hint=_HINT)
    columns = {ours: _column(path, ours, theirs, rows[0]) for ours, theirs in _COLUMNS.items()}
    width = len(str(len(rows) - 1))
    jobs = []
    for number, row in enumerate(rows):
        try:
            jobs.append(_job(row, columns, f"{number:0{width}}", profiles))
        except (TypeError, ValueError) as error:
            where = f"--trace {path}, line {number + 2}"
            raise SpecError(
                where, got=str(error), need="a number in each of its columns"
            ) from error
    return tuple(sorted(jobs, key=lambda job: (job.submitted, job.id)))


def needed_profiles(path: Path) -> frozenset[tuple[str, int]]:
    """The (model, global batch size) of every job of the trace at `path`.

    The set is empty where the trace cannot be read.
    """
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
    got = ", ".join(str(name) for name in row)
    need = f"a column {' or '.join(theirs)} ({ours})"
    raise SpecError(f"--trace {path}", got=got, need=need, hint=_HINT)


def _job(
    row: Mapping[str, str], columns: Mapping[str, str], number: str, profiles: Profiles | None
) -> Job:
    cell = {ours: row[theirs] for ours, theirs in columns.items()}
    model, batch = cell["model"], int(float(cell["batch"]))
    requested, duration, work = int(cell["requested"]), float(cell["duration"]), float(cell["work"])
    for ours, value in (
        ("requested", requested),
        ("duration", duration),
        ("work", work),
        ("batch", batch),
    ):
        if not 0 < value < math.inf:
            raise ValueError(f"{cell[ours]!r} in {columns[ours]}")
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
        priority=_priority(row.get("priority") or "preemptible"),
        label=f"{model}-{batch}",
    )


def _priority(word: str) -> Priority:
    known = [one.name.lower() for one in Priority]
    if word.lower() not in known:
        hint = did_you_mean(word, known)
        raise SpecError("--trace, column priority", got=word, need=" or ".join(known), hint=hint)
    return Priority[word.upper()]
