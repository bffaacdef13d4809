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
