from __future__ import annotations

import pytest

from brim.domain.measuring import Measured, curve_of, gain_of_one_more


def test_new_steps_count_more_than_old_ones() -> None:
    measured = Measured()
    for seconds in [1.0] * 2000 + [0.5] * 2000:
        measured.add(2, seconds)
    assert measured.rates[2] == pytest.approx(2.0, rel=0.1)


def test_process_measurements_count_by_worker() -> None:
    measured = Measured({2: (9.0, 9.0), 3: (9.0, 6.0), 4: (9.0, 4.5)})
    assert measured.of_each(1) is measured
    assert measured.of_each(2).rates == {1: 1.0, 2: 2.0}  # a third came later than the fourth


def test_a_handful_of_steps_says_nothing_yet() -> None:
    measured = Measured()
    for _ in range(4):
        measured.add(1, 1.0)
    assert measured.rates == {}
    measured.add(1, 1.0)
    assert measured.rates == {1: pytest.approx(1.0)}


def test_own_measurements_override_learned_ones() -> None:
    own_measurement, learned = (
        Measured({1: (10.0, 10.0)}),
        Measured({1: (10.0, 5.0), 2: (10.0, 4.0)}),
    )
    assert own_measurement.merged([learned]).rates == {1: 1.0, 2: 2.5}


def test_few_steps_do_not_hide_learned_rates() -> None:
    own_measurement, learned = (
        Measured({1: (2.0, 9.0), 2: (4.0, 4.0)}),
        Measured({1: (10.0, 5.0), 2: (3.0, 9.0)}),
    )
    assert own_measurement.merged([learned]).totals == {1: (10.0, 5.0), 2: (4.0, 4.0)}


def test_a_new_model_is_assumed_to_scale() -> None:
    curve = curve_of({}, parts=8, minimum=1, maximum=8)
    assert curve.peak == 8
    assert 5.0 < curve.rates[8] / curve.rates[1] < 8.0


def test_workers_without_equal_micro_batches_add_nothing() -> None:
    curve = curve_of({2: 10.0}, parts=8, minimum=1, maximum=8)
    assert curve.sizes == (1, 2, 3, 4, 8)  # a policy goes from 4 to 8
    assert curve.peak == 8
    assert curve_of({2: 10.0}, parts=8, minimum=1, maximum=7).peak == 4
    assert curve_of({2: 10.0}, parts=0, minimum=1, maximum=7).peak == 7


def test_a_curve_goes_through_what_was_measured() -> None:
    rates = {1: 10.0, 2: 18.0, 4: 24.0}
    curve = curve_of(rates, parts=8, minimum=1, maximum=4)
    assert {n: curve.rates[n] for n in rates} == rates
    slower = curve_of({1: 10.0, 2: 18.0, 4: 12.0}, parts=8, minimum=1, maximum=4)
    assert slower.peak == 2  # more workers than processors


def test_sizes_below_the_gang_do_not_exist() -> None:
    curve = curve_of({1: 10.0, 4: 30.0}, parts=8, minimum=2, maximum=4)
    assert curve.sizes == (2, 3, 4)
    assert curve.rates[1] == 0.0


def test_large_jobs_have_points_at_powers_of_two() -> None:
    curve = curve_of({3: 10.0}, parts=0, minimum=3, maximum=100)
    assert curve.sizes == (3, 4, 8, 16, 32, 64, 100)


def test_stalls_are_ignored_but_slowdowns_believed_soon() -> None:
    measured = Measured()
    for _ in range(50):
        measured.add(4, 0.1)
    measured.add(4, 10.0)  # somebody stopped the master
    assert measured.rates[4] == pytest.approx(10.0, rel=0.05)
    for _ in range(100):
        measured.add(4, 1.0)
    assert measured.rates[4] < 2.0


def test_workers_without_a_micro_batch_add_no_speed() -> None:
    """Promises broke by it: a plan on 6 workers was believed to be half as fast again as on 4."""
    curve = curve_of({1: 1.0, 2: 1.9, 4: 3.5, 5: 3.6, 8: 6.0}, parts=8, minimum=1, maximum=8)
    assert curve.sizes == (1, 2, 3, 4, 8)
    assert curve.rates[4:] == (3.5, 3.5, 3.5, 3.5, 6.0)
    assert curve.floor == (0, 1, 2, 3, 4, 4, 4, 4, 8)
    assert curve_of({1: 1.0, 8: 6.0}, parts=0, minimum=1, maximum=8).rates[6] > curve.rates[4]


@pytest.mark.parametrize("parts", [0, 8])
def test_slowdowns_imply_no_infinite_speed_below(
    parts: int,
) -> None:
    curve = curve_of({2: 10.0, 4: 5.0}, parts=parts, minimum=1, maximum=8)
    assert curve.rates[1] == 10.0
    assert max(curve.rates) == 10.0
    assert gain_of_one_more({2: 10.0, 4: 5.0}, parts=parts, workers=2) == 0.0
