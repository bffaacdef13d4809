"""The arithmetic of `brim.xgboost`: the same bits for any split of the rows."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from brim.errors import EnvironmentFault, SpecError
from brim.xgboost.arithmetic import Floats, exp, log
from brim.xgboost.bins import ranges_of, reference_of, sample_of, thresholds_of
from brim.xgboost.grid import powers_of, round_to_grid, totals_of
from brim.xgboost.metrics import names_for, value_of
from brim.xgboost.objectives import NAMES, objective_of
from brim.xgboost.queries import Queries, queries_of, share_of_queries
from brim.xgboost.ranking import LambdaRank, _order, ndcg_of
from brim.xgboost.sampling import chosen
from brim.xgboost.workers import (
    BatchReport,
    Collectives,
    LoneWorker,
    agree,
    compare,
    share_of,
    slots_of,
    unequal_in,
)

T = TypeVar("T")
SIZES = (1, 2, 3, 7)
ROWS = 20_000
_TO_MEET = 60.0  # seconds


class Together:
    """One of several workers, each in a thread of its own."""

    def __init__(self, rank: int, shelf: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(shelf)
        self._shelf, self._barrier = shelf, barrier

    def add(self, values: NDArray[Any]) -> NDArray[Any]:
        return self._reduced(values, np.add)

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        return self._reduced(values, np.maximum)

    def pass_on(self, content: bytes) -> bytes:
        raise NotImplementedError

    def _reduced(self, values: NDArray[Any], by: Any) -> NDArray[Any]:
        self._shelf[self.rank] = values
        self._barrier.wait(_TO_MEET)
        result: NDArray[Any] = reduce(by, self._shelf)
        self._barrier.wait(_TO_MEET)
        return result


def each_of(size: int, work: Callable[[Collectives], T]) -> list[T]:
    """The results of all workers."""
    if size == 1:
        return [work(LoneWorker())]
    shelf: list[Any] = [None] * size
    barrier = threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(Together(rank, shelf, barrier)), range(size)))


def same_for_all(work: Callable[[Collectives], T], sizes: tuple[int, ...] = SIZES) -> T:
    """The result, which all workers have, however many there are."""
    results = [result for size in sizes for result in each_of(size, work)]
    assert all(repr(result) == repr(results[0]) for result in results), results
    return results[0]


def gradients(name: str = "binary:logistic") -> tuple[Floats, Floats]:
    """Gradients of rows whose weights differ by orders of magnitude."""
    chance = np.random.default_rng(4)
    classes = 3 if name.startswith("multi") else 0
    objective = objective_of(name, classes)
    margins = chance.normal(0, 6, (objective.margins, ROWS)).astype(np.float32)
    label = chance.integers(0, classes or 2, ROWS).astype(np.float32)
    return objective.gradients(margins, label, weights(), None)


def weights() -> Floats:
    return np.random.default_rng(5).lognormal(0, 4, ROWS).astype(np.float32)


# Sums ---------------------------------------------------------------------------------------------


def sums_in_many_orders(values: Floats) -> set[float]:
    """Sums as workers could make them: forwards, backwards, shuffled, and by parts."""
    wide = values.astype(np.float64)
    shuffled = np.random.default_rng(0).permutation(wide)
    parts = [np.cumsum(part)[-1] for part in np.array_split(wide, 7)]
    return {
        float(np.cumsum(wide)[-1]),
        float(np.cumsum(wide[::-1])[-1]),
        float(np.cumsum(shuffled)[-1]),
        float(np.cumsum(parts)[-1]),
    }


@pytest.mark.parametrize("name", NAMES)
def test_sums_of_rounded_gradients_are_exact(name: str) -> None:
    for column in gradients(name):
        flat = column.ravel()
        assert len(sums_in_many_orders(flat)) > 1  # as they are
        (power,) = powers_of([flat], LoneWorker())
        rounded = round_to_grid(flat.copy(), power)
        assert sums_in_many_orders(rounded) == {math.fsum(rounded.tolist())}
        assert np.abs(rounded - flat).max() <= math.ldexp(0.5, -power)
        assert math.fsum(np.abs(rounded).tolist()) * math.ldexp(1.0, power) <= 2**53


def test_finer_grids_would_not_be_exact() -> None:
    """The grid is as fine as it may be, but for a few bits."""
    flat = gradients()[0].ravel()
    (power,) = powers_of([flat], LoneWorker())
    assert math.fsum(np.abs(flat).tolist()) * math.ldexp(1.0, power) >= 2**50


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1.0, 1e20, 1e30])
def test_grids_are_the_same_for_any_split(scale: float) -> None:
    columns = [column.ravel() * np.float32(scale) for column in gradients()]

    def powers(workers: Collectives) -> list[int]:
        share = share_of(ROWS, workers.rank, workers.size)
        return powers_of([values[share.start : share.stop] for values in columns], workers)

    for values, power in zip(columns, same_for_all(powers), strict=True):
        rounded = round_to_grid(values, power)
        assert np.isfinite(rounded).all()
        assert sums_in_many_orders(rounded) == {math.fsum(rounded.tolist())}


def test_zeros_stay_zeros() -> None:
    for values in (np.zeros(3, np.float32), np.empty(0, np.float32)):
        assert not round_to_grid(values, *powers_of([values], LoneWorker())).any()


def test_totals_are_the_same_for_any_split() -> None:
    values = weights()

    def totals(workers: Collectives) -> list[float]:
        share = share_of(ROWS, workers.rank, workers.size)
        return totals_of([values[share.start : share.stop].copy()], workers)

    (total,) = same_for_all(totals)
    assert total == pytest.approx(math.fsum(values.tolist()), rel=1e-9)


# Functions ----------------------------------------------------------------------------------------


def test_exponentials_are_close() -> None:
    x = np.linspace(-87, 88, 100_001, dtype=np.float32)
    assert np.abs(exp(x.copy()) / np.exp(x.astype(np.float64)) - 1).max() < 2e-7
    assert exp(np.array([-1e9, 1e9, 0], np.float32)).tolist() == [
        exp(np.array([-88], np.float32))[0],
        exp(np.array([88], np.float32))[0],
        1.0,
    ]


def test_logarithms_are_close() -> None:
    x = np.exp(np.linspace(-80, 80, 100_001)).astype(np.float32)
    exact = np.log(x.astype(np.float64))
    assert (np.abs(log(x) - exact) <= 2e-7 * np.maximum(np.abs(exact), 0.3)).all()
    assert log(np.array([0, 1], np.float32)).tolist() == pytest.approx([-87.336, 0], abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_loss(name: str) -> None:
    """By differences of the loss, in doubles."""
    classes = 3 if name.startswith("multi") else 0
    objective = objective_of(name, classes)
    chance = np.random.default_rng(1)
    margins = chance.normal(0, 1, (objective.margins, 50)).astype(np.float32)
    label = chance.integers(0, classes or 2, 50).astype(np.float32)

    def loss(m: NDArray[np.float64]) -> Any:
        match name.partition(":"):
            case "multi", _, _:
                return np.log(np.exp(m).sum(axis=0)) - m[label.astype(int), np.arange(50)]
            case _, _, "logistic":
                return np.log1p(np.exp(m[0])) - label * m[0]
            case _, _, "poisson":
                return np.exp(m[0]) - label * m[0]
        return (m[0] - label) ** 2 / 2

    computed = objective.gradients(margins, label, None, None)[0]
    for row in range(objective.margins):
        step = np.zeros((objective.margins, 1))
        step[row] = 1e-5
        wide = margins.astype(np.float64)
        slope = (loss(wide + step) - loss(wide - step)) / 2e-5
        assert computed[row] == pytest.approx(slope, abs=1e-5)


def test_blocks_of_rows_are_as_all_at_once() -> None:
    objective = objective_of("multi:softprob", 3)
    margins = np.random.default_rng(2).normal(size=(3, 40_000)).astype(np.float32)
    label = np.arange(40_000, dtype=np.float32) % 3
    whole = objective.gradients(margins, label, None, None)
    pieces = [
        objective.gradients(margins[:, at : at + 777], label[at : at + 777], None, None)
        for at in range(0, 40_000, 777)
    ]
    for column in range(2):
        assert np.array_equal(whole[column], np.concatenate([p[column] for p in pieces], axis=1))


@pytest.mark.parametrize("name", NAMES)
def test_metrics_are_the_same_for_any_split(name: str) -> None:
    classes = 3 if name.startswith("multi") else 0
    objective = objective_of(name, classes)
    chance = np.random.default_rng(3)
    margins = chance.normal(0, 1, (objective.margins, ROWS)).astype(np.float32)
    label = chance.integers(0, classes or 2, ROWS).astype(np.float32)

    def values(workers: Collectives) -> list[float]:
        share = share_of(ROWS, workers.rank, workers.size)
        computed = slice(share.start, share.stop)
        part = margins[:, computed], label[computed], weights()[computed]
        scores = objective.base_score(label[computed], weights()[computed], workers)
        names = names_for(objective, name)
        return scores + [value_of(metric, objective, *part, workers) for metric in names]

    same_for_all(values)


# Ranking ------------------------------------------------------------------------------------------

RANKERS = {
    "ndcg": {},
    "pairwise": {"weighs_by_ndcg": False},
    "first three": {"top": 3},
    "as they are": {"normalizes": False, "by_scores": False},
    "grades as gains": {"has_exponential_gain": False},
}


def ranker(**options: Any) -> LambdaRank:
    usual: dict[str, Any] = dict.fromkeys(
        ("weighs_by_ndcg", "normalizes", "by_scores", "has_exponential_gain"), True
    )
    return LambdaRank(**{**usual, "top": 32, **options})


def ranked_rows() -> tuple[Floats, Floats, Floats, Queries]:
    """Margins, many of which are equal, grades and weights of queries of 1 to 60 rows, and one of 5000."""
    chance = np.random.default_rng(8)
    sizes = np.append(chance.integers(1, 60, 500), 5000)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = int(starts[-1])
    margins = np.round(chance.normal(0, 2, (1, rows)), 1).astype(np.float32)
    grades = np.floor(chance.uniform(0, 5, rows) * chance.uniform(0, 1, rows)).astype(np.float32)
    weight = np.repeat(chance.lognormal(0, 3, len(sizes)), sizes).astype(np.float32)
    return margins, grades, weight, Queries(starts)


def pair_by_pair(
    ranker: LambdaRank, margin: Floats, grades: Floats
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The gradients of one query, in doubles."""
    order = sorted(range(len(margin)), key=lambda row: -margin[row])
    gain = [2.0 ** float(g) - 1 if ranker.has_exponential_gain else float(g) for g in grades]
    best = sorted(gain, reverse=True)[: ranker.top]
    ideal = sum(g / math.log2(place + 2) for place, g in enumerate(best))
    gradient, hessian, total = np.zeros(len(margin)), np.zeros(len(margin)), 0.0
    for i in range(min(ranker.top, len(margin))):
        for j in range(i + 1, len(margin)):
            better, worse = order[i], order[j]
            if grades[better] == grades[worse]:
                continue
            if grades[better] < grades[worse]:
                better, worse = worse, better
            gap = float(margin[better]) - float(margin[worse])
            force = 1.0
            if ranker.weighs_by_ndcg:
                force = (gain[better] - gain[worse]) / ideal
                force *= 1 / math.log2(i + 2) - 1 / math.log2(j + 2)
            if ranker.by_scores and margin[order[0]] != margin[order[-1]]:
                force /= abs(gap) + 0.01
            chance = 1 / (1 + math.exp(-gap))
            pull = (chance - 1) * force
            curve = 2 * force * chance * (1 - chance)
            total -= 2 * pull
            gradient[better] += pull
            gradient[worse] -= pull
            hessian[[better, worse]] += curve
    factor = math.log2(1 + total) / total if ranker.normalizes and total > 0 else 1.0
    return gradient * factor, hessian * factor


