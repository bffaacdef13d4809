"""Ranking: gradients of pairs of rows of one query, and how good an order is. Pure.

A query is never cut in two, and its sums go over its own rows in one order. So they are the same to
the bit wherever the query is, and whatever others are beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.errors import InternalError
from brim.xgboost.arithmetic import Floats, exp, log
from brim.xgboost.grid import totals_of
from brim.xgboost.objectives import Objective, logistic
from brim.xgboost.queries import Queries
from brim.xgboost.workers import Collectives

_BLOCK = 1 << 14  # rows: what is computed of them stays in a processor's cache
_LEAST_HESSIAN = np.float32(1e-16)  # XGBoost's own
_LEAST_GAP = np.float32(0.01)  # XGBoost's own
_UNIT, _HALF, _ZERO = np.float32(1.0), np.float32(0.5), np.float32(0.0)
_LN_2 = np.float32(0.69314718)
_FARTHEST = np.float32(170.0)  # from the middle; beyond that, a power of e is no normal number
_PLACE_BITS = 31  # beside the 32 of a value, in a whole number above 0
_LARGEST_GRADE = 31  # 2**31 - 1 is the largest gain


@dataclass(frozen=True, kw_only=True)
class LambdaRank(Objective):
    """`rank:ndcg` and `rank:pairwise`, with the pairs of each query's first rows and all others.

    Args:
        weighs_by_ndcg: a pair counts by what its exchange does to NDCG.
        top: how many of the first rows are compared with all others.
        normalizes: gradients of a query by their sum.
        by_scores: a pair counts less, the further its scores are apart.
        has_exponential_gain: a row of grade g has the gain 2**g - 1; False: g.

    Source: Burges, From RankNet to LambdaRank to LambdaMART, 2010; the normalizations are XGBoost's.
    """

    weighs_by_ndcg: bool
    top: int
    normalizes: bool
    by_scores: bool
    has_exponential_gain: bool

    ranks = True

    def gradients(
        self, margins: Floats, label: Floats, weight: Floats | None, queries: Queries | None
    ) -> tuple[Floats, Floats]:
        """Return both gradients of all rows."""
        if queries is None:
            raise InternalError("ranked rows without queries")
        gradients = np.zeros_like(margins)
        hessians = np.zeros_like(margins)
        for block in queries.blocks(_BLOCK):
            rows, part = slice(block.start, block.stop), queries.part_of(block)
            gradient, hessian = self._pair_up(margins[0, rows], label[rows], part)
            gradients[0, rows], hessians[0, rows] = gradient, hessian
            if weight is not None:
                gradients[0, rows] *= weight[rows]
                hessians[0, rows] *= weight[rows]
        return gradients, hessians

    def prediction(self, margin: Floats) -> Floats:
        """Return the margins."""
        return margin

    def base_score(self, label: Floats, weight: Floats | None, workers: Collectives) -> list[float]:
        """Return 0: an order does not depend on it."""
        return [0.0]

    def weights(
        self, weight: Floats | None, queries: Queries | None, workers: Collectives
    ) -> Floats | None:
        """Return weights whose mean over all queries is 1."""
        if weight is None or queries is None:
            return weight
        of_queries = weight[queries.starts[:-1]]
        total, count = totals_of([of_queries.copy(), np.ones_like(of_queries)], workers)
        scaled: Floats = weight * np.float32(count / total)
        return scaled

    @property
    def needs(self) -> str:
        """Labels that it takes, in words."""
        return (
            f"whole numbers from 0 to {_LARGEST_GRADE}" if self.has_exponential_gain else "from 0"
        )

    def is_valid(self, label: Floats) -> bool:
        """Return whether it takes all of these labels, which are finite."""
        if self.has_exponential_gain:
            is_grade = (label >= 0) & (label <= _LARGEST_GRADE) & (label == np.floor(label))
            return bool(is_grade.all())
        return bool((label >= 0).all())

    def _pair_up(
        self, margin: Floats, label: Floats, queries: Queries
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the gradients of the rows of some queries."""
        query, first, sizes = queries.of_rows, queries.starts[:-1], queries.sizes
        order = _order(margin, query)
        score, grade = margin[order], label[order]
        position = np.arange(len(query)) - first[query]
        discounts = _discounts(int(sizes.max()))
        discount = discounts[position]
        gain = gains_of(grade, is_exponential=self.has_exponential_gain)
        best, worst = score[first], score[queries.starts[1:] - 1]
        odds = _odds(score - (best + (worst - best) * _HALF)[query])
        is_wide = (best - worst > 2 * _FARTHEST)[query]
        has_wide = bool(is_wide.any())
        least_gap = np.where(best == worst, _UNIT, _LEAST_GAP)[query]
        gradient, hessian, pulls = (np.zeros(len(query)) for _ in range(3))
        for place in range(min(self.top, int(sizes.max()) - 1)):
            above = np.where(sizes > place, first + place, first)
            # Above 0 where the upper row of a pair has the higher grade, below where the lower one
            # has, and 0 for rows that are in no pair: all is computed for these as well, and counts
            # nothing.
            if self.weighs_by_ndcg:
                force = np.repeat(gain[above], sizes)
                force -= gain
                force *= np.maximum(discounts[place] - discount, _ZERO)
            else:
                force = np.sign(np.repeat(grade[above], sizes) - grade)
                force *= position > place
            if self.by_scores:
                distance = np.abs(np.repeat(score[above], sizes) - score)
                distance += least_gap
                force /= distance
            size = np.abs(force)
            # The chance that the lower row belongs above: what pulls where it has the lower grade.
            pull = np.repeat(odds[above], sizes)
            pull += odds
            np.divide(odds, pull, out=pull)
            if has_wide:
                gap = np.repeat(score[above], sizes)[is_wide] - score[is_wide]
                pull[is_wide] = logistic(-gap)
            curve = 1.0 - pull
            curve *= pull
            np.maximum(curve, _LEAST_HESSIAN, out=curve)
            curve *= size
            pull *= size
            pull += np.minimum(force, _ZERO)
            pulls += np.abs(pull)
            gradient += pull
            hessian += curve
            gradient[above] -= np.add.reduceat(pull, first)
            hessian[above] += np.add.reduceat(curve, first)
        factor = np.ones(len(queries))
        if self.weighs_by_ndcg:
            ideal = _ideal(label, queries, self.top, is_exponential=self.has_exponential_gain)
            np.divide(1.0, ideal, out=factor, where=ideal > 0)
            factor[ideal <= 0] = 0.0
        if self.normalizes:
            total = 2.0 * factor * np.add.reduceat(pulls, first)
            factor *= _shrinkage(total.astype(np.float32))
        gradient *= factor[query]
        hessian *= 2.0 * factor[query]
        result = np.empty_like(gradient), np.empty_like(hessian)
        result[0][order], result[1][order] = gradient, hessian
        return result


