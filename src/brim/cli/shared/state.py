"""The state directory of a scheduler, for commands that need no scheduler: lock and database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from brim.client import default_state_dir
from brim.errors import SpecError
from brim.storage.database import Database


@contextlib.contextmanager
def database_of(state: Path | None) -> Iterator[tuple[Path, Database]]:
    """A state directory and its database.

    Raises:
        SpecError: there is none.
    """
    folder = state or default_state_dir()
    path = folder / "scheduler.db"
    if not path.is_file():
        raise SpecError(
            "--state", got=f"no {path}", need="the state directory of a scheduler", hint="brim up"
        )
    database = Database(path)
    try:
        yield folder, database
    finally:
        database.close()


def lock_state(state: Path) -> int | None:
    """The lock, in a directory that is made if it is missing; None where a process has it."""
    from brim.storage.contact import SCHEDULER_LOCK
    from brim.storage.files import lock
    from brim.storage.ownership import check_ours, make_ours

    try:
        if not state.is_dir():
            make_ours(state, mode=0o700)  # what jobs print is nobody else's business
        check_ours(state, field="--state")
        return lock(state / SCHEDULER_LOCK)
    except OSError as error:
        raise SpecError(
            "--state", got=f"{str(state)!r} ({error.strerror})", need="a directory"
        ) from None
