"""Finds the scheduler whose job a name is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from brim.client import Client, jobs_dir, named_scheduler
from brim.errors import EnvironmentFault, SpecError
from brim.runs.directories import LATEST, RUNS, holds_run


def scheduler_of(
    name: str | None,
    state: Path | None,
    *,
    must: bool = False,
    notice: Callable[[str], None] | None = None,
) -> Client | None:
    """The scheduler of this host, or the one that the environment names, where `name` is a job and
    no run here.

    Args:
        state: of the scheduler; None: the usual place.
        must: only the scheduler can do what is asked of one of its jobs, so it has to run.
        notice: as for `Client`.

    Raises:
        EnvironmentFault: it must, and does not; or the one that the environment names does not
            answer.
        SpecError: the environment names no token for it.
    """
    if name is None or name == LATEST or holds_run(Path(name)) or holds_run(RUNS / name):
        return None
    named = state is None and bool(named_scheduler())
    client: Client | None = None
    try:
        client = Client(state, notice=notice)
        return client if _has(client, name) else None
    except EnvironmentFault as error:
        if named:
            raise
        if must and (jobs_dir(state) / name).is_dir():
            raise EnvironmentFault(f"{name} is a job of a scheduler; {error}") from error
        if (
            client is not None and notice is not None
        ):  # it runs; its records are looked at without it
            notice(str(error))
        return None


def _has(client: Client, job: str) -> bool:
    try:
        client.job(job)
    except SpecError:
        return False
    return True
