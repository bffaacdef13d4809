"""A network's share of the sum of a step, and how long it keeps the memory for it."""

from __future__ import annotations

import weakref

import pytest
import torch

from brim.train.exchange import contribution
from brim.train.exchange.contribution import Contributions


@pytest.mark.parametrize(("limit", "is_kept"), [(0, False), (1 << 20, True)])
def test_large_gradients_live_until_the_update(
    monkeypatch: pytest.MonkeyPatch, limit: int, is_kept: bool
) -> None:
    monkeypatch.setattr(contribution, "READY_BYTES", limit)
    model = torch.nn.Linear(8, 1)
    contributions = Contributions(model)
    total = contributions.no_contribution()
    total[-1][:2] = 1  # both parameters were used
    total[0].fill_(3)
    contributions.put_back(total, contributions.outcome(total), shared=True)
    gradient = model.weight.grad
    assert gradient is not None
    assert gradient.eq(3).all()
    assert gradient.data_ptr() != total[0].data_ptr()
    alive = weakref.ref(gradient)
    del gradient
    contributions.clear()
    assert (alive() is not None) == is_kept


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_loss_by_value_has_the_same_bits(dtype: torch.dtype) -> None:
    contributions = Contributions(torch.nn.Linear(2, 1))

    def weighed(loss: torch.Tensor | float, weight: float) -> torch.Tensor:
        taken = contributions.take(weight, [loss], stop=False, due=False)
        return taken[len(contributions.parameters)]

    numbers = torch.randn(30, generator=torch.Generator().manual_seed(0)).exp()
    special_numbers = torch.tensor([0.0, -0.0, float("inf"), float("nan")])
    for loss in torch.cat([numbers, special_numbers]).to(dtype):
        for weight in (1.0, 1 / 8, 1 / 3, 0.1):
            by_tensor, by_value = weighed(loss.reshape(1), weight), weighed(loss.item(), weight)
            assert by_tensor.dtype == by_value.dtype == torch.float64
            assert by_tensor.shape == by_value.shape == (1,)
            assert torch.equal(by_tensor.view(torch.int64), by_value.view(torch.int64))


def test_shared_marks_are_read_like_others() -> None:
    model = torch.nn.Linear(2, 1)
    contributions = Contributions(model)
    model(torch.ones(1, 2)).sum().backward()
    total = contributions.take(1.0, [0.5], stop=False, due=False)
    known = contributions.outcome(total)
    assert known.used == (True, True)
    assert contributions.outcome([tensor.clone() for tensor in total]) == known
