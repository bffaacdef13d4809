"""Waiting: when a wait is spoken of, when it ends, and whose fault it is."""

from __future__ import annotations

import pytest

from brim.coordination.job.waits import Doing, Hangs, Hung, Overdue, Waits

STEP = Doing(kind="step", words="in step 3", step=3, round=1)
START = Doing(kind="start", words="starting", at_least=300.0)


def looks(waits: Waits, *times: float) -> list[str]:
    """The messages at these times: the kind and the seconds."""
    return [
        f"{now:g} {type(found).__name__} {found.who} {found.seconds:g}"
        for now in times
        for found in waits.look(now=now)
    ]


def test_waits_are_reported_at_growing_intervals() -> None:
    waits = Waits(limit=None)
    waits.expect("w1", STEP, now=0.0)
    every_second = (float(now) for now in range(100))
    assert looks(waits, *every_second) == [
        "8 Overdue w1 8",
        "16 Overdue w1 16",
        "32 Overdue w1 32",
        "64 Overdue w1 64",
    ]


def test_habitually_slow_steps_are_not_reported() -> None:
    waits = Waits(limit=None)
    waits.expect("w1", STEP, now=0.0)
    assert waits.done("w1", now=60.0) is False
    waits.expect("w2", STEP, now=60.0)
    waits.expect("w3", Doing(kind="sum", words="adding up"), now=60.0)
    assert looks(waits, 119.0) == ["119 Overdue w3 59"]
    assert looks(waits, 180.0) == ["180 Overdue w2 120", "180 Overdue w3 120"]


def test_who_comes_on_is_late_no_more() -> None:
    waits = Waits(limit=20.0)
    waits.expect("w1", STEP, now=0.0)
    assert looks(waits, 8.0) == ["8 Overdue w1 8"]
    assert waits.is_late("w1")
    assert waits.moved("w1", now=10.0) is True
    assert not waits.is_late("w1")
    assert looks(waits, 20.0, 29.0) == []
    assert looks(waits, 30.0) == ["30 Hung w1 20"]


def test_a_hang_is_reported_once_and_ends_waiting() -> None:
    waits = Waits(limit=5.0)
    waits.expect("w2", STEP, now=0.0)
    waits.expect("w1", STEP, now=0.0)
    assert waits.look(now=5.0) == [Hung("w1", STEP, 5.0), Hung("w2", STEP, 5.0)]
    assert waits.look(now=6.0) == []
    assert waits.moved("w1", now=7.0) is False


def test_a_start_has_time_for_reading_data() -> None:
    waits = Waits(limit=1.0)
    waits.expect("w1", START, now=0.0)
    assert waits.look(now=299.0) == [Overdue("w1", START, 299.0, 300.0)]
    assert looks(waits, 300.0) == ["300 Hung w1 300"]


def test_unobserved_time_counts_against_nobody() -> None:
    waits = Waits(limit=5.0)
    waits.expect("w1", STEP, now=0.0)
    waits.pause(100.0)
    assert waits.look(now=104.0) == []
    assert looks(waits, 105.0) == ["105 Hung w1 5"]


def test_who_is_gone_is_not_waited_for() -> None:
    waits = Waits(limit=1.0)
    waits.expect("w1", STEP, now=0.0)
    waits.forget("w1")
    assert waits.look(now=100.0) == []
    assert waits.done("w1", now=100.0) is False


@pytest.mark.parametrize(
    ("hangs", "are_second"),
    [
        ([(3, 1)], [False]),
        ([(3, 1), (3, 1)], [False, False]),  # they hung together
        ([(3, 1), (3, 2)], [False, True]),
        ([(3, 1), (4, 2), (3, 3)], [False, False, True]),
        ([(3, 1), (4, 2)], [False, False]),
    ],
)
def test_twice_in_the_same_step_is_the_users(
    hangs: list[tuple[int, int]], are_second: list[bool]
) -> None:
    hangs_seen = Hangs()
    assert [hangs_seen.is_second(step=step, round=round) for step, round in hangs] == are_second
