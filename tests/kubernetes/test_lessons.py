"""Lessons of jobs and recent use, as an operator writes them beside the memory of the last cycle."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from brim.domain.usage import RecentUse
from brim.kubernetes.record import go_on_counting, learn_again, packed_lessons, packed_use
from brim.storage.book import Book
from brim.storage.database import Database


@pytest.mark.parametrize("room", [1_000_000, 40_000, 200, 10, -5])
def test_the_latest_lessons_are_kept(tmp_path: Path, room: int) -> None:
    rng = random.Random(1)
    first, second = Database(tmp_path / "one"), Database(tmp_path / "other")
    names = [rng.randbytes(32).hex() for _ in range(4_000)]
    with first.transaction():
        for name in names:
            first.put_measurements(name, {2: (10.0, rng.random())})
    packed = packed_lessons(first, room=room)
    assert len(packed) <= max(room, 0)
    learn_again(second, {"binaryData": {"lessons": packed}})
    are_kept = [bool(second.measurements(name)) for name in names]
    assert are_kept == sorted(are_kept), "an older one is kept in place of a later one"
    assert any(are_kept) == (room >= 200)
    if room == 1_000_000:
        assert sum(are_kept) == 3_000
    first.close()
    second.close()


def test_later_recent_use_is_kept(tmp_path: Path) -> None:
    first, second = Book(Database(tmp_path / "one")), Book(Database(tmp_path / "other"))
    assert packed_use(first) == ""
    recent = RecentUse(half_life=3600.0, borrowed={"ads": 2.0})
    first.charge({}, {}, counted=100.0, recent=recent)
    memory = {"data": {"recent-use": packed_use(first)}}
    for unreadable in (None, {}, {"data": {"recent-use": "{"}}, {"data": {"recent-use": 7}}):
        go_on_counting(second, unreadable)
        assert (second.counted, second.recent) == (None, None)
    go_on_counting(second, memory)
    assert (second.counted, second.recent) == (100.0, recent)
    newer_use = RecentUse(half_life=3600.0, borrowed={"ads": 1.0})
    second.charge({}, {}, counted=200.0, recent=newer_use)
    go_on_counting(second, memory)
    assert (second.counted, second.recent) == (200.0, newer_use), "its own disk knows better"
