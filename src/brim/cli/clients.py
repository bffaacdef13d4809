"""Finds the scheduler that a command is meant for; whoever waits for it is told so on stderr."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from brim.errors import EnvironmentFault, SpecError

if TYPE_CHECKING:
    from brim.client import Client

__all__ = ["client_of", "scheduler_of"]


def client_of(state: Path | None) -> Client:
    """The scheduler of a state directory. Raises EnvironmentFault where none runs there."""
    from brim.client import Client

    return Client(state, notice=lambda text: click.echo(f"brim: {text}", err=True))


def scheduler_of(name: str | None, state: Path | None, *, must: bool = False) -> Client | None:
    """The scheduler of this host, where `name` is one of its jobs and no run of this directory.

    Args:
        must: only the scheduler can do what is asked of one of its jobs, so it has to run.

    Raises:
        EnvironmentFault: it must, and does not.
    """
    from brim.cli.runs import LATEST, RUNS, holds_run
    from brim.client import jobs_dir

    if name is None or name == LATEST or holds_run(Path(name)) or holds_run(RUNS / name):
        return None
    try:
        client = client_of(state)
        client.job(name)
    except SpecError:
        return None
    except EnvironmentFault as error:
        if must and (jobs_dir(state) / name).is_dir():
            raise EnvironmentFault(f"{name} is a job of a scheduler; {error}") from error
        return None
    return client
