from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.policies.reclaim import ReclaimCandidate, give_back


@pytest.mark.parametrize(
    ("holdings", "limit", "expected"),
    [
        pytest.param([ReclaimCandidate("a", 6, 1)], 6, {"a": 6}, id="nothing to give"),
        pytest.param(
            [ReclaimCandidate("a", 6, 1), ReclaimCandidate("b", 6, 1)],
            9,
            {"a": 3, "b": 6},
            id="one gives, not two",
        ),
        pytest.param(
            [ReclaimCandidate("a", 9, 1), ReclaimCandidate("b", 4, 1)],
            10,
            {"a": 9, "b": 1},
            id="the smallest that is enough",
        ),
        pytest.param(
            [ReclaimCandidate("a", 5, 1, priority=1), ReclaimCandidate("b", 9, 1)],
            11,
            {"a": 5, "b": 6},
            id="the lower priority's surplus",
        ),
        pytest.param(
            [ReclaimCandidate("a", 8, 1, priority=1), ReclaimCandidate("b", 2, 2)],
            4,
            {"a": 2, "b": 2},
            id="shrink a high one before a low one stops",
        ),
        pytest.param(
            [ReclaimCandidate("a", 4, 4, priority=1), ReclaimCandidate("b", 4, 4)],
            4,
            {"a": 4, "b": 0},
            id="lowest priority",
        ),
        pytest.param(
            [ReclaimCandidate("a", 4, 4), ReclaimCandidate("b", 4, 4, promised=True)],
            4,
            {"a": 0, "b": 4},
            id="unpromised",
        ),
        pytest.param(
            [ReclaimCandidate("a", 4, 4, lost=90.0), ReclaimCandidate("b", 4, 4, lost=30.0)],
            4,
            {"a": 4, "b": 0},
            id="the least lost",
        ),
        pytest.param(
            [ReclaimCandidate("a", 2, 2), ReclaimCandidate("b", 2, 2), ReclaimCandidate("c", 5, 5)],
            4,
            {"a": 2, "b": 2, "c": 0},
            id="one gang for two",
        ),
        pytest.param(
            [ReclaimCandidate("a", 6, 5), ReclaimCandidate("b", 6, 2, lost=9.0)],
            6,
            {"a": 0, "b": 6},
            id="a stop spares others' surplus",
        ),
    ],
)
def test_who_gives(holdings: list[ReclaimCandidate], limit: int, expected: dict[str, int]) -> None:
    assert give_back(holdings, limit) == expected


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[ReclaimCandidate], int]:
    holdings = []
    for name in "abcdef"[: draw(st.integers(1, 6))]:
        protected = draw(st.integers(1, 6))
        holdings.append(
            ReclaimCandidate(
                name,
                protected + draw(st.integers(0, 6)),
                protected,
                draw(st.integers(0, 2)),
                draw(st.booleans()),
                draw(st.sampled_from((0.0, 10.0, 60.0))),
            )
        )
    return holdings, draw(st.integers(0, 40))


@given(cases(), st.randoms(use_true_random=False))
def test_laws(case: tuple[list[ReclaimCandidate], int], random: object) -> None:
    holdings, limit = case
    found = give_back(holdings, limit)
    by_name = {holding.job: holding for holding in holdings}
    total = sum(holding.workers for holding in holdings)
    assert sum(found.values()) <= limit or total <= limit
    for name, count in found.items():
        assert count == 0 or by_name[name].protected <= count <= by_name[name].workers, (
            "a gang or nothing"
        )
    stopped = [by_name[name] for name, count in found.items() if count == 0]
    if sum(holding.protected for holding in holdings) <= limit:
        assert not stopped, "shrink before suspend"
    spare = limit - sum(found.values())
    going = sum(by_name[name].protected for name, count in found.items() if count)
    for holding in stopped:
        assert going + holding.protected > limit, "no suspension is unneeded"
    if any(0 < count < by_name[name].workers for name, count in found.items()):
        assert spare == 0, "nobody shrinks for nothing"
    shuffled = list(holdings)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert give_back(shuffled, limit) == found


@given(cases())
def test_no_smaller_set_gives_enough(case: tuple[list[ReclaimCandidate], int]) -> None:
    holdings, limit = case
    excess = sum(holding.workers for holding in holdings) - limit
    victims = [
        holding for holding in holdings if give_back(holdings, limit)[holding.job] < holding.workers
    ]
    if not 0 < excess <= sum(holding.surplus for holding in holdings):
        # only where shrinking is enough: among suspensions the priority comes before the number
        return
    for size in range(len(victims)):
        for combination in itertools.combinations(holdings, size):
            assert sum(holding.surplus for holding in combination) < excess
