"""A checkpoint is whole, or its fault is shown and an older one is used."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from brim.cli.__main__ import cli
from brim.domain.checkpointing import Best
from brim.errors import EnvironmentFault
from brim.storage import file_stores, files
from brim.storage.checkpoints import Checkpoint, Draft, Store, _checksum, _read_manifest
from brim.storage.file_stores import Directory
from brim_lab.chaos.disk import can_mount, small_disk

BYTES = bytes(range(256))


def store_in(directory: Path) -> Store:
    return Store(Directory(directory))


def draft(
    store: Store, step: int, *, writer: str = "w1", metrics: Mapping[str, float] | None = None
) -> Draft:
    checkpoint = Checkpoint(
        step=step,
        tree={"lr": 0.1},
        versions={"brim": "0"},
        data=BYTES * step,
        metrics=metrics or {},
    )
    return store.draft(checkpoint, writer=writer)


def write(
    directory: Path,
    step: int,
    *,
    keep: int = 2,
    best: Best | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    store = store_in(directory)
    path = Path(store.publish(draft(store, step, metrics=metrics)))
    store.prune(keep=keep, best=best)
    return path


def tensors_of(path: Path) -> Path:
    (file,) = path.glob("*.safetensors")
    return file


def newest(directory: Path) -> tuple[int | None, list[str]]:
    found, problems = store_in(directory).newest_sound()
    return None if found is None else found.step, problems


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write(tmp_path, 7)
    found = store_in(tmp_path).load(7)
    assert (found.step, found.tree, found.data) == (7, {"lr": 0.1}, BYTES * 7)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)
    assert store_in(tmp_path).steps() == [2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize(("best", "remaining"), [("auc", [2, 5, 6]), ("auc:min", [1, 5, 6])])
def test_the_best_is_kept_as_well(tmp_path: Path, best: str, remaining: list[int]) -> None:
    measured = {1: 0.5, 2: 0.9, 3: 0.7, 4: float("nan")}
    for step in range(1, 7):
        metrics = {"auc": measured[step]} if step in measured else {}
        write(tmp_path, step, best=Best.parse(best), metrics=metrics)
    assert store_in(tmp_path).steps() == remaining


@pytest.mark.parametrize("file", ["tensors", "manifest.json"])
@pytest.mark.parametrize("position", [0, 0.5, -1])
def test_a_flipped_byte_falls_back_to_the_previous(
    tmp_path: Path, file: str, position: float
) -> None:
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    damaged = tensors_of(path) if file == "tensors" else path / file
    content = bytearray(damaged.read_bytes())
    content[int(position * len(content)) if position != -1 else -1] ^= 1
    damaged.write_bytes(content)
    step, problems = newest(tmp_path)
    assert step == 1
    assert len(problems) == 1
    assert str(damaged) in problems[0]


@pytest.mark.parametrize("file", ["tensors", "manifest.json"])
def test_a_missing_or_cut_file_is_found(tmp_path: Path, file: str) -> None:
    path = write(tmp_path, 3)
    damaged = tensors_of(path) if file == "tensors" else path / file
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    with pytest.raises(EnvironmentFault, match=damaged.name):
        store_in(tmp_path).load(3)
    damaged.unlink()
    with pytest.raises(EnvironmentFault, match=damaged.name):
        store_in(tmp_path).load(3)


def test_what_is_damaged_does_not_count_as_kept(tmp_path: Path) -> None:
    write(tmp_path, 1)
    damaged = tensors_of(write(tmp_path, 3))
    damaged.write_bytes(b"cut")
    write(tmp_path, 2)  # after a restore of step 1
    assert store_in(tmp_path).steps() == [1, 2, 3]
    write(tmp_path, 4)
    write(tmp_path, 5)
    assert store_in(tmp_path).steps() == [4, 5]


def test_damage_found_while_reading_disqualifies(tmp_path: Path) -> None:
    write(tmp_path, 1)
    damaged = tensors_of(write(tmp_path, 3))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    store = store_in(tmp_path)
    assert store.newest_sound()[0].step == 1  # type: ignore[union-attr]
    store.publish(draft(store, 2))
    store.prune(keep=2, best=None)
    assert store.steps() == [1, 2, 3]


def test_a_draft_is_no_checkpoint(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    write(tmp_path, 1)
    draft_made = draft(store, 2)
    assert store.steps() == [1]
    store.publish(draft_made)
    assert store.steps() == [1, 2]


def test_only_dead_writers_leftovers_are_removed(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    dead, living = draft(store, 9, writer="w1"), draft(store, 9, writer="w12")
    (tmp_path / "notes.txt").write_text("not ours")
    store.publish(draft(store, 10, writer="w3"))
    store.prune(keep=2, best=None, writers={"w12"})
    assert not (tmp_path / dead.file).exists()
    store.publish(living)
    assert store.steps() == [9, 10]
    assert store.load(9).data == BYTES * 9
    assert (tmp_path / "notes.txt").exists()


def test_living_writers_earlier_files_are_removed(tmp_path: Path) -> None:
    """Another worker writes now: old checkpoints go whole, and so do files replaced by the same
    step again.
    """
    store = store_in(tmp_path)
    for step in (1, 2):
        store.publish(draft(store, step, writer="w2"))
    for step in (2, 3):
        store.publish(draft(store, step, writer="w3"))
        store.prune(keep=2, best=None, writers={"w2"})
    assert store.steps() == [2, 3]
    assert not list(tmp_path.rglob("w2-*"))
    assert len(list(tmp_path.rglob("w3-*.safetensors"))) == 2


def test_a_lost_draft_does_not_become_official(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    draft_made = draft(store, 9)
    store.tidy()
    with pytest.raises(EnvironmentFault, match="is gone"):
        store.publish(draft_made)
    assert store.steps() == []


def test_repeating_a_step_replaces_it_atomically(tmp_path: Path) -> None:
    first = tensors_of(write(tmp_path, 4))
    first.write_bytes(b"damaged")
    write(tmp_path, 4)
    assert newest(tmp_path) == (4, [])
    assert not first.exists()


def test_a_refusing_disk_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(EnvironmentFault, match=r"cannot write .*step-00000001"):
        write(tmp_path / "file", 1)


@pytest.mark.skipif(not can_mount(), reason="needs root, to mount")
@pytest.mark.parametrize("kibibytes", [100, 48])
def test_a_full_disk_keeps_no_draft(kibibytes: int, tmp_path: Path) -> None:
    """48 KiB are left: for a file of that size, and not for the manifest behind it."""
    with small_disk(tmp_path / "disk") as disk:
        store = store_in(disk.path / "checkpoints")
        store.publish(draft(store, 1))
        disk.fill()
        checkpoint = Checkpoint(step=2, tree=None, versions={}, data=bytes(kibibytes << 10))
        with pytest.raises(EnvironmentFault, match=r"cannot write .*step-00000002.*No space"):
            store.draft(checkpoint, writer="w1")
        assert [path.name for path in (disk.path / "checkpoints").iterdir()] == ["step-00000001"]


def test_a_disk_full_before_the_manifest_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    write(tmp_path, 1)
    files_before = sorted(tmp_path.rglob("*"))
    real = files.write_through

    def no_space(path: Path, content: bytes) -> None:
        real(path, content[:10])
        if path.suffix == ".json":
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_stores, "write_through", no_space)
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        draft(store, 2)
    assert sorted(tmp_path.rglob("*")) == files_before


def test_checkpoints_vanishing_during_listing_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Directory(tmp_path)
    place.write("step-00000004/manifest.json", b"{}")
    place.write("step-00000008/manifest.json", b"{}")
    scandir = os.scandir

    def after_a_removal(path: Any = ".") -> Any:
        if str(path).endswith("step-00000004"):
            Path(path, "manifest.json").unlink()
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", after_a_removal)
    assert place.names() == {"step-00000008/manifest.json": 2}


def test_a_directory_that_vanishes_is_made_again(tmp_path: Path) -> None:
    store = store_in(tmp_path / "run" / "checkpoints")
    store.publish(draft(store, 1))
    lost = draft(store, 2)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(EnvironmentFault, match="is gone"):
        store.publish(lost)
    store.publish(draft(store, 3))
    assert store.steps() == [3]


@given(
    st.binary(max_size=200)
    | st.recursive(st.none(), st.lists).map(lambda tree: json.dumps(tree).encode())
)
def test_bytes_that_are_no_manifest_are_called_so(content: bytes) -> None:
    with pytest.raises(EnvironmentFault, match="where is damaged"):
        _read_manifest(content, "where")


@given(
    st.dictionaries(
        st.sampled_from(["step", "written_at", "metrics", "versions", "file", "tree", "more"]),
        st.none() | st.integers() | st.text() | st.floats() | st.lists(st.none()),
    )
)
def test_manifests_with_wrong_fields_are_damaged(
    fields: dict[str, Any],
) -> None:
    manifest = {**fields, "format": 2}
    manifest["manifest_sha256"] = _checksum(manifest)
    with pytest.raises(EnvironmentFault, match="where is damaged"):
        _read_manifest(json.dumps(manifest).encode(), "where")


def test_deeply_nested_manifests_are_damaged() -> None:
    with pytest.raises(EnvironmentFault, match="where is damaged"):
        _read_manifest(b"[" * 200_000, "where")


def test_the_verb_lists_checkpoints_and_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()  # what makes a directory a run
    write(tmp_path / "checkpoints", 1, metrics={"auc": 0.75})
    damaged = tensors_of(write(tmp_path / "checkpoints", 2))
    result = CliRunner().invoke(cli, ["checkpoints", str(tmp_path)])
    assert (result.exit_code, result.stdout.count("whole")) == (0, 2)
    assert "auc 0.7500" in result.stdout
    damaged.write_bytes(b"other")
    result = CliRunner().invoke(cli, ["checkpoints", str(tmp_path), "--json"])
    rows = json.loads(result.stdout)["checkpoints"]
    assert result.exit_code == 1
    assert [row["whole"] for row in rows] == [True, False]
    assert str(damaged) in rows[1]["problem"]


def test_checkpoints_of_a_disconnected_worker_are_ignored(
    tmp_path: Path,
) -> None:
    """It had the master's permission, and others went back to step 20 before it used it."""
    for step in (10, 20, 50):
        write(tmp_path, step, keep=9)
    store = store_in(tmp_path)
    found, problems = store.newest_sound(at_most=20)
    assert (found.step if found else None, problems) == (20, [])
    assert store.newest_sound(at_most=5) == (None, [])
    store.publish(draft(store, 30))
    store.prune(keep=1, best=None, newest=30)
    assert store.steps() == [30, 50]


def test_the_newest_recorded_heir_draft_becomes_official(
    tmp_path: Path,
) -> None:
    write(tmp_path, 3)
    store = store_in(tmp_path)
    for step, writer in ((2, "heir"), (5, "heir"), (6, "heir"), (7, "w1"), (9, "heir")):
        draft(store, step, writer=writer)
    store.adopt("heir", at_most=8)
    assert store.steps() == [3, 6]
    assert store.load(6).data == BYTES * 6
    store.tidy()
    store.adopt("heir", at_most=20)
    assert newest(tmp_path) == (6, [])


def test_an_unfinished_heir_draft_is_skipped(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    draft(store, 4, writer="heir")
    torn = draft(store, 5, writer="heir")
    (tmp_path / torn.manifest).write_bytes(torn.content[:-1])
    lost = draft(store, 6, writer="heir")
    (tmp_path / lost.file).unlink()
    store.adopt("heir", at_most=9)
    assert store.steps() == [4]
