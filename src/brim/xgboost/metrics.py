"""Metrics whose mean over all workers is the same to the bit for any split of the rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from brim.xgboost.arithmetic import Floats, log
from brim.xgboost.grid import totals_of
from brim.xgboost.objectives import Objective
from brim.xgboost.workers import Collectives

_FLOOR = np.float32(1e-16)  # XGBoost's own bound of a probability
_UNIT = np.float32(1.0)


def _log_loss(predicted: Floats, label: Floats) -> Floats:
    share = predicted[0]
    hit, missed = log(np.maximum(share, _FLOOR)), log(np.maximum(_UNIT - share, _FLOOR))
    loss: Floats = -(label * hit + (_UNIT - label) * missed)
    return loss


def _error(predicted: Floats, label: Floats) -> Floats:
    is_missed = (predicted[0] > np.float32(0.5)) != (label > np.float32(0.5))
    misses: Floats = is_missed.astype(np.float32)
    return misses


def _squared(predicted: Floats, label: Floats) -> Floats:
    squares: Floats = np.square(predicted[0] - label)
    return squares


def _absolute(predicted: Floats, label: Floats) -> Floats:
    distances: Floats = np.abs(predicted[0] - label)
    return distances


def _class_log_loss(predicted: Floats, label: Floats) -> Floats:
    share = predicted[label.astype(np.intp), np.arange(len(label))]
    loss: Floats = -log(np.maximum(share, _FLOOR))
    return loss


def _class_error(predicted: Floats, label: Floats) -> Floats:
    misses: Floats = (np.argmax(predicted, axis=0) != label).astype(np.float32)
    return misses


_OF_ONE: dict[str, Callable[[Floats, Floats], Floats]] = {
    "logloss": _log_loss,
    "error": _error,
    "rmse": _squared,
    "mae": _absolute,
}
_OF_CLASSES = {"mlogloss": _class_log_loss, "merror": _class_error}


def names_for(objective: str) -> tuple[str, ...]:
    """Return the metrics of an objective, the default first.

    >>> names_for("multi:softprob")
    ('mlogloss', 'merror')
    """
    if objective.startswith("multi:"):
        return tuple(_OF_CLASSES)
    if "logistic" in objective:
        return tuple(_OF_ONE)
    return "rmse", "mae"


def value_of(
    name: str,
    objective: Objective,
    margins: Floats,
    label: Floats,
    weight: Floats | None,
    workers: Collectives,
) -> float:
    """Return a metric over the rows of all workers.

    Args:
        margins: of shape (margins, rows).
        label: of shape (rows,).
        weight: of shape (rows,); None: all are 1.
    """
    loss = (_OF_ONE | _OF_CLASSES)[name](objective.prediction(margins), label)
    weights = np.ones_like(loss) if weight is None else weight.copy()
    total, count = totals_of([loss * weights, weights], workers)
    return math.sqrt(total / count) if name == "rmse" else total / count
