"""The order of an epoch: each sample exactly once, a new order each epoch,
the same order for ever.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.order import EpochOrder

orders = st.builds(
    EpochOrder,
    seed=st.integers(-(2**63), 2**64),
    epoch=st.integers(0, 1000),
    size=st.integers(1, 3000),
    block_size=st.integers(1, 3100),
)


@given(orders)
def test_each_sample_appears_exactly_once(order: EpochOrder) -> None:
    assert sorted(order.samples(0, order.size).tolist()) == list(range(order.size))


@given(orders, st.data())
def test_any_cut_of_an_epoch_has_equal_samples(order: EpochOrder, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, order.size), max_size=5)))
    bounds = [0, *cuts, order.size]
    parts = [order.samples(a, b) for a, b in pairwise(bounds)]
    assert np.array_equal(np.concatenate(parts), order.samples(0, order.size))


@given(st.integers(), st.integers(0, 100), st.integers(20, 3000), st.integers(1, 5))
def test_epochs_differ(seed: int, epoch: int, size: int, block_size: int) -> None:
    first = EpochOrder(seed=seed, epoch=epoch, size=size, block_size=block_size)
    second = EpochOrder(seed=seed, epoch=epoch + 1, size=size, block_size=block_size)
    assert not np.array_equal(first.samples(0, size), second.samples(0, size))


@given(orders)
def test_a_block_shuffle_stays_within_one_block(order: EpochOrder) -> None:
    blocks = order.samples(0, order.size) // order.block_size
    changes = int(np.count_nonzero(np.diff(blocks)))
    assert changes == -(-order.size // order.block_size) - 1


@pytest.mark.parametrize(
    ("order", "first", "last"),
    [
        (EpochOrder(seed=0, epoch=1, size=10), [8, 1, 0, 3, 5, 2, 6, 4, 9, 7], [4, 9, 7]),
        (
            EpochOrder(seed=7, epoch=2, size=1_000_003),
            [540121, 936268, 41723, 622026],
            [598014, 609984, 200007],
        ),
        (
            EpochOrder(seed=7, epoch=2, size=10, block_size=4),
            [8, 9, 0, 2, 1, 3, 6, 7, 5, 4],
            [7, 5, 4],
        ),
        (
            EpochOrder(seed=-1, epoch=0, size=72_000, block_size=1000),
            [6110, 6007, 6323],
            [23644, 23240, 23811],
        ),
    ],
)
def test_the_order_never_changes_between_versions(
    order: EpochOrder, first: list[int], last: list[int]
) -> None:
    assert order.samples(0, len(first)).tolist() == first
    assert order.samples(order.size - len(last), order.size).tolist() == last


def test_every_permutation_of_three_is_reached() -> None:
    seen = {tuple(EpochOrder(seed=s, epoch=0, size=3).samples(0, 3).tolist()) for s in range(100)}
    assert len(seen) == 6


def test_a_position_holds_every_sample_equally_often() -> None:
    samples_seen = np.array(
        [EpochOrder(seed=s, epoch=0, size=100).samples(17, 18)[0] for s in range(2000)]
    )
    counts = np.bincount(samples_seen, minlength=100)
    chi_squared = float(((counts - 20) ** 2 / 20).sum())
    assert chi_squared < 160  # 99 degrees of freedom: exceeded with probability 1e-4


def test_sizes_beyond_32_bits() -> None:
    order = EpochOrder(seed=1, epoch=0, size=2**40 + 7)
    samples = order.samples(2**40 - 500, 2**40 + 7)
    assert len(set(samples.tolist())) == 507
    assert samples.min() >= 0
    assert samples.max() < 2**40 + 7


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 11)])
def test_positions_outside_the_epoch_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="positions"):
        EpochOrder(seed=0, epoch=0, size=10).samples(start, stop)


def test_an_empty_epoch() -> None:
    assert EpochOrder(seed=0, epoch=0, size=0).samples(0, 0).tolist() == []
    with pytest.raises(ValueError, match="block_size"):
        EpochOrder(seed=0, epoch=0, size=1, block_size=0)
    with pytest.raises(ValueError, match="size"):
        EpochOrder(seed=0, epoch=0, size=-1)
