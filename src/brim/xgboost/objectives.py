"""Objectives: the gradients of rows. Those here are of a row's own margins, label and weight alone. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from brim.errors import SpecError
from brim.xgboost.arithmetic import Floats, exp, log
from brim.xgboost.grid import totals_of
from brim.xgboost.queries import Queries
from brim.xgboost.workers import Collectives

_BLOCK = 1 << 14  # rows: what is computed of them stays in a processor's cache
_LEAST_HESSIAN = np.float32(1e-16)  # XGBoost's own
_LEAST_MEAN = 1e-6
_UNIT, _TWO = np.float32(1.0), np.float32(2.0)
_POISSON_STEP = np.float32(0.7)  # XGBoost's default of max_delta_step for it


class Objective(ABC):
    """The loss that trees are fitted to.

    Attributes:
        margins: of a row: 1, or the number of classes.
        ranks: it orders the rows of each query.
    """

    margins = 1
    ranks = False

    @abstractmethod
    def gradients(
        self, margins: Floats, label: Floats, weight: Floats | None, queries: Queries | None
    ) -> tuple[Floats, Floats]:
        """Return both gradients of all rows, as float32 of the shape of the margins.

        Args:
            margins: of shape (margins, rows).
            label: of shape (rows,).
            weight: of shape (rows,); None: all are 1.
            queries: of the rows; None: they have none.
        """

    @abstractmethod
    def prediction(self, margin: Floats) -> Floats:
        """Return the predictions of margins, both of shape (margins, rows)."""

    @abstractmethod
    def base_score(self, label: Floats, weight: Floats | None, workers: Collectives) -> list[float]:
        """Return where boosting begins, in XGBoost's words: `base_score`."""

    def weights(
        self, weight: Floats | None, queries: Queries | None, workers: Collectives
    ) -> Floats | None:
        """Return the weights that gradients are multiplied by."""
        return weight

    @property
    def needs(self) -> str:
        """Labels that it takes, in words."""
        return "numbers"

    def is_valid(self, label: Floats) -> bool:
        """Return whether it takes all of these labels, which are finite."""
        return True


