"""The memory of full tables, and the words where that is too much."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from brim.embeddings.tables import capacity
from brim.embeddings.tables.capacity import Size, available_bytes, check_room, check_whole
from brim.embeddings.tables.key_roster import KeyRoster, Rules
from brim.errors import SpecError


def test_sizes_match_a_full_tables_memory() -> None:
    rules = Rules(1_000_000, admit_after=2, expire_after=100)
    size = Size(16, 1, rules)
    assert size.row_bytes == 2 * 16 * 4
    roster = KeyRoster(torch.zeros(rules.bytes + 4096, dtype=torch.uint8), rules)
    assert len(roster.changed) == rules.shape.all_places
    assert roster.candidates is not None
    assert len(roster.candidates.counts) == rules.candidates.all_places
    assert 128 + 44 < size.bytes / 1_000_000 < 128 + 60
    assert Size(16, 1, Rules(1_000_000)).bytes < size.bytes - 10 * 1_000_000


def test_oversized_limits_are_refused_with_a_fit() -> None:
    size = Size(16, 2, Rules(10_000_000))
    check_room([("user", size)], None)
    check_room([("user", size)], size.bytes)
    with pytest.raises(
        SpecError, match=r"limit=10000000 of embedding 'user': got tables of 2\.\d GiB"
    ) as raised:
        check_room([("item", Size(16, 2, Rules(1000))), ("user", size)], size.bytes // 2)
    assert "need no more than the 1.1 GiB of memory" in str(raised.value)
    limit = int(raised.value.hint.removeprefix("limit=").split()[0])
    assert 4_000_000 < limit < 5_000_000
    check_room([("user", Size(16, 2, Rules(limit)))], size.bytes // 2)


def test_the_nearest_limit_of_the_groups_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = available_bytes()
    assert free is not None
    assert free > 1 << 20
    (tmp_path / "memory.max").write_text(f"{5 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{1 << 20}\n")
    monkeypatch.setattr(
        capacity,
        "files_about_us",
        lambda name: [tmp_path / name] if (tmp_path / name).exists() else [],
    )
    assert available_bytes() == 4 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() > 100 << 20  # type: ignore[operator]


def test_oversized_ordinary_embeddings_are_named() -> None:
    check_whole("items.weight", 1 << 20, 1 << 20)
    check_whole("items.weight", 1 << 40, None)
    with pytest.raises(SpecError, match=r"'items.weight': got 2 MiB .*need no more than the 1 MiB"):
        check_whole("items.weight", 2 << 20, 1 << 20)
