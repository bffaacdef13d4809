"""Learning-rate schedulers that a loop steps by itself, where brim steps them or nobody carries them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from brim.errors import SpecError


class ScheduleWatch:
    """Watches between steps that nobody but brim steps a scheduler.

    Args:
        optimizers: of the job.
        schedulers: that brim steps.
    """

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any]
    ) -> None:
        self._schedulers = schedulers
        self._optimizers = list(optimizers)
        self._carried = {id(getattr(each, "optimizer", None)) for each in schedulers}
        self._steps = self._steps_now()
        self._rates: list[list[float]] | None = None

    def carry(self, thing: object) -> None:
        """Take note of something that the script has carried, and steps itself."""
        self._carried.add(id(getattr(thing, "optimizer", None)))

    def remember(self) -> None:
        """Take what brim, or a state from elsewhere, has left as what is to be."""
        self._steps = self._steps_now()
        self._rates = self._rates_now()

    def check(self) -> None:
        """Check that a loop has stepped no scheduler since.

        Raises:
            SpecError: it has stepped one of brim's, or one that nobody carries to other workers.
        """
        if self._steps_now() != self._steps:
            raise SpecError(
                "your training loop",
                got="a call of scheduler.step()",
                need="none: brim steps the schedulers that brim.join was given",
                hint="remove scheduler.step() from the loop, or scheduler= from brim.join",
            )
        if self._rates is not None and self._rates_now() != self._rates:
            raise SpecError(
                "brim.join",
                got="no scheduler=, and a learning rate that a scheduler changes",
                need="the scheduler: other workers would have another learning rate",
                hint="brim.join(model, optimizer, scheduler=scheduler), and no scheduler.step() in "
                "the loop",
            )

    def _steps_now(self) -> list[Any]:
        return [getattr(each, "last_epoch", None) for each in self._schedulers]

    def _rates_now(self) -> list[list[float]]:
        """Return the learning rates of optimizers that have a scheduler nobody carries."""
        return [
            [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
            for optimizer in self._optimizers
            if id(optimizer) not in self._carried
            and hasattr(optimizer.step, "_wrapped_by_lr_sched")  # as torch marks it
        ]