@pytest.mark.parametrize("options", RANKERS.values(), ids=RANKERS)
def test_gradients_of_ranks_are_those_of_pairs(options: dict[str, Any]) -> None:
    margins, grades, _, queries = ranked_rows()
    computed = ranker(**options).gradients(margins, grades, None, queries)
    for query in range(0, 500, 9):
        rows = slice(queries.starts[query], queries.starts[query + 1])
        naive = pair_by_pair(ranker(**options), margins[0, rows], grades[rows])
        for column in range(2):
            scale = np.abs(naive[column]).max() + 1e-9
            assert computed[column][0, rows] == pytest.approx(
                naive[column], abs=1e-5 * scale, rel=1e-4
            )


def test_tiny_forces_are_normalized_alike() -> None:
    """Where the sum of a query is below what 1 + x can tell from 1."""
    margins, grades = np.array([[60.0, 0.0]], np.float32), np.array([1, 0], np.float32)
    computed = ranker(by_scores=False).gradients(margins, grades, None, Queries(np.array([0, 2])))
    naive = pair_by_pair(ranker(by_scores=False, normalizes=False), margins[0], grades)
    assert computed[1][0] == pytest.approx(naive[1] / math.log(2), rel=1e-5)


@pytest.mark.parametrize("options", RANKERS.values(), ids=RANKERS)
def test_ranks_are_the_same_for_any_split(options: dict[str, Any]) -> None:
    """Gradients, to the bit, their grids, sums and weights, and the metrics."""
    margins, grades, weight, queries = ranked_rows()
    objective = ranker(**options)
    pieces: dict[tuple[int, int], tuple[Floats, Floats]] = {}

    def numbers(workers: Collectives) -> list[Any]:
        share = share_of_queries(queries, workers.rank, workers.size)
        rows, part = slice(share.start, share.stop), queries.part_of(share)
        computed = objective.weights(weight[rows], part, workers)
        found = objective.gradients(margins[:, rows], grades[rows], computed, part)
        pieces[workers.size, workers.rank] = found
        columns = [column.ravel().copy() for column in found]
        sums = totals_of(columns, workers)
        values = [
            value_of(name, objective, margins[:, rows], grades[rows], weight[rows], workers, part)
            for name in ("ndcg", "ndcg@5", "ndcg@5-")
        ]
        return [powers_of(columns, workers), sums, values]

    same_for_all(numbers)
    for column in range(2):
        whole = pieces[1, 0][column]
        for size in SIZES[1:]:
            parts = [pieces[size, rank][column] for rank in range(size)]
            assert np.concatenate(parts, axis=1).tobytes() == whole.tobytes()
        flat = whole.ravel()
        assert len(sums_in_many_orders(flat)) > 1  # as they are
        rounded = round_to_grid(flat.copy(), *powers_of([flat], LoneWorker()))
        assert sums_in_many_orders(rounded) == {math.fsum(rounded.tolist())}


