"""Totals over a step's micro-batches: the labels that count, the loss, the operations.

A Trainer's loss is a mean over the labels of the whole step. No worker knows their number before
all have computed their micro-batches, so each micro-batch gives the gradient of its mean weighted
by its labels, and the sum is divided by all labels before the update.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_NAME = "brim_totals"
_LABELS, _LOSS, _OPERATIONS = range(3)


class StepTotals(NamedTuple):
    """The totals of a step.

    Attributes:
        labels: per sample.
        loss: the mean over labels.
        operations: of floating-point numbers, per sample.
    """

    labels: float
    loss: float
    operations: float


class Totals:
    """A buffer of the network in which brim adds up numbers over a step's micro-batches.

    It is outside of the network's `state_dict()`: brim sums, carries and compares all buffers, and
    neither `save_pretrained` nor the digest of the weights sees this one. Float64 sums of a fixed
    order: the same bits for any number of workers.

    Args:
        model: the network.
    """

    def __init__(self, model: nn.Module) -> None:
        device = next(model.parameters()).device
        self._model = model
        model.register_buffer(
            _NAME, torch.zeros(3, dtype=torch.float64, device=device), persistent=False
        )

    def __enter__(self) -> Totals:
        return self

    def __exit__(self, *_: object) -> None:
        del self._model._buffers[_NAME]
        self._model._non_persistent_buffers_set.discard(_NAME)

    @property
    def _buffer(self) -> Tensor:
        buffer = self._model._buffers[_NAME]
        assert buffer is not None, "registered above"
        return buffer

    def weigh(self, loss: Tensor, *, samples: int, labels: float, operations: float) -> Tensor:
        """Note a micro-batch, and return its loss with gradients weighted by its labels.

        Args:
            loss: the mean over its labels, a scalar.
            samples: of the micro-batch.
            labels: that count; the number of samples, where the loss is a mean over samples.
            operations: of floating-point numbers.
        """
        per_sample = labels / samples
        value = loss.detach().double()
        numbers = [value.new_tensor(per_sample), value * per_sample]
        with torch.no_grad():
            self._buffer.copy_(torch.stack([*numbers, value.new_tensor(operations / samples)]))
        weighted: Tensor = _Weighted.apply(loss, per_sample)  # type: ignore[no-untyped-call]
        return weighted

    def scale_gradients(self) -> None:
        """Divide the summed gradients by the labels of the step, which makes them those of a mean."""
        labels = float(self._buffer[_LABELS])
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        if labels and gradients:
            torch._foreach_mul_(gradients, 1.0 / labels)

    def take(self) -> StepTotals | None:
        """Return the totals of the step that was committed last, and clear them.

        None where the step was left out, since its loss is not a number.
        """
        labels, loss, operations = self._buffer.tolist()
        with torch.no_grad():
            self._buffer.zero_()
        if not operations and not labels:
            return None
        return StepTotals(labels, loss / labels if labels else loss, operations)


class _Weighted(torch.autograd.Function):
    """A loss as it is, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return gradients[0] * ctx.weight, None
