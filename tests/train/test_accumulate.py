"""A worker's accumulator adds in the order of the tree: the bits agree for every world."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from brim.coordination.job.reduction import ReductionPlan, fold
from brim.train.exchange.accumulate import Accumulator, combine

# Large and small numbers of both signs: any other order of additions rounds differently.
VALUES = [
    1e8,
    1.5,
    -1e8,
    3.0,
    1e-3,
    7e7,
    -7e7,
    0.25,
    2.0,
    1e6,
    -1.0,
    0.1,
    5e5,
    -1e6,
    0.3,
    9.0,
    1e-8,
]


def summed(parts: int, world: int, *, with_rows: bool) -> list[Tensor]:
    plan = ReductionPlan(parts, (world,))
    rows = {
        block: [torch.zeros(1), torch.zeros(1, dtype=torch.int64)] for block in plan.local_blocks(0)
    }
    for rank in range(world):
        blocks = plan.rank_blocks(rank)
        local_rows = {block: rows[block] for block in blocks} if with_rows else {}
        accumulator = Accumulator(parts, blocks, local_rows)
        for micro in plan.micro_batches(rank):
            accumulator.add(micro, [torch.tensor([VALUES[micro]]), torch.tensor([micro])])
        if not with_rows and blocks:
            assert len(blocks) == 1, "without rows a worker has everything"
            rows[blocks[0]] = accumulator.local_sum()
    row_of = {block.start: row for block, row in rows.items()}
    for left, right in fold(rows, plan.root, parts):
        combine(row_of[left.start], row_of[right.start], row_of[left.start])
    return row_of[0]


@pytest.mark.parametrize("parts", range(1, 18))
def test_every_world_gives_the_same_bits(parts: int) -> None:
    lone_sums = summed(parts, 1, with_rows=False)
    assert lone_sums[1].item() == parts - 1  # whole numbers take the larger
    for world in range(1, 9):
        total = summed(parts, world, with_rows=True)
        assert total[0].item() == lone_sums[0].item(), world
        assert total[1].item() == lone_sums[1].item()


def test_the_order_of_these_additions_matters() -> None:
    in_a_row = torch.zeros(1)
    for value in VALUES[:8]:
        in_a_row += torch.tensor([value])
    assert in_a_row.item() != summed(8, 1, with_rows=False)[0].item()
