"""What a logger is: five methods, called from one thread, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Entry", "LoggedRun", "Logger", "Newest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """The run whose records are sent on.

    Args:
        name: of its directory; people know it by that.
        directory: absolute.
        id: the same whenever this run is taken up, and no other run's.
        spec: what was asked for, as in `events.jsonl`.
        versions: of brim, Python and torch.
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
        values: by name. `train/loss`, `train/samples_per_second`, `train/workers` and `train/epoch` come with each
            step, `test/…` at the end of an epoch, and what the script sent by its own names.
    """

    step: int
    at: float
    values: Mapping[str, float]


class Logger(Protocol):
    """Takes what a run recorded. Whatever it raises ends its process, which is started again after a while."""

    def begin(self, run: LoggedRun) -> int | None:
        """Take up a run, for the first time or again. `rewind` follows.

        Returns:
            The last step of which it is sure to have everything, -1 for none, where it knows better than brim does;
            None where all that was flushed is there.
        """
        ...

    def rewind(self, step: int) -> None:
        """Forget every value of a step after `step` (-1: all of them): they come again.

        It is called when the logger takes up a run, since of what was being logged when it was killed nobody knows how
        much arrived, and when the run itself went back to a checkpoint. A logger that cannot take back leaves out what
        it has already (`brim.loggers.protocol.Newest`).
        """
        ...

    def log(self, entry: Entry) -> None:
        """Take values; steps rise, but for `rewind`."""
        ...

    def flush(self) -> None:
        """Return once everything that was logged would survive the end of this process."""
        ...

    def end(self, exit: str) -> None:
        """The records end here.

        Args:
            exit: `done`, `suspended` or `failed`; `unfinished` where the run did not say.
        """
        ...


class Newest:
    """For loggers that cannot take back: the last step of each name that they have, and what is newer.

    >>> newest = Newest({"train/loss": 3})
    >>> newest.only_new(Entry(step=3, at=0.0, values={"train/loss": 0.5, "mine": 1.0}))
    {'mine': 1.0}
    """

    def __init__(self, steps: Mapping[str, int]) -> None:
        self._steps = dict(steps)

    def only_new(self, entry: Entry) -> dict[str, float]:
        """The values of `entry` that are of a later step than any that was seen under their names."""
        new = {name: value for name, value in entry.values.items() if entry.step > self._steps.get(name, -1)}
        self._steps.update(dict.fromkeys(new, entry.step))
        return new
