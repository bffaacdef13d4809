"""Metrics of a test split that come out the same for any number of workers.

The test split is cut into chunks whose bounds do not depend on the workers. The worker that
computes a chunk's output turns it into a partial state (bytes). The result is computed from all
states in chunk order, so nothing is ever averaged over workers.

States and results use exact integers, or sums that are rounded only once (`math.fsum`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from brim.errors import SpecError

__all__ = [
    "Metric",
    "accuracy",
    "auc",
    "group_auc",
    "log_loss",
    "mean_absolute_error",
    "mean_squared_error",
    "of_target",
]


@runtime_checkable
class Metric(Protocol):
    """A metric is any object with these two methods.

    One with an attribute `takes_inputs` that is true is given the model's inputs, too:
    `observe(output, target, inputs)`.
    """

    def observe(self, output: Tensor, target: Tensor) -> bytes:
        """Return the partial state of one chunk.

        The model's output is [B, ...], the target [B, ...].
        """
        ...

    def result(self, states: Sequence[bytes]) -> float:
        """Return the value over all chunks; `states` are in chunk order."""
        ...


def auc() -> Metric:
    """Area under the ROC curve of a binary model, exact, ties counted as half.

    The output is [B], any score that grows with the probability (a logit will do); the target is 0
    or 1. The result is nan where the split holds one class only, or where a score is nan.

    >>> metric = auc()
    >>> chunk = metric.observe(torch.tensor([0.1, 0.4, 0.4]), torch.tensor([0.0, 0.0, 1.0]))
    >>> metric.result([chunk])
    0.75
    """
    return _Auc()


def group_auc(group: Callable[[Any], Tensor]) -> Metric:
    """Mean of the AUC within groups (GAUC): how well the items of each user are ranked.

    Each group counts by its samples; one whose samples are all of one class does not count. The
    result is nan where no group does, or where a score is nan.

    Args:
        group: gives the group of each sample, whole numbers [B], from a batch's inputs:
            `lambda inputs: inputs["ids"][:, 0]`, where the first column is the user.

    >>> metric = group_auc(lambda inputs: inputs)
    >>> outputs, target = torch.tensor([3.0, 2.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    >>> metric.result([metric.observe(outputs, target, torch.tensor([7, 7, 8, 8]))])
    0.5

    Source: Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018,
    equation 5, with samples for impressions.
    """
    return _GroupAuc(group)


def of_target(number: int, metric: Metric) -> Metric:
    """A metric of one of several targets.

    Args:
        number: of the target, from 0; the model's output and the target are [B, T].
        metric: measures output[:, number] by target[:, number].
    """
    return _OfTarget(number, metric, getattr(metric, "takes_inputs", False))


def log_loss() -> Metric:
    """Mean cross-entropy in nats.

    The output is logits [B] against 0 or 1, or logits [B, classes] against classes.
    """
    return _Mean(_cross_entropy, classes=True)


def accuracy() -> Metric:
    """Share of correct predictions.

    The output is logits [B] (above 0 means 1), or logits [B, classes] (the largest wins).
    """
    return _Mean(_right, classes=True)


def mean_absolute_error() -> Metric:
    """Mean of |output - target| over samples (and over the output's other dimensions)."""
    return _Mean(lambda output, target: (output - target).abs())


def mean_squared_error() -> Metric:
    """Mean of (output - target)² over samples (and over the output's other dimensions)."""
    return _Mean(lambda output, target: (output - target).square())


@dataclass(frozen=True, slots=True)
class _Auc:
    def observe(self, output: Tensor, target: Tensor) -> bytes:
        return _packed_scores(output, target)

    def result(self, states: Sequence[bytes]) -> float:
        scores, positive = _unpacked_scores(states)
        return math.nan if np.isnan(scores).any() else _auc_of(scores, positive)


@dataclass(frozen=True, slots=True)
class _GroupAuc:
    group: Callable[[Any], Tensor]
    takes_inputs = True

    def observe(self, output: Tensor, target: Tensor, inputs: Any = None) -> bytes:
        scores = _packed_scores(output, target)
        groups = self.group(inputs)
        if not isinstance(groups, Tensor) or groups.is_floating_point():
            raise SpecError(
                "group_auc()", got=f"groups of {groups!r:.60}", need="a tensor of whole numbers"
            )
        _same_shape(output, groups)
        return scores + groups.detach().to("cpu", torch.int64).numpy().astype("<i8").tobytes()

    def result(self, states: Sequence[bytes]) -> float:
        scores, positive = _unpacked_scores(states)
        if np.isnan(scores).any():
            return math.nan
        parts = [np.frombuffer(state, "<i8", offset=8 + 9 * _size_of(state)) for state in states]
        groups = np.concatenate([np.empty(0, np.int64), *parts])
        order = np.argsort(groups, kind="stable")
        starts = np.flatnonzero(np.diff(groups[order])) + 1
        weighed, samples = [], 0
        for rows in np.split(order, starts):
            value = _auc_of(scores[rows], positive[rows])
            if not math.isnan(value):
                weighed.append(value * len(rows))
                samples += len(rows)
        return math.fsum(weighed) / samples if samples else math.nan


@dataclass(frozen=True, slots=True)
class _OfTarget:
    number: int
    metric: Metric
    takes_inputs: bool

    def observe(self, output: Tensor, target: Tensor, *inputs: Any) -> bytes:
        _check_tensors(output, target)
        _same_shape(output, target)
        if output.ndim != 2 or not 0 <= self.number < output.shape[1]:
            raise SpecError(
                f"of_target({self.number}, …)",
                got=f"an output of shape {list(output.shape)}",
                need=f"[B, T] with a target {self.number}, counted from 0",
            )
        return self.metric.observe(output[:, self.number], target[:, self.number], *inputs)

    def result(self, states: Sequence[bytes]) -> float:
        return self.metric.result(states)


def _packed_scores(output: Tensor, target: Tensor) -> bytes:
    _check_tensors(output, target)
    _same_shape(output, target)
    scores = output.detach().to("cpu", torch.float64).numpy().ravel()
    positive = target.detach().to("cpu", torch.float64).numpy().ravel() > 0.5
    # float64 holds every float32 and bfloat16 score exactly, so no tie is made or broken here.
    return (
        struct.pack("<q", scores.size)
        + scores.astype("<f8").tobytes()
        + positive.astype("u1").tobytes()
    )


def _size_of(state: bytes) -> int:
    size: int = struct.unpack_from("<q", state)[0]
    return size


def _unpacked_scores(states: Sequence[bytes]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The scores, and 1 where a sample is positive, of all chunks in their order."""
    scores, positive = [np.empty(0)], [np.empty(0, np.uint8)]
    for state in states:
        size = _size_of(state)
        scores.append(np.frombuffer(state, "<f8", size, 8))
        positive.append(np.frombuffer(state, "u1", size, 8 + 8 * size))
    return np.concatenate(scores), np.concatenate(positive)


def _auc_of(scores: npt.NDArray[Any], positive: npt.NDArray[Any]) -> float:
    """The AUC of some samples; nan where they are of one class."""
    _, level = np.unique(scores, return_inverse=True)
    positives = np.bincount(level, weights=positive).astype(np.int64)
    negatives = np.bincount(level) - positives
    pairs = int(positives.sum()) * int(negatives.sum())
    if pairs == 0:
        return math.nan
    # Twice the number of pairs in the right order, as a whole number: each tie is one of the two.
    lower = np.cumsum(negatives) - negatives
    twice = sum((positives * (2 * lower + negatives)).tolist())
    return float(twice / (2 * pairs))


@dataclass(frozen=True, slots=True)
class _Mean:
    """The mean of a number per sample: the state is a float64 sum and a count."""

    per_sample: Callable[[Tensor, Tensor], Tensor]
    classes: bool = False  # logits [B, classes] against class numbers [B] are welcome

    def observe(self, output: Tensor, target: Tensor) -> bytes:
        _check_tensors(output, target)
        if not (self.classes and output.ndim == 2 and output.shape[1] > 1 and target.ndim == 1):
            _same_shape(output, target)
        values = self.per_sample(
            output.detach().to("cpu", torch.float64), target.detach().to("cpu", torch.float64)
        )
        numbers = values.double().ravel().tolist()
        return struct.pack("<dq", _sum(numbers), len(numbers))

    def result(self, states: Sequence[bytes]) -> float:
        sums = [struct.unpack("<dq", state) for state in states]
        count = sum(size for _, size in sums)
        return _sum([total for total, _ in sums]) / count if count else math.nan


def _sum(numbers: list[float]) -> float:
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # beyond float64, or infinities of both signs
        return math.nan


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    if output.ndim == 2:
        return functional.cross_entropy(output, target.long(), reduction="none")
    return functional.binary_cross_entropy_with_logits(output, target, reduction="none")


def _right(output: Tensor, target: Tensor) -> Tensor:
    if output.ndim == 2:
        return output.argmax(1) == target
    return (output > 0) == (target > 0.5)


def _check_tensors(output: object, target: object) -> None:
    for name, value in (("an output", output), ("a target", target)):
        if not isinstance(value, Tensor):
            raise SpecError(
                "metrics()",
                got=f"{name} that is a {type(value).__name__}",
                need="a tensor: what brim.metrics measure has one number, or one row, per sample",
                hint="a metric of your own, an object with observe(output, target) and "
                "result(states)",
            )


def _same_shape(output: Tensor, target: Tensor) -> None:
    if output.shape != target.shape:
        raise SpecError(
            "metrics()",
            got=f"an output of shape {list(output.shape)} and a target of shape "
            f"{list(target.shape)}",
            need="the same shape for both",
            hint="a binary model returns logits of shape [B]: try output.squeeze(1) at the end of "
            "forward()",
        )
