"""Finds the scheduler that a command is meant for; whoever waits for it is told so on stderr."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli.usage import warn

if TYPE_CHECKING:
    from brim.client import Client


def client_of(state: Path | None) -> Client:
    """The scheduler of a state directory. Raises EnvironmentFault where none runs there."""
    from brim.client import Client

    return Client(state, notice=warn)


def scheduler_of(name: str | None, state: Path | None, *, must: bool = False) -> Client | None:
    """See `brim.runs.schedulers.scheduler_of`."""
    from brim.runs import schedulers

    return schedulers.scheduler_of(name, state, must=must, notice=warn)
