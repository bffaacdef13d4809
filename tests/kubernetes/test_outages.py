"""The time in which an API server could not be seen, as its clients tell it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.host.clock import VirtualClock
from brim.kubernetes.client.outages import Outages, SeenClock

MOMENT = 1.0


def test_one_failing_request_is_no_outage() -> None:
    outages = Outages()
    outages.answered(10.0)
    outages.unanswered(sent=5.0)
    assert outages.unseen(20.0) == 0.0
    outages.unanswered(sent=11.0)
    assert outages.unseen(20.0) == 9.0
    outages.unanswered(sent=15.0)
    outages.answered(21.0)
    assert outages.unseen(60.0) == 10.0 + MOMENT


def test_seconds_that_are_noticed_late_count_once() -> None:
    outages = Outages()
    outages.miss("pods", missing_since=10.0)
    outages.find("pods", 20.0)
    outages.unanswered(sent=5.0)  # its time has been over for long
    assert outages.unseen(25.0) == 10.0 + MOMENT + 5.0


def test_an_operator_begins_with_its_absence() -> None:
    outages = Outages()
    outages.unanswered(sent=1.0)  # while it waited for its Lease
    outages.begin(50.0, before=70.0)
    assert outages.unseen(60.0) == 70.0


def test_nodes_are_doubted_after_long_outages() -> None:
    outages = Outages()
    outages.miss("pods", missing_since=10.0)
    assert not outages.doubts(30.0)
    outages.find("pods", 30.0)
    assert not outages.doubts(30.0)
    outages.miss("pods", missing_since=40.0)
    outages.miss("nodes", missing_since=41.0)
    assert outages.doubts(70.0)
    outages.find("pods", 70.0)
    outages.find("nodes", 71.0)
    assert [outages.doubts(moment) for moment in (71.0, 110.0, 112.0)] == [True, True, False]
    outages.begin(200.0, before=15.0)  # as another operator takes over
    assert not outages.doubts(200.0)
    outages.begin(300.0, before=70.0)
    assert outages.doubts(300.0)


def test_the_clock_of_seen_time_is_monotonic() -> None:
    clock, outages = VirtualClock(start=100.0), Outages()
    seen = SeenClock(clock, outages)
    assert seen.now() == 100.0
    clock.advance(5.0)
    assert seen.now() == 105.0
    outages.miss("pods", missing_since=102.0)  # it is noticed now
    assert seen.now() == 105.0
    clock.advance(50.0)
    assert seen.now() == 105.0
    outages.find("pods", clock.now())
    clock.advance(3.0 + MOMENT + 2.0)
    assert seen.now() == 107.0
    assert seen.wall() == clock.wall()


@pytest.mark.exhaustive
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from("abc"), st.booleans()), min_size=1, max_size=30
    )
)
def test_the_time_counts_in_which_anything_is_missing(
    steps: list[tuple[int, str, bool]],
) -> None:
    outages, now, expected = Outages(), 0, 0.0
    missing: Mapping[str, bool] = {}
    for wait, source, is_missing in steps:
        now += wait
        expected += wait if any(missing.values()) else 0
        was_missing = any(missing.values())
        if is_missing:
            outages.miss(source, missing_since=now)
        else:
            outages.find(source, now)
        missing = {**missing, source: is_missing}
        expected += MOMENT if was_missing and not any(missing.values()) else 0
        assert outages.unseen(now) == expected
