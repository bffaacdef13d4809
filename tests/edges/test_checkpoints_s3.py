"""Checkpoints in an object store: whole or absent there too,
and patient with a store that is away.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from brim.cli.__main__ import cli
from brim.domain.table_parts import StoredTable, TablePart
from brim.errors import EnvironmentFault, SpecError
from brim.runs.starting import check_place
from brim.storage.checkpoints import Checkpoint, Draft, Store
from brim.storage.file_stores import open_place
from objectstore import ObjectStore, object_store

BYTES = bytes(range(256))


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def s3(server: ObjectStore) -> ObjectStore:
    server.clear()
    return server


def draft(store: Store, step: int, *, writer: str = "w1") -> Draft:
    checkpoint = Checkpoint(
        step=step, tree={"lr": 0.1}, versions={"brim": "0"}, data=bytearray(BYTES * step)
    )
    return store.draft(checkpoint, writer=writer)


def write(store: Store, step: int, *, keep: int = 2) -> str:
    path = store.publish(draft(store, step))
    store.prune(keep=keep, best=None)
    return path


def test_checkpoints_are_read_and_newest_kept(s3: ObjectStore) -> None:
    store = Store(open_place(s3.url))
    assert store.newest_sound() == (None, [])
    for step in (1, 2, 3):
        assert write(store, step) == f"{s3.url}/step-{step:08d}"
    assert store.steps() == [2, 3]
    assert store.load(3).data == BYTES * 3
    assert len(s3.names()) == 4, "two files each: drafts and old ones are gone"


def test_a_writer_killed_before_the_manifest_wrote_nothing(s3: ObjectStore) -> None:
    store = Store(open_place(s3.url))
    write(store, 1)
    draft(store, 2)  # and no more
    assert store.newest_sound()[0].step == 1  # type: ignore[union-attr]
    assert len(store.drafts()) == 2
    store.prune(keep=2, best=None, writers={"w1"})
    assert len(store.drafts()) == 2
    store.tidy()
    assert not any("step-00000002" in name for name in s3.names())


def test_a_flipped_byte_falls_back_to_the_previous(s3: ObjectStore) -> None:
    store = Store(open_place(s3.url))
    write(store, 1)
    write(store, 2)
    (name,) = (
        name for name in s3.names() if "step-00000002" in name and name.endswith(".safetensors")
    )
    s3.files().pipe_file(f"bucket/run/{name}", b"\1" + (BYTES * 2)[1:])
    found, problems = store.newest_sound()
    assert found is not None
    assert found.step == 1
    assert len(problems) == 1
    assert f"{s3.url}/{name} is damaged" in problems[0]
    result = CliRunner().invoke(cli, ["checkpoints", s3.url, "--json"])
    assert result.exit_code == 1
    assert [row["whole"] for row in json.loads(result.stdout)["checkpoints"]] == [True, False]


def test_shared_table_parts_go_with_their_last_checkpoint(s3: ObjectStore) -> None:
    store = Store(open_place(s3.url))
    base = TablePart(
        since=None, step=1, rows=2, files=(store.write_part(bytearray(BYTES), rows=2, writer="w1"),)
    )
    for step in (1, 2, 3):
        parts = [base] if step < 3 else []
        table_part = store.write_part(BYTES * step, rows=1, writer="w1")
        parts.append(TablePart(since=1 if parts else None, step=step, rows=1, files=(table_part,)))
        table = StoredTable(name="t", rows=2, parts=tuple(parts))
        checkpoint = Checkpoint(step=step, tree={}, versions={}, data=b"", tables=(table,))
        store.publish(store.draft(checkpoint, writer="w1"))
        store.prune(keep=1, best=None)
        assert store.steps() == [step]
        store.check(store.load(step))
        assert len(s3.names()) == 2 + len(parts)
    (name,) = (name for name in s3.names() if name.startswith("tables/"))
    s3.files().pipe_file(f"bucket/run/{name}", b"\1" + (BYTES * 3)[1:])
    found, problems = Store(open_place(s3.url)).newest_sound()
    assert found is None
    assert f"{s3.url}/{name} is damaged" in problems[0]


def test_a_temporarily_absent_store_is_retried(s3: ObjectStore) -> None:
    warnings: list[str] = []

    def warn(text: str) -> None:
        warnings.append(text)
        s3.come_back()

    store = Store(open_place(s3.url, patience=60.0, warn=warn))
    write(store, 1)
    s3.go_away()
    write(store, 2)
    assert store.steps() == [1, 2]
    assert len(warnings) == 1
    assert "trying again" in warnings[0]


def test_an_absent_store_is_a_fault(s3: ObjectStore) -> None:
    store = Store(open_place(s3.url, patience=0.0))
    write(store, 1)
    s3.go_away()
    with pytest.raises(EnvironmentFault, match="cannot write s3://bucket/run/step-00000002"):
        write(store, 2)
    with pytest.raises(EnvironmentFault, match="cannot list"):
        store.newest_sound()
    s3.come_back()


def test_a_place_is_checked_before_anything_starts(s3: ObjectStore, tmp_path: Path) -> None:
    check_place(s3.url, holds=False)
    assert s3.names() == []
    with pytest.raises(SpecError, match="which holds no checkpoints"):
        check_place(s3.url, holds=True)
    write(Store(open_place(s3.url)), 1)
    check_place(s3.url, holds=True)
    with pytest.raises(SpecError, match="checkpoints of another run"):
        check_place(s3.url, holds=False)
    with pytest.raises(SpecError, match="bucket does not exist"):
        check_place("s3://nowhere/run", holds=False)
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="File exists"):
        check_place(f"file://{tmp_path}/file", holds=False)


@pytest.mark.parametrize("url", ["memory://run", "nosuch://run", "s3://"])
def test_a_url_that_will_not_do_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match="--checkpoints"):
        open_place(url)


def test_a_store_without_its_package_says_which() -> None:
    if importlib.util.find_spec("gcsfs"):
        pytest.skip("gcsfs is installed here")
    with pytest.raises(SpecError, match="gcsfs"):
        open_place("gs://bucket/run")
