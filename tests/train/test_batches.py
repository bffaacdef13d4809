"""One way to get a batch from any map-style dataset."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from brim.data import Batched, Tensors, fetch

INDICES = np.array([4, 0, 0])


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], int]:
        return {"x": torch.tensor([float(index)])}, index * index


def test_a_plain_dataset_is_collated_as_torch_collates() -> None:
    inputs, target = fetch(Squares(), INDICES)
    assert inputs["x"].tolist() == [[4.0], [0.0], [0.0]]
    assert target.tolist() == [16, 0, 0]


def test_torch_s_own_batched_items_are_used() -> None:
    _, target = fetch(Subset(Squares(), [0, 1, 2, 3, 4]), INDICES)
    assert target.tolist() == [16, 0, 0]


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array])
def test_samples_of_any_sequence_are_collated(kind: Callable[[list[list[float]]], Any]) -> None:
    class Pairs(Squares):
        def __getitems__(self, indices: list[int]) -> Any:
            return kind([[float(index), 1.0] for index in indices])

    batch = fetch(Pairs(), INDICES)
    first = batch[:, 0] if isinstance(batch, torch.Tensor) else batch[0]
    assert isinstance(first, torch.Tensor)
    assert first.tolist() == [4.0, 0.0, 0.0]


def test_a_take_of_another_meaning_is_left_alone() -> None:
    class FirstRows(Subset[Any]):
        def take(self, count: int) -> list[object]:
            raise AssertionError("not what is meant")

    _, target = fetch(FirstRows(Squares(), [0, 1, 2, 3, 4]), INDICES)
    assert target.tolist() == [16, 0, 0]


def test_a_tensor_dataset_is_gathered_at_once() -> None:
    x, y = torch.arange(10.0).view(5, 2), torch.arange(5)
    inputs, target = fetch(TensorDataset(x, y), INDICES)
    assert torch.equal(inputs, x[[4, 0, 0]])
    assert target.tolist() == [4, 0, 0]


def test_tensors_are_batched_and_items_agree() -> None:
    tensors_data = Tensors(
        {"a": torch.arange(5.0), "b": torch.arange(10).view(5, 2)}, torch.arange(5)
    )
    assert isinstance(tensors_data, Batched)
    inputs, target = fetch(tensors_data, INDICES)
    assert inputs["b"].tolist() == [[8, 9], [0, 1], [0, 1]]
    assert tensors_data[4][0]["a"] == inputs["a"][0]
    assert (len(tensors_data), target.tolist()) == (5, [4, 0, 0])
    plain = Tensors(torch.arange(5.0), torch.arange(5))
    assert plain[2] == (torch.tensor(2.0), torch.tensor(2))
    assert fetch(plain, INDICES)[0].tolist() == [4.0, 0.0, 0.0]
