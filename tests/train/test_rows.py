"""Rows fold to the bits of dense gradients, however the workers share them out."""

from __future__ import annotations

import os
import random
from itertools import product

import pytest
import torch

from brim.coordination.job.reduction import Block, ReductionPlan, even_shares, fold
from brim.embeddings.rows import GradientRows, RowSums, fold_rows
from brim.embeddings.tables.keyed_table import partitions_of
from brim.errors import SpecError
from brim.train.exchange.accumulate import combine
from brim.train.exchange.folding import SharedRows
from brim.train.exchange.layout import Layout
from brim.train.exchange.shelf import Shelf

WEIGHT = torch.zeros(40, 3)


def drawn(chance: random.Random) -> GradientRows:
    """Rows of some ids, often none, with values of which sums round."""
    ids = sorted(chance.sample(range(len(WEIGHT)), chance.choice([0, 1, 5, 40])))
    values = [
        [chance.choice([1e8, 1.0, -1e8, 1e-3, 7.0]) * chance.random() for _ in range(3)]
        for _ in ids
    ]
    return GradientRows(
        torch.tensor(ids, dtype=torch.int64), torch.tensor(values).reshape(len(ids), 3)
    )


def drawn_of_two(chance: random.Random) -> list[GradientRows]:
    """Rows of two embeddings, which are often asked for the same ids."""
    first, second = drawn(chance), drawn(chance)
    return [first, chance.choice([second, GradientRows(first.ids.clone(), first.values * 3.3)])]


def dense(rows: GradientRows) -> torch.Tensor:
    return torch.zeros_like(WEIGHT).index_copy_(0, rows.ids, rows.values)


def densely(leaves: list[GradientRows]) -> torch.Tensor:
    parts = len(leaves)
    sums = {Block(micro, 1): [dense(rows)] for micro, rows in enumerate(leaves)}
    sum_of = {block.start: gradient for block, gradient in sums.items()}
    for left, right in fold(sums, ReductionPlan(parts, (1,)).root, parts):
        combine(sum_of[left.start], sum_of[right.start], sum_of[left.start])
    return sum_of[0][0]


@pytest.mark.parametrize("seed", range(60))
def test_every_world_equals_the_dense_sum(seed: int) -> None:
    chance = random.Random(seed)
    parts = chance.randint(1, 12)
    leaves = [drawn_of_two(chance) for _ in range(parts)]
    expected_sums = [densely([tables[table] for tables in leaves]) for table in range(2)]
    for world, servers in product(range(1, min(parts, 5) + 1), range(3)):
        plan = ReductionPlan(
            parts, (world + servers,), (*even_shares(parts, world), *[0] * servers)
        )
        layout = Layout([torch.zeros(3)], [WEIGHT, WEIGHT])
        with open(os.memfd_create("rows"), "wb") as memory:
            shelf = Shelf(memory.fileno(), layout, 1 + parts)
        index = {block: 1 + row for row, block in enumerate(plan.local_blocks(0))}
        ranks = [
            SharedRows(shelf, index, plan, rank=rank, keeps_total=True)
            for rank in range(world + servers)
        ]
        for rank, rank_rows in enumerate(ranks):
            sums = RowSums(parts, plan.rank_blocks(rank))
            for micro in plan.micro_batches(rank):
                sums.add(micro, leaves[micro])
            rank_rows.put(sums.blocks())
            rank_rows.paces.took(chance.choice([0.001, 0.01, 0.1]))
        for rank_rows in ranks:
            for _ in range(5):
                rank_rows.paces.look()  # owners whose parts are uneven cut alike
            rank_rows.fold()
        for table, total in enumerate(ranks[-1].total()):
            assert torch.equal(dense(total), expected_sums[table])
            assert total.ids.tolist() == sorted(
                {id for leaf in leaves for id in leaf[table].ids.tolist()}
            )
            parts_of_it = [rank.owned()[table] for rank in ranks]
            owners = parts_of_it[world:] or parts_of_it
            assert torch.equal(torch.cat([part.rows.ids for part in owners]), total.ids)
            assert torch.equal(torch.cat([part.rows.values for part in owners]), total.values)
            assert not any(len(part.rows.ids) for part in parts_of_it[: -len(owners)])
            ends = [len(WEIGHT), *(part.start for part in owners[::-1])]
            for part, end in zip(
                owners[::-1], ends, strict=False
            ):  # an owner's places in the log are its own
                assert part.start + len(part.rows.ids) <= end


@pytest.mark.parametrize("seed", range(20))
def test_keyed_rows_are_partitioned_without_loss(seed: int) -> None:
    chance = random.Random(seed)
    last = (1 << 63) - 1
    keys = [0, 1 << 57, (1 << 57) - 1, last, *(chance.getrandbits(63) for _ in range(40))]
    parts, like = chance.randint(1, 8), torch.zeros(1, 3).expand(1 << 20, 3)
    leaves = []
    for _ in range(parts):
        ids = torch.tensor(
            sorted(chance.sample(keys, chance.choice([0, 3, 20]))), dtype=torch.int64
        )
        leaves.append(GradientRows(ids, torch.rand(len(ids), 3)))
    expected_rows = fold_rows(
        {Block(n, 1): [rows] for n, rows in enumerate(leaves)},
        ReductionPlan(parts, (1,)).root,
        parts,
    )[0]
    for world in range(1, parts + 1):
        plan = ReductionPlan(parts, (world,))
        with open(os.memfd_create("rows"), "wb") as memory:
            shelf = Shelf(memory.fileno(), Layout([torch.zeros(3)], [like], [64]), 1 + parts)
        index = {block: 1 + row for row, block in enumerate(plan.local_blocks(0))}
        ranks = [
            SharedRows(shelf, index, plan, rank=rank, keeps_total=True) for rank in range(world)
        ]
        for rank, rank_rows in enumerate(ranks):
            sums = RowSums(parts, plan.rank_blocks(rank))
            for micro in plan.micro_batches(rank):
                sums.add(micro, [leaves[micro]])
            rank_rows.put(sums.blocks())
        for rank_rows in ranks:
            rank_rows.fold()
        for rank, rank_rows in enumerate(ranks):
            (part,) = rank_rows.owned()
            assert (part.owner, part.owners) == (rank, world)
            assert set((part.rows.ids >> 57).tolist()) <= set(partitions_of(64, rank, world))
        (total,) = ranks[0].total()
        assert torch.equal(total.ids, expected_rows.ids)
        assert torch.equal(total.values, expected_rows.values)


def test_steps_with_too_many_ids_are_refused() -> None:
    layout = Layout([torch.zeros(3)], [torch.zeros(2, 3)], [64])
    rows = GradientRows(torch.tensor([1, 2, 3]), torch.zeros(3, 3))
    with pytest.raises(SpecError, match="got 3 distinct ones, need no more than 2"):
        layout.put_rows(torch.zeros(layout.row_bytes, dtype=torch.uint8), [rows])


def test_incomplete_blocks_are_errors() -> None:
    with pytest.raises(ValueError, match="no block covers micro-batch 1"):
        fold_rows({Block(0, 1): [drawn(random.Random(0))]}, Block(0, 2), 2)