def test_ndcg_is_that_of_the_order() -> None:
    margins, grades, _, queries = ranked_rows()
    computed = ndcg_of(margins[0], grades, queries, top=5, is_exponential=True, empty=0.5)
    for query in range(100):
        rows = slice(queries.starts[query], queries.starts[query + 1])
        order = sorted(range(rows.stop - rows.start), key=lambda row: -margins[0, rows][row])
        gains = [[2.0 ** float(g) - 1 for g in grades[rows][order]]]
        gains.append(sorted(gains[0], reverse=True))
        found, ideal = (
            sum(gain / math.log2(place + 2) for place, gain in enumerate(one[:5])) for one in gains
        )
        assert computed[query] == pytest.approx(found / ideal if ideal else 0.5, rel=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 501])
def test_shares_are_of_whole_queries(size: int) -> None:
    queries = ranked_rows()[-1]
    shares = [share_of_queries(queries, rank, size) for rank in range(size)]
    assert [row for share in shares for row in (share.start, share.stop)][1:-1] == [
        row for share in shares[1:] for row in (share.start, share.start)
    ]
    assert (shares[0].start, shares[-1].stop) == (0, queries.starts[-1])
    assert all(share.start in queries.starts and len(share) for share in shares)


def test_queries_in_two_places_are_refused() -> None:
    assert queries_of(np.array(["b", "b", "a"])).starts.tolist() == [0, 2, 3]
    assert len(queries_of(np.array([], np.int64))) == 0
    with pytest.raises(
        SpecError, match=r"qid: got rows of query 2 in two places, again from row 3"
    ):
        queries_of(np.array([2, 2, 1, 2]))


