"""Metrics whose mean over all workers is the same to the bit for any split of the rows. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from brim.xgboost.arithmetic import Floats, log
from brim.xgboost.grid import totals_of
from brim.xgboost.objectives import Objective
from brim.xgboost.queries import Queries
from brim.xgboost.ranking import LambdaRank, ndcg_of
from brim.xgboost.workers import Collectives

_FLOOR = np.float32(1e-16)  # XGBoost's own bound of a probability
_UNIT = np.float32(1.0)
# `ndcg@5-`: of the first five rows, and 0 for a query whose rows have no gain.
_NDCG = re.compile(r"ndcg(@[1-9]\d{0,8})?-?")


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


def names_for(objective: Objective, name: str) -> tuple[str, ...]:
    """Return the metrics of an objective, the default first.

    >>> from brim.xgboost.objectives import Softmax
    >>> names_for(Softmax(3), "multi:softprob")
    ('mlogloss', 'merror')
    """
    if isinstance(objective, LambdaRank):
        return f"ndcg@{objective.top}", "ndcg"
    if objective.margins > 1:
        return tuple(_OF_CLASSES)
    if "logistic" in name:
        return tuple(_OF_ONE)
    return "rmse", "mae"


def is_of(metric: object, objective: Objective, name: str) -> bool:
    """Return whether a metric is one of an objective's.

    >>> from brim.xgboost.objectives import SquaredError
    >>> is_of("rmse", SquaredError(), "reg:squarederror"), is_of("ndcg@5", SquaredError(), "")
    (True, False)
    """
    if objective.ranks:
        return isinstance(metric, str) and _NDCG.fullmatch(metric) is not None
    return metric in names_for(objective, name)


def is_better_above(metric: str) -> bool:
    """Return whether a model is better, the larger a metric is.

    >>> is_better_above("ndcg@5"), is_better_above("rmse")
    (True, False)
    """
    return _NDCG.fullmatch(metric) is not None


def value_of(
    name: str,
    objective: Objective,
    margins: Floats,
    label: Floats,
    weight: Floats | None,
    workers: Collectives,
    queries: Queries | None = None,
) -> float:
    """Return a metric over the rows of all workers, or over their queries.

    Args:
        margins: of shape (margins, rows).
        label: of shape (rows,).
        weight: of shape (rows,); None: all are 1.
        queries: of ranked rows.
    """
    if isinstance(objective, LambdaRank) and queries is not None:
        value, weight = _ndcg(name, objective, margins, label, weight, queries)
    else:
        value = (_OF_ONE | _OF_CLASSES)[name](objective.prediction(margins), label)
    weights = np.ones_like(value) if weight is None else weight.copy()
    total, count = totals_of([value * weights, weights], workers)
    return math.sqrt(total / count) if name == "rmse" else total / count


def _ndcg(
    name: str,
    objective: LambdaRank,
    margins: Floats,
    label: Floats,
    weight: Floats | None,
    queries: Queries,
) -> tuple[Floats, Floats | None]:
    """The value of each query, and its weight."""
    top = name.partition("@")[2].removesuffix("-")
    value = ndcg_of(
        margins[0],
        label,
        queries,
        top=int(top) if top else len(label),
        is_exponential=objective.has_exponential_gain,
        empty=0.0 if name.endswith("-") else 1.0,
    )
    return value, None if weight is None else weight[queries.starts[:-1]]
