"""XGBoost's part in a round: a tree for each class, fitted to gradients that brim has made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.errors import InternalError, SpecError
from brim.xgboost.arithmetic import Floats
from brim.xgboost.bins import reference_of
from brim.xgboost.categories import Vocabularies
from brim.xgboost.launch import lost_worker, reason_of
from brim.xgboost.parameters import BoostingSettings
from brim.xgboost.trees import BoostedRound, joined, trees_in


def skeleton_of(
    xgb: Any,
    settings: BoostingSettings,
    names: Sequence[str],
    features: int,
    vocabularies: Vocabularies,
) -> bytearray:
    """Return a model file of these settings, whose trees are to be replaced.

    Raises:
        SpecError: XGBoost refuses a parameter or a name.
    """
    classes = settings.objective.margins
    labels = np.arange(max(classes, 2), dtype=np.float32)
    table: Any = np.zeros((len(labels), features), np.float32)
    if any(vocabularies.values()):
        table = _with_texts(table, names, vocabularies)
    try:
        tiny = xgb.DMatrix(
            table,
            labels,
            **typed(features, vocabularies),
            feature_names=list(names) or None,
            nthread=1,
            qid=np.zeros(len(labels), np.int32) if settings.objective.ranks else None,
        )
        parameters = {
            **settings.tree,
            **settings.ranking,
            "objective": settings.objective_name,
            "base_score": 0.5,
            "tree_method": "hist",
            "disable_default_eval_metric": True,
        }
        if classes > 1:
            parameters["num_class"] = classes
        raw: bytearray = xgb.train(parameters, tiny, 1).save_raw("ubj")
    except (xgb.core.XGBoostError, ValueError, TypeError) as error:
        raise SpecError(
            "params", got=str(dict(settings.tree)), need=f"what XGBoost takes ({reason_of(error)})"
        ) from error
    return raw


def typed(features: int, vocabularies: Vocabularies) -> dict[str, Any]:
    """Return the arguments of a table by which XGBoost knows its categories."""
    if not vocabularies:
        return {}
    types = ["c" if place in vocabularies else "q" for place in range(features)]
    return {"feature_types": types, "enable_categorical": True}


def _with_texts(table: Floats, names: Sequence[str], vocabularies: Vocabularies) -> Any:
    """The same table with the texts of its categories, which XGBoost writes into the model file."""
    import pyarrow

    codes = pyarrow.array(np.zeros(len(table), np.int32))
    columns = [
        pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(vocabularies[place]))
        if vocabularies.get(place)
        else pyarrow.array(table[:, place])
        for place in range(table.shape[1])
    ]
    return pyarrow.table(dict(zip(names, columns, strict=True)))


def base_margins_of(xgb: Any, empty: bytearray, features: int) -> Floats:
    """Return the margins that XGBoost makes of `base_score`, of shape (margins, 1).

    Args:
        empty: a model file without trees.
    """
    model = xgb.Booster({"nthread": 1})
    model.load_model(empty)
    row = xgb.DMatrix(np.zeros((1, features), np.float32), nthread=1)
    return _margins(model.predict(row, output_margin=True, validate_features=False))


def binned(
    xgb: Any,
    features: Floats,
    thresholds: Sequence[Floats],
    lowest: Floats,
    settings: BoostingSettings,
    names: Sequence[str] = (),
    vocabularies: Vocabularies | None = None,
) -> Any:
    """Return a QuantileDMatrix of exactly these thresholds, and of categories from 0.

    Raises:
        InternalError: XGBoost has taken others.
    """
    options = {
        "max_bin": settings.bins,
        "nthread": settings.tree.get("nthread"),
        "feature_names": list(names) or None,
        **typed(features.shape[1], vocabularies or {}),
    }
    reference = xgb.QuantileDMatrix(reference_of(thresholds, lowest), **options)
    # For each feature: below its least value, then its thresholds, then beyond the largest; for
    # categories the codes themselves.
    pointers, cuts = reference.get_quantile_cut()
    for column, numbers in enumerate(thresholds):
        begin, end = int(pointers[column]), int(pointers[column + 1])
        within = slice(begin + 1, end if column in (vocabularies or {}) else end - 1)
        if len(numbers) and not np.array_equal(cuts[within], numbers):
            raise InternalError(f"xgboost took other thresholds for feature {column}")
    return xgb.QuantileDMatrix(features, ref=reference, **options)


class Boosting:
    """Boosts round after round, and keeps the margins of the rows.

    A round depends on the margins before it alone, and on its number: one Booster of all rounds gives
    the same trees as one for each. But a Booster draws columns where its rounds before have left off.

    Args:
        matrix: of this worker's rows.
        eval_matrices: tables of the rows that metrics are computed on.
        margins: of each of these tables, of shape (margins, rows).
        begin: rounds that were made before.
    """

    def __init__(
        self,
        xgb: Any,
        settings: BoostingSettings,
        matrix: Any,
        eval_matrices: Sequence[Any],
        margins: Sequence[Floats],
        *,
        begin: int,
    ) -> None:
        self._xgb, self._settings = xgb, settings
        self._matrix, self._tables = matrix, [matrix, *eval_matrices]
        self.margins = list(margins)
        self._round = begin
        self._is_kept = not settings.samples_columns
        self._booster: Any = None
        self._count = self._read = 0  # rounds of this Booster
        self._untaken: list[tuple[bytes, ...]] = []

    def restore(self, skeleton: bytearray, rounds: Sequence[BoostedRound]) -> None:
        """Compute the margins after rounds that were made before."""
        if not rounds:
            return
        model = self._xgb.Booster({"nthread": self._settings.tree.get("nthread")})
        model.load_model(joined(skeleton, rounds))
        self._begin_at_margins()
        self.margins = [
            _margins(model.predict(table, output_margin=True, validate_features=False))
            for table in self._tables
        ]

    def boost(self, gradients: Floats, hessians: Floats) -> None:
        """Make a round.

        Args:
            gradients, hessians: of the rows of this worker, of shape (margins, rows).

        Raises:
            EnvironmentFault: another worker was lost.
        """
        if self._booster is None or not self._is_kept:
            self._begin_booster()
        try:
            self._booster.boost(
                self._matrix, self._count, grad=_rows_first(gradients), hess=_rows_first(hessians)
            )
            self.margins = [self._predict(table) for table in self._tables]
        except self._xgb.core.XGBoostError as error:
            raise lost_worker(error) from None
        self._count += 1
        self._round += 1

    def take(self) -> list[tuple[bytes, ...]]:
        """Return the trees of each round since the last call."""
        self._read_trees()
        rounds, self._untaken = self._untaken, []
        return rounds

    def _read_trees(self) -> None:
        """Read the trees of this Booster that were not read before."""
        if self._read == self._count:
            return
        booster = self._booster[self._read :] if self._read else self._booster
        trees = trees_in(booster.save_raw("ubj"))
        self._read = self._count
        classes = self._settings.objective.margins
        self._untaken += [
            tuple(trees[place : place + classes]) for place in range(0, len(trees), classes)
        ]

    def _begin_booster(self) -> None:
        self._read_trees()
        self._begin_at_margins()
        parameters = {
            **self._settings.tree,
            "base_score": 0.0,
            "tree_method": "hist",
            "max_bin": self._settings.bins,
            "seed": self._settings.seed_of(self._round),
            "seed_per_iteration": True,  # as it is with several workers in any case
            "disable_default_eval_metric": True,
        }
        if self._settings.objective.margins > 1:
            parameters["num_class"] = self._settings.objective.margins
        self._booster = self._xgb.Booster(parameters, self._tables)
        self._count = self._read = 0
        # With a first prediction XGBoost knows the margins, and keeps them up to date as it grows a
        # tree; without, each round would compute those of all rows anew.
        self._predict(self._matrix)

    def _begin_at_margins(self) -> None:
        for table, margins in zip(self._tables, self.margins, strict=True):
            table.set_base_margin(_rows_first(margins))

    def _predict(self, table: Any) -> Floats:
        return _margins(self._booster.predict(table, output_margin=True, training=True))


def _rows_first(values: Floats) -> NDArray[np.float32]:
    return values[0] if len(values) == 1 else np.ascontiguousarray(values.T)


def _margins(predicted: Floats) -> Floats:
    return predicted.reshape(1, -1) if predicted.ndim == 1 else np.ascontiguousarray(predicted.T)
