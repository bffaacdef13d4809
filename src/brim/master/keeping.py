"""Keeps the records of a run in a store while it trains, so that they outlive its hosts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from brim.domain.kept_run import place_of
from brim.errors import BrimError
from brim.host.clock import monotonic, wall
from brim.host.log import LogLine
from brim.storage.file_stores import open_place
from brim.storage.kept_runs import Keeping

_PAUSE = 2.0  # seconds between two looks at what has come
_TO_NOTE = 15.0  # seconds after which it is said again that somebody is here
_TO_END = 20.0  # seconds that the end of a run waits for its store
_log = logging.getLogger(__name__)


async def keep(run_dir: Path, runs: str, *, ended: asyncio.Event, name: str = "") -> None:
    """Keep a run until it has ended and all of it is kept, or the store does not answer.

    A store that is away is tried again for as long as the run trains, and holds up nothing.

    Args:
        run_dir: of the run.
        runs: the place of all runs: a path or a URL.
        ended: set once nothing will be added to the run's directory.
        name: of the run's place among them; empty: that of its directory.
    """
    place = open_place(place_of(runs, name or run_dir.name), field="--runs", patience=0.0)
    keeping = Keeping(run_dir, place)
    noted = away_since = 0.0
    while True:
        has_ended = ended.is_set()  # asked first: what was written at the very end is kept as well
        try:
            if monotonic() - noted > _TO_NOTE:
                await asyncio.to_thread(keeping.note_alive, wall())
                noted = monotonic()
            await asyncio.to_thread(keeping.bring_up_to_date)
            if has_ended:
                await asyncio.to_thread(keeping.note_end)
                return
            away_since = 0.0
        except BrimError as fault:
            if not away_since:
                _log.warning("%s", LogLine("records not kept", place=place.location(""), why=fault))
            away_since = away_since or monotonic()
        if has_ended and monotonic() - away_since > _TO_END:
            return
        if not has_ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE):
                    await ended.wait()
        else:
            await asyncio.sleep(_PAUSE)
