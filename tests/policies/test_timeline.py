"""A timeline of free devices beside one that counts them moment by moment."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.policies.promises import promised
from brim.policies.timeline import Need, Piece, Timeline
from workloads import CONCAVE

DEVICES, END = 32, 1000


def _pieces(rng: random.Random, count: int) -> list[Piece]:
    """Within the devices that there are, at whole seconds."""
    free = [DEVICES] * END
    found = []
    for _ in range(count):
        start = rng.randrange(END - 1)
        stop = rng.randrange(start + 1, min(start + 60, END) + 1)
        workers = rng.randint(1, 6)
        if min(free[start:stop]) >= workers:
            free[start:stop] = [count - workers for count in free[start:stop]]
            found.append(Piece(float(start), float(stop), workers))
    return found


def _counted(pieces: list[Piece]) -> list[int]:
    """Free devices in each second."""
    taken_by_second = [
        [piece.workers for piece in pieces if piece.start <= second < piece.stop]
        for second in range(END)
    ]
    return [DEVICES - sum(taken_workers) for taken_workers in taken_by_second]


@given(st.integers(0, 10_000), st.integers(0, 120))
def test_as_many_are_free_as_are_left(seed: int, count: int) -> None:
    rng = random.Random(seed)
    pieces = _pieces(rng, count)
    line = Timeline(now=0.0, devices=DEVICES)
    line.take(pieces, exact=True)
    free = _counted(pieces)
    for _ in range(20):
        start = rng.randrange(END - 1)
        stop = rng.randrange(start + 1, END)
        assert line.fewest_free(float(start), float(stop)) == min(free[start:stop])
    assert not line.overdrawn(0.0)
    line.give_back(pieces[::2])
    assert [
        line.fewest_free(float(second), second + 1.0) for second in range(0, END, 7)
    ] == _counted(pieces[1::2])[::7]


@given(st.integers(0, 10_000), st.integers(0, 120), st.booleans())
def test_what_fits_is_free_and_in_time(seed: int, count: int, stepped: bool) -> None:
    rng = random.Random(seed)
    line = Timeline(now=0.0, devices=DEVICES)
    line.take(_pieces(rng, count), exact=True)
    for _ in range(10):
        need = Need(
            best=CONCAVE.best, left=rng.uniform(10.0, 2000.0), begin=0.0, due=rng.uniform(20.0, 1500.0), holds=0,
            change=5.0, minimum=1, ceiling=16, floor=CONCAVE.floor if stepped else None,
        )  # fmt: skip
        pieces = line.fit(need)
        if pieces is None:
            continue
        assert all(type(piece.workers) is int for piece in pieces)  # they are written down
        assert all(line.fewest_free(piece.start, piece.stop) >= piece.workers for piece in pieces)
        assert pieces[-1].stop <= need.due
        assert promised(pieces, need, 0.0).spare == pytest.approx(
            0.0, abs=1e-6
        )  # done at their end, not before
        line.take(pieces, exact=True)
    assert not line.overdrawn(0.0)


@given(st.integers(0, 10_000), st.integers(0, 120), st.sampled_from((1.0, 1.3)))
def test_margins_are_fitted_without_copies(seed: int, count: int, slower: float) -> None:
    rng = random.Random(seed)
    line = Timeline(now=0.0, devices=DEVICES)
    line.take(_pieces(rng, count), exact=True)
    for _ in range(10):
        need = Need(
            best=CONCAVE.best, left=rng.uniform(10.0, 2000.0), begin=rng.choice((0.0, 3.0)),
            due=rng.uniform(20.0, 1500.0), holds=rng.choice((0, 4)), change=5.0, minimum=1,
            ceiling=16, floor=rng.choice((None, CONCAVE.floor)),
        )  # fmt: skip
        delay = rng.choice((0.0, 15.0))
        disturbed, share = need.disturbed(delay, slower), need.share(delay, slower)
        assert share == disturbed.share()
        if share is None:
            continue
        pieces = line.fit_from(share, need, delay=delay, slower=slower)
        assert pieces == line.fit(disturbed)
        assert pieces is None or pieces[-1].stop <= need.due
        if pieces is not None:
            line.take(pieces, exact=rng.random() < 0.5)
