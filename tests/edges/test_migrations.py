"""Databases that earlier versions of brim wrote: today's goes on with them, and with today's own
for ever.

Those in `databases/` were written by real schedulers of those versions: on a cluster of one node
with 2 workers, tenant ads owning both, `brim submit digits.py` four times (done; promised, with
`--deadline 5h`, and suspended; cancelled; waiting), then `brim down` and `vacuum`. Only the folder
in the records is called /srv/models now.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.domain.cluster import ClusterSpec
from brim.domain.lifecycle import Phase
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import EnvironmentFault, StorageFault
from brim.policies.brim import Remembered
from brim.policies.cycle import CycleMemory
from brim.scheduler.cycles import decode_memory
from brim.scheduler.replay import replay
from brim.scheduler.story import cluster_course
from brim.storage import migrations
from brim.storage.book import Book
from brim.storage.database import Database
from brim.storage.migrations import FORMAT, kept_copy, migrate

# Reasons that are put in other words since these were written.
REWORDED = {
    "reason of digits-1: minimum-share: its deadline needs 1 worker, this time minimum-share: as many "
    "as it may have",
    "reason of digits-4: cluster-full: all 0 devices are in better use, this time cluster-full: "
    "training has no device now",
}
DATABASES = Path(__file__).parent / "databases"
FORMATS = range(1, FORMAT + 1)
EARLIER = range(1, FORMAT)


def database_of(format: int, folder: Path) -> Path:
    """One that a scheduler of that format left."""
    path = folder / "scheduler.db"
    path.write_bytes(gzip.decompress((DATABASES / f"format-{format}.db.gz").read_bytes()))
    return path


def format_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as sql:
        return migrations.format_of(sql)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Database]:
    database = Database(path)
    try:
        yield database
    finally:
        database.close()


@pytest.mark.parametrize("format", FORMATS)
def test_what_any_version_wrote_is_there(format: int, tmp_path: Path) -> None:
    path = database_of(format, tmp_path)
    copy = migrate(path)
    assert copy == (kept_copy(path, format) if format < FORMAT else None)
    assert migrate(path) is None
    with opened(path) as database:
        book = Book(database)
        assert not book.damaged
        done, promised, cancelled, waiting = book.jobs.values()
        assert [job.life.phase for job in (done, promised, cancelled, waiting)] == [
            Phase.DONE,
            Phase.SUSPENDED,
            Phase.CANCELLED,
            Phase.ADMITTED,
        ]
        assert done.summary["exit"] == "done"
        assert (done.progress.step, done.progress.steps, done.submission.spec.epochs) == (24, 24, 2)
        assert promised.promised
        assert (promised.submission.tenant, waiting.submission.tenant) == ("ads", "web")
        assert (promised.allocation.plan, promised.allocation.told, promised.allocation.home) == (
            {"n1": 2},
            {},
            "n1",
        )
        assert "running" in [change.event for change in book.story(done)]
        assert database.next_number() == 5
        assert book.measured(done.submission.fingerprint).rates
        last = database.last_cycle()
        assert last is not None
        memory = decode_memory(last.memory, policy=last.policy)
        remembered = memory.policies[("ads", 0)]
        assert isinstance(remembered, Remembered)
        assert list(remembered.plans) == [promised.id], "the plan that keeps its promise"
        found = replay(database.cycles())
        assert found.cycles > 3
        if format == FORMAT:
            differing = {part for each in found.differences for part in each.what}
            assert differing == REWORDED
            assert database.used_in_all()["ads"] > 0.0
        course = cluster_course(database, subject="here", now=None)
        assert [job.job for job in course.jobs] == list(book.jobs)
        spec = msgspec.json.decode(database.get("cluster") or b"", type=ClusterSpec)
        assert (spec.capacity, spec.tenants[0].guaranteed) == (2, 2)


def parts(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a value, by its place."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from parts(item, f"{name}.{key}")
    elif isinstance(value, list) and value:
        for k, item in enumerate(value):
            yield from parts(item, f"{name}[{k}]")
    else:
        yield name, value


@pytest.mark.parametrize("format", FORMATS)
def test_no_part_of_a_record_is_lost(format: int, tmp_path: Path) -> None:
    """A renamed or retyped part of a record needs a migration; a part that is new has a value for old
    ones.
    """
    path = database_of(format, tmp_path)
    migrate(path)
    with opened(path) as database:
        for _, id, content in database.jobs():
            written = dict(parts(msgspec.msgpack.decode(content)))
            encoded = msgspec.msgpack.encode(msgspec.msgpack.decode(content, type=ScheduledJob))
            read = dict(parts(msgspec.msgpack.decode(encoded)))
            assert {name: read.get(name, "nothing") for name in written} == written, id


def test_every_format_has_its_database_and_its_step() -> None:
    assert sorted(path.name for path in DATABASES.iterdir()) == [
        f"format-{k}.db.gz" for k in FORMATS
    ]
    assert sorted(migrations._STEPS) == list(EARLIER)


def test_a_new_database_is_as_a_migrated_one(tmp_path: Path) -> None:
    new = Database(tmp_path / "new.db")
    new.close()
    old = database_of(1, tmp_path)
    migrate(old)
    assert layout(old) == layout(tmp_path / "new.db")


def layout(path: Path) -> list[Any]:
    """Tables with their columns, and all that is not in the tables."""
    with contextlib.closing(sqlite3.connect(path)) as sql:
        tables = sql.execute(
            "select name from sqlite_master where sql is not null order by name"
        ).fetchall()
        columns = [
            (name, sql.execute(f"pragma table_xinfo({name})").fetchall()) for (name,) in tables
        ]
        return [*columns, sql.execute("pragma auto_vacuum").fetchone(), migrations.format_of(sql)]


def test_the_copy_is_what_was_there_before(tmp_path: Path) -> None:
    path = database_of(2, tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as sql:
        content_before = list(sql.iterdump())
    migrate(path)
    copy = kept_copy(path, 2)
    assert format_of(copy) == 2
    assert copy.stat().st_mode & 0o777 == 0o600
    with contextlib.closing(sqlite3.connect(copy)) as sql:
        assert list(sql.iterdump()) == content_before


def test_the_copy_is_private(tmp_path: Path) -> None:
    path = database_of(2, tmp_path)
    planted = tmp_path / f".{kept_copy(path, 2).name}.draft"
    planted.touch()
    planted.chmod(0o666)
    migrate(path)
    assert kept_copy(path, 2).stat().st_mode & 0o777 == 0o600
    assert planted.read_bytes() == b""


def test_another_format_is_refused_with_a_hint(tmp_path: Path) -> None:
    old = database_of(2, tmp_path)
    with pytest.raises(
        EnvironmentFault, match=r"has format 2, .* reads 7\n  hint: brim up migrates it"
    ):
        Database(old)
    assert format_of(old) == 2, "only who has the lock migrates"
    with contextlib.closing(sqlite3.connect(old)) as sql:
        sql.execute("pragma user_version = 99")
    for look in (migrate, Database):
        with pytest.raises(
            EnvironmentFault, match=r"has format 99, which a newer version of brim wrote"
        ):
            look(old)
    assert not kept_copy(old, 99).exists()


@pytest.mark.parametrize("steps_left", EARLIER)
def test_a_kill_between_migrations_is_recoverable(steps_left: int, tmp_path: Path) -> None:
    path = database_of(1, tmp_path)
    code = f"""
