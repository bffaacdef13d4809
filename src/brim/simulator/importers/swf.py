"""Reads the Standard Workload Format 2.2 of the Parallel Workloads Archive.

Source: https://www.cs.huji.ac.il/labs/parallel/workload/swf.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from brim.domain.quantities import counted
from brim.errors import SpecError
from brim.simulator.importers.clock import LogClock
from brim.simulator.importers.lines import LARGEST, LogFile, lines
from brim.simulator.past_jobs import Log, PastJob, PastRun
from brim.simulator.tables import Row

_COLUMNS = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "CPU time",
    "used memory", "requested processors", "requested time", "requested memory", "status", "user",
    "group", "application", "queue", "partition", "preceding job", "think time",
)  # fmt: skip
_HEADER = re.compile(r";\s*(MaxProcs|MaxNodes|UnixStartTime)\s*:\s*(-?\d{1,12})\b")
_PARTS = ("2", "3", "4")  # status of a part of a job: goes on later, the last one, and failed


@dataclass(slots=True)
class _SwfJob:
    """A job whose lines are being read: one for all of it, and perhaps one for each part."""

    row: Row
    submitted: float | None
    whole: tuple[PastRun, ...] = ()
    parts: list[PastRun] = field(default_factory=list)
    state: str = ""


def read_swf(path: Path, log: Log, clock: LogClock) -> None:
    """Add the jobs of a file to `log`, on its own clock or, where it has one, since 1970.

    Raises:
        SpecError: a line that has not 18 numbers.
    """
    del clock  # the times are seconds
    source = LogFile(
        path, "a log in the Standard Workload Format", "18 numbers a line, -1: unknown"
    )
    header: dict[str, int] = {}
    job: _SwfJob | None = None
    for number, line in lines(source):
        if line.lstrip().startswith(";"):
            match = _HEADER.match(line.lstrip())
            if match:
                header[match[1]] = int(match[2])
            continue
        cells = line.split()
        if not cells:
            continue
        if len(cells) != len(_COLUMNS):
            raise SpecError(
                source.place(f"line {number}"),
                got=counted(len(cells), "number"),
                need=f"{len(_COLUMNS)}: {', '.join(_COLUMNS)}",
                hint="comments begin with ;",
            )
        row = Row(source.place(f"line {number}"), dict(zip(_COLUMNS, cells, strict=True)))
        zero = max(header.get("UnixStartTime", 0), 0)
        if job is None or not _is_part_of(row, job):
            _finish(job, log)
            submit = _number(row, "submit time")
            job = _SwfJob(row, None if submit is None else zero + submit)
        _add(row, job, log)
    _finish(job, log)
    log.assumed.append("devices are processors")
    procs = max(header.get("MaxProcs", 0), header.get("MaxNodes", 0))
    if procs > 0:
        nodes = header.get("MaxNodes", 0)
        log.size = (procs, procs // nodes if nodes > 0 and procs % nodes == 0 else 8)


def _is_part_of(row: Row, job: _SwfJob) -> bool:
    has_its_number = row.text("job number") == job.row.text("job number")
    return has_its_number and row.text("status") in _PARTS


def _add(row: Row, job: _SwfJob, log: Log) -> None:
    job.state = row.text("status")
    seconds = _number(row, "run time")
    wait = _number(row, "wait time")
    previous_end = job.parts[-1].end if job.parts else job.submitted
    if seconds is None or previous_end is None:
        return
    if wait is None:
        log.odd["jobs without a known wait: started when submitted"] += 1
    start = previous_end + (wait or 0.0)
    run = PastRun(start, start + seconds, _processors(row, log))
    if job.state in _PARTS:
        job.parts.append(run)
    else:
        job.whole = (run,)


def _processors(row: Row, log: Log) -> int:
    allocated = _number(row, "allocated processors")
    if allocated is None:
        requested = _number(row, "requested processors")
        log.odd["jobs without known processors: had as many as requested"] += requested is not None
        return int(requested or 0)
    return int(allocated)


def _number(row: Row, column: str) -> float | None:
    """The number in a cell; None where it is -1."""
    found = row.number(column, maximum=LARGEST)
    return None if found < 0 else found


def _finish(job: _SwfJob | None, log: Log) -> None:
    if job is None:
        return
    queue, user = job.row.text("queue"), job.row.text("user")
    log.add(
        PastJob(
            id=job.row.text("job number"),
            user="" if user == "-1" else user,
            tenant="default" if queue == "-1" else f"queue-{queue}",
            submitted=job.submitted,
            runs=tuple(job.parts) or job.whole,
            state=job.state,
        )
    )
