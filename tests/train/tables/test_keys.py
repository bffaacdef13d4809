"""Ids and their keys: a bijection that spreads, and errors that name the id."""

from __future__ import annotations

import pytest
import torch

from brim.embeddings.tables.keys import check_ids, mix, unmix
from brim.errors import SpecError

LAST = (1 << 63) - 1


def ids_of_many_kinds() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    random_ids = torch.randint(0, LAST, (200_000,), generator=generator)
    powers = torch.tensor([1 << bit for bit in range(63)])
    kinds = [torch.arange(100_000), LAST - torch.arange(1_000), powers, random_ids]
    found: torch.Tensor = torch.cat(kinds).unique()
    return found


def test_keys_and_ids_map_one_to_one() -> None:
    ids = ids_of_many_kinds()
    keys = mix(ids)
    assert int(keys.min()) >= 0
    assert torch.equal(unmix(keys), ids)
    assert torch.equal(mix(unmix(ids)), ids)
    assert len(keys.unique()) == len(ids)
    assert mix(ids.view(-1, 1)).shape == (len(ids), 1)


def test_keys_never_change_between_versions() -> None:
    known_keys = [0, 2558316640067307269, 6616413020432831626, 6514504133438201533]
    assert mix(torch.tensor([0, 1, 2, LAST])).tolist() == known_keys


@pytest.mark.parametrize(
    "ids", [torch.arange(1 << 18), torch.arange(1 << 18) << 44, torch.arange(1 << 18) * 1000]
)
def test_neighbours_fall_into_all_parts_alike(ids: torch.Tensor) -> None:
    counts = torch.bincount(mix(ids) >> 57, minlength=64).double()
    assert (
        float(((counts - 4096) ** 2 / 4096).sum()) < 110
    )  # chi-square of 63 degrees: one in 5,000 is larger


def test_a_negative_id_is_named() -> None:
    with pytest.raises(SpecError, match="ids of 'user': got -7, need whole numbers from 0"):
        check_ids(torch.tensor([[3, -7], [-2, 0]]), subject="'user'")


def test_ids_are_whole_numbers() -> None:
    check_ids(torch.tensor([], dtype=torch.int32), subject="'user'")
    with pytest.raises(SpecError, match="got float32, need int64 or int32"):
        check_ids(torch.tensor([1.0]), subject="'user'")