def ndcg_of(
    margin: Floats, label: Floats, queries: Queries, *, top: int, is_exponential: bool, empty: float
) -> Floats:
    """Return the normalized discounted cumulative gain of each query.

    Args:
        margin: of shape (rows,).
        label: of shape (rows,): grades.
        top: rows of a query that count, from the first on.
        is_exponential: a row of grade g has the gain 2**g - 1; False: g.
        empty: the value of a query whose rows have no gain.

    Returns:
        Float32 of shape (queries,).

    >>> queries = Queries(np.array([0, 2, 4]))
    >>> margin, label = np.float32([1, 2, 2, 1]), np.float32([1, 0, 1, 0])
    >>> ndcg_of(margin, label, queries, top=9, is_exponential=True, empty=1.0).round(3).tolist()
    [0.6309999823570251, 1.0]
    """
    query = queries.of_rows
    found = _gained(label[_order(margin, query)], queries, top, is_exponential=is_exponential)
    ideal = _ideal(label, queries, top, is_exponential=is_exponential)
    ratio = np.full(len(queries), np.float32(empty))
    np.divide(found, ideal, out=ratio, where=ideal > 0)
    return np.minimum(ratio, _UNIT)


def gains_of(grade: Floats, *, is_exponential: bool) -> Floats:
    """Return the gain of each grade.

    >>> gains_of(np.float32([0, 1, 3]), is_exponential=True).tolist()
    [0.0, 1.0, 7.0]
    """
    if not is_exponential:
        return grade
    gain: Floats = np.ldexp(_UNIT, grade.astype(np.int32)) - _UNIT
    return gain


def _ideal(label: Floats, queries: Queries, top: int, *, is_exponential: bool) -> Floats:
    """The gain of each query in the best order."""
    best = label[_order(label, queries.of_rows)]
    return _gained(best, queries, top, is_exponential=is_exponential)


def _gained(grade: Floats, queries: Queries, top: int, *, is_exponential: bool) -> Floats:
    """The discounted cumulative gain of each query, whose rows are in order."""
    query = queries.of_rows
    position = np.arange(len(query)) - queries.starts[:-1][query]
    counts = position < top
    gain = gains_of(grade[counts], is_exponential=is_exponential)
    gain = gain * _discounts(int(queries.sizes.max(initial=1)))[position[counts]]
    return np.bincount(query[counts], gain, len(queries)).astype(np.float32)


def _order(values: Floats, query: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of each query by descending values; equal ones as they are.

    >>> _order(np.float32([1, 2, 2, 3]), np.array([0, 0, 0, 1])).tolist()
    [1, 2, 0, 3]
    """
    row_bits = len(query).bit_length()
    if row_bits + int(query.max(initial=0)).bit_length() > _PLACE_BITS:
        return np.lexsort((-values, query))
    # Query, value and row in one whole number: numbers are sorted in a tenth of the time.
    bits = (_ZERO - values).view(np.int32)
    ascending = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) + (1 << 31)
    keys = (query << (32 + row_bits)) + (ascending << row_bits) + np.arange(len(query))
    keys.sort()
    order: NDArray[np.int64] = keys & ((1 << row_bits) - 1)
    return order


def _discounts(positions: int) -> Floats:
    """Return the discount of a gain at each position, from 0."""
    discounts: Floats = _LN_2 / log(np.arange(2, positions + 2, dtype=np.float32))
    return discounts


def _odds(distance: Floats) -> NDArray[np.float64]:
    """Return e to the power of each distance; those beyond 170 count as 170."""
    return np.square(exp(np.clip(distance, -_FARTHEST, _FARTHEST) * _HALF).astype(np.float64))


def _shrinkage(total: Floats) -> Floats:
    """The factor log2(1 + x) / x of each sum; 1 where it is 0."""
    above = _UNIT + total
    # Kahan: what is lost in 1 + x is lost in both, and cancels.
    step = np.where(above > _UNIT, above - _UNIT, _UNIT)
    factor = np.where(above > _UNIT, log(above) / (step * _LN_2), _UNIT / _LN_2)
    return np.where(total > _ZERO, factor, _UNIT).astype(np.float32)