import os, signal, sys
from pathlib import Path
from brim.storage import migrations
take = migrations._STEPS[{steps_left}]
def step(sql):
    take(sql)
    os.kill(os.getpid(), signal.SIGKILL)
migrations._STEPS[{steps_left}] = step
migrations.migrate(Path(sys.argv[1]))
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert format_of(path) == steps_left, "the step that was killed did nothing"
    assert format_of(kept_copy(path, 1)) == 1
    migrate(path)
    with opened(path) as database:
        assert len(Book(database).jobs) == 4


def test_nothing_is_migrated_without_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = database_of(2, tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFault, match=r"cannot migrate .*No space left"):
        migrate(path)
    assert format_of(path) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["scheduler.db"]


def test_mislabelled_databases_are_reported_and_kept(tmp_path: Path) -> None:
    path = database_of(2, tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as sql:
        sql.execute("update jobs set record = x'c1' where number = 2")
        sql.commit()
    with pytest.raises(StorageFault, match="cannot migrate"):
        migrate(path)
    assert format_of(path) == 2


def test_memory_of_policies_without_plans_is_left_alone() -> None:
    """In format 3 the memory of policy brim was first the plans alone, later more."""
    full_memory = CycleMemory(
        policies={("ads", 0): Remembered(plans={}, planned=5.0, devices=2)}, blocks={}
    )
    rows = [["ads", 0, full_memory.policies[("ads", 0)]]]
    content = msgspec.msgpack.encode({"policies": rows, "blocks": {}})
    assert decode_memory(migrations._memory_with_plans(content), policy="brim") == full_memory
