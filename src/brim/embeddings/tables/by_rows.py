"""A torch optimizer that steps on some rows of a parameter, as on one small parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from brim.embeddings.tables.table import WEIGHT

SUPPORTED_OPTIMIZERS = "SGD without momentum, Adagrad or SparseAdam, without weight decay and hooks"
# What must be 0 for a row without a gradient to stay what it is. SparseAdam leaves such rows alone
# by its definition.
_ZERO: dict[type, tuple[str, ...]] = {
    torch.optim.SGD: ("momentum", "weight_decay"),
    torch.optim.Adagrad: ("weight_decay",),
    torch.optim.SparseAdam: (),
}
LAZILY = "SGD, Adagrad, Adam, AdamW, RMSprop or SparseAdam, without weight decay and hooks"
# What must be 0 for an optimizer to make the same step on a row, whatever other rows are there.
_LAZY: dict[type, tuple[str, ...]] = {
    torch.optim.SGD: ("dampening", "weight_decay", "fused"),
    torch.optim.Adagrad: ("weight_decay", "fused"),
    torch.optim.Adam: ("weight_decay", "fused", "capturable", "differentiable"),
    torch.optim.AdamW: ("weight_decay", "fused", "capturable", "differentiable"),
    torch.optim.RMSprop: ("weight_decay", "capturable", "differentiable"),
    torch.optim.SparseAdam: (),
}
# What an optimizer keeps of the whole parameter before its first step, where it makes that together
# with the rows'.
_WHOLE: dict[type, Callable[[], dict[str, Any]]] = {
    torch.optim.SparseAdam: lambda: {"step": 0},
    torch.optim.Adam: lambda: {"step": torch.tensor(0.0)},
    torch.optim.AdamW: lambda: {"step": torch.tensor(0.0)},
    torch.optim.RMSprop: lambda: {"step": torch.tensor(0.0)},
}


def _of_adam(group: Mapping[str, Any]) -> dict[str, float]:
    return {"exp_avg": 0.0, "exp_avg_sq": 0.0} | (
        {"max_exp_avg_sq": 0.0} if group["amsgrad"] else {}
    )


def _of_momentum(group: Mapping[str, Any]) -> dict[str, float]:
    return {"momentum_buffer": 0.0} if group["momentum"] else {}


# What it keeps of each row, and what that is before the row's first step.
_STATES: dict[type, Callable[[Mapping[str, Any]], dict[str, float]]] = {
    torch.optim.SGD: _of_momentum,
    torch.optim.Adagrad: lambda group: {"sum": group["initial_accumulator_value"]},
    torch.optim.Adam: _of_adam,
    torch.optim.AdamW: _of_adam,
    torch.optim.RMSprop: lambda group: {
        "square_avg": 0.0,
        **_of_momentum(group),
        **({"grad_avg": 0.0} if group["centered"] else {}),
    },
    torch.optim.SparseAdam: lambda group: {"exp_avg": 0.0, "exp_avg_sq": 0.0},
}


class ParameterPlace(NamedTuple):
    """The place of a parameter in an optimizer.

    Its group is looked up each time: loading a state makes new ones.
    """

    optimizer: torch.optim.Optimizer
    number: int  # of the group

    @property
    def parameters(self) -> Iterator[nn.Parameter]:
        """All that the optimizer has, in the order of its state."""
        return (parameter for group in self.optimizer.param_groups for parameter in group["params"])

    @property
    def group(self) -> dict[str, Any]:
        return self.optimizer.param_groups[self.number]


def places_of(
    optimizers: Sequence[torch.optim.Optimizer], weight: nn.Parameter
) -> Iterator[ParameterPlace]:
    """Find a parameter in the groups of optimizers."""
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            if any(parameter is weight for parameter in group["params"]):
                yield ParameterPlace(optimizer, number)


def states_of_row(place: ParameterPlace) -> dict[str, float]:
    """Return the values that an optimizer keeps of each row, by name, before a row's first step."""
    return _STATES[type(place.optimizer)](place.group)