class _OfRows(Objective):
    """An objective whose gradients of a row depend on no other row."""

    def gradients(
        self, margins: Floats, label: Floats, weight: Floats | None, queries: Queries | None
    ) -> tuple[Floats, Floats]:
        """Return both gradients of all rows."""
        gradients = np.empty_like(margins)
        hessians = np.empty_like(margins)
        for begin in range(0, len(label), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            gradient, hessian = gradients[:, block], hessians[:, block]
            self.fill(margins[:, block], label[block], gradient, hessian)
            if weight is not None:
                gradient *= weight[block]
                hessian *= weight[block]
        return gradients, hessians

    @abstractmethod
    def fill(self, margin: Floats, label: Floats, gradient: Floats, hessian: Floats) -> None:
        """Write the gradients of a block of rows.

        Args:
            margin: of shape (margins, rows), as are both gradients.
            label: of shape (rows,).
        """


class SquaredError(_OfRows):
    """`reg:squarederror`."""

    def fill(self, margin: Floats, label: Floats, gradient: Floats, hessian: Floats) -> None:
        """Write the gradients of a block of rows."""
        np.subtract(margin, label, out=gradient)
        hessian[:] = _UNIT

    def prediction(self, margin: Floats) -> Floats:
        """Return the margins."""
        return margin

    def base_score(self, label: Floats, weight: Floats | None, workers: Collectives) -> list[float]:
        """Return the mean."""
        return [_mean(label, weight, workers)]


class Logistic(_OfRows):
    """`binary:logistic`, and `reg:logistic` for labels between 0 and 1."""

    def __init__(self, *, is_binary: bool) -> None:
        self._is_binary = is_binary

    def fill(self, margin: Floats, label: Floats, gradient: Floats, hessian: Floats) -> None:
        """Write the gradients of a block of rows."""
        share = self.prediction(margin)
        np.subtract(share, label, out=gradient)
        np.subtract(_UNIT, share, out=hessian)
        hessian *= share
        np.maximum(hessian, _LEAST_HESSIAN, out=hessian)

    def prediction(self, margin: Floats) -> Floats:
        """Return the probability of 1."""
        return logistic(margin)

    def base_score(self, label: Floats, weight: Floats | None, workers: Collectives) -> list[float]:
        """Return the mean, off 0 and 1, whose margins are infinite."""
        return [min(max(_mean(label, weight, workers), _LEAST_MEAN), 1.0 - _LEAST_MEAN)]

    @property
    def needs(self) -> str:
        """Labels that it takes, in words."""
        return "0 or 1" if self._is_binary else "numbers from 0 to 1"

    def is_valid(self, label: Floats) -> bool:
        """Return whether it takes all of these labels, which are finite."""
        if self._is_binary:
            return bool(((label == 0) | (label == 1)).all())
        return bool(((label >= 0) & (label <= 1)).all())


class Poisson(_OfRows):
    """`count:poisson`."""

    def fill(self, margin: Floats, label: Floats, gradient: Floats, hessian: Floats) -> None:
        """Write the gradients of a block of rows."""
        mean = exp(margin)
        np.subtract(mean, label, out=gradient)
        hessian[:] = exp(margin + _POISSON_STEP)

    def prediction(self, margin: Floats) -> Floats:
        """Return the mean count."""
        return exp(margin)

    def base_score(self, label: Floats, weight: Floats | None, workers: Collectives) -> list[float]:
        """Return the mean count."""
        return [max(_mean(label, weight, workers), _LEAST_MEAN)]

    @property
    def needs(self) -> str:
        """Labels that it takes, in words."""
        return "numbers from 0"

    def is_valid(self, label: Floats) -> bool:
        """Return whether it takes all of these labels, which are finite."""
        return bool((label >= 0).all())


class Softmax(_OfRows):
    """`multi:softprob` and `multi:softmax`.

    Args:
        classes: how many; labels are their numbers, from 0.
    """

    def __init__(self, classes: int) -> None:
        self.margins = classes

    def fill(self, margin: Floats, label: Floats, gradient: Floats, hessian: Floats) -> None:
        """Write the gradients of a block of rows."""
        share = self.prediction(margin)
        np.subtract(_UNIT, share, out=hessian)
        hessian *= share
        hessian *= _TWO
        np.maximum(hessian, _LEAST_HESSIAN, out=hessian)
        gradient[:] = share
        gradient[label.astype(np.intp), np.arange(len(label))] -= _UNIT

    def prediction(self, margin: Floats) -> Floats:
        """Return the probability of each class."""
        share = exp(margin - margin.max(axis=0))
        total = share[0].copy()
        for row in share[1:]:  # in this order always: `sum` takes another one on another machine
            total += row
        share /= total
        return share

    def base_score(self, label: Floats, weight: Floats | None, workers: Collectives) -> list[float]:
        """Return the logarithm of each class's share, less their mean."""
        weights = [
            np.where(label == number, _UNIT if weight is None else weight, np.float32(0))
            for number in range(self.margins)
        ]
        totals = totals_of([values.astype(np.float32) for values in weights], workers)
        shares = log(np.array([max(total, _LEAST_MEAN) for total in totals], np.float32))
        mean = np.float32(sum(shares.tolist()) / self.margins)
        scores: list[float] = (shares - mean).tolist()
        return scores

    @property
    def needs(self) -> str:
        """Labels that it takes, in words."""
        return f"whole numbers from 0 to {self.margins - 1}, below num_class"

    def is_valid(self, label: Floats) -> bool:
        """Return whether it takes all of these labels, which are finite."""
        return bool(((label >= 0) & (label < self.margins) & (label == np.floor(label))).all())


NAMES = (
    "binary:logistic",
    "reg:logistic",
    "reg:squarederror",
    "count:poisson",
    "multi:softprob",
    "multi:softmax",
)


def objective_of(name: str, classes: int) -> Objective:
    """Return the objective of a name.

    Args:
        name: one of `NAMES`.
        classes: for those of several classes.

    Raises:
        SpecError: several classes without their number, or the other way round.
    """
    if name.startswith("multi:"):
        if classes < 2:
            raise SpecError(
                "num_class",
                got=str(classes),
                need="the number of classes, from 2",
                hint="num_class=3",
            )
        return Softmax(classes)
    if classes not in (0, 1):
        raise SpecError(
            "num_class",
            got=str(classes),
            need=f"none beside {name}",
            hint="objective='multi:softprob' is for several classes",
        )
    match name:
        case "reg:squarederror":
            return SquaredError()
        case "count:poisson":
            return Poisson()
        case _:
            return Logistic(is_binary=name.startswith("binary"))


def logistic(margin: Floats) -> Floats:
    """Return 1 / (1 + e**-x) of each number."""
    share = exp(-margin)
    share += _UNIT
    return np.divide(_UNIT, share, out=share)


def _mean(values: Floats, weight: Floats | None, workers: Collectives) -> float:
    """The weighted mean over all workers, as a float32."""
    weights = np.ones_like(values) if weight is None else weight.copy()
    columns: Sequence[Floats] = [values * weights, weights]
    total, count = totals_of(columns, workers)
    return float(np.float32(total / count))
