"""A Keras optimizer as one of torch, so that brim steps, carries and compares it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch

from brim.errors import SpecError
from brim.train.keras.network import adopt, is_keras, keras_parts


class KerasOptimizer(torch.optim.Optimizer):
    """One of `keras.optimizers`, over the trainable variables of a Keras model.

    The learning rate of its one group is Keras': a change of either changes the other.

    Args:
        optimizer: of Keras.
        model: built.

    Raises:
        SpecError: it scales losses, or was built for another model.
    """

    def __init__(self, optimizer: Any, model: Any) -> None:
        _check_scale(optimizer)
        self._variables = list(model.trainable_variables)
        if not self._variables:
            raise SpecError(
                f"Keras model {model.name!r}", got="no trainable variable", need="one at least"
            )
        if not optimizer.built:
            optimizer.build(self._variables)
        self._check_variables(optimizer)
        self.keras_optimizer = optimizer
        self._shown_rate = float(optimizer.learning_rate)
        super().__init__([v._value for v in self._variables], {"lr": self._shown_rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Apply the gradients; clipping, decay, averages and constraints are Keras'."""
        gradients = [variable._value.grad for variable in self._variables]
        if all(gradient is None for gradient in gradients):
            return
        rate = self.param_groups[0]["lr"]
        if rate != self._shown_rate:  # a scheduler of torch, or the script, has set it
            self.keras_optimizer.learning_rate = rate
        self.keras_optimizer.apply(gradients, self._variables)
        self.show_rate()

    def show_rate(self) -> None:
        """Take over a learning rate that Keras has changed."""
        self._shown_rate = float(self.keras_optimizer.learning_rate)
        self.param_groups[0]["lr"] = self._shown_rate

    def state_dict(self) -> dict[str, Any]:
        return {"variables": [v._value.detach() for v in self.keras_optimizer.variables]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        variables = self.keras_optimizer.variables
        with torch.no_grad():
            for variable, value in zip(variables, state_dict["variables"], strict=True):
                variable._value.copy_(value)
        self.show_rate()

    def __deepcopy__(self, memo: dict[int, Any]) -> KerasOptimizer:
        """Copy all of it; Keras' optimizer knows variables by their addresses."""
        copied = KerasOptimizer.__new__(KerasOptimizer)
        memo[id(self)] = copied
        vars(copied).update({name: copy.deepcopy(part, memo) for name, part in vars(self).items()})
        indices = self.keras_optimizer._trainable_variables_indices
        pairs = zip(self._variables, copied._variables, strict=True)
        of_keras = copied.keras_optimizer
        of_keras._trainable_variables_indices = {
            of_keras._var_key(copy_of_it): indices[of_keras._var_key(variable)]
            for variable, copy_of_it in pairs
        }
        return copied

    def _check_variables(self, optimizer: Any) -> None:
        try:
            optimizer._check_variables_are_known(self._variables)
        except ValueError:
            raise SpecError(
                f"keras.optimizers.{type(optimizer).__name__}",
                got="an optimizer that was built for other variables",
                need="a new one for each model",
                hint=f"keras.optimizers.{type(optimizer).__name__}(...)",
            ) from None


def with_keras(model: Any, optimizer: Any) -> Any:
    """Prepare the Keras models among a job's, and return its optimizer as one of torch.

    Args:
        model: the network, or several.
        optimizer: of torch, or several; or one of Keras, for a Keras model.

    Raises:
        SpecError: they will not do.
    """
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    of_torch = [item for item in optimizers if isinstance(item, torch.optim.Optimizer)]
    keras_models = [item for item in models if is_keras(item)]
    for item in models:
        for part in keras_parts(item):
            adopt(part, of_torch)
    if not any(map(is_keras, optimizers)):
        return optimizer
    if len(models) > 1 or len(optimizers) > 1 or not keras_models:
        raise SpecError(
            "brim.join",
            got=f"an optimizer of Keras ({type(optimizers[0]).__name__}) beside "
            + (
                "several models or optimizers"
                if len(models) + len(optimizers) > 2
                else "no Keras model"
            ),
            need="one for one Keras model; torch's for several",
            hint="torch.optim.Adam(model.parameters())",
        )
    return KerasOptimizer(optimizers[0], keras_models[0])


def _check_scale(optimizer: Any) -> None:
    scale = getattr(optimizer, "loss_scale_factor", None)
    is_wrapper = any(kind.__name__ == "LossScaleOptimizer" for kind in type(optimizer).__mro__)
    if is_wrapper or (scale is not None and not math.isclose(scale, 1.0)):
        raise SpecError(
            f"keras.optimizers.{type(optimizer).__name__}",
            got="a scaled loss, for float16",
            need="losses as they are: brim weighs and sums their gradients",
            hint='keras.mixed_precision.set_dtype_policy("mixed_bfloat16"), or '
            "a loop of your own with torch.amp.GradScaler",
        )
