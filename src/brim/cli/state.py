"""The database of a scheduler, for commands that need no scheduler."""

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
