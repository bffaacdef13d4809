"""Paces of the workers that own a host's rows.

A slower owner gets a smaller part of the next step's rows.

All must cut a step at the same ids. So each writes how long it took between the barriers `summed`
and `commit`, and all read it between `blocks` and `summed` of the next step, when nobody writes.
Which owner applies a row changes no bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

_NEWEST = 0.3  # what the last step counts in the mean
_UNEVEN = 1.25  # of the slowest to the fastest: less is noise
_MAX_CHANGE_FACTOR = 1.25  # that a part changes by in one step
_MIN_PART_RATIO = 0.25  # of an even part: else an owner that is fast again would not be found out


class Paces:
    """The paces of the owners of one host, in one round.

    Args:
        seconds: memory that they share, float64, [N]; of more owners each has the same part.
        owners: how many there are.
        owner: which of them this worker is; None: none.

    Attributes:
        parts: of the rows of a step, of each owner; their sum is 1.
    """

    def __init__(self, seconds: Tensor, owners: int, owner: int | None) -> None:
        self._seconds, self._owner = seconds[: owners if owners <= len(seconds) else 0], owner
        self.parts: Sequence[float] = [1 / owners] * owners
        self._took(
            0.0
        )  # of another round; nobody gets beyond its next barrier with what is left of that one

    def took(self, seconds: float) -> None:
        """Note how long this owner's part of a step took; before the commit."""
        if self._owner is not None and len(self._seconds):
            seconds_before = float(self._seconds[self._owner])
            self._took(
                seconds
                if not seconds_before
                else seconds_before + _NEWEST * (seconds - seconds_before)
            )

    def _took(self, seconds: float) -> None:
        if self._owner is not None and len(self._seconds):
            self._seconds[self._owner] = seconds

    def look(self) -> None:
        """Cut the next step by the noted paces; while no worker writes."""
        self.parts = shifted(self.parts, self._seconds.tolist())


def shifted(parts: Sequence[float], seconds: Sequence[float]) -> Sequence[float]:
    """Return parts that are a little nearer to those with which all would take as long.

    >>> shifted([0.5, 0.5], [1.0, 1.1]), shifted([0.5, 0.5], [0.0, 1.0])
    ([0.5, 0.5], [0.5, 0.5])
    >>> [round(part, 3) for part in shifted([0.5, 0.5], [1.0, 4.0])]
    [0.61, 0.39]
    """
    if not seconds or min(seconds) <= 0 or max(seconds) < _UNEVEN * min(seconds):
        return parts
    mean = sum(seconds) / len(seconds)
    targets = [
        max(
            _MIN_PART_RATIO / len(parts),
            part * min(_MAX_CHANGE_FACTOR, max(1 / _MAX_CHANGE_FACTOR, mean / duration)),
        )
        for part, duration in zip(parts, seconds, strict=True)
    ]
    return [part / sum(targets) for part in targets]
