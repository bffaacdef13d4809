"""Learning-rate schedulers that a loop steps by itself, carried by brim or not at all."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from brim.errors import SpecError
from brim.train.checks.attributes import is_plain


class ScheduleWatch:
    """Watches between steps that only brim steps a scheduler.

    Args:
        optimizers: of the job.
        schedulers: that brim steps.
    """

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any]
    ) -> None:
        self._schedulers = schedulers
        self._optimizers = list(optimizers)
        self._carried = {id(getattr(scheduler, "optimizer", None)) for scheduler in schedulers}
        self._steps = self._steps_now()
        self._rates: list[list[float]] | None = None
        self._plateaus: dict[int, bool] = {}

    def carry(self, thing: object) -> None:
        """Take note of something that the script has carried, and steps itself."""
        self._carried.add(id(getattr(thing, "optimizer", None)))

    def remember(self) -> None:
        """Take the present values, set by brim or a state from elsewhere, as right."""
        self._steps = self._steps_now() if self._schedulers else []
        self._rates = self._rates_now()

    def check(self) -> None:
        """Check that a loop has stepped no scheduler since.

        Raises:
            SpecError: it has stepped one of brim's, or one that is not carried to other workers.
        """
        if self._schedulers:
            self.check_steps()
        has_changed = self._rates is not None and self._rates_now() != self._rates
        if has_changed and self._has_scheduler():
            raise SpecError(
                "brim.join",
                got="no scheduler=, and a learning rate that a scheduler changes",
                need="the scheduler: other workers would have another learning rate",
                hint="brim.join(model, optimizer, scheduler=scheduler), and no scheduler.step() in "
                "the loop",
            )

    def check_steps(self) -> None:
        """Check that a loop has stepped none of brim's schedulers since.

        Raises:
            SpecError: it has.
        """
        if self._steps_now() != self._steps:
            raise SpecError(
                "your training loop",
                got="a call of scheduler.step()",
                need="none: brim steps the schedulers that brim.join was given",
                hint="remove scheduler.step() from the loop, or scheduler= from brim.join",
            )

    def _steps_now(self) -> list[Any]:
        return [_steps_of(scheduler) for scheduler in self._schedulers]

    def _rates_now(self) -> list[list[float]]:
        """Return the learning rates of optimizers that no scheduler which is carried changes."""
        return [
            rates_of(optimizer.param_groups)
            for optimizer in self._optimizers
            if id(optimizer) not in self._carried
        ]

    def _has_scheduler(self) -> bool:
        """Return whether an optimizer has an uncarried scheduler of torch's.

        Most mark its step(); the one that waits for a plateau does not, so it is looked for among
        what refers to the optimizer, once, for that takes a while.
        """
        return any(
            hasattr(optimizer.step, "_wrapped_by_lr_sched") or self._has_plateau(optimizer)
            for optimizer in self._optimizers
            if id(optimizer) not in self._carried
        )

    def _has_plateau(self, optimizer: torch.optim.Optimizer) -> bool:
        if id(optimizer) not in self._plateaus:
            self._plateaus[id(optimizer)] = any(
                isinstance(referrer, ReduceLROnPlateau)
                or (
                    isinstance(referrer, dict)
                    and "num_bad_epochs" in referrer
                    and "cooldown" in referrer
                )
                for referrer in gc.get_referrers(optimizer)
            )
        return self._plateaus[id(optimizer)]


def rates_of(groups: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the learning rates of parameter groups.

    Groups without a number are left out: Adafactor has None where it finds its own rate.
    """
    return [float(group["lr"]) for group in groups if group.get("lr") is not None]


def _steps_of(scheduler: Any) -> object:
    """Return the values that change with each step of a scheduler."""
    if hasattr(scheduler, "last_epoch"):
        return scheduler.last_epoch
    if hasattr(scheduler, "_schedulers"):  # torch's chain of several
        return [_steps_of(scheduler) for scheduler in scheduler._schedulers]
    state = scheduler.state_dict()
    return copy.deepcopy({name: value for name, value in state.items() if is_plain(value)})
