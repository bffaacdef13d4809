"""The function of an own loop from a batch to its loss, whose passes a program may replay.

In a replayed step the body of the loop runs once, with a worker's last micro-batch; there the
function gives the loss that the program has computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from brim.errors import UserCodeError


class StepFunction:
    """A user's function of a batch to a loss, which knows the batch that the loop is at work on.

    Args:
        function: the loss of a batch, a scalar tensor.
    """

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._batch: object = None
        self._replayed: Tensor | None = None
        self._loss: Tensor | None = None

    def __call__(self, batch: Any) -> Tensor:
        """Return the loss of a batch; of any other than the one under way, computed here."""
        if batch is not self._batch:
            return self.function(batch)
        self._loss = self.function(batch) if self._replayed is None else self._replayed
        return self._loss

    def begin(self, batch: object, replayed: Tensor | None = None) -> None:
        """Note the batch that the loop is handed, and its loss where a program has computed it."""
        self._batch, self._replayed, self._loss = batch, replayed, None

    def gave(self, loss: object) -> bool:
        """Return whether this is the loss that the function gave for the batch under way."""
        return loss is self._loss is not None


def gave_another_loss() -> UserCodeError:
    """A loop uses something else than its step function after steps were replayed."""
    return UserCodeError(
        "--capture: job.step got another tensor than what the step function gave for the batch\n"
        "  a replayed step has the loss of the function, and no other.\n"
        "  hint: put all that makes the loss into the function, or train without --capture"
    )
