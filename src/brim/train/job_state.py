"""The state of a job on one worker: taken for a newcomer or a checkpoint, and put in place of another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from brim.domain.batch import Schedule
from brim.domain.job import JobSpec
from brim.errors import SpecError

__all__ = ["JobState"]


class JobState:
    """What must be the same on every member of a job.

    Args:
        model: the network, with its buffers.
        optimizer: over its parameters.
        scheduler: of the learning rate, or None.
        spec: of the job; what decides the bits must not change between its lives.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: Any,
        spec: JobSpec,
    ) -> None:
        self._model, self._optimizer, self._scheduler = model, optimizer, scheduler
        self._spec = spec
        self.schedule: Schedule | None = None  # known once the loop begins
        self.committed = 0  # steps
        self.evaluated = 0  # epochs
        self.metrics: dict[str, float] = {}
        self.measured = 0  # the step whose weights have these metrics

    @property
    def _schedule(self) -> Schedule:
        assert self.schedule is not None, "a state is given and taken within the loop"
        return self.schedule

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}

    def get(self) -> Any:
        """The state as a tree; its tensors are the network's own, not copies."""
        return {
            "model": self._tensors(),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "committed": self.committed,
            "evaluated": self.evaluated,
            "metrics": self.metrics,
            "measured": self.measured,
            "samples": self._schedule.samples,
            "global_batch_size": self._schedule.global_batch_size,
            "micro_batches": self._spec.micro_batches,
            "seed": self._spec.seed,
        }

    def put(self, tree: Any) -> None:
        """Take the state that `get` gave elsewhere.

        Raises:
            SpecError: it is of a job that would give other bits.
        """
        for field, key, got in (
            ("--micro-batches", "micro_batches", self._spec.micro_batches),
            ("--seed", "seed", self._spec.seed),
            ("--global-batch-size", "global_batch_size", self._schedule.global_batch_size),
            ("dataset('train')", "samples", self._schedule.samples),
        ):
            if tree[key] != got:
                raise SpecError(field, got=str(got), need=f"{tree[key]}, as the state to go on from has it")
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(tree["model"][name])
        self._optimizer.load_state_dict(tree["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(tree["scheduler"])
        self.committed, self.evaluated = tree["committed"], tree["evaluated"]
        self.metrics, self.measured = tree["metrics"], tree["measured"]
