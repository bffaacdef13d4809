"""Rows fold to the bits of dense gradients, however the workers share them out."""

from __future__ import annotations

import os
import random
from itertools import product

import pytest
import torch

from brim.coordination.reduction import Block, ReductionPlan, even_shares, fold
from brim.train.accumulate import combine
from brim.train.exchange import SharedRows, Shelf
from brim.train.layout import Layout
from brim.train.rows import Rows, RowSums, fold_rows

WEIGHT = torch.zeros(40, 3)


def drawn(chance: random.Random) -> Rows:
    """Rows of some ids, often none, with values of which sums round."""
    ids = sorted(chance.sample(range(len(WEIGHT)), chance.choice([0, 1, 5, 40])))
    values = [[chance.choice([1e8, 1.0, -1e8, 1e-3, 7.0]) * chance.random() for _ in range(3)] for _ in ids]
    return Rows(torch.tensor(ids, dtype=torch.int64), torch.tensor(values).reshape(len(ids), 3))


def drawn_of_two(chance: random.Random) -> list[Rows]:
    """Rows of two embeddings, which are often asked for the same ids."""
    first, second = drawn(chance), drawn(chance)
    return [first, chance.choice([second, Rows(first.ids.clone(), first.values * 3.3)])]


def dense(rows: Rows) -> torch.Tensor:
    return torch.zeros_like(WEIGHT).index_copy_(0, rows.ids, rows.values)


def densely(leaves: list[Rows]) -> torch.Tensor:
    parts = len(leaves)
    sums = {Block(micro, 1): [dense(rows)] for micro, rows in enumerate(leaves)}
    at = {block.start: each for block, each in sums.items()}
    for left, right in fold(sums, ReductionPlan(parts, (1,)).root, parts):
        combine(at[left.start], at[right.start], at[left.start])
    return at[0][0]


@pytest.mark.parametrize("seed", range(60))
def test_every_world_gives_the_bits_of_the_dense_sum(seed: int) -> None:
    chance = random.Random(seed)
    parts = chance.randint(1, 12)
    leaves = [drawn_of_two(chance) for _ in range(parts)]
    wanted = [densely([tables[table] for tables in leaves]) for table in range(2)]
    for world, servers in product(range(1, min(parts, 5) + 1), range(3)):
        plan = ReductionPlan(parts, (world + servers,), (*even_shares(parts, world), *[0] * servers))
        layout = Layout([torch.zeros(3)], [WEIGHT, WEIGHT])
        with open(os.memfd_create("rows"), "wb") as memory:
            shelf = Shelf(memory.fileno(), layout, 1 + parts)
        index = {block: 1 + row for row, block in enumerate(plan.local_blocks(0))}
        ranks = [
            SharedRows(shelf, index, plan, rank=rank, keeps_total=True) for rank in range(world + servers)
        ]
        for rank, each in enumerate(ranks):
            sums = RowSums(parts, plan.rank_blocks(rank))
            for micro in plan.micro_batches(rank):
                sums.add(micro, leaves[micro])
            each.put(sums.blocks())
        for each in ranks:
            each.fold()
        for table, total in enumerate(ranks[-1].total()):
            assert torch.equal(dense(total), wanted[table])
            assert total.ids.tolist() == sorted({id for each in leaves for id in each[table].ids.tolist()})
            parts_of_it = [each.owned()[table] for each in ranks]
            owners = parts_of_it[world:] or parts_of_it
            assert torch.equal(torch.cat([part.rows.ids for part in owners]), total.ids)
            assert torch.equal(torch.cat([part.rows.values for part in owners]), total.values)
            assert not any(len(part.rows.ids) for part in parts_of_it[: -len(owners)])
            ends = [len(WEIGHT), *(part.start for part in owners[::-1])]
            for part, end in zip(
                owners[::-1], ends, strict=False
            ):  # an owner's places in the log are its own
                assert part.start + len(part.rows.ids) <= end


def test_blocks_that_do_not_cover_what_is_wanted_are_an_error() -> None:
    with pytest.raises(ValueError, match="no block covers micro-batch 1"):
        fold_rows({Block(0, 1): [drawn(random.Random(0))]}, Block(0, 2), 2)