# Samples and bins ---------------------------------------------------------------------------------


def test_samples_depend_on_rows_alone() -> None:
    whole = chosen(range(10_000), 7, 0.3)
    assert np.array_equal(
        whole, np.concatenate([chosen(range(3333), 7, 0.3), chosen(range(3333, 10_000), 7, 0.3)])
    )
    assert abs(whole.mean() - 0.3) < 0.02
    other = chosen(range(10_000), 8, 0.3)
    assert abs((whole & other).mean() - 0.09) < 0.01  # as if each were drawn by itself
    assert chosen(range(5), -3, 1.0).all()


FEW = np.array([1, 1, 2, 5], np.float32)
MANY = np.arange(1000, dtype=np.float32)
HEAVY = np.concatenate([np.zeros(9000, np.float32), MANY])
THRESHOLDS: dict[str, tuple[Floats, float, int, Callable[[Floats], Any]]] = {
    "few values": (FEW, 5.0, 256, lambda found: found.tolist() == [2.0, 5.0]),
    "one value": (FEW[:2], 1.0, 256, lambda found: not len(found)),
    "missing values": (np.array([np.nan, 3, 4], np.float32), 4.0, 9, lambda f: f.tolist() == [4.0]),
    "nothing but missing": (np.array([np.nan], np.float32), math.nan, 9, lambda f: not len(f)),
    "beyond the sample": (FEW, 9.0, 256, lambda found: found.tolist() == [2.0, 5.0, 9.0]),
    "not in the sample": (FEW[:0], 9.0, 256, lambda found: not len(found)),
    "many values": (MANY, 999.0, 11, lambda f: len(f) == 10 and np.ptp(np.diff(f[:9])) <= 1),
    "a heavy value": (HEAVY, 999.0, 11, lambda f: f[0] == 1.0 and f[-1] == 999.0 and len(f) >= 8),
}


