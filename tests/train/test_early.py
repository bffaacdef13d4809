"""Sums that go out during the backward pass have the bits of those that wait for its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from brim.coordination.job.reduction import blocks_of
from brim.train.exchange.accumulate import Accumulator
from brim.train.exchange.contribution import Contributions
from brim.train.exchange.early import EarlySums
from brim.train.exchange.layout import Layout

PARTS = 8


class Network(nn.Module):
    """Layers, of which one is used twice, one has no gradient in some passes, and one norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(9, 9), nn.Linear(9, 9), nn.Linear(9, 1)
        self.norm, self.seldom = nn.BatchNorm1d(9), nn.Linear(9, 9)
        self.passes = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        hidden = self.twice(self.norm(self.first(inputs)).relu())
        if self.passes % 3 == 0:
            hidden = hidden + self.seldom(hidden)
        return self.last(self.twice(hidden)).sum()  # type: ignore[no-any-return]


class Reentrant(Network):
    """The same, whose backward pass adds to a gradient several times."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = checkpoint(self.twice, self.first(inputs), use_reentrant=True)
        return self.last(self.twice(hidden)).sum()  # type: ignore[no-any-return]


def nothing(_: Network) -> None: ...


def changes_late(network: Network) -> None:
    """A hook that changes a gradient which has been given away already."""

    def halve(_: Tensor) -> None:
        grad = network.last.weight.grad
        if grad is not None:
            grad *= 0.5

    network.first.weight.register_post_accumulate_grad_hook(halve)


def replaces_late(network: Network) -> None:
    """A hook that puts another tensor in place of a gradient."""

    def replace(_: Tensor) -> None:
        if network.last.weight.grad is not None:
            network.last.weight.grad = network.last.weight.grad * 0.5

    network.first.weight.register_post_accumulate_grad_hook(replace)


def block_of(
    kind: type[Network], hooks: Callable[[Network], None], micros: range, *, early: bool
) -> tuple[list[Tensor], list[int], bool]:
    """The rows that a rank leaves, how many pieces it said are ready, and whether it was void."""
    torch.manual_seed(0)
    network = kind()
    hooks(network)
    contributions = Contributions(network)
    layout = Layout(contributions.like, gradients=len(contributions.parameters))
    rows = {
        block: layout.views(torch.zeros(layout.row_bytes, dtype=torch.uint8))
        for block in blocks_of(micros, PARTS)
    }
    accumulator, void = Accumulator(PARTS, list(rows), rows), False
    ready_pieces: list[int] = []
    sums = EarlySums(contributions.parameters, layout.pieces(128), accumulator, ready_pieces.append)
    for step in range(3):
        accumulator.begin()
        contributions.begin()
        for micro in micros:
            contributions.reset()
            torch.manual_seed(100 * step + micro)
            loss = network(torch.randn(4, 9))
            if early and micro == micros[-1]:
                with sums.in_backward():
                    loss.backward()
                void = sums.settle() or void
            else:
                loss.backward()
            gradients = contributions.take(
                1 / PARTS, [loss.detach().reshape(1)], stop=False, due=False
            )
            accumulator.add(micro, gradients)
    return [tensor_of_row for row in rows.values() for tensor_of_row in row], ready_pieces, void


@pytest.mark.parametrize("micros", [range(1), range(3, 4), range(8), range(2, 4), range(1, 7)])
@pytest.mark.parametrize(
    ("kind", "hooks", "is_void"),
    [
        (Network, nothing, False),
        (Reentrant, nothing, True),
        (Network, changes_late, True),
        (Network, replaces_late, True),
    ],
)
def test_bits_ignore_the_time_of_sums(
    kind: type[Network], hooks: Callable[[Network], None], is_void: bool, micros: range
) -> None:
    late, _, _ = block_of(kind, hooks, micros, early=False)
    early, ready_pieces, void = block_of(kind, hooks, micros, early=True)
    assert all(torch.equal(a, b) for a, b in zip(early, late, strict=True))
    assert void == is_void
    assert ready_pieces or kind is Reentrant, "nothing went out early"
