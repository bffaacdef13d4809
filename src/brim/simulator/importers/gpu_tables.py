"""Reads tables with a row for each job, and its GPUs: the form of SenseTime's traces."""

from __future__ import annotations

import csv
from pathlib import Path

from brim.simulator.importers.clock import LogClock
from brim.simulator.importers.lines import LogFile, rows
from brim.simulator.past_jobs import Log, PastJob, PastRun

_REQUIRED = ("job_id", "user", "gpu_num", "state", "submit_time", "start_time", "end_time")


def read_gpu_table(path: Path, log: Log, clock: LogClock, *, tenant: str, hint: str) -> None:
    """Add the jobs of a CSV file to `log`.

    Args:
        tenant: the column of the tenant.
        hint: which file it is.

    Raises:
        SpecError: the file lacks a column, or has a wrong value.
    """
    log.assumed.append("devices are GPUs")
    for row in rows(LogFile(path, "a CSV file", hint), cells_of, required=(*_REQUIRED, tenant)):
        submitted = clock.time(row, "submit_time")
        start = clock.time(row, "start_time", earliest=submitted)
        end = clock.time(row, "end_time", earliest=start)
        gpus = row.whole("gpu_num")
        log.add(
            PastJob(
                id=row.text("job_id"),
                user=row.text("user"),
                tenant=row.text(tenant) or "default",
                submitted=submitted,
                runs=() if start is None else (PastRun(start, end, gpus),),
                state=row.text("state"),
            )
        )


def cells_of(line: str) -> list[str]:
    """The cells of a line of CSV."""
    return next(csv.reader([line]), [])