@pytest.mark.parametrize(
    ("values", "largest", "most", "is_right"), THRESHOLDS.values(), ids=THRESHOLDS
)
def test_thresholds(
    values: Floats, largest: float, most: int, is_right: Callable[[Floats], Any]
) -> None:
    found = thresholds_of(values, largest, most)
    assert is_right(found), found
    assert (np.diff(found) > 0).all()
    assert len(found) < most


def test_thresholds_are_never_too_many() -> None:
    chance = np.random.default_rng(0)
    for most in (2, 3, 5, 16, 64):
        for shape in (0.5, 2.0, 4.0):
            values = np.floor(chance.lognormal(0, shape, 3000)).astype(np.float32)
            found = thresholds_of(values, float(values.max()), most)
            assert 1 <= len(found) < most
            assert found[-1] == values.max()


def test_bins_are_the_same_for_any_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.xgboost.bins.SAMPLE_ROWS", 1000)
    features = np.random.default_rng(6).normal(size=(ROWS, 3)).astype(np.float32)
    features[::3, 1] = np.nan
    features[:, 2] = np.nan

    def bins(workers: Collectives) -> list[Any]:
        share = share_of(ROWS, workers.rank, workers.size)
        computed = features[share.start : share.stop]
        least, largest = ranges_of(computed, workers)
        sample = sample_of(computed, share, ROWS, 3, workers)
        thresholds = [
            thresholds_of(column, float(end), 64)
            for column, end in zip(sample.T, largest, strict=True)
        ]
        assert 700 < len(sample) < 1300
        return [least.tolist(), *(numbers.tolist() for numbers in thresholds)]

    least, *thresholds = same_for_all(bins)
    assert least[:2] == np.nanmin(features[:, :2], axis=0).tolist()
    assert [len(numbers) > 50 for numbers in thresholds] == [True, True, False]


