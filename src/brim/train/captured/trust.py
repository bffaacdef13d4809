"""The trust that a program has earned: in which steps it is compared with eager passes. Pure."""

from __future__ import annotations

import math

COMPARED = 3  # steps before a program counts
LONGEST = 1000  # steps between two comparisons


class Trust:
    """The comparisons of one program with eager passes.

    Attributes:
        own_seconds, eager_seconds: the least that either has taken.
        unseen: steps that the program computed since the last comparison.
    """

    def __init__(self) -> None:
        self.own_seconds = self.eager_seconds = math.inf
        self.unseen = 0
        self._compared = 0
        self._counted = False

    def asks_for_comparison(self, *, begins_epoch: bool) -> bool:
        """Return whether the coming step is made eagerly as well.

        >>> trust, compared = Trust(), []
        >>> for step in range(40):
        ...     if trust.asks_for_comparison(begins_epoch=step == 20):
        ...         compared.append(step)
        ...         trust.agreed(own=1.0, eager=2.0)
        ...     else:
        ...         trust.counted()
        >>> compared
        [0, 1, 2, 11, 20]
        """
        due = self.unseen >= min(1 << self._compared, LONGEST)
        return begins_epoch or due or self._compared < COMPARED

    def counted(self) -> None:
        """The program has computed a step that counts."""
        self.unseen += 1
        self._counted = True

    def agreed(self, *, own: float, eager: float) -> None:
        """Both came to the same bits, in so many seconds."""
        self._compared += 1
        self.unseen = 0
        self.own_seconds = min(self.own_seconds, own)
        self.eager_seconds = min(self.eager_seconds, eager)

    @property
    def has_counted(self) -> bool:
        """Return whether any step is the program's."""
        return self._counted

    @property
    def is_earned_now(self) -> bool:
        """Return whether the last comparison was the one that was still missing."""
        return self._compared == COMPARED

    @property
    def is_slower(self) -> bool:
        """Return whether eager passes took less time."""
        return self.own_seconds > self.eager_seconds
