"""Directories for temporary files go with their processes, and those of the killed with the next."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.storage.files import temporary_folder

HOLDS = """
import sys
from brim.storage.files import temporary_folder
with temporary_folder("brim-test-") as folder:
    (folder / "weights").write_text("1")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def holder(place: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def folder_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_the_next_removes_what_a_killed_left(holder: subprocess.Popen[str], place: Path) -> None:
    folder = folder_of(holder)
    other = place / "brim-tests"
    other.mkdir()
    with temporary_folder("brim-test-") as own:
        assert own.stat().st_mode & 0o777 == 0o700
        assert (folder / "weights").read_text() == "1"
    assert not own.exists()
    holder.kill()
    holder.wait()
    with temporary_folder("brim-test-") as own:
        assert sorted(place.iterdir()) == sorted([own, other])


def test_a_folder_that_cannot_be_listed_will_do(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with temporary_folder("brim-test-") as folder:
        assert folder.parent == place
    assert not folder.exists()
