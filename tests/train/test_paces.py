"""Owners that are slower get fewer rows, and all owners cut a step alike."""

from __future__ import annotations

import torch

from brim.embeddings.paces import Paces


def steps(count: int, owners: list[Paces], a_row: list[float]) -> float:
    """Let each owner take so many seconds for each row, of 1,000 in a step; seconds of the slowest
    in the last one.
    """
    slowest = 0.0
    for _ in range(count):
        for owner in owners:
            owner.look()
        assert len({tuple(owner.parts) for owner in owners}) == 1
        took = [1000 * part * pace for part, pace in zip(owners[0].parts, a_row, strict=True)]
        for owner, seconds in zip(owners, took, strict=True):
            owner.took(seconds)
        slowest = max(took)
    return slowest


def test_slow_owners_get_less() -> None:
    shared = torch.zeros(512, dtype=torch.float64)
    owners = [Paces(shared, 2, owner) for owner in range(2)]
    assert steps(10, owners, [0.001, 0.001]) == 0.5
    assert steps(60, owners, [0.004, 0.001]) < 1.0  # in even parts 2.0
    assert owners[0].parts[0] < 0.25
    assert abs(sum(owners[0].parts) - 1) < 1e-9
    steps(60, owners, [0.001, 0.001])
    assert 0.4 < owners[0].parts[0] < 0.6


def test_recovered_owners_are_found() -> None:
    owners = [
        Paces(seconds, 2, owner) for seconds in [torch.zeros(8).double()] for owner in range(2)
    ]
    steps(200, owners, [1.0, 0.001])
    assert owners[0].parts[0] > 0.09
    steps(200, owners, [0.001, 0.001])
    assert owners[0].parts[0] > 0.4


def test_rounds_begin_with_even_parts() -> None:
    shared = torch.zeros(4).double()
    steps(60, [Paces(shared, 2, owner) for owner in range(2)], [0.004, 0.001])
    owners = [Paces(shared, 3, owner) for owner in range(3)]
    onlooker = Paces(shared, 3, None)
    onlooker.took(7.0)
    for pace in (*owners, onlooker):
        pace.look()
        assert pace.parts == [1 / 3] * 3


def test_excess_owners_have_even_parts() -> None:
    owners = [Paces(torch.zeros(4).double(), 5, owner) for owner in range(5)]
    steps(5, owners, [0.004] + [0.001] * 4)
    assert owners[0].parts == [0.2] * 5
