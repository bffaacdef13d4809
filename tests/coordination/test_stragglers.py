"""Shares follow speed where that pays, soon; never for noise, and never to and fro."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.coordination.job.reduction import even_shares
from brim.coordination.job.stragglers import (
    Advice,
    Bottleneck,
    Load,
    Stragglers,
    Uneven,
    best_shares,
    least_time,
)

Pace = Callable[[int, int], float]  # (step, rank) -> seconds per micro-batch


def watch(
    pace: Pace, *, parts: int = 8, world: int = 4, steps: int = 400, other: float = 0.004
) -> Iterator[tuple[int, Advice, tuple[int, ...]]]:
    """A job that takes all advice: its time, the advice, and the shares from then on."""
    stragglers, shares, round = Stragglers(), even_shares(parts, world), 1
    for step in range(steps):
        loads = [
            Load(f"w{rank}", share, share * pace(step, rank)) for rank, share in enumerate(shares)
        ]
        for advice in stragglers.committed(round, loads, other_seconds=other):
            if isinstance(advice, Uneven):
                shares, round = best_shares(parts, [pace for _, pace in advice.paces]), round + 1
            yield step, advice, shares


@pytest.mark.parametrize(
    ("times", "parts", "world", "want"),
    [
        # times as slow, micro-batches, workers, the shares that follow (none: it would not pay)
        (1.0, 8, 4, None),
        (1.5, 8, 4, None),  # 3 of the fast one's micro-batches take as long as 2 of the slow one's
        (1.8, 8, 4, (3, 2, 2, 1)),
        (3.0, 8, 4, (3, 2, 2, 1)),
        (3.0, 64, 4, (20, 19, 19, 6)),
        (1.1, 64, 4, None),  # 5 %
        (1.3, 64, 4, (17, 17, 17, 13)),
        (3.0, 8, 2, (6, 2)),
        (9.0, 8, 8, None),  # one each already
    ],
)
def test_one_slow_worker(
    times: float, parts: int, world: int, want: tuple[int, ...] | None
) -> None:
    def pace(step: int, rank: int) -> float:
        return 0.02 * (times if rank == world - 1 else 1.0)

    advices = [
        advice for advice in watch(pace, parts=parts, world=world) if isinstance(advice[1], Uneven)
    ]
    assert [shares for _, _, shares in advices] == ([] if want is None else [want])
    if want is not None:
        step, advice, _ = advices[0]
        assert step < 100
        assert advice == Uneven(
            paces=tuple((f"w{rank}", pace(0, rank)) for rank in range(world)),
            cause=f"w{world - 1} is {times:.1f} times slower",
        )


def test_a_slowdown_within_a_step_is_judged_afterwards() -> None:
    def pace(step: int, rank: int) -> float:
        times = 1.0 if step < 40 else 1.4 if step == 40 else 3.0
        return 0.02 * (times if rank == 3 else 1.0)

    (single_advice,) = watch(pace, parts=32)
    step, advice, shares = single_advice
    assert isinstance(advice, Uneven)
    assert advice.cause == "w3 is 3.0 times slower"
    assert (step < 40 + 45, shares) == (True, (10, 10, 9, 3))


def test_faster_steps_need_more_of_them() -> None:
    def first(pace: float) -> int:
        return next(watch(lambda _, rank: pace * (3 if rank == 0 else 1), steps=5000, other=0.0))[0]

    assert first(1.0) < 50 < first(0.002) < first(0.001)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("parts", "world", "seed"), list(product((8, 64), (2, 3, 4), range(4))))
def test_noise_moves_nothing(parts: int, world: int, seed: int) -> None:
    """A third of all micro-batches take up to five times as long, as where more workers than cores
    compute.
    """
    rng = random.Random(seed)

    def pace(step: int, rank: int) -> float:
        return (
            0.01 * rng.lognormvariate(0, 0.15) * (rng.uniform(1, 5) if rng.random() < 0.33 else 1.0)
        )

    assert not list(watch(pace, parts=parts, world=world, steps=3000))


def test_a_stall_is_no_pace() -> None:
    assert not list(
        watch(lambda step, rank: 0.5 if rank == 1 and step % 20 < 6 else 0.01, steps=2000)
    )


def test_a_worker_that_recovers_gets_its_share_back() -> None:
    advices = list(watch(lambda step, rank: 0.06 if rank == 3 and step < 200 else 0.02, steps=1000))
    assert [shares for _, _, shares in advices] == [(3, 2, 2, 1), (2, 2, 2, 2)]
    assert advices[1][1] == Uneven(
        paces=tuple((f"w{rank}", 0.02) for rank in range(4)), cause="all are equally fast again"
    )


@pytest.mark.exhaustive
def test_shares_cannot_swing() -> None:
    """A pace that follows every change out of spite: each change costs it twice as much as the one
    before.
    """

    def pace(step: int, rank: int) -> float:
        return 0.06 if step // 60 % 2 == rank else 0.02

    turns = [step for step, _, _ in watch(pace, world=2, steps=20_000)]
    assert 1 <= len(turns) <= 6


@pytest.mark.parametrize(
    ("times", "world", "want"),
    [(10.0, 2, None), (20.0, 2, (20.0, 20 / 8)), (3.0, 4, None), (30.0, 4, (30.0, 10.0))],
)
def test_who_is_far_too_slow_is_named_once(
    times: float, world: int, want: tuple[float, float] | None
) -> None:
    bottlenecks = [
        advice
        for _, advice, _ in watch(
            lambda _, rank: 0.02 * (times if rank == 1 else 1), world=world, other=0.0
        )
        if isinstance(advice, Bottleneck)
    ]
    assert [
        (bottleneck.worker, round(bottleneck.times, 3), round(bottleneck.speedup, 3))
        for bottleneck in bottlenecks
    ] == ([] if want is None else [("w1", *want)])


def test_lone_or_idle_workers_share_nothing() -> None:
    assert not list(watch(lambda step, rank: float(step), world=1))
    stragglers = Stragglers()
    for _ in range(100):
        assert not stragglers.committed(
            1, [Load("w1", 8, 1.0), Load("w2", 0, 0.0)], other_seconds=0.0
        )


@given(parts=st.integers(1, 12), paces=st.lists(st.floats(0.1, 50), min_size=1, max_size=3))
def test_no_other_shares_are_done_sooner(parts: int, paces: list[float]) -> None:
    parts = max(parts, len(paces))
    best = best_shares(parts, paces)
    assert sum(best) == parts
    assert min(best) >= 1
    alternatives = (
        shares for shares in product(range(1, parts + 1), repeat=len(paces)) if sum(shares) == parts
    )
    soonest = min(max(p * s for p, s in zip(paces, shares, strict=True)) for shares in alternatives)
    assert max(p * s for p, s in zip(paces, best, strict=True)) == soonest
    assert least_time(paces, parts) <= soonest * (1 + 1e-12)
