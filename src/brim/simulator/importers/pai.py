"""Reads the jobs and tasks of Alibaba's PAI cluster of 2020: two tables without headers.

Source: https://github.com/alibaba/clusterdata, cluster-trace-gpu-v2020
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from brim.errors import SpecError
from brim.simulator.importers.clock import LogClock
from brim.simulator.importers.gpu_tables import cells_of
from brim.simulator.importers.lines import LARGEST, OPTION, LogFile, rows
from brim.simulator.past_jobs import Log, PastJob, PastRun
from brim.simulator.tables import Row

_JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_TASKS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem",
    "plan_gpu", "gpu_type",
)  # fmt: skip
_HINT = "the folder with pai_job_table.csv and pai_task_table.csv, unpacked with tar -xzf"


@dataclass(slots=True)
class _PaiJob:
    user: str
    submitted: float | None
    state: str
    runs: list[PastRun] = field(default_factory=list)


def read_pai(path: Path, log: Log, clock: LogClock) -> None:
    """Add the jobs of a folder to `log`; each task of a job is a run of its own.

    Raises:
        SpecError: the folder lacks a table, or one of them has a wrong value.
    """
    if not path.is_dir():
        raise SpecError(OPTION, got=str(path), need="a folder", hint=_HINT)
    log.assumed.append("devices are GPUs; parts of a GPU count as a whole one")
    jobs = {
        row.text("job_name"): _PaiJob(
            row.text("user"), _time(row, "start_time", clock), row.text("status")
        )
        for row in _table(path / "pai_job_table.csv", _JOBS)
    }
    for row in _table(path / "pai_task_table.csv", _TASKS):
        job = jobs.get(row.text("job_name"))
        start, end = _time(row, "start_time", clock), _time(row, "end_time", clock)
        gpus = math.ceil(_amount(row, "inst_num") * _amount(row, "plan_gpu") / 100)
        if job is None:
            log.odd["tasks left out whose job is not in the table of jobs"] += 1
        elif start is not None:
            job.runs.append(PastRun(start, end, gpus))
    for name, job in jobs.items():
        log.add(
            PastJob(
                id=name,
                user=job.user,
                tenant="default",
                submitted=job.submitted,
                runs=tuple(job.runs),
                state=job.state,
            )
        )


def _table(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    compressed = path.with_name(f"{path.name}.gz")
    found = compressed if compressed.exists() and not path.exists() else path
    return rows(LogFile(found, "a CSV file without a header", _HINT), cells_of, columns=columns)


def _time(row: Row, column: str, clock: LogClock) -> float | None:
    """The time in a cell; None where it is unknown, which is also written as 0."""
    return clock.time(row, column) or None


def _amount(row: Row, column: str) -> float:
    """The number in a cell; 0 where there is none."""
    if row.text(column).lower() in {"", "nan"}:
        return 0.0
    return row.number(column, minimum=0.0, maximum=LARGEST)
