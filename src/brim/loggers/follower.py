"""The follower of a run's records: the logger gets each step once, despite kills."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from brim.domain.step_records import StepRecord
from brim.errors import EnvironmentFault
from brim.loggers.entries import Batch, Merge, Rewind, gather
from brim.loggers.protocol import Entry, LoggedRun, Logger
from brim.storage.files import lock, write_whole
from brim.telemetry.events import Event, RunEnded, RunStarted
from brim.telemetry.record_files import follow_events, follow_steps

FOLDER = "loggers"  # in the run's directory
_READ_BYTES = 4 << 20  # bytes of steps that are in memory at once


class _FollowedSoFar(msgspec.Struct, frozen=True, kw_only=True):
    """The records that a logger certainly has: the first `events` and `steps`.

    It may have any of the later ones, all of `step` or later.
    """

    logger: str
    events: int = 0
    steps: int = 0
    step: int = 0


def place_of(run_dir: Path, name: str) -> Path:
    """The file that says how far a logger is.

    >>> place_of(Path("run"), "mlflow").name, place_of(Path("run"), "/home/me/mine.py:Lines").name
    ('mlflow.json', 'Lines-0734627f.json')
    """
    file, _, function = name.rpartition(":")
    stem = f"{function}-{zlib.crc32(file.encode()):08x}" if file else name
    return run_dir / FOLDER / f"{stem}.json"


def recorded_loggers(run_dir: Path) -> list[str]:
    """The loggers that were given to a run before."""
    found = []
    for path in sorted((run_dir / FOLDER).glob("*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=_FollowedSoFar).logger)
        except (OSError, msgspec.DecodeError):
            continue
    return found


class Follower:
    """Brings one logger up to where a run is, at each look at its records.

    Args:
        run_dir: of the run; its first records may not be there yet.
        name: of the logger.
        make: gives the logger; called once there is a run to begin.

    Raises:
        EnvironmentFault: another process already sends this run to this logger.
    """

    def __init__(self, run_dir: Path, name: str, make: Callable[[], Logger]) -> None:
        self._run_dir, self._name, self._make = run_dir.resolve(), name, make
        self._file = place_of(self._run_dir, name)
        self._file.parent.mkdir(exist_ok=True)
        lock_file = lock(self._file.with_suffix(".lock"))
        if lock_file is None:
            raise EnvironmentFault(f"another process sends {run_dir} to {name} already")
        self._lock = lock_file
        self._steps, self._events = follow_steps(self._run_dir), follow_events(self._run_dir)
        self._waiting_steps: list[StepRecord] = []
        self._waiting_events: list[Event] = []
        self._merge = Merge()
        self._logger: Logger | None = None
        self._exit = ""
        self.ended = False

    @property
    def step(self) -> int:
        """The last step that was told and counts."""
        return self._merge.step

    def poll(self) -> int:
        """Tell new entries; their number.

        Raises:
            Exception: the logger's.
        """
        self._read_events()
        count = 0
        logger = self._logger
        if logger is None:
            started = next(
                (event for event in self._waiting_events if isinstance(event, RunStarted)), None
            )
            if started is None:
                return 0
            logger, count = self._begin(started)
        has_more = True
        while has_more:
            steps = self._waiting_steps + self._steps.poll(at_once=_READ_BYTES)
            has_more = self._steps.has_more
            self._read_events()  # behind the steps: see Merge.add
            self._merge.add(steps, self._waiting_events, continues=has_more)
            self._waiting_steps, self._waiting_events = [], []
            count += self._tell(logger)
        return count

    def _read_events(self) -> None:
        for event in self._events.poll():
            if isinstance(event, RunStarted):
                self.ended, self._exit = False, ""
            elif isinstance(event, RunEnded):
                self.ended, self._exit = True, str(event.summary.get("exit", "done"))
            self._waiting_events.append(event)

    def _begin(self, started: RunStarted) -> tuple[Logger, int]:
        """Take the run up at its last place: entries that may not have arrived are told again."""
        place = self._read_place()
        self._write_place(place)
        logger = self._make()
        last_step = logger.begin(_run_of(self._run_dir, started))
        first = place.step if last_step is None else min(place.step, last_step + 1)
        repeated = gather(self._known_before(place), first=first)
        last_sent = _perform(logger, Batch(first - 1, repeated.entries))
        self._logger = logger
        return logger, last_sent

    def _known_before(self, place: _FollowedSoFar) -> Iterator[Entry | Rewind]:
        """Yield the records that lie before `place`."""
        self._merge.add([], self._waiting_events[: place.events], continues=True)
        del self._waiting_events[: place.events]
        while (missing := place.steps - self._merge.received) > 0:
            steps = self._steps.poll(at_once=_READ_BYTES)
            if not steps and not self._steps.has_more:
                break
            self._merge.add(steps[:missing], [], continues=True)
            self._waiting_steps = steps[missing:]
            yield from self._merge.take()
        self._merge.add([], [])
        yield from self._merge.take()

    def _tell(self, logger: Logger) -> int:
        place = self._place()
        batch = gather(self._merge.take())
        if batch.lowest is None:
            return 0
        self._write_place(msgspec.structs.replace(place, step=batch.lowest))
        return _perform(logger, batch)

    def _place(self) -> _FollowedSoFar:
        """Return the present place, valid while nothing is under way."""
        merge = self._merge
        return _FollowedSoFar(
            logger=self._name, events=merge.events, steps=merge.steps, step=merge.step + 1
        )

    def close(self) -> None:
        """Tell the logger that there is no more, and let go of it."""
        if self._logger is not None:
            self._logger.end(self._exit or "unfinished")
            self._write_place(self._place())
        os.close(self._lock)

    def _read_place(self) -> _FollowedSoFar:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_FollowedSoFar)
        except (FileNotFoundError, msgspec.DecodeError):
            return _FollowedSoFar(logger=self._name)

    def _write_place(self, place: _FollowedSoFar) -> None:
        write_whole(self._file, msgspec.json.encode(place) + b"\n", is_sole_writer=True)


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
