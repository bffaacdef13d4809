"""The knapsack of Lyra and Sia beside every combination of choices."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.policies.baselines.knapsack import Choice, choose

pytest.importorskip("highspy", reason="the solver is in the extra `simulate`")

CHOICES = st.lists(
    st.lists(st.tuples(st.integers(1, 8), st.integers(-2, 50)), min_size=1, max_size=4),
    min_size=1,
    max_size=5,
)


def _value(choices: dict[str, list[Choice]], found: dict[str, int]) -> float:
    """The most that these devices can be worth."""
    return sum(
        max(choice.value for choice in choices[job] if choice.devices == count)
        for job, count in found.items()
    )


@settings(max_examples=40, deadline=None)
@given(CHOICES, st.integers(0, 16))
def test_no_combination_is_worth_more(rows: list[list[tuple[int, int]]], capacity: int) -> None:
    choices = {f"{k}": [Choice(n, float(v)) for n, v in row] for k, row in enumerate(rows)}
    found = choose(choices, capacity=capacity)
    assert sum(found.values()) <= capacity
    best = max(
        sum(choice.value for choice in combination)
        for combination in itertools.product(*([Choice(0, 0.0), *row] for row in choices.values()))
        if sum(choice.devices for choice in combination) <= capacity
    )
    assert _value(choices, found) == pytest.approx(best)
    assert choose(dict(reversed(choices.items())), capacity=capacity) == found


def test_no_job_has_more_than_one_choice() -> None:
    choices = {"a": [Choice(1, 5.0), Choice(2, 6.0)], "b": [Choice(4, 1.0)]}
    assert choose(choices, capacity=3) == {"a": 2}
