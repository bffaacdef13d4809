"""Records of a run as loggers receive them, merged from its two record files.

Their order does not depend on when one looks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from brim.domain.step_records import STEP_PHASES, StepRecord
from brim.loggers.protocol import Entry
from brim.telemetry.events import EpochEnded, Event, Restored, ValuesLogged


@dataclass(frozen=True, slots=True)
class Rewind:
    """The run went back to the state after `step`."""

    step: int


class Merge:
    """Merges the events of a run into its steps, without the clock.

    Two lives of a run may disagree about the time.

    A restore names its number of commits; events of a step stand behind that step.
    `events` and `steps` count what was given out: with these many records of each file again, a new
    `Merge` is where this one is. `step` is the last one that counts.
    """

    def __init__(self) -> None:
        self.events = 0
        self.steps = 0
        self.step = 0
        self._continues = False
        self._events: deque[Event] = deque()
        self._steps: deque[StepRecord] = deque()

    @property
    def received(self) -> int:
        """Steps that were added."""
        return self.steps + len(self._steps)

    def add(
        self, steps: Iterable[StepRecord], events: Iterable[Event], *, continues: bool = False
    ) -> None:
        """New records.

        The steps must have been read before the events: then none of these is behind its time.

        Args:
            continues: there are further steps, so that an event may have to wait for its own.
        """
        self._continues = continues
        self._steps.extend(steps)
        self._events.extend(events)

    def take(self) -> Iterator[Entry | Rewind]:
        """Yield all records whose place in the order is certain."""
        while self._events:
            event = self._events[0]
            match event:
                case Restored(commits=commits) if self.steps < commits:
                    if not self._steps:
                        return  # the commits before it are in the file, but were not read yet
                    yield self._take_step()
                    continue
                case EpochEnded(step=step) | ValuesLogged(step=step) if self.step < step and (
                    self._steps or self._continues
                ):
                    if not self._steps:
                        return
                    yield self._take_step()
                    continue
            self._events.popleft()
            self.events += 1
            yield from self._entries_of(event)
        while self._steps:
            yield self._take_step()

    def _take_step(self) -> Entry:
        record = self._steps.popleft()
        self.steps += 1
        self.step = record.step
        return _of_step(record)

    def _entries_of(self, event: Event) -> Iterator[Entry | Rewind]:
        match event:
            case Restored(step=step):
                self.step = step
                yield Rewind(step)
            case EpochEnded(metrics=metrics):
                yield from _valued(
                    event, {f"test/{name}": value for name, value in metrics.items()}
                )
            case ValuesLogged(values=values):
                yield from _valued(event, values)
            case _:
                pass


def _valued(
    event: EpochEnded | ValuesLogged, values: Mapping[str, float | None]
) -> Iterator[Entry]:
    """The values that are numbers, where there are any."""
    numbers = {name: value for name, value in values.items() if value is not None}
    if numbers:
        yield Entry(step=event.step, at=event.at, values=numbers)


def _of_step(record: StepRecord) -> Entry:
    values: dict[str, float] = {
        "train/loss": math.nan if record.loss is None else record.loss,
        "train/workers": float(len({part.rank for part in record.parts})),
        "train/epoch": float(record.epoch + 1),
    }
    values |= {f"train/{name}": rate for name, rate in record.learning_rates().items()}
    seconds = sum(record.seconds.get(phase, 0.0) for phase in STEP_PHASES)
    if seconds > 0:
        values["train/samples_per_second"] = record.samples / seconds
    return Entry(step=record.step, at=record.at, values=values)


@dataclass(frozen=True, slots=True)
class Batch:
    """A stretch of records.

    First go back to `rewind`, where that is a step, then log `entries`.
    """

    rewind: int | None
    entries: list[Entry]

    @property
    def lowest(self) -> int | None:
        """The first step that it touches."""
        steps = [entry.step for entry in self.entries]
        return min(steps + ([] if self.rewind is None else [self.rewind + 1]), default=None)


def gather(items: Iterable[Entry | Rewind], *, first: int = 0) -> Batch:
    """Keep the items that still count at the end of `items`, of steps from `first` on.

    >>> def at(step):
    ...     return Entry(step=step, at=0.0, values={})
    >>> batch = gather([at(1), at(2), Rewind(1), at(2)])
    >>> batch.rewind, [entry.step for entry in batch.entries]
    (1, [1, 2])
    """
    rewind: int | None = None
    entries: list[Entry] = []
    for item in items:
        if isinstance(item, Rewind):
            rewind = item.step if rewind is None else min(rewind, item.step)
            entries = [entry for entry in entries if entry.step <= item.step]
        elif item.step >= first:
            entries.append(item)
    return Batch(rewind, entries)
