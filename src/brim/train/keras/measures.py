"""Keras metrics that come out the same for any number of workers.

Each micro-batch, and each chunk of a test split, starts from metrics that are reset. What it leaves
in their variables is added up in float64, in an order that does not depend on the workers, and
only then do the metrics compute their results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brim.errors import SpecError
from brim.train.keras.network import forward

_TOLERANCE = 1e-4  # of float32 sums


@dataclass(frozen=True, slots=True)
class Measures:
    """The metrics of a compiled Keras model, its loss among them.

    Args:
        model: that has computed a batch, so that the metrics have their variables.
    """

    model: Any

    def loss_of(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of a micro-batch, with its graph, and what it adds to the metrics [N]."""
        model = self.model
        x, y, weights = unpacked(batch)
        model.reset_metrics()
        output = forward(model, x)
        loss = model._compute_loss(x=x, y=y, y_pred=output, sample_weight=weights, training=True)
        with torch.no_grad():
            detached = import_module("keras").tree.map_structure(_detached, output)
            model._loss_tracker.update_state(loss.detach(), sample_weight=_samples_of(x))
            model.compute_metrics(x, y, detached, sample_weight=weights)
            return loss, self.values()

    def test(self, model: Any, inputs: Any) -> Tensor:
        """Return what a batch of a test split adds to the metrics [N]: a `Forward`."""
        model.reset_metrics()
        model.test_step(unpacked(inputs["batch"]))
        return self.values()

    def values(self) -> Tensor:
        """Return the numbers in the variables of all metrics [N], in float64."""
        return torch.cat([v._value.detach().double().ravel() for v in self._variables()])

    def put(self, values: Tensor) -> None:
        """Set the variables of all metrics."""
        rest = values
        with torch.no_grad():
            for variable in self._variables():
                size = variable._value.numel()
                variable._value.copy_(rest[:size].reshape(variable._value.shape))
                rest = rest[size:]

    def results(self) -> dict[str, Any]:
        """Return what the metrics make of their variables, by name, as Keras' logs have it."""
        results = self.model.get_metrics_result()
        return {name: _plain(value) for name, value in results.items()}

    # What brim's evaluation calls, as of one metric -----------------------------------------------

    def observe(self, output: Tensor, _: object) -> bytes:
        return output.numpy().tobytes()

    def result(self, states: Sequence[bytes]) -> float:
        """Put the sums over all chunks into the metrics; return their first number."""
        rows = np.stack([np.frombuffer(state, np.float64) for state in states])
        sums = [_sum(column) for column in rows.T.tolist()]
        self.put(torch.tensor(sums, dtype=torch.float64))
        return sums[0]

    # ----------------------------------------------------------------------------------------------

    def check_sums(self, batch: Any) -> None:
        """Check that the states of metrics add up: two halves apart come to the same as in turn.

        Args:
            batch: of samples to try them with; of one alone, nothing is tried.

        Raises:
            SpecError: a metric keeps something else, whose parts cannot be merged.
        """
        tree = import_module("keras").tree
        half = _samples_of(unpacked(batch)[0]) // 2
        if not half:
            return
        parts = [
            tree.map_structure(lambda leaf: leaf[:half] if _is_batch(leaf) else leaf, batch),
            tree.map_structure(lambda leaf: leaf[half:] if _is_batch(leaf) else leaf, batch),
        ]
        with torch.no_grad():
            apart = sum(self.test(self.model, {"batch": part}) for part in parts)
            self.model.reset_metrics()
            for part in parts:
                self.model.test_step(unpacked(part))
        in_turn = self.values()
        assert isinstance(apart, Tensor)
        offset = 0
        for metric in self.model.metrics:
            size = sum(variable._value.numel() for variable in metric.variables)
            found, need = apart[offset : offset + size], in_turn[offset : offset + size]
            if not torch.allclose(found, need, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
                raise SpecError(
                    f"metric {_name_of(metric, found, need)!r}",
                    got="variables of which those of two batches do not add up",
                    need="sums over samples, which workers can merge",
                    hint="keep sums and counts in add_weight(), and divide in result()",
                )
            offset += size

    def _variables(self) -> list[Any]:
        return [variable for metric in self.model.metrics for variable in metric.variables]


def unpacked(batch: Any) -> tuple[Any, Any, Any]:
    """Return inputs, targets and sample weights of a collated sample; None for those it lacks."""
    parts = tuple(batch) if isinstance(batch, list) else batch
    unpacked: tuple[Any, Any, Any] = import_module("keras").utils.unpack_x_y_sample_weight(parts)
    return unpacked


def _samples_of(x: Any) -> int:
    leaves = import_module("keras").tree.flatten(x)
    return int(next(leaf for leaf in leaves if leaf is not None).shape[0])


def _is_batch(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _plain(value: Any) -> Any:
    """Return a number where the value is one, else an array."""
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    return array.item() if array.size == 1 else array


def _sum(numbers: list[float]) -> float:
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # beyond float64, or infinities of both signs
        return math.nan


def _name_of(metric: Any, found: Tensor, need: Tensor) -> str:
    """Return the name of the metric that is wrong: Keras has one around all compiled ones."""
    offset = 0
    for part in getattr(metric, "metrics", []):
        size = sum(variable._value.numel() for variable in part.variables)
        window = slice(offset, offset + size)
        if not torch.allclose(found[window], need[window], rtol=_TOLERANCE, atol=_TOLERANCE):
            return str(part.name)
        offset += size
    return str(metric.name)
