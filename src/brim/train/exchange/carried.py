"""Carried values: samples of a step leave them for those in their places in the next step.

A network's hidden state, for instance.

A micro-batch may be computed by another worker in each step, so what it leaves travels with the
step's sum: every micro-batch adds its own places, and zeros for all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from brim.domain.batch import Span
from brim.errors import SpecError

Value = Tensor | tuple[Tensor, ...]


class Carried:
    """One thing that is carried, on every worker for all places of a step.

    Args:
        name: as the user calls it.
        start: what an epoch begins with: a tensor of floating point, or several; [..., places,
            ...].
        dim: of the places, of which each sample of a step has one.
        device: where it is to be.

    Raises:
        SpecError: `start` is something else.

    >>> hidden = Carried("hidden", torch.zeros(3), dim=0, device=torch.device("cpu"))
    >>> hidden.put(hidden.left_by(Span(1, 3), torch.ones(2)), samples=3)
    >>> hidden.copy_at(Span(0, 2))
    tensor([0., 1.])
    """

    def __init__(
        self, name: str, start: Tensor | Sequence[Tensor], *, dim: int, device: torch.device
    ) -> None:
        self._name, self._dim = name, dim
        self._is_one = isinstance(start, Tensor)
        parts: list[Any] = list(start) if isinstance(start, (tuple, list)) else [start]
        for part in parts:
            if not (isinstance(part, Tensor) and part.is_floating_point() and part.dim() > dim):
                raise self._wrong(
                    _description(part), f"tensors of floating point with a dimension {dim}"
                )
        self._start = [part.detach().to(device, copy=True) for part in parts]
        self.tensors = [part.clone() for part in self._start]
        self.places = self._start[0].shape[dim] if parts else 0
        if not parts or any(part.shape[dim] != self.places for part in parts):
            raise self._wrong(
                "no tensor" if not parts else _description(start),
                f"tensors alike in dimension {dim}",
            )

    def copy_at(self, places: Span) -> Value:
        """Return a copy of the values for the samples in these places."""
        found = tuple(self._narrow(part, places).clone() for part in self.tensors)
        return found[0] if self._is_one else found

    def left_by(self, places: Span, value: Any) -> list[Tensor]:
        """Return the part of the step's sum that the samples in these places add.

        Raises:
            SpecError: the value is not of the kind of `start`.
        """
        values = [value] if isinstance(value, Tensor) else value
        sum_of = self.no_value()
        narrowed = [self._narrow(part, places) for part in sum_of]
        if not _is_alike(values, narrowed) or isinstance(value, Tensor) != self._is_one:
            shapes = [list(part.shape) for part in narrowed]
            raise self._wrong(
                _description(value),
                f"{shapes[0] if self._is_one else shapes}, as it was found there",
            )
        for part, part_value in zip(narrowed, values, strict=True):
            part.copy_(part_value.detach())
        return sum_of

    def no_value(self) -> list[Tensor]:
        """Return the part of the step's sum that a micro-batch without samples adds."""
        return [torch.zeros_like(part) for part in self.tensors]

    def put(self, total: Sequence[Tensor], *, samples: int) -> None:
        """Take the sum of a step of so many samples.

        A short one leaves the places behind them as they were.
        """
        used = Span(0, samples)
        for part, sum_part in zip(self.tensors, total, strict=True):
            self._narrow(part, used).copy_(self._narrow(sum_part, used))

    def begin_epoch(self) -> None:
        """Go back to the start."""
        torch._foreach_copy_(self.tensors, self._start)

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": list(self.tensors)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        torch._foreach_copy_(self.tensors, list(state["tensors"]))

    def _narrow(self, tensor: Tensor, places: Span) -> Tensor:
        return tensor.narrow(self._dim, places.start, len(places))

    def _wrong(self, actual: str, need: str) -> SpecError:
        return SpecError(f"carried {self._name!r}", got=actual, need=need)


class Sums:
    """Numbers that every micro-batch adds to, from the start of an epoch: metrics, for instance.

    They travel with the step's sum, so that no worker's death loses any.

    Args:
        size: how many numbers.
        device: where they are to be.

    >>> sums = Sums(2, device=torch.device("cpu"))
    >>> sums.put(sums.left_by(Span(0, 8), torch.tensor([3.0, 8.0])), samples=8)
    >>> sums.tensors[0].tolist()
    [3.0, 8.0]
    """

    def __init__(self, size: int, *, device: torch.device) -> None:
        self.tensors = [torch.zeros(size, dtype=torch.float64, device=device)]

    def copy_at(self, _: Span) -> Value:
        """Return what a micro-batch adds where the loop says nothing: zeros."""
        return torch.zeros_like(self.tensors[0])

    def left_by(self, _: Span, value: Tensor) -> list[Tensor]:
        """Return the part of the step's sum that a micro-batch adds."""
        return [value.to(self.tensors[0])]

    def no_value(self) -> list[Tensor]:
        """Return the part of the step's sum that a micro-batch without samples adds."""
        return [torch.zeros_like(self.tensors[0])]

    def put(self, total: Sequence[Tensor], *, samples: int) -> None:
        """Add the sum of a step."""
        self.tensors[0] += total[0]

    def begin_epoch(self) -> None:
        """Go back to zero."""
        self.tensors[0].zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.tensors[0]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tensors[0].copy_(state["sums"])


def check_names(carried: Mapping[str, Carried | Sums], found: Mapping[str, Any]) -> None:
    """Check the entries that a loop left in `batch.carried`.

    Raises:
        SpecError: a name that `job.carry` was not given, or one is missing.
    """
    odd = sorted(carried.keys() ^ found.keys())
    if odd:
        raise SpecError(
            f"batch.carried[{odd[0]!r}]",
            got="nothing" if odd[0] in carried else "a name that job.carry was not given",
            need=f"the names that are carried: {', '.join(sorted(carried)) or 'none'}",
            hint=f"job.carry({odd[0]!r}, start) before the loop",
        )


def _is_alike(values: Any, like: Sequence[Tensor]) -> bool:
    if not isinstance(values, (tuple, list)) or len(values) != len(like):
        return False
    return all(
        isinstance(value, Tensor) and value.shape == part.shape
        for value, part in zip(values, like, strict=True)
    )


def _description(value: Any) -> str:
    match value:
        case Tensor():
            return f"{value.dtype} of shape {list(value.shape)}"
        case tuple() | list():
            return f"({', '.join(map(_description, value))})"
    return f"a {type(value).__name__}"
