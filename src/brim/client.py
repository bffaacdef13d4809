"""Ask a run that is alive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brim.errors import EnvironmentFault
from brim.storage.contact import is_alive, read_contact
from brim.wire.control import ask
from brim.wire.messages import Answer, Ask

__all__ = ["resize", "status", "suspend"]


def _ask(run_dir: Path, question: Ask) -> dict[str, Any]:
    contact = read_contact(run_dir)
    if contact is None:
        raise EnvironmentFault(f"{run_dir} is not running")
    if not is_alive(contact.keeper):
        raise EnvironmentFault(f"{run_dir} is not running: its processes were killed")
    answer: Answer = ask(contact.address, token=contact.token, question=question)
    if not answer.ok:
        raise EnvironmentFault(answer.detail)
    return answer.status


def status(run_dir: Path) -> dict[str, Any]:
    """What the master of a run knows beyond its records.

    Raises:
        EnvironmentFault: the run is not alive.
    """
    return _ask(run_dir, Ask(verb="status"))


def resize(run_dir: Path, workers: int) -> dict[str, Any]:
    """Ask for so many workers; returns at once.

    Raises:
        EnvironmentFault: the run is not alive, or cannot have so many.
    """
    return _ask(run_dir, Ask(verb="resize", workers=workers))


def suspend(run_dir: Path) -> dict[str, Any]:
    """Ask a run to go to no workers at its next step boundary, with a checkpoint; returns at once.

    Raises:
        EnvironmentFault: the run is not alive.
    """
    return _ask(run_dir, Ask(verb="suspend"))