def test_reference_has_each_threshold_once() -> None:
    thresholds = [np.array([1, 2], np.float32), np.empty(0, np.float32)]
    table = reference_of(thresholds, np.array([0, np.nan], np.float32))
    assert table[:, 0].tolist() == [0, 1, 2]
    assert np.isnan(table[:, 1]).all()


# Agreement ----------------------------------------------------------------------------------------

OWN, OTHER = bytes(range(32)), bytes(32)


def slots(*digests: bytes) -> NDArray[np.int64]:
    tables = [
        slots_of(rank, len(digests), digest, BatchReport()) for rank, digest in enumerate(digests)
    ]
    total: NDArray[np.int64] = np.sum(tables, axis=0)
    return total


def test_equal_digests_agree() -> None:
    assert unequal_in(slots(OWN, OWN, OWN), OWN) == []
    assert unequal_in(slots(OTHER, OWN, OTHER), OWN) == [0, 2]


@pytest.mark.parametrize(
    "table",
    [
        slots_of(0, 3, OWN, BatchReport()),  # of its own numbers alone
        2 * slots(OWN, OWN),
        slots(OWN, OWN) + slots_of(1, 2, OWN, BatchReport()),
        np.zeros((2, 7), np.int64),
        np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (2, 7)),
    ],
)
def test_torn_exchanges_do_not_count(table: NDArray[np.int64]) -> None:
    with pytest.raises(EnvironmentFault, match="torn"):
        unequal_in(table, OWN)


def test_reports_add_up() -> None:
    def agreed(workers: Collectives, stopped: int | None) -> BatchReport:
        rank = workers.rank
        return agree(OWN, workers, BatchReport(is_stopping=rank == stopped, microseconds=rank + 7))

    for stopped in (None, 0, 2):
        found = each_of(3, partial(agreed, stopped=stopped))
        assert found == [BatchReport(is_stopping=stopped is not None, microseconds=9)] * 3


def test_different_arguments_are_named() -> None:
    def outcome(workers: Collectives) -> str:
        with pytest.raises(SpecError) as error:
            compare("params", "eta 0.1" if workers.rank else "eta 0.2", workers)
        return str(error.value)

    first, second = each_of(2, outcome)
    assert first.startswith(
        "params: got others on rank 1 than on rank 0, need the same on all workers"
    )
    assert second.startswith("params: got others on rank 0 than on rank 1")


def test_different_trees_do_not_count() -> None:
    def outcome(workers: Collectives) -> None:
        with pytest.raises(EnvironmentFault, match="different trees"):
            agree(OWN if workers.rank else OTHER, workers, BatchReport())

    each_of(2, outcome)


@pytest.mark.parametrize("first_query", [0, 1 << 20])
def test_order_is_stable_however_it_is_found(first_query: int) -> None:
    """Small numbers of queries and rows are sorted as one number, large ones are not."""
    chance = np.random.default_rng(5)
    values = np.round(chance.normal(0, 1, 4_000), 1).astype(np.float32)
    values[::7] *= np.float32(-0.0)
    values[::11] = np.float32(1e-44)
    query = first_query + np.sort(chance.integers(0, 90, len(values)))
    assert np.array_equal(_order(values, query), np.lexsort((-values, query)))
