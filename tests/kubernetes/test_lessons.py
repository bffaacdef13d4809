"""What jobs have taught, as an operator writes it beside what the last cycle left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from brim.kubernetes.record import learn_again, packed_lessons
from brim.storage.database import Database


@pytest.mark.parametrize("room", [1_000_000, 40_000, 200, 10, -5])
def test_the_latest_are_kept_as_far_as_there_is_room(tmp_path: Path, room: int) -> None:
    rng = random.Random(1)
    one, other = Database(tmp_path / "one"), Database(tmp_path / "other")
    names = [rng.randbytes(32).hex() for _ in range(4_000)]
    with one.transaction():
        for name in names:
            one.put_measurements(name, {2: (10.0, rng.random())})
    packed = packed_lessons(one, room=room)
    assert len(packed) <= max(room, 0)
    learn_again(other, {"binaryData": {"lessons": packed}})
    known = [bool(other.measurements(name)) for name in names]
    assert known == sorted(known), "an older one is kept in place of a later one"
    assert any(known) == (room >= 200)
    if room == 1_000_000:
        assert sum(known) == 3_000
    one.close()
    other.close()
