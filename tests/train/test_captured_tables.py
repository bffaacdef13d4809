"""Gradients of embedding tables in programs: the rows that are looked up, with the bits of whole tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from brim.coordination.job.reduction import Block, ReductionPlan
from brim.models.layers import EmbeddingTable
from brim.train.captured.captured_steps import _same
from brim.train.captured.recipe import NotCapturable, load, tables_of
from train.test_captured import (
    Pair,
    built,
    eager_sums,
    program_of,
    program_sums,
    recipe_of,
)

SIZE, PARTS, STEPS = 4, 8, 3  # samples of a micro-batch, micro-batches of a step
ROWS, PLACES = 200, 3  # of a table; ids of a sample


class Lookups(nn.Module):
    """Two tables with the same ids, one with others, all but few of which are repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = EmbeddingTable(ROWS, 1), EmbeddingTable(ROWS, 6)
        self.plain = nn.Embedding(ROWS + 5, 2)
        self.last = nn.Linear(PLACES * 8, 3)

    def forward(self, ids: Tensor) -> Any:
        parts = [self.deep(ids), self.plain(ids + 5)]
        logits = self.last(torch.cat(parts, 2).flatten(1))
        return logits + self.wide(ids).sum(1)


class Padded(nn.Module):
    """A table whose first row stands for nothing; ids of 32 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(ROWS, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Any:
        logits = self.last(self.table(ids.int()).sum(1))
        return logits


class Zeros(nn.Module):
    """A table of float64, all of whose gradients are -0.0 or not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(ROWS, 4).double(), nn.Linear(4, 3).double()

    def forward(self, ids: Tensor) -> Any:
        factor = torch.tensor([-0.0, -0.0, torch.inf, -0.0], dtype=torch.float64)
        logits = self.last((self.table(ids) * factor).sum(1))
        return logits


class Twice(nn.Module):
    """A table that is looked up twice, and one that is the last layer as well."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.tied = nn.Embedding(ROWS, 3), nn.Embedding(ROWS, 3)

    def forward(self, ids: Tensor) -> Any:
        hidden = self.twice(ids[:, 0]) * self.twice(ids[:, 1]) + self.tied(ids[:, 2])
        logits = hidden @ self.tied.weight.T
        return logits


class Scaled(nn.Module):
    """Tables whose gradients are no plain sums: divided by counts, and of a short type."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = nn.Embedding(ROWS, 3, scale_grad_by_freq=True)
        self.short = nn.Embedding(ROWS, 3).bfloat16()

    def forward(self, ids: Tensor) -> Any:
        return self.scaled(ids[:, 0]) + self.short(ids[:, 1]).float()


class Moved(nn.Module):
    """Ids that are changed in place while they are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = EmbeddingTable(ROWS, 3)

    def forward(self, ids: Tensor) -> Any:
        moved = ids.clone()
        moved.add_(1).clamp_(max=ROWS - 1)
        return self.table(moved).sum(1)


class Indexed(nn.Module):
    """A table whose rows are picked by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ROWS, 3))

    def forward(self, ids: Tensor) -> Any:
        return self.weight[ids].sum(1)


class Small(nn.Module):
    """A table that has fewer rows than a step looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = EmbeddingTable(20, 3)

    def forward(self, ids: Tensor) -> Any:
        return self.table(ids % 20).sum(1)


def samples() -> list[list[Pair]]:
    """Micro-batches of some steps: most ids come again, some are of one micro-batch alone."""
    generator = torch.Generator().manual_seed(1)
    steps = []
    for _ in range(STEPS):
        few = torch.randint(0, 12, (PARTS, SIZE, PLACES), generator=generator)
        any_ = torch.randint(0, ROWS, (PARTS, SIZE, PLACES), generator=generator)
        ids = torch.where(any_ % 3 == 0, any_, few)
        targets = torch.randint(0, 3, (PARTS, SIZE), generator=generator)
        steps.append(list(zip(ids, targets, strict=True)))
    return steps


# Of each family, how many gradients of tables are found, and how many are added up by rows.
FAMILIES: dict[Callable[[], nn.Module], tuple[int, int]] = {
    Lookups: (3, 3),
    Padded: (1, 1),
    Zeros: (1, 1),
    Twice: (0, 0),
    Scaled: (0, 0),
    Moved: (1, 0),
    Indexed: (0, 0),
    Small: (1, 0),
}


@pytest.mark.parametrize("build", FAMILIES)
def test_rows_of_tables_have_eager_bits(build: Callable[[], nn.Module], tmp_path: Path) -> None:
    found, by_rows = FAMILIES[build]
    steps = samples()
    recipe_of(build, steps[0][0]).save(tmp_path / "recipe.pt")
    recipe = load(tmp_path / "recipe.pt")
    assert len(tables_of(recipe)) == found
    for workers in (1, 2, 3, 8):
        model, contributions = built(build)
        plan = ReductionPlan(PARTS, (workers,))
        for rank in range(workers):
            blocks, mine = plan.rank_blocks(rank), plan.micro_batches(rank)
            program = program_of(model, contributions, recipe, blocks, PARTS)
            assert program.by_rows == [by_rows if size > 1 else 0 for _, size in blocks]
            for step in steps:
                pairs = step[mine.start : mine.stop]
                eager = eager_sums(model, contributions, pairs, list(blocks), PARTS)
                own = program_sums(model, contributions, recipe, program, pairs, mine.start)
                for left, right in zip(eager, own, strict=True):
                    for place, (a, b) in enumerate(zip(left, right, strict=True)):
                        assert _same(a, b), (workers, rank, contributions.name_of(place))
                        assert a.stride() == b.stride()


def test_tables_with_sparse_gradients_are_refused() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(ROWS, 3, sparse=True), nn.Flatten(), nn.Linear(9, 3))

    model, contributions = built(build)
    recipe = recipe_of(build, samples()[0][0])
    with pytest.raises(NotCapturable, match=r"^a tensor of torch\.sparse_coo$"):
        program_of(model, contributions, recipe, [Block(0, PARTS)], PARTS)
