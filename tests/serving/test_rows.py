"""Files of rows: the changes between two versions make the one of the other, and no reader sees half
of them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from brim.errors import EnvironmentFault
from brim.serving.rows import (
    EmbeddingRows,
    RowChange,
    Sides,
    change_between,
    check_change,
    open_change,
    open_rows,
    put,
    write_change,
    write_rows,
)

KEYS = st.one_of(st.integers(0, 40), st.integers(0, 2**63 - 1))
VALUES = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")])
TABLES = st.dictionaries(KEYS, st.tuples(VALUES, VALUES), max_size=30)


def rows_of(table: dict[int, tuple[float, float]]) -> EmbeddingRows:
    keys = sorted(table)
    values = torch.tensor([table[key] for key in keys], dtype=torch.float32).reshape(len(keys), 2)
    return EmbeddingRows(torch.tensor(keys, dtype=torch.int64), values)


def bits(rows: EmbeddingRows) -> tuple[list[int], bytes]:
    return rows.keys.tolist(), rows.values.contiguous().numpy().tobytes()


def copy_of(rows: EmbeddingRows) -> EmbeddingRows:
    return EmbeddingRows(rows.keys.clone(), rows.values.clone())


@given(old=TABLES, new=TABLES)
def test_changes_turn_versions_into_others_exactly(
    old: dict[int, tuple[float, float]], new: dict[int, tuple[float, float]]
) -> None:
    old_rows, new_rows = rows_of(old), rows_of(new)
    change = change_between(old_rows, new_rows)
    assert check_change(old_rows, change) == ""
    assert bits(put(copy_of(old_rows), change)) == bits(new_rows)
    unchanged = {
        key
        for key in old.keys() & new.keys()
        if bits(rows_of({0: old[key]})) == bits(rows_of({0: new[key]}))
    }
    assert set(change.rows.keys.tolist()) == new.keys() - unchanged
    assert set(change.removed.tolist()) == old.keys() - new.keys()


@given(tables=st.lists(TABLES, min_size=2, max_size=6))
def test_the_last_two_versions_are_readable(
    tables: list[dict[int, tuple[float, float]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.safetensors"
    versions = [rows_of(table) for table in tables]
    write_rows(path, versions[0])
    file = hashlib.sha256(path.read_bytes()).digest()
    sides = Sides({"w": path})
    for previous, current in pairwise(versions):
        read = sides.now["w"]
        sides.change({"w": change_between(previous, current)})
        assert bits(sides.now["w"]) == bits(current)
        assert bits(read) == bits(previous), "who still reads the version before sees it whole"
    assert hashlib.sha256(path.read_bytes()).digest() == file, (
        "what is written is this process's own"
    )


def test_numbered_rows_change_in_place(tmp_path: Path) -> None:
    """In place: the memory of a large embedding is not copied for a few rows."""
    rows = EmbeddingRows(torch.arange(1000), torch.randn(1000, 4))
    write_rows(tmp_path / "rows", rows)
    opened = open_rows(tmp_path / "rows")
    change = RowChange(
        EmbeddingRows(torch.tensor([3, 999]), torch.ones(2, 4)), torch.empty(0, dtype=torch.int64)
    )
    write_change(tmp_path / "change", change)
    changed_rows = put(opened, open_change(tmp_path / "change"))
    assert changed_rows.values.data_ptr() == opened.values.data_ptr()
    assert torch.equal(changed_rows.values[[3, 999]], torch.ones(2, 4))
    assert torch.equal(changed_rows.values[4:999], rows.values[4:999])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_rows_of_other_types(dtype: torch.dtype, tmp_path: Path) -> None:
    old_rows = EmbeddingRows(torch.tensor([1, 5]), torch.randn(2, 3).to(dtype))
    new_rows = EmbeddingRows(torch.tensor([1, 5, 2**62]), torch.randn(3, 3).to(dtype))
    write_rows(tmp_path / "rows", old_rows)
    write_change(tmp_path / "change", change_between(old_rows, new_rows))
    read_back = put(open_rows(tmp_path / "rows"), open_change(tmp_path / "change"))
    assert torch.equal(read_back.values.view(torch.uint8), new_rows.values.view(torch.uint8))


def header(content: bytes, **changes: object) -> bytes:
    (length,) = struct.unpack_from("<Q", content)
    fields = json.loads(content[8 : 8 + length])
    fields["values"] |= changes
    text = json.dumps(fields).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:5],
        lambda content: b"\xff" * len(content),
        lambda content: content[:-1],
        lambda content: header(content, shape=[10**15, 4]),
        lambda content: header(content, shape=[-1, 4]),
        lambda content: header(content, data_offsets=[0, 10**9]),
        lambda content: header(content, data_offsets=["a", "b"]),
        lambda content: header(content, dtype="Q8"),
        lambda content: header(content, shape="x"),
    ],
)
def test_invalid_file_of_rows_is_reported_as_damaged(damage: object, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    write_rows(path, EmbeddingRows(torch.arange(4), torch.zeros(4, 4)))
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(EnvironmentFault, match=str(path)):
        open_rows(path)


@pytest.mark.parametrize("keys", [[1, 0], [1, 1], [-1, 0]])
def test_keys_that_do_not_ascend_are_damage(keys: list[int], tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", EmbeddingRows(torch.tensor(keys), torch.zeros(2, 4)))
    with pytest.raises(EnvironmentFault, match="ascending keys"):
        open_rows(tmp_path / "rows")


@pytest.mark.parametrize(
    ("changed", "removed", "width", "reason"),
    [
        ([1], [], 3, "its rows are"),
        ([1], [7], 2, "removes rows that there are not"),
        ([1], [1], 2, "removes rows that it changes"),
    ],
)
def test_a_change_of_other_rows_does_not_fit(
    changed: list[int], removed: list[int], width: int, reason: str
) -> None:
    rows = EmbeddingRows(torch.arange(4), torch.zeros(4, 2))
    keys: Tensor = torch.tensor(changed)
    change = RowChange(
        EmbeddingRows(keys, torch.zeros(len(keys), width)), torch.tensor(removed, dtype=torch.int64)
    )
    assert reason in check_change(rows, change)
