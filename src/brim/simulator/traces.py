"""Reads job traces: Microsoft's ITP clusters, Philly, ElasticFlow's generator and our own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from brim.domain.scaling import MOST_WORKERS, ScalingCurve
from brim.domain.workload import Job, Priority
from brim.errors import SpecError, did_you_mean
from brim.simulator.profiles import Profiles, missing_profile
from brim.simulator.tables import Row, read_table

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

    The optional columns are best_effort (1 or true: the deadline is dropped), tenant, priority,
    minimum and maximum. Ids keep the row's order when sorted as text, so that ties break as in the
    file: `00012` or `00012-uuid`.

    Args:
        profiles: curves by model and batch; None makes every job scale linearly up to what it
            requested.

    Raises:
        SpecError: a missing column, a cell with a wrong value, or a model without a
            profile.
    """
    rows = read_table(path, option="--trace", hint=_HINT)
    if not rows:
        raise SpecError("--trace", got=f"{path} without a row", need="at least one job", hint=_HINT)
    columns = {
        field: _column(path, field, column_names, rows[0])
        for field, column_names in _COLUMNS.items()
    }
    width = len(str(len(rows) - 1))
    jobs = [_job(row, columns, f"{number:0{width}}", profiles) for number, row in enumerate(rows)]
    return tuple(sorted(jobs, key=lambda job: (job.submitted, job.id)))


def needed_profiles(path: Path) -> frozenset[tuple[str, int]]:
    """The (model, global batch size) of every job of the trace at `path`.

    The set is empty where the trace cannot be read.
    """
    try:
        rows = read_table(path, option="--trace", hint=_HINT)
        return frozenset((row.text("model_name"), row.count("batch_size")) for row in rows)
    except SpecError:
        return frozenset()


def _column(path: Path, field: str, column_names: tuple[str, ...], row: Row) -> str:
    for name in column_names:
        if name in row.cells:
            return name
    actual = ", ".join(row.cells)
    need = f"a column {' or '.join(column_names)} ({field})"
    raise SpecError(f"--trace {path}", got=actual, need=need, hint=_HINT)


def _job(row: Row, columns: Mapping[str, str], number: str, profiles: Profiles | None) -> Job:
    model, batch = row.text(columns["model"]), row.count(columns["batch"])
    requested = row.count(columns["requested"], maximum=MOST_WORKERS)
    duration, work = row.positive(columns["duration"]), row.positive(columns["work"])
    if profiles is None:
        curve = ScalingCurve.linear(rate=work / (duration * requested), maximum=requested)
    elif (model, batch) in profiles:
        curve = profiles[model, batch]
    else:
        raise missing_profile(model, batch, profiles)
    name = row.text("job_id")
    minimum, maximum = _bounds(row, curve)
    return Job(
        id=number if not name or name == str(int(number)) else f"{number}-{name}",
        submitted=row.number(columns["submitted"]),
        work=work,
        curve=curve,
        deadline=_deadline(row, columns["deadline"]),
        requested=requested,
        duration=duration,
        minimum=minimum,
        maximum=maximum,
        tenant=row.text("tenant") or "default",
        priority=_priority(row),
        label=f"{model}-{batch}",
    )


def _deadline(row: Row, column: str) -> float | None:
    if row.flag("best_effort"):
        return None
    try:
        return row.number(column)
    except SpecError:
        hint = "a job without a deadline has 1 in the column best_effort"
        raise row.fault(column, "seconds on the clock of the submissions", hint=hint) from None


def _bounds(row: Row, curve: ScalingCurve) -> tuple[int, int | None]:
    """Return the fewest and the most workers; None: as many as help."""
    minimum = row.count("minimum") if row.text("minimum") else 1
    if not row.text("maximum"):
        return minimum, None
    maximum, minimum_here = row.count("maximum"), max(minimum, curve.points[0][0])
    if maximum < minimum_here:
        raise row.fault(
            "maximum", f"at least {minimum_here}: with fewer workers the job does not run"
        )
    return minimum, maximum


def _priority(row: Row) -> Priority:
    word = row.text("priority") or "preemptible"
    names = [priority.name.lower() for priority in Priority]
    if word.lower() not in names:
        raise row.fault("priority", " or ".join(names), hint=did_you_mean(word, names))
    return Priority[word.upper()]
