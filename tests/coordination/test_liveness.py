"""Silence makes a member suspect, then lost."""

import math

import pytest

from brim.coordination.job.liveness import Liveness


@pytest.mark.parametrize(
    ("now", "suspect", "lost"),
    [
        (10.0, [], []),
        (12.0, [], []),
        (12.1, ["a"], []),
        (14.0, ["a"], []),
        (14.1, ["a", "b"], ["a"]),
    ],
)
def test_silence(now: float, suspect: list[str], lost: list[str]) -> None:
    liveness = Liveness(timeout=4.0)
    liveness.beat("b", now=12.0)
    liveness.beat("a", now=10.0)
    assert (liveness.suspect(now=now), liveness.lost(now=now)) == (suspect, lost)


def test_who_was_heard_first_is_lost_first() -> None:
    liveness = Liveness(timeout=4.0)
    assert liveness.time_left(now=10.0) == math.inf
    liveness.beat("b", now=12.0)
    liveness.beat("a", now=10.0)
    assert (liveness.time_left(now=13.0), liveness.time_left(now=15.0)) == (1.0, -1.0)


def test_a_heartbeat_revives_and_forgotten_members_are_ignored() -> None:
    liveness = Liveness(timeout=4.0)
    liveness.beat("b", now=0.0)
    liveness.beat("a", now=0.0)
    assert liveness.lost(now=5.0) == ["a", "b"]
    liveness.beat("a", now=5.0)
    liveness.forget("b")
    liveness.forget("never seen")
    assert liveness.lost(now=6.0) == []
