"""Finds the scheduler whose job a name is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from brim.client import Client, jobs_dir
from brim.errors import EnvironmentFault, SpecError
from brim.runs.directories import LATEST, RUNS, holds_run

__all__ = ["scheduler_of"]


def scheduler_of(
    name: str | None,
    state: Path | None,
    *,
    must: bool = False,
    notice: Callable[[str], None] | None = None,
) -> Client | None:
    """The scheduler of this host, where `name` is one of its jobs and no run of this directory.

    Args:
        state: of the scheduler; None: the usual place.
        must: only the scheduler can do what is asked of one of its jobs, so it has to run.
        notice: as for `Client`.

    Raises:
        EnvironmentFault: it must, and does not.
    """
    if name is None or name == LATEST or holds_run(Path(name)) or holds_run(RUNS / name):
        return None
    try:
        client = Client(state, notice=notice)
        client.job(name)
    except SpecError:
        return None
    except EnvironmentFault as error:
        if must and (jobs_dir(state) / name).is_dir():
            raise EnvironmentFault(f"{name} is a job of a scheduler; {error}") from error
        return None
    return client
