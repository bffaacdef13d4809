"""Reads the output of Slurm's `sacct --parsable2`, with or without steps and duplicates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from brim.errors import SpecError
from brim.simulator.importers.clock import LogClock
from brim.simulator.importers.lines import LogFile, rows
from brim.simulator.past_jobs import Log, PastJob, PastRun
from brim.simulator.tables import Row

COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct -a -X -D -P -S 2026-10-01 -E 2026-11-01 "
    "-o JobID,User,Account,Partition,State,Submit,Start,End,AllocTRES,AllocCPUS,NNodes"
)
# 123; 123_4 of an array; 123+0, a part of a heterogeneous job; 123_[5-9%2], tasks that still wait
_JOB = re.compile(r"\d+(_\d+|_\[.*\])?(\+\d+)?")
_GPUS = re.compile(r"(?:^|,)gres/gpu(:[^=,]+)?=(\d{1,9})(?=,|$)")
_AMOUNTS = {"alloctres", "alloccpus", "nnodes"}
# States after which a job has a further record of the same id. Others end it: ids can be used again.
_CONTINUED = {"REQUEUED", "PREEMPTED", "NODE_FAIL", "RESIZING"}
_UNITS = ("GPUs (gres/gpu of AllocTRES)", "CPUs (AllocCPUS)", "nodes (NNodes)")


class _Amounts(NamedTuple):
    gpus: int
    cpus: int
    nodes: int


class _SacctRecord(NamedTuple):
    """A part of a job; one that was put back in line has several."""

    job: str
    user: str
    tenant: str
    state: str
    submitted: float | None
    start: float | None
    end: float | None
    amounts: _Amounts


def read_sacct(path: Path, log: Log, clock: LogClock) -> None:
    """Add the jobs of a file to `log`.

    Devices are GPUs where any job has some, or else CPUs, or else nodes.

    Raises:
        SpecError: the file is not in that form, or lacks a column.
    """
    source = LogFile(path, "what `sacct --parsable2` prints", COMMAND)
    found: dict[str, list[_SacctRecord]] = {}
    for row in rows(source, _cells, required=("jobid", "submit", "start", "end", "state")):
        if not _AMOUNTS & row.cells.keys():
            need = "a column AllocTRES, AllocCPUS or NNodes"
            raise SpecError(
                source.place("line 1"), got=", ".join(row.cells), need=need, hint=COMMAND
            )
        if "." not in row.text("jobid"):  # otherwise it is a step of a job
            record = _record(row, clock)
            found.setdefault(record.job, []).append(record)
    unit = _unit(record.amounts for records in found.values() for record in records)
    log.assumed.append(f"devices are {_UNITS[unit]}")
    for records in found.values():
        for parts in _jobs(sorted(records, key=lambda record: record.submitted or 0.0)):
            log.add(_job(parts, unit))


def _cells(line: str) -> list[str]:
    return line.split("|")


def _record(row: Row, clock: LogClock) -> _SacctRecord:
    job = row.text("jobid")
    if not _JOB.fullmatch(job):
        raise row.fault("jobid", "a job's id, such as 123, 123_4 or 123.batch", hint=COMMAND)
    submitted = clock.time(row, "submit")
    start = clock.time(row, "start", earliest=submitted)
    return _SacctRecord(
        job=job,
        user=row.text("user"),
        tenant=row.text("account") or row.text("partition") or "default",
        state=row.text("state").partition(" ")[0],  # CANCELLED by 1000
        submitted=submitted,
        start=start,
        end=clock.time(row, "end", earliest=start),
        amounts=_amounts(row),
    )


def _unit(amounts: Iterable[_Amounts]) -> int:
    """Return the first kind of amounts that any job has."""
    units = {place for row in amounts for place, amount in enumerate(row) if amount}
    return min(units, default=0)


def _jobs(records: Iterable[_SacctRecord]) -> Iterator[list[_SacctRecord]]:
    """Return the records of each job among those with one id."""
    parts: list[_SacctRecord] = []
    for record in records:
        if parts and parts[-1].state not in _CONTINUED:
            yield parts
            parts = []
        parts.append(record)
    yield parts


def _job(parts: list[_SacctRecord], unit: int) -> PastJob:
    first, last = parts[0], parts[-1]
    started = [(part.start, part) for part in parts if part.state != "PENDING"]
    return PastJob(
        id=first.job,
        user=first.user,
        tenant=first.tenant,
        submitted=first.submitted,
        runs=tuple(
            PastRun(start, part.end, part.amounts[unit])
            for start, part in started
            if start is not None
        ),
        state=last.state,
    )


def _amounts(row: Row) -> _Amounts:
    # A site may have them counted together, by type, or both: gres/gpu=4,gres/gpu:a100=4.
    counts = [(kind, int(count)) for kind, count in _GPUS.findall(row.text("alloctres"))]
    total = sum(count for kind, count in counts if not kind)
    by_type = sum(count for kind, count in counts if kind)
    return _Amounts(total or by_type, _count(row, "alloccpus"), _count(row, "nnodes"))


def _count(row: Row, column: str) -> int:
    text = row.text(column)
    if text.lower() in {"", "unknown"}:
        return 0
    if not text.isdecimal() or len(text) > 9:
        raise row.fault(column, "a whole number from 0")
    return int(text)
