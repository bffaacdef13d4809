"""Metrics merge exactly, and agree with scikit-learn."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import SpecError
from brim.train import metrics
from brim.train.evaluation import observe

ALL = [
    metrics.auc,
    metrics.log_loss,
    metrics.accuracy,
    metrics.mean_absolute_error,
    metrics.mean_squared_error,
]
rng = np.random.default_rng(0)


def chunks_of(
    metric: metrics.Metric, output: torch.Tensor, target: torch.Tensor, size: int
) -> list[bytes]:
    return [
        metric.observe(output[start : start + size], target[start : start + size])
        for start in range(0, len(output), size)
    ]


@pytest.mark.parametrize("decimals", [1, 7])
@pytest.mark.parametrize("size", [64, 1000, 5000])
def test_auc_equals_scikit_learn(decimals: int, size: int) -> None:
    from sklearn.metrics import roc_auc_score

    target = rng.integers(0, 2, 3000)
    scores = (rng.normal(size=3000) + target).round(decimals).astype(np.float32)
    metric = metrics.auc()
    states = chunks_of(metric, torch.from_numpy(scores), torch.from_numpy(target).float(), size)
    assert metric.result(states) == pytest.approx(roc_auc_score(target, scores), abs=1e-12)


@pytest.mark.parametrize("size", [7, 500])
def test_group_auc_averages_the_groups_that_have_one(size: int) -> None:
    from sklearn.metrics import roc_auc_score

    groups, target = rng.integers(0, 90, 500), rng.integers(0, 2, 500)
    scores = (rng.normal(size=500) + target).round(1).astype(np.float32)
    metric = metrics.group_auc(lambda inputs: inputs["ids"][:, 0])
    ids = torch.from_numpy(np.stack([groups, groups + 1], 1))
    columns = (torch.from_numpy(scores), torch.from_numpy(target).float(), ids)
    states = [
        observe({"gauc": metric}, output, label, {"ids": part})["gauc"]
        for output, label, part in zip(*(column.split(size) for column in columns), strict=True)
    ]
    chosen = [groups == group for group in set(groups.tolist())]
    mixed = [rows for rows in chosen if 0 < target[rows].sum() < rows.sum()]
    expected = sum(rows.sum() * roc_auc_score(target[rows], scores[rows]) for rows in mixed)
    assert len(mixed) < len(chosen)
    assert metric.result(states) == pytest.approx(expected / sum(map(np.sum, mixed)), abs=1e-12)
    assert math.isnan(metric.result([]))
    with pytest.raises(SpecError, match="need a tensor of whole numbers"):
        metrics.group_auc(lambda inputs: ids[:, 0].float()).observe(ids[:, 0], ids[:, 0])


def test_a_target_is_measured_alone() -> None:
    output, target = torch.randn(20, 2), torch.randint(0, 2, (20, 2)).float()
    ids = {"ids": torch.randint(0, 3, (20, 1))}
    for metric in (metrics.auc(), metrics.group_auc(lambda inputs: inputs["ids"][:, 0])):
        alone = observe({"m": metric}, output[:, 1], target[:, 1], ids)
        assert observe({"m": metrics.of_target(1, metric)}, output, target, ids) == alone
    with pytest.raises(SpecError, match=r"of_target\(2, …\): got an output of shape \[20, 2\]"):
        metrics.of_target(2, metrics.auc()).observe(output, target)


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 40),
)
@settings(deadline=None)
def test_auc_counts_pairs(rows: list[tuple[int, bool]], size: int) -> None:
    positives = [score for score, label in rows if label]
    negatives = [score for score, label in rows if not label]
    wins = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    pairs = len(positives) * len(negatives)
    metric = metrics.auc()
    output = torch.tensor([float(score) for score, _ in rows])
    target = torch.tensor([float(label) for _, label in rows])
    result = metric.result(chunks_of(metric, output, target, size))
    assert result == wins / pairs if pairs else math.isnan(result)


@pytest.mark.parametrize("make", ALL)
def test_which_worker_observed_a_chunk_does_not_matter(make: Callable[[], metrics.Metric]) -> None:
    output, target = torch.randn(1000), torch.randint(0, 2, (1000,)).float()
    first, two = make(), make()
    chunks_of_one = chunks_of(first, output, target, 128)
    # Two workers observe every other chunk each; the states are put back in chunk order.
    states = [
        (first if index % 2 else two).observe(output[s : s + 128], target[s : s + 128])
        for index, s in enumerate(range(0, 1000, 128))
    ]
    assert first.result(chunks_of_one) == two.result(states)


def test_log_loss_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import log_loss

    output, target = torch.randn(500), torch.randint(0, 2, (500,)).float()
    metric = metrics.log_loss()
    expected = log_loss(target.numpy(), torch.sigmoid(output.double()).numpy())
    assert metric.result(chunks_of(metric, output, target, 64)) == pytest.approx(
        expected, rel=1e-12
    )


def test_log_loss_stays_finite() -> None:
    metric = metrics.log_loss()
    assert metric.result(
        [metric.observe(torch.tensor([-1e4]), torch.tensor([1.0]))]
    ) == pytest.approx(1e4)


def test_several_classes() -> None:
    output, target = torch.randn(100, 10), torch.randint(0, 10, (100,))
    share, loss = metrics.accuracy(), metrics.log_loss()
    assert (
        share.result(chunks_of(share, output, target, 30))
        == float((output.argmax(1) == target).sum()) / 100
    )
    expected = torch.nn.functional.cross_entropy(output.double(), target).item()
    assert loss.result(chunks_of(loss, output, target, 30)) == pytest.approx(expected, rel=1e-12)


def test_errors_of_a_regression() -> None:
    output, target = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 0.0, 1.0])
    absolute, squared = metrics.mean_absolute_error(), metrics.mean_squared_error()
    assert absolute.result([absolute.observe(output, target)]) == pytest.approx(5 / 3)
    assert squared.result([squared.observe(output, target)]) == pytest.approx(13 / 3)


@pytest.mark.parametrize("make", ALL)
def test_nothing_observed_is_nan(make: Callable[[], metrics.Metric]) -> None:
    metric = make()
    assert math.isnan(metric.result([]))
    assert math.isnan(metric.result([metric.observe(torch.empty(0), torch.empty(0))]))


def test_one_class_or_a_nan_has_no_auc() -> None:
    metric = metrics.auc()
    assert math.isnan(
        metric.result([metric.observe(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0]))])
    )
    assert math.isnan(
        metric.result([metric.observe(torch.tensor([1.0, math.nan]), torch.tensor([1.0, 0.0]))])
    )


def test_column_logits_are_refused_with_hint() -> None:
    with pytest.raises(SpecError, match="squeeze"):
        metrics.log_loss().observe(torch.zeros(4, 1), torch.zeros(4))
    with pytest.raises(SpecError, match="same shape"):
        metrics.auc().observe(torch.zeros(4, 1), torch.zeros(4))
