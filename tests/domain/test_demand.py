"""The demand of a service is foreseen before it comes, and not far beyond it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from brim.domain.demand import Past, foresee

WIDTH = 5.0


def past_of(load: Callable[[float], float], seconds: float, *, season: float = 86_400.0) -> Past:
    past = Past(width=WIDTH, season=season)
    for bucket in range(round(seconds / WIDTH)):
        past.add(bucket * WIDTH, load(bucket * WIDTH))
    return past


def test_a_constant_load_is_foreseen_as_it_is() -> None:
    assert foresee(past_of(lambda _: 40.0, 600), 599.0, 20.0) == pytest.approx(40.0)


def test_a_rise_goes_on() -> None:
    past = past_of(lambda second: 10.0 + second / 5.0, 300)
    foreseen = foresee(past, 299.0, 20.0)
    assert foreseen is not None
    assert 10.0 + 299.0 / 5.0 < 10.0 + 319.0 / 5.0 <= foreseen + 1.0 < 80.0


def test_a_fall_is_not_trusted() -> None:
    past = past_of(lambda second: 100.0 - second / 5.0, 300)
    foreseen = foresee(past, 299.0, 20.0)
    assert foreseen is not None
    assert foreseen >= 100.0 - 299.0 / 5.0


def test_noise_is_covered() -> None:
    rng, width = random.Random(5), 1.0
    past, late, looks = Past(width=width), 0, 0
    loads = [rng.gauss(100.0, 10.0) for _ in range(900)]
    for second, load in enumerate(loads):
        past.add(float(second), load)
        if second > 200:
            foreseen = foresee(past, second + 0.5, 5.0)
            assert foreseen is not None
            late += max(loads[second + 1 : second + 6], default=0.0) > foreseen
            looks += 1
    assert 0.02 < late / looks < 0.15  # a tenth: more would be dear


def test_what_came_yesterday_is_foreseen_today() -> None:
    day = 1_200.0

    def load(second: float) -> float:  # it triples within one look
        return 90.0 if second % day >= 600.0 else 30.0

    earlier_past, today = past_of(load, 595.0, season=day), past_of(load, day + 595.0, season=day)
    assert foresee(earlier_past, 594.0, 20.0) == pytest.approx(30.0)
    assert foresee(today, day + 594.0, 20.0) == pytest.approx(90.0)


def test_yesterdays_factor_counts_on_a_calm_day() -> None:
    day = 1_200.0

    def load(second: float) -> float:
        return (3.0 if second % day >= 600.0 else 1.0) * (10.0 if second >= day else 30.0)

    assert foresee(past_of(load, day + 595.0, season=day), day + 594.0, 20.0) == pytest.approx(30.0)


@pytest.mark.parametrize("quiet", [31.0, 86_400.0 * 10])
def test_nothing_is_foreseen_of_nothing(quiet: float) -> None:
    past = past_of(lambda _: 10.0, 100)
    assert foresee(Past(), 0.0, 10.0) is None
    assert foresee(past, 100.0 + quiet, 20.0) is None


def test_a_clock_that_goes_back_changes_nothing() -> None:
    past = past_of(lambda _: 10.0, 100)
    earlier_past = list(past.buckets())
    past.add(20.0, 1_000.0)
    assert list(past.buckets()) == earlier_past


@pytest.mark.parametrize("load", [math.nan, math.inf, 1e308, -1.0])
def test_what_is_no_load_is_left_out(load: float) -> None:
    past = past_of(lambda _: 10.0, 100)
    past.add(102.0, load)
    assert foresee(past, 103.0, 5.0) == pytest.approx(10.0)


def test_a_week_is_remembered_and_no_more() -> None:
    past = Past(width=10.0, season=100.0)
    for bucket in range(1_000):
        past.add(bucket * 10.0, float(bucket))
    found = list(past.buckets())
    assert found[-1] == (9_990.0, 999.0)
    assert 70 <= len(found) <= 80
    past.add(1e9, 5.0)  # months later
    assert list(past.buckets()) == [(1e9, 5.0)]


def test_a_gap_is_no_load_of_zero() -> None:
    past = past_of(lambda _: 40.0, 100)
    for second in range(115, 140, 5):  # nobody measured for three buckets
        past.add(float(second), 40.0)
    assert foresee(past, 139.0, 20.0) == pytest.approx(40.0)
