"""All formats by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from brim.domain.scaling import MOST_WORKERS
from brim.errors import SpecError
from brim.simulator.importers.acme import read_acme
from brim.simulator.importers.clock import LogClock
from brim.simulator.importers.helios import read_helios
from brim.simulator.importers.lines import OPTION
from brim.simulator.importers.pai import read_pai
from brim.simulator.importers.philly import read_philly
from brim.simulator.importers.sacct import read_sacct
from brim.simulator.importers.swf import read_swf
from brim.simulator.past_jobs import History, Log

FORMATS: Mapping[str, Callable[[Path, Log, LogClock], None]] = {
    "sacct": read_sacct,
    "swf": read_swf,
    "philly": read_philly,
    "helios": read_helios,
    "pai": read_pai,
    "acme": read_acme,
}


def read_history(form: str, path: Path, *, zone: str | None = None) -> History:
    """Read the past of a cluster.

    Args:
        form: a name of `FORMATS`.
        zone: of times that do not name one; None: UTC.

    Raises:
        SpecError: the file is not in that format, or has no job that ran.
    """
    log = Log()
    clock = LogClock(zone)
    FORMATS[form](path, log, clock)
    log.assumed.extend(clock.assumed())
    history = log.history()
    if not history.jobs:
        raise SpecError(
            OPTION,
            got=f"{path} without a job that ran on a device",
            need="at least one",
            hint="; ".join(history.assumed),
        )
    for job in history.jobs:
        if job.peak > MOST_WORKERS:
            raise SpecError(
                f"{OPTION} {path}, job {job.job.id}",
                got=f"{job.peak:,} devices at once",
                need=f"at most {MOST_WORKERS:,}",
            )
    return history
