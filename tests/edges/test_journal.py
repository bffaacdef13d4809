"""A journal keeps appended entries, cuts off torn ones,
and does not take damage for an end.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brim.errors import EnvironmentFault
from brim.storage.journal import Journal, has_writer, set_aside_if_damaged

ENTRIES = [b"one", b"", b"three" * 100]


def write(path: Path) -> bytes:
    journal = Journal(path)
    for entry in ENTRIES:
        journal.append(entry)
    journal.close()
    return path.read_bytes()


def reopen(path: Path) -> list[bytes]:
    journal = Journal(path)
    journal.close()
    return journal.written


def test_every_prefix_has_the_entries_that_are_whole(tmp_path: Path) -> None:
    whole = write(tmp_path / "journal")
    for size in range(len(whole) + 1):
        path = tmp_path / "torn"
        path.write_bytes(whole[:size])
        reopened = reopen(path)
        assert reopened == ENTRIES[: len(reopened)]
        assert len(reopened) == sum(size >= end for end in (15, 27, 539))


def test_flipped_bits_never_invent_entries(tmp_path: Path) -> None:
    whole = write(tmp_path / "journal")
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path = tmp_path / "damaged"
        path.write_bytes(damaged)
        with pytest.raises(EnvironmentFault, match=f"{path} is damaged at byte"):
            reopen(path)


def test_zeros_after_a_power_cut_are_no_entries(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(write(path) + bytes(4096))
    assert reopen(path) == ENTRIES


def test_appending_goes_on_behind_what_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(write(path)[:-1])
    journal = Journal(path)
    journal.append(b"again")
    journal.close()
    assert reopen(path) == [*ENTRIES[:2], b"again"]


def test_there_is_one_writer(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with pytest.raises(EnvironmentFault, match="another process writes"):
        Journal(tmp_path / "journal")
    journal.replace_with(b"new")
    with pytest.raises(EnvironmentFault, match="another process writes"):
        Journal(tmp_path / "journal")
    journal.close()
    assert reopen(tmp_path / "journal") == [b"new"]


def test_an_oversized_entry_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(b"first")
    write_some = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: write_some(file, data[:5], place))
    with pytest.raises(OSError, match="wrote 5 of 18 bytes"):
        journal.append(b"second")
    monkeypatch.undo()
    journal.append(b"third")
    journal.close()
    assert reopen(tmp_path / "journal") == [b"first", b"third"]


def test_a_damaged_journal_makes_way(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert set_aside_if_damaged(path) == ""
    whole = write(path)
    assert set_aside_if_damaged(path) == ""
    path.write_bytes(whole[:20] + b"?" + whole[21:])
    assert "damaged at byte 15" in set_aside_if_damaged(path)
    assert not path.exists()
    assert reopen(path) == []


def test_whether_somebody_writes_can_be_asked(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert not has_writer(path)
    journal = Journal(path)
    assert has_writer(path)
    journal.close()
    assert not has_writer(path)
