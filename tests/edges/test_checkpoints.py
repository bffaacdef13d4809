"""A checkpoint is whole, or it is said what is wrong with it and an older one is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from brim.cli.__main__ import cli
from brim.errors import EnvironmentFault
from brim.storage.checkpoints import Checkpoint, load, newest_sound, publish, stored


def write(directory: Path, step: int, *, keep: int = 2) -> Path:
    made = Checkpoint(step=step, tree={"lr": 0.1}, versions={"brim": "0"}, data=bytes(range(256)) * step)
    return publish(directory, made, keep=keep)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, 7)
    assert load(path).step == 7
    assert load(path).data == bytes(range(256)) * 7
    assert newest_sound(tmp_path) == ((path, load(path)), [])


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)
    assert [path.name for path in stored(tmp_path)] == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize("file", ["state.safetensors", "manifest.json"])
@pytest.mark.parametrize("where", [0, 0.5, -1])
def test_a_flipped_byte_is_found_and_the_one_before_is_used(tmp_path: Path, file: str, where: float) -> None:
    before, newest = write(tmp_path, 1), write(tmp_path, 2)
    content = bytearray((newest / file).read_bytes())
    content[int(where * len(content)) if where != -1 else -1] ^= 1
    (newest / file).write_bytes(content)
    sound, problems = newest_sound(tmp_path)
    assert sound == (before, load(before))
    assert len(problems) == 1
    assert str(newest / file) in problems[0]


@pytest.mark.parametrize("file", ["state.safetensors", "manifest.json"])
def test_a_missing_or_cut_file_is_found(tmp_path: Path, file: str) -> None:
    path = write(tmp_path, 3)
    content = (path / file).read_bytes()
    (path / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(EnvironmentFault, match=file):
        load(path)
    (path / file).unlink()
    with pytest.raises(EnvironmentFault, match=file):
        load(path)


def test_what_a_dead_writer_left_is_no_checkpoint_and_goes(tmp_path: Path) -> None:
    half = tmp_path / ".step-00000009-dead"
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half")
    assert newest_sound(tmp_path) == (None, [])
    write(tmp_path, 10)
    assert not half.exists()


def test_a_disk_that_does_not_take_it_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(EnvironmentFault, match="cannot write checkpoint"):
        write(tmp_path / "file", 1)


def test_the_verb_lists_them_and_names_the_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()  # what makes a directory a run
    write(tmp_path / "checkpoints", 1)
    damaged = write(tmp_path / "checkpoints", 2) / "state.safetensors"
    result = CliRunner().invoke(cli, ["checkpoints", str(tmp_path)])
    assert (result.exit_code, result.stdout.count("whole")) == (0, 2)
    damaged.write_bytes(b"other")
    result = CliRunner().invoke(cli, ["checkpoints", str(tmp_path), "--json"])
    rows = json.loads(result.stdout)["checkpoints"]
    assert result.exit_code == 1
    assert [row["whole"] for row in rows] == [True, False]
    assert str(damaged) in rows[1]["problem"]
