"""The protocol of loggers: five methods, called from one thread, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """The run whose records are sent on.

    Args:
                name: the name of its directory.
        directory: an absolute path.
        id: unique to this run, and the same each time that logging is resumed.
        spec: the options of the run, as in `events.jsonl`.
        versions: the versions of brim, Python and torch.
    """

    name: str
    directory: Path
    id: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Values that belong to one step.

    Args:
        step: which step of the run, from 1; 0: before the first.
        at: wall clock, seconds.
        values: by name. Each step has `train/loss`, `train/samples_per_second`, `train/workers` and
            `train/epoch`; the end of an epoch has `test/…`; values that the script logged have
            their own names.
    """

    step: int
    at: float
    values: Mapping[str, float]


class Logger(Protocol):
    """Receives the records of a run.

    An exception ends the logger's process, which is restarted after a while.
    """

    def begin(self, run: LoggedRun) -> int | None:
        """Begin to log a run, or resume. `rewind` follows.

        Returns:
            The last step that the logger is sure to have completely (-1: none), if it knows better
            than brim; None if everything that was flushed has arrived.
        """
        ...

    def rewind(self, step: int) -> None:
        """Forget all values of the steps after `step` (-1: of all steps).

        They will be logged again.

        Called after `begin`, since a logger that was killed may have lost part of the last values,
        and when the run itself went back to a checkpoint. A logger that cannot take values back
        should skip those that it has already (`brim.loggers.protocol.Newest`).
        """
        ...

    def log(self, entry: Entry) -> None:
        """Log values; steps only increase, except after `rewind`."""
        ...

    def flush(self) -> None:
        """Return once everything that was logged would survive the end of this process."""
        ...

    def end(self, exit: str) -> None:
        """Finish: no more records follow.

        Args:
            exit: `done`, `suspended` or `failed`; `unfinished` if the run did not say.
        """
        ...


class Newest:
    """The last step of each name, for loggers that cannot take values back.

    It selects the values that are newer.

    >>> newest = Newest({"train/loss": 3})
    >>> newest.only_new(Entry(step=3, at=0.0, values={"train/loss": 0.5, "mine": 1.0}))
    {'mine': 1.0}
    """

    def __init__(self, steps: Mapping[str, int]) -> None:
        self._steps = dict(steps)

    def only_new(self, entry: Entry) -> dict[str, float]:
        """Return the values of `entry` that are newer.

        Their step is later than any that was seen under their names.
        """
        new = {
            name: value
            for name, value in entry.values.items()
            if entry.step > self._steps.get(name, -1)
        }
        self._steps.update(dict.fromkeys(new, entry.step))
        return new
