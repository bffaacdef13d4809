"""The batches of an epoch that have been applied.

They are a part of the state, since their order is not that of the data.
"""

from __future__ import annotations

from typing import Any

import torch


class AppliedBatches:
    """The batches of the present epoch that count.

    >>> applied = AppliedBatches()
    >>> applied.begin(4)
    >>> applied.mark(2)
    >>> applied.unapplied(stopped=False), applied.unapplied(stopped=True)
    ([0, 1, 3], [0, 1])
    """

    def __init__(self) -> None:
        self._marks = torch.zeros(0, dtype=torch.uint8)

    def begin(self, batches: int) -> None:
        """Begin an epoch of so many batches, if it is not under way already."""
        if not len(self._marks):
            self._marks = torch.zeros(batches, dtype=torch.uint8)

    def end(self) -> None:
        """The epoch is over."""
        self._marks = torch.zeros(0, dtype=torch.uint8)

    def mark(self, batch: int) -> None:
        """A batch is applied."""
        self._marks[batch] = 1

    def unapplied(self, *, stopped: bool) -> list[int]:
        """Return the batches that are not applied, ascending.

        Args:
            stopped: the job ends early: only those that lie before an applied one, so that there is
                no gap.
        """
        pending: list[int] = (self._marks == 0).nonzero().flatten().tolist()
        if not stopped:
            return pending
        last = max(self._marks.nonzero().flatten().tolist(), default=0)
        return [batch for batch in pending if batch < last]

    # As what a user registers: it is in checkpoints, and newcomers get it.

    def state_dict(self) -> dict[str, Any]:
        return {"marks": self._marks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._marks = state["marks"].clone()
