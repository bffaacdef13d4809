from __future__ import annotations

from brim.domain.measuring import Measured
from brim.domain.profiling import Profile, advance, sizes_to_measure

SIZES = (1, 2, 4, 8)


def measured(rates: dict[int, float], steps: int = 20) -> Measured:
    return Measured({n: (float(steps), steps / rate) for n, rate in rates.items()})


def at(size: int) -> Profile:
    """A profile that wants this size since 100 s, and may take until 160 s."""
    return Profile(size=size, since=100.0, until=160.0)


def test_a_profile_starts_with_the_first_step() -> None:
    profile = Profile(size=1)
    assert advance(profile, Measured(), SIZES, now=100.0, deadline=None) == (at(1), None)


def test_a_close_deadline_shortens_the_profile() -> None:
    profile, _ = advance(Profile(size=1), Measured(), SIZES, now=100.0, deadline=180.0)
    assert profile == Profile(size=1, since=100.0, until=108.0)
    assert advance(profile, Measured(), SIZES, now=108.0, deadline=180.0) == (
        None,
        ("not measured", "at 1 worker: the time for it is over"),
    )


def test_each_size_runs_some_steps_and_seconds() -> None:
    few_steps, short, sufficient = (
        measured({2: 1.0}, 4),
        measured({2: 20.0}, 10),
        measured({2: 12.34}),
    )
    for too_little in (few_steps, short):
        assert advance(at(2), too_little, SIZES, now=101.0, deadline=None) == (at(2), None)
    next_profile, note = advance(at(2), sufficient, SIZES, now=101.0, deadline=None)
    assert next_profile == Profile(size=4, since=101.0, until=160.0)
    assert note == ("measured", "at 2 workers: 12.3 steps/s")


def test_learned_sizes_are_not_measured_again() -> None:
    next_profile, _ = advance(
        at(1), measured({1: 2.0, 2: 3.0, 4: 5.0}), SIZES, now=101.0, deadline=None
    )
    assert next_profile == Profile(size=8, since=101.0, until=160.0)


def test_profiling_ends_with_the_last_useful_size() -> None:
    assert advance(at(8), measured({4: 5.0, 8: 6.0}), SIZES, now=101.0, deadline=None) == (
        None,
        ("measured", "at 8 workers: 6 steps/s"),
    )
    assert advance(at(4), measured({2: 5.0, 4: 5.1}), SIZES, now=101.0, deadline=None) == (
        None,
        (
            "measured",
            "at 4 workers: 5.1 steps/s, less than 5 % faster than at 5 steps/s with 2 workers",
        ),
    )
    _, note = advance(at(4), measured({2: 5.0, 4: 4.0}), SIZES, now=101.0, deadline=None)
    assert note is not None
    assert note.detail == "at 4 workers: 4 steps/s, slower than at 5 steps/s with 2 workers"


def test_unavailable_sizes_are_given_up() -> None:
    assert advance(at(4), measured({2: 5.0}), SIZES, now=119.0, deadline=None) == (at(4), None)
    next_profile, note = advance(at(4), measured({2: 5.0}), SIZES, now=121.0, deadline=None)
    assert next_profile is None
    assert note == ("not measured", "at 4 workers: none to be had, or too slow, for 20 s")


def test_sizes_double_what_they_are_worth() -> None:
    assert sizes_to_measure(parts=8, minimum=1, maximum=7) == (1, 2, 4)
    assert sizes_to_measure(parts=8, minimum=4, maximum=4) == (4,)
    assert sizes_to_measure(parts=0, minimum=1, maximum=100) == (1, 2, 4, 8, 16, 32, 64, 100)
