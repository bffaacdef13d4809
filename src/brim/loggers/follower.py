"""Follows a run's records and tells a logger, so that it has each step once, whoever of them is killed when."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from brim.domain.accounting import StepRecord
from brim.errors import EnvironmentFault
from brim.loggers.entries import Batch, Merge, gather
from brim.loggers.protocol import LoggedRun, Logger
from brim.storage.files import lock, write_whole
from brim.telemetry.events import follow_events, follow_steps
from brim.telemetry.records import Event, RunEnded, RunStarted

__all__ = ["FOLDER", "Follower", "place_of", "recorded_loggers"]

FOLDER = "loggers"  # in the run's directory


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is certain of a logger: it has everything of the first `events` and `steps` records.

    Of what came behind them it may have anything, all of it of `step` or later.
    """

    logger: str
    events: int = 0
    steps: int = 0
    step: int = 0


def place_of(run_dir: Path, name: str) -> Path:
    """The file that says how far a logger is."""
    return run_dir / FOLDER / f"{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}.json"


def recorded_loggers(run_dir: Path) -> list[str]:
    """The loggers that were given to a run before."""
    found = []
    for path in sorted((run_dir / FOLDER).glob("*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=_Place).logger)
        except (OSError, msgspec.DecodeError):
            continue
    return found


class Follower:
    """Brings one logger up to where a run is, again and again.

    Args:
        run_dir: of the run; its first records may not be there yet.
        name: of the logger.
        make: gives the logger; called once there is a run to begin.

    Raises:
        EnvironmentFault: another process tells this logger of this run.
    """

    def __init__(self, run_dir: Path, name: str, make: Callable[[], Logger]) -> None:
        self._run_dir, self._name, self._make = run_dir.resolve(), name, make
        self._file = place_of(self._run_dir, name)
        self._file.parent.mkdir(exist_ok=True)
        held = lock(self._file.with_suffix(".lock"))
        if held is None:
            raise EnvironmentFault(f"another process tells {name} of {run_dir}")
        self._lock = held
        self._steps, self._events = follow_steps(self._run_dir), follow_events(self._run_dir)
        self._unbegun: tuple[list[StepRecord], list[Event]] = ([], [])
        self._merge = Merge()
        self._logger: Logger | None = None
        self._exit = ""
        self.ended = False

    @property
    def step(self) -> int:
        """The last step that was told and counts."""
        return self._merge.step

    def poll(self) -> int:
        """Tell what is new; how many entries that were.

        Raises:
            Exception: whatever the logger raises.
        """
        steps = self._steps.poll()
        events: list[Event] = self._events.poll()
        for event in events:
            self._notice(event)
        if self._logger is not None:
            self._merge.add(steps, events)
            return self._tell(self._logger)
        return self._begin_with(steps, events)

    def _notice(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.ended, self._exit = False, ""
        elif isinstance(event, RunEnded):
            self.ended, self._exit = True, str(event.summary.get("exit", "done"))

    def _begin_with(self, steps: list[StepRecord], events: list[Event]) -> int:
        """Take the run up where it was left, once it says what it is: what may not have arrived is told again."""
        steps, events = self._unbegun[0] + steps, self._unbegun[1] + events
        started = next((event for event in events if isinstance(event, RunStarted)), None)
        if started is None:
            self._unbegun = steps, events
            return 0
        place = self._read_place()
        self._write_place(place)
        logger = self._make()
        known = logger.begin(_run_of(self._run_dir, started))
        first = place.step if known is None else min(place.step, known + 1)
        self._merge.add(steps[: place.steps], events[: place.events])
        again = gather(self._merge.take(), first=first)
        told = _perform(logger, Batch(first - 1, again.entries))
        self._logger, self._unbegun = logger, ([], [])
        self._merge.add(steps[place.steps :], events[place.events :])
        return told + self._tell(logger)

    def _tell(self, logger: Logger) -> int:
        place = self._place()
        batch = gather(self._merge.take())
        if batch.lowest is None:
            return 0
        self._write_place(msgspec.structs.replace(place, step=batch.lowest))
        return _perform(logger, batch)

    def _place(self) -> _Place:
        """Where this is, if nothing is under way."""
        at = self._merge
        return _Place(logger=self._name, events=at.events, steps=at.steps, step=at.step + 1)

    def close(self) -> None:
        """Tell the logger that there is no more, and let go of it."""
        if self._logger is not None:
            self._logger.end(self._exit or "unfinished")
            self._write_place(self._place())
        os.close(self._lock)

    def _read_place(self) -> _Place:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Place)
        except (FileNotFoundError, msgspec.DecodeError):
            return _Place(logger=self._name)

    def _write_place(self, place: _Place) -> None:
        write_whole(self._file, msgspec.json.encode(place) + b"\n", alone=True)


def _perform(logger: Logger, batch: Batch) -> int:
    if batch.rewind is not None:
        logger.rewind(batch.rewind)
    for entry in batch.entries:
        logger.log(entry)
    logger.flush()
    return len(batch.entries)


def _run_of(run_dir: Path, started: RunStarted) -> LoggedRun:
    identity = f"{started.host}:{run_dir}:{started.at}"
    return LoggedRun(
        name=run_dir.name,
        directory=run_dir,
        id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        spec=started.spec,
        versions=started.versions,
    )
