"""Messages of a killed agent are repeated by the next one: nothing is lost, and the file stays
small.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from brim.agent.unheard import UnheardFile, open_unheard
from brim.storage.journal import Journal
from brim.wire.messages import CommitRecord, Commits, Unheard, Warn


def commits(*steps: int) -> Commits:
    return Commits(
        records=[CommitRecord(round=1, step=step, at=0.0, payloads=[b"x"]) for step in steps]
    )


def kill(file: UnheardFile) -> None:
    assert file._journal is not None
    file._journal.close()


def unheard(session: str, number: int, message: Warn | Commits) -> Unheard:
    return Unheard(session=session, number=number, message=message)


def test_noted_commits_are_merged_into_one_message(
    tmp_path: Path,
) -> None:
    first = UnheardFile(tmp_path / "unheard", "a")
    first.note(1, Warn(message="one"))
    for step in (1, 2):
        first.note(2, commits(step))
    first.note(3, commits(3))
    kill(first)
    first_commit, two, three = (
        unheard("a", 1, Warn(message="one")),
        unheard("a", 2, commits(1, 2)),
        unheard("a", 3, commits(3)),
    )
    second = UnheardFile(tmp_path / "unheard", "b")
    assert second.pending == [first_commit, two, three]
    second.note(1, commits(4))
    kill(second)  # before any master has heard what the first one left
    third = UnheardFile(tmp_path / "unheard", "c")
    assert third.pending == [first_commit, two, three, unheard("b", 1, commits(4))]
    third.note(1, commits(5))
    third.acknowledge(0)  # a master that knows this session
    kill(third)
    assert UnheardFile(tmp_path / "unheard", "d").pending == [unheard("c", 1, commits(5))]


def test_what_was_heard_goes_once_it_takes_space(tmp_path: Path) -> None:
    file = UnheardFile(tmp_path / "unheard", "a")
    large = Warn(message="x" * 10_000)
    for number in range(1, 200):
        file.note(number, large)
        file.acknowledge(number - 1)
    assert (tmp_path / "unheard").stat().st_size < 300_000
    kill(file)
    assert UnheardFile(tmp_path / "unheard", "b").pending[-1] == unheard("a", 199, large)


def test_nothing_follows_a_message_lost_by_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = UnheardFile(tmp_path / "unheard", "a")
    file.note(1, commits(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", full)
        file.note(2, commits(2))
    file.note(3, commits(3))
    assert not (tmp_path / "unheard").exists()


def test_files_of_other_writers_are_untouched(tmp_path: Path) -> None:
    file = UnheardFile(tmp_path / "unheard", "a")
    assert open_unheard(tmp_path / "unheard", "b") is None
    kill(file)
    Journal(tmp_path / "unheard").append(b"of another version")
