"""Deadlines that could be met with all jobs known beforehand: a tighter bound than the report's.

python -m benchmarks.scheduling-overload.offline DATA TRACE DEVICES whole|parts [STRETCHES]

Jobs are met wholly (a mixed-integer programme) or in parts (its relaxation, for long traces). A job
may run on any mix of sizes in each stretch of time, at their true speeds, and pays for one start.
Fewer stretches: faster and looser.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any, NamedTuple

import highspy
import numpy as np

from benchmarks.harness.traces import read
from brim.domain.resizing import OVERHEADS
from brim.domain.scaling import concave_envelope
from brim.domain.workload import Job

START = OVERHEADS["published"].cost(0, 1)  # seconds, at least
SECONDS = 600.0  # that the solver may take


class Row(NamedTuple):
    """A sum of (column, factor) that is at most `upper`."""

    upper: float
    terms: list[tuple[int, float]]


def sizes_of(job: Job, devices: int) -> list[tuple[int, float]]:
    """(workers, speed) between which a job may mix; in between no size is faster than a mix."""
    maximum = min(job.ceiling, devices)
    corners = [(int(n), rate) for n, rate in concave_envelope(job.curve.points) if 0 < n < maximum]
    return [*corners, (maximum, job.curve.envelope[maximum])]


def rows_of(jobs: list[Job], devices: int, stretches: int) -> tuple[list[Row], int]:
    """The programme, and how many columns it has: first whether each job is met, then its seconds
    on each size.
    """
    moments = sorted({t for job in jobs for t in (job.submitted + START, job.deadline or 0.0)})
    if len(moments) > stretches:
        chosen = np.linspace(0, len(moments) - 1, stretches).round().astype(int).tolist()
        moments = [moments[k] for k in chosen]
    rows: list[Row] = []
    used: list[list[tuple[int, float]]] = [[] for _ in moments]
    column = len(jobs)
    for k, job in enumerate(jobs):
        assert job.deadline is not None
        begin, sizes = job.submitted + START, sizes_of(job, devices)
        work = [(k, job.work)]
        for index in range(
            max(bisect_right(moments, begin) - 1, 0), bisect_left(moments, job.deadline)
        ):
            seconds = min(moments[index + 1], job.deadline) - max(moments[index], begin)
            columns = range(column, column + len(sizes))
            rows.append(Row(0.0, [(k, -seconds), *((column, 1.0) for column in columns)]))
            used[index] += [
                (column, float(n)) for column, (n, _) in zip(columns, sizes, strict=True)
            ]
            work += [(column, -rate) for column, (_, rate) in zip(columns, sizes, strict=True)]
            column += len(sizes)
        rows.append(Row(0.0, work))
    rows += [
        Row(devices * (moments[index + 1] - moments[index]), terms)
        for index, terms in enumerate(used)
        if terms
    ]
    return rows, column


def most_met(jobs: list[Job], devices: int, stretches: int, *, whole: bool) -> float:
    """How many at most."""
    rows, columns = rows_of(jobs, devices, stretches)
    solver: Any = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1), ("time_limit", SECONDS)):
        solver.setOptionValue(option, value)
    upper = np.full(columns, solver.getInfinity())
    upper[: len(jobs)] = 1.0
    solver.addVars(columns, np.zeros(columns), upper)
    own_columns = np.arange(len(jobs), dtype=np.int32)
    solver.changeColsCost(len(jobs), own_columns, -np.ones(len(jobs)))
    if whole:
        solver.changeColsIntegrality(
            len(jobs), own_columns, np.full(len(jobs), highspy.HighsVarType.kInteger)
        )
    else:
        solver.setOptionValue("solver", "ipm")
        solver.setOptionValue("run_crossover", "off")
    counts = [len(row.terms) for row in rows]
    terms = [term for row in rows for term in row.terms]
    solver.addRows(
        len(rows), np.full(len(rows), -solver.getInfinity()), np.array([row.upper for row in rows]), len(terms),
        np.cumsum([0, *counts[:-1]]).astype(np.int32), np.array([column for column, _ in terms], dtype=np.int32),
        np.array([factor for _, factor in terms]),
    )  # fmt: skip
    solver.run()
    found = solver.getInfo()
    return -float(found.mip_dual_bound if whole else found.objective_function_value)


def main(data: Path, trace: str, devices: int, *, whole: bool, stretches: int) -> None:
    with_deadline = [job for job in read(data, trace) if job.deadline is not None]
    able = [
        job
        for job in with_deadline
        if job.submitted + START + job.work / job.curve.best[min(job.ceiling, devices)]
        <= (job.deadline or 0.0)
    ]
    met = most_met(able, devices, stretches, whole=whole)
    print(
        f"{trace} on {devices} devices: at most {met:.1f} of {len(with_deadline)} deadlines, "
        f"{met / len(with_deadline):.4f}"
    )


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        int(sys.argv[3]),
        whole=sys.argv[4] == "whole",
        stretches=int(sys.argv[5]) if len(sys.argv) > 5 else 400,
    )
