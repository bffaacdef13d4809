"""Reads what Slurm's `sacct --parsable2` prints, with or without steps and duplicates."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from brim.errors import SpecError
from brim.simulator.importers.clock import Clock
from brim.simulator.importers.lines import Source, rows
from brim.simulator.past_jobs import Log, PastJob, Run
from brim.simulator.tables import Row

COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct -a -X -D -P -S 2026-10-01 -E 2026-11-01 "
    "-o JobID,User,Account,Partition,State,Submit,Start,End,AllocTRES,AllocCPUS,NNodes"
)
# 123; 123_4 of an array; 123+0, a part of a heterogeneous job; 123_[5-9%2], tasks that still wait
_JOB = re.compile(r"\d+(_\d+|_\[.*\])?(\+\d+)?")
_GPUS = re.compile(r"(?:^|,)gres/gpu(:[^=,]+)?=(\d{1,9})(?=,|$)")
_AMOUNTS = {"alloctres", "alloccpus", "nnodes"}
_UNITS = ("GPUs (gres/gpu of AllocTRES)", "CPUs (AllocCPUS)", "nodes (NNodes)")


class _Amounts(NamedTuple):
    gpus: int
    cpus: int
    nodes: int


@dataclass(slots=True)
class _Records:
    """All records of one job; a job that was put back in line has several."""

    user: str
    tenant: str
    submitted: float | None = None
    runs: list[tuple[float, float | None, _Amounts]] = field(default_factory=list)
    state: str = ""


def read_sacct(path: Path, log: Log, clock: Clock) -> None:
    """Add the jobs of a file to `log`.

    Devices are GPUs where any job has some, or else CPUs, or else nodes.

    Raises:
        SpecError: the file is not what `sacct -P` prints, or lacks a column.
    """
    source = Source(path, "what `sacct --parsable2` prints", COMMAND)
    found: dict[str, _Records] = {}
    for row in rows(source, _cells, required=("jobid", "submit", "start", "end")):
        name = row.text("jobid")
        if "." in name:  # a step
            continue
        if not _AMOUNTS & row.cells.keys():
            need = "a column AllocTRES, AllocCPUS or NNodes"
            raise SpecError(source.place("line 1"), got=", ".join(row.cells), need=need, hint=COMMAND)
        if not _JOB.fullmatch(name):
            raise row.fault("jobid", "a job's id, such as 123, 123_4 or 123.batch", hint=COMMAND)
        _add(found, name, row, clock)
    totals = [0, 0, 0]
    for job in found.values():
        for _, _, amounts in job.runs:
            totals = [total + amount for total, amount in zip(totals, amounts, strict=True)]
    unit = next((place for place, total in enumerate(totals) if total), 0)
    log.assumed.append(f"devices are {_UNITS[unit]}")
    for name, job in found.items():
        runs = tuple(Run(start, end, amounts[unit]) for start, end, amounts in job.runs)
        log.add(
            PastJob(
                id=name,
                user=job.user,
                tenant=job.tenant,
                submitted=job.submitted,
                runs=runs,
                state=job.state,
            )
        )


def _cells(line: str) -> list[str]:
    return line.split("|")


def _add(found: dict[str, _Records], name: str, row: Row, clock: Clock) -> None:
    tenant = row.text("account") or row.text("partition") or "default"
    job = found.setdefault(name, _Records(row.text("user"), tenant))
    submitted = clock.time(row, "submit")
    if submitted is not None:  # a job that is put back in line gets a new one
        job.submitted = submitted if job.submitted is None else min(job.submitted, submitted)
    start = clock.time(row, "start", after=submitted)
    end = clock.time(row, "end", after=start)
    job.state = row.text("state").partition(" ")[0]  # CANCELLED by 1000
    if start is not None and job.state != "PENDING":
        job.runs.append((start, end, _amounts(row)))


def _amounts(row: Row) -> _Amounts:
    # A site may have them counted together, by type, or both: gres/gpu=4,gres/gpu:a100=4.
    counts = [(kind, int(count)) for kind, count in _GPUS.findall(row.text("alloctres"))]
    together = sum(count for kind, count in counts if not kind)
    by_type = sum(count for kind, count in counts if kind)
    return _Amounts(together or by_type, _count(row, "alloccpus"), _count(row, "nnodes"))


def _count(row: Row, column: str) -> int:
    text = row.text(column)
    if text.lower() in {"", "unknown"}:
        return 0
    if not text.isdecimal() or len(text) > 9:
        raise row.fault(column, "a whole number from 0")
    return int(text)
