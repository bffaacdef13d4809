"""What one micro-batch adds to a step, taken from the network and given back to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from brim.errors import SpecError
from brim.train.layout import Layout

__all__ = ["Contributions"]


class Contributions:
    """The view of a network as a list of tensors that are summed over the micro-batches of a step.

    The list holds the gradient of every parameter, what each floating-point buffer changed by (weighted as the
    samples are, so that constants stay what they are, to the bit), one mark per parameter for "was used", and
    every whole-number buffer (of which the largest is taken: all micro-batches start from the same one).

    Args:
        model: the network; its parameters that require a gradient and all its buffers take part.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        buffers = [buffer for buffer in model.buffers() if buffer.numel()]
        self._averaged = [b for b in buffers if b.dtype.is_floating_point or b.dtype.is_complex]
        self._counted = [b for b in buffers if not (b.dtype.is_floating_point or b.dtype.is_complex)]
        if not self._parameters:
            raise SpecError("model()", got="no parameter that requires a gradient", need="at least one")
        device = self._parameters[0].device
        self._unused = torch.zeros(len(self._parameters), dtype=torch.int64, device=device)
        self._own_gradients = [torch.empty(0)] * len(self._parameters)
        self.layout = Layout([*self._parameters, *self._averaged, self._unused, *self._counted])
        self.begin()

    def begin(self) -> None:
        """Remember the buffers as they are at the start of a step."""
        self._start_averaged = [buffer.clone() for buffer in self._averaged]
        self._start_counted = [buffer.clone() for buffer in self._counted]

    def reset(self) -> None:
        """Put the buffers back to the start of the step: every micro-batch sees the same ones."""
        if self._averaged:
            torch._foreach_copy_(self._averaged, self._start_averaged)
        if self._counted:
            torch._foreach_copy_(self._counted, self._start_counted)

    def take(self, weight: float) -> list[Tensor]:
        """Take what the backward pass of a micro-batch left; `weight` is its part of the step's samples.

        Raises:
            SpecError: a gradient that cannot be added up with those of other workers.
        """
        self._check_frozen()
        gradients, used = [], [1] * len(self._parameters)
        for index, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is None:
                gradient, used[index] = torch.zeros_like(parameter), 0
            elif gradient.layout is not torch.strided:
                raise SpecError(
                    f"parameter {self._names[index]!r}",
                    got="a sparse gradient",
                    need="a dense one: sparse gradients cannot be reduced by slices",
                    hint="nn.Embedding(..., sparse=False)",
                )
            parameter.grad = None
            gradients.append(gradient)
        changed = []
        if self._averaged:
            changed = list(torch._foreach_sub(self._averaged, self._start_averaged))
            torch._foreach_mul_(changed, weight)
        marks = self._unused.new_tensor(used)
        return [*gradients, *changed, marks, *(buffer.clone() for buffer in self._counted)]

    def _check_frozen(self) -> None:
        thawed = next((name for name, parameter in self._frozen.items() if parameter.requires_grad), None)
        if thawed is not None:
            raise SpecError(
                f"parameter {thawed!r}",
                got="requires_grad turned on while training",
                need="the same trainable parameters from the first step to the last: their gradients have a place",
                hint="leave requires_grad on, and hold it still by a parameter group of its own with lr=0",
            )

    def nothing(self) -> list[Tensor]:
        """The contribution of a micro-batch without samples."""
        like = [*self._parameters, *self._averaged]
        return [
            *(torch.zeros_like(t) for t in like),
            self._unused.clone(),
            *(b.clone() for b in self._start_counted),
        ]

    def put_back(self, total: Sequence[Tensor], *, shared: bool) -> None:
        """Give the network the sum of a step: gradients for the optimizer, and the buffers.

        Args:
            total: the sum over all micro-batches.
            shared: others read these tensors too, so that gradients must be copied: clipping and some
                optimizers write to them.
        """
        count = len(self._parameters)
        averaged, marks, counted = total[count : -1 - len(self._counted)], total[-1 - len(self._counted)], []
        if self._counted:
            counted = list(total[-len(self._counted) :])
        gradients = list(total[:count])
        if shared:
            if self._own_gradients[0].shape != gradients[0].shape:
                self._own_gradients = [torch.empty_like(gradient) for gradient in gradients]
            torch._foreach_copy_(self._own_gradients, gradients)
            gradients = self._own_gradients
        for parameter, gradient, used in zip(self._parameters, gradients, marks.tolist(), strict=True):
            parameter.grad = gradient if used else None
        if self._averaged:
            torch._foreach_copy_(
                self._averaged, list(torch._foreach_add(self._start_averaged, list(averaged)))
            )
        if self._counted:
            torch._foreach_copy_(self._counted, counted)

    def clear(self) -> None:
        """Forget the gradients of a step that is done or given up."""
        for parameter in self._parameters:
            parameter.grad = None
