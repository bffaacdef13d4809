"""Ids and rows by numpy and torch: the same as torch alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brim.embeddings.tables.kernels import distinct_of, gather, put


@given(
    ids=st.lists(st.sampled_from([0, 1, 2, 7, 40_000, (1 << 20) - 1, 1 << 20, 1 << 40, -1])),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    folded=st.booleans(),
)
def test_distinct_ids_and_places_are_those_of_torch(
    ids: list[int], dtype: torch.dtype, folded: bool
) -> None:
    largest = torch.iinfo(dtype).max
    given_ids = torch.tensor([min(number, largest) for number in ids], dtype=dtype)
    if folded and len(ids) % 2 == 0:
        given_ids = given_ids.view(2, -1).T
    distinct, places = distinct_of(given_ids)
    expected, expected_places = torch.unique(given_ids, return_inverse=True)
    assert torch.equal(distinct, expected)
    assert torch.equal(distinct[places.long()], given_ids)
    assert torch.equal(places.long(), expected_places)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("spread", [1, 50, 95, 96, 97, 5_000])
def test_few_distant_ids_are_found_alike(spread: int, dtype: torch.dtype) -> None:
    ids = torch.arange(100, dtype=dtype).flip(0).repeat(2) * 2 * spread
    distinct, places = distinct_of(ids)
    assert torch.equal(distinct, torch.arange(100, dtype=dtype) * 2 * spread)
    assert torch.equal(places, torch.arange(100, dtype=dtype).flip(0).repeat(2))


def test_a_single_id_has_a_place() -> None:
    distinct, place = distinct_of(torch.tensor(5))
    assert distinct.tolist() == [5]
    assert place.shape == ()
    assert place == 0


@pytest.mark.parametrize("shape", [(9, 1), (9, 5), (9,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_rows_are_copied_from_and_to_places(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rows = (torch.rand(shape) * 100).to(dtype)
    rows_before, places = rows.clone(), torch.tensor([8, 0, 3])
    target = torch.empty_like(rows[:3])
    gather(rows, places, target)
    assert torch.equal(target, rows_before[places])
    put(rows, places, target + 1)
    assert torch.equal(rows, rows_before.index_copy(0, places, target + 1))
    nowhere = places[:0]
    gather(rows, nowhere, target[:0])
    put(rows, nowhere, target[:0])
    assert torch.equal(rows, rows_before.index_copy(0, places, target + 1))


@pytest.mark.parametrize("place", [-1, 9])
def test_a_place_that_is_not_there_changes_nothing(place: int) -> None:
    rows = torch.rand(9, 4)
    rows_before, places = rows.clone(), torch.tensor([1, place])
    with pytest.raises(IndexError, match="of 9 rows"):
        put(rows, places, torch.zeros(2, 4))
    with pytest.raises(IndexError, match="of 9 rows"):
        gather(rows, places, torch.zeros(2, 4))
    assert torch.equal(rows, rows_before)
