"""Which parts a table's checkpoint consists of, and which files may go."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.table_parts import PartFile, TablePart, disused, is_chain, outweighs


def file(name: str, size: int = 1) -> PartFile:
    return PartFile(name=name, sha256="", size_bytes=size, rows=size)


def part(base_step: int | None, step: int, *sizes: int) -> TablePart:
    files = tuple(file(f"tables/w1-{step}-{number}", size) for number, size in enumerate(sizes))
    return TablePart(since=base_step, step=step, rows=sum(sizes), files=files)


@pytest.mark.parametrize(
    ("parts", "too_heavy"),
    [
        ([part(None, 10, 60, 40)], False),
        ([part(None, 10, 60, 40), part(10, 20, 50)], False),
        ([part(None, 10, 60, 40), part(10, 20, 51)], True),
        ([part(None, 10, 60, 40), part(10, 20, 30), part(20, 30, 30)], True),
        ([part(None, 10)], False),  # of a table without rows
        ([part(None, 10), part(10, 20, 1)], True),
    ],
)
def test_heavy_deltas_call_for_a_new_base(parts: list[TablePart], too_heavy: bool) -> None:
    assert is_chain(parts)
    assert outweighs(parts) is too_heavy


@pytest.mark.parametrize(
    ("fields", "remaining"),
    [
        ({"named": {"tables/w1-a"}}, {"tables/w1-a"}),
        ({"named": set(), "writers": {"w1"}}, {"tables/w1-a", "tables/w1-b"}),
        ({"named": set(), "writers": {"w1"}, "dropped": {"tables/w1-b"}}, {"tables/w1-a"}),
        ({"named": {"tables/w12-c"}, "dropped": {"tables/w12-c"}}, {"tables/w12-c"}),
        ({"named": set(), "at_hand": {"tables/w12-c"}}, {"tables/w12-c"}),
    ],
)
def test_referenced_files_are_kept(fields: dict[str, set[str]], remaining: set[str]) -> None:
    files = ["tables/w1-a", "tables/w1-b", "tables/w12-c"]
    assert set(files) - set(disused(files, **fields)) == remaining


NAMES = [f"tables/w{writer}-{number}" for writer in (1, 2) for number in range(3)]


@given(
    checkpoints=st.lists(st.sets(st.sampled_from(NAMES)), min_size=1, max_size=3),
    writers=st.sets(st.sampled_from(["w1", "w2"])),
)
def test_pruning_in_any_order_keeps_other_checkpoints(
    checkpoints: list[set[str]], writers: set[str]
) -> None:
    """And nothing stays in the end that only they named, though its writer lives."""
    for order in permutations(range(len(checkpoints))):
        remaining_files, remaining = set(NAMES), dict(enumerate(checkpoints))
        for number in order:
            removed = remaining.pop(number)
            named = set().union(*remaining.values())
            remaining_files -= set(
                disused(remaining_files, named=named, dropped=removed, writers=writers)
            )
            assert named <= remaining_files
        assert not remaining_files & set().union(*checkpoints)
