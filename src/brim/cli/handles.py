"""Finds the scheduler, the run or the job that a command is meant for.

A user who has to wait for a scheduler is told so on stderr.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli.usage import warn

if TYPE_CHECKING:
    from brim.client import Client
    from brim.runs.handle import Handle


def client_of(state: Path | None) -> Client:
    """The scheduler of a state directory. Raises EnvironmentFault where none runs there."""
    from brim.client import Client

    return Client(state, notice=warn)


def handle_of(name: str | None, state: Path | None, *, must: bool = False) -> Handle:
    """See `brim.runs.handle.handle_of`."""
    from brim.runs import handle

    return handle.handle_of(name, state, must=must, notice=warn)
