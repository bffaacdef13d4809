from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.scaling import ScalingCurve, ThroughputModel, concave_envelope
from brim.errors import SpecError

rates = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=7)


@given(rates)
def test_the_envelope_is_concave_and_above_every_point(values: list[float]) -> None:
    curve = ScalingCurve(points=tuple((2**k, rate) for k, rate in enumerate(values)))
    steps = [b - a for a, b in zip(curve.envelope, curve.envelope[1:], strict=False)]
    assert all(following <= previous + 1e-9 for previous, following in pairwise(steps))
    assert all(high >= rate - 1e-9 for high, rate in zip(curve.envelope, curve.best, strict=True))


@given(rates, st.floats(0.01, 120.0))
def test_a_share_is_the_fewest_sufficient_workers(values: list[float], rate: float) -> None:
    curve = ScalingCurve(points=tuple((2**k, value) for k, value in enumerate(values)))
    share = curve.share_for(rate)
    if share is None:
        assert rate > curve.maximum_rate
    else:
        assert curve.best[share] >= rate
        assert share == 0 or curve.best[share - 1] < rate


def test_a_fit_finds_the_original_terms() -> None:
    truth = ThroughputModel(fixed=0.1, compute=2.0, tree=0.0, ring=0.01)
    model = ThroughputModel.fit([(n, truth.rate(n)) for n in (1, 2, 4, 8, 16)])
    assert model.rate(64) == pytest.approx(truth.rate(64), rel=0.02)


@pytest.mark.parametrize("points", [(), ((2, 1.0), (1, 2.0)), ((1, 0.0),), ((0, 1.0),)])
def test_a_curve_that_cannot_be_is_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(SpecError):
        ScalingCurve(points=points)


def test_workers_past_the_peak_are_no_use() -> None:
    assert concave_envelope([(1, 3.0), (2, 2.0)]) == ((0.0, 0.0), (1.0, 3.0))
    assert ScalingCurve(points=((1, 3.0), (2, 2.0))).sizes == (1,)