def moves_others(place: ParameterPlace, *, lazily: bool = False) -> str:
    """Say why an optimizer does more than move the rows that have a gradient.

    Empty where it does not.

    Args:
        place: of a parameter in it.
        lazily: rows without a gradient stay as they are, though the optimizer would move them, too.
    """
    optimizer, group = place.optimizer, place.group
    names = (_LAZY if lazily else _ZERO).get(type(optimizer))
    if names is None:
        return f"{type(optimizer).__name__}" + (
            "" if lazily else ", which moves rows that have no gradient"
        )
    moving = next((name for name in names if group[name]), None)
    if moving:
        return f"{type(optimizer).__name__} with {moving}={group[moving]}"
    # One is brim's, which refuses steps by hand.
    if len(optimizer._optimizer_step_pre_hooks) > 1 or optimizer._optimizer_step_post_hooks:
        return f"a hook on {type(optimizer).__name__}, which would not see the rows"
    return ""


class RowOptimizer:
    """Steps the optimizer of a parameter on some of its rows.

    Args:
        weight: the parameter, shape [R, D].
        place: where its optimizer has it.

    Attributes:
        states: what it keeps of each row, by name, and what that is before a row's first step.
    """

    def __init__(self, weight: nn.Parameter, place: ParameterPlace) -> None:
        self._weight, self._place = weight, place
        self.states = states_of_row(place)
        self._whole = _WHOLE.get(type(place.optimizer), dict)
        stand_in = nn.Parameter(weight.detach()[:0].clone())
        self._small = type(place.optimizer)([{**place.group, "params": [stand_in]}])  # type: ignore[call-arg]
        self._pending: dict[str, Any] = {}

    @property
    def _own_state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._place.optimizer.state.get(self._weight, {})
        return found

    def start(self) -> dict[str, Tensor]:
        """Return the optimizer's state of each row now, [R, D] each."""
        states = self._own_state
        return {
            name: states[name]
            if name in states
            else torch.full_like(self._weight, value, requires_grad=False)
            for name, value in self.states.items()
        }

    def show(self, states: Mapping[str, Tensor]) -> dict[str, Any]:
        """Let the optimizer's own state be these tensors, where it is kept by row.

        Return what it was.
        """
        states_before = dict(self._own_state)
        if states:
            self._place.optimizer.state[self._weight].update(
                {**self._whole(), **states_before, **states}
            )
        return states_before

    def step(self, rows: Mapping[str, Tensor], gradient: Tensor) -> dict[str, Tensor]:
        """Compute a step on some rows.

        Values that the optimizer keeps for the whole parameter change with `settle`.

        Args:
            rows: the weight and what the optimizer keeps, [N, D] each.
            gradient: [N, D].

        Returns:
            The same after the step; new tensors.
        """
        small, states = self._small, self._own_state
        part = nn.Parameter(rows[WEIGHT].clone())
        part.grad = _as_sparse(gradient) if isinstance(small, torch.optim.SparseAdam) else gradient
        small.param_groups[0].update(self._place.group, params=[part])
        small.state.clear()
        state_names = {**self._whole(), **states}
        whole = {
            name: _copy(value) for name, value in state_names.items() if name not in self.states
        }
        if states or self.states:
            small.state[part] = {**whole, **{name: rows[name].clone() for name in self.states}}
        small.step()
        updated = dict(small.state[part])
        changed = {WEIGHT: part.detach(), **{name: updated.pop(name) for name in self.states}}
        self._pending = updated
        return changed

    def forget(self) -> None:
        """A step that was computed does not count."""
        self._pending = {}

    def settle(self) -> None:
        """The step counts."""
        if self._pending:
            self._place.optimizer.state[self._weight].update(self._pending)
            self._pending = {}


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _as_sparse(gradient: Tensor) -> Tensor:
    places = torch.arange(len(gradient)).unsqueeze(0)
    return torch.sparse_coo_tensor(
        places, gradient, gradient.shape, is_coalesced=True, check_invariants=False
    )
