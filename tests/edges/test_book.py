from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from bookkeeping import hear, submit, wish
from brim.coordination.cluster.scheduled_jobs import Foretold
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.course import Change
from brim.domain.job import JobSpec
from brim.domain.lifecycle import Happening
from brim.domain.measuring import Measured
from brim.domain.scheduled_job import JobProgress
from brim.domain.submission import Submission
from brim.errors import EnvironmentFault, StorageFault
from brim.kubernetes.record import open_book
from brim.storage import database as database_module
from brim.storage.book import _KINDS_KEPT, Book
from brim.storage.bundles import digest_of
from brim.storage.database import Database
from brim.storage.files import is_locked, lock
from submissions import submission

CODE = JobSpec(file="m.py", parameters={}, bundle=digest_of(b"code"))


def test_everything_is_on_disk_at_once(tmp_path: Path) -> None:
    book = Book(Database(tmp_path / "db"))
    record = submit(
        book, submission("1:4", deadline=500.0, tenant="ads"), name="flights", now=100.0
    )
    wish(book, record, Happening.HOLD, now=101.0)
    reopened = Book(Database(tmp_path / "db"))  # the first was not closed: as after kill -9
    assert list(reopened.jobs) == ["flights-1"]
    assert reopened.jobs["flights-1"] == record
    assert [(c.at, c.event, c.detail) for c in reopened.story(record)] == [
        (100.0, "submitted", ""),
        (101.0, "hold", ""),
    ]
    assert submit(reopened, submission(), name="flights", now=103.0).id == "flights-2"


def test_lessons_of_jobs_survive(tmp_path: Path) -> None:
    book = Book(Database(tmp_path / "db"))
    book.learn(submission(epochs=2), Measured({2: (10.0, 5.0)}), 240)
    reopened = Book(Database(tmp_path / "db"))
    assert reopened.measured("m").rates == {2: 2.0}
    assert reopened.steps_of(submission(epochs=5)) == 600
    assert reopened.steps_of(submission(fingerprint="other")) is None


def test_price_of_restarts_survives_and_changed_code(tmp_path: Path) -> None:
    def command(*words: str, bundle: str = "", tenant: str = "ads") -> Submission:
        spec = JobSpec(command=words, restart=True, bundle=bundle)
        return submission(spec=spec, tenant=tenant, fingerprint=bundle)

    book = Book(Database(tmp_path / "db"))
    first = command("python", "train.py")
    for seconds in (90.0, 30.0, 31.0, 32.0, 33.0, 34.0):  # the first had cold caches
        book.learn_restart(first, seconds)
    reopened = Book(Database(tmp_path / "db"))
    assert reopened.restart_of(command("python", "train.py", bundle=digest_of(b"new"))) == 32.0
    assert reopened.restart_of(command("python", "other.py")) is None
    assert reopened.restart_of(command("python", "train.py", tenant="web")) is None
    for number in range(_KINDS_KEPT):
        reopened.learn_restart(command("sh", f"{number}.sh"), 1.0)
    assert reopened.restart_of(first) is None  # the oldest makes way


def test_few_steps_do_not_spoil_lessons(tmp_path: Path) -> None:
    book = Book(Database(tmp_path / "db"))
    book.learn(submission(), Measured({2: (10.0, 5.0)}), None)
    book.learn(submission(), Measured({2: (1.0, 9.0), 4: (10.0, 2.0)}), None)
    assert Book(Database(tmp_path / "db")).measured("m").rates == {2: 2.0, 4: 5.0}


def test_code_of_damaged_jobs_is_kept(tmp_path: Path) -> None:
    """A record of a newer version, say, which that version reads again."""
    database = Database(tmp_path / "db")
    book = Book(database)
    book.keep_bundle(b"code", CODE.bundle)
    ended, second = (submit(book, submission(spec=CODE), name="job", now=now) for now in (1.0, 2.0))
    wish(book, ended, Happening.CANCEL, now=3.0)
    whole = next(content for _, id, content in database.jobs() if id == second.id)
    database.put_job(second.number, second.id, b"newer")
    damaged = Book(database)
    assert list(damaged.damaged) == [second.id]
    damaged.forget(damaged.jobs[ended.id])
    database.put_job(second.number, second.id, whole)
    mended = Book(database)
    assert mended.bundle(mended.jobs[second.id].submission.spec.bundle) == b"code"
    wish(mended, mended.jobs[second.id], Happening.CANCEL, now=4.0)
    mended.forget(mended.jobs[second.id])
    with pytest.raises(StorageFault):
        mended.bundle(CODE.bundle)


def test_old_cycles_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "_CYCLES_KEPT", 1000)
    database = Database(tmp_path / "db")
    for k in range(2000):
        database.add_cycle(float(k), "brim", b"%d" % k, b"")
    contents = [int(row.content) for row in database.cycles()]
    assert (contents[0], contents[-1]) == (1000, 1999)


def test_large_cycles_are_forgotten_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "_CYCLE_BYTES_KEPT", 50_000)
    database = Database(tmp_path / "db")
    for k in range(300):
        database.add_cycle(float(k), "brim", bytes(900), bytes(100))
    assert [row.number for row in database.cycles()] == list(range(250, 301))
    for k in range(300, 400):
        database.add_cycle(float(k), "brim", bytes(60_000), b"")
    # Too large by itself, and the next one begins with what it left.
    assert [row.number for row in database.cycles()] == [400]


def test_estimates_of_a_job_do_not_grow(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    book = Book(database)
    record = submit(book, submission(), name="job", now=0.0)
    book.learn(submission(), Measured({1: (10.0, 10.0)}), None)
    for k in range(101):
        record.progress = JobProgress(step=k, steps=100)
        hear(book, Foretold({record.id: 1000.0 + k}, 10.0 * k), 10.0 * k)
    assert [row[2] for row in database.history(record.id)] == ["submitted"]
    (record_kept,) = Book(Database(tmp_path / "db")).jobs.values()
    found = [
        estimate.step
        for estimate in (
            record_kept.estimates.first,
            record_kept.estimates.half,
            record_kept.estimates.last,
        )
        if estimate
    ]
    assert found == [0, 50, 100]


def test_a_story_reads_no_estimates_of_earlier_versions(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    book = Book(database)
    record = submit(book, submission(), name="job", now=0.0)
    book.note(Change(15.0, record.id, "estimate", detail="99.000"))
    assert [row[2] for row in database.history(record.id)] == ["submitted"]
    assert [change.event for change in book.story(record)] == ["submitted"]


def test_foreign_and_missing_databases_are_handled(tmp_path: Path) -> None:
    sqlite = sqlite3.connect(tmp_path / "db")
    sqlite.execute("pragma user_version = 99")
    sqlite.close()
    with pytest.raises(
        EnvironmentFault, match=r"has format 99, which a newer version of brim wrote"
    ):
        Database(tmp_path / "db")
    (tmp_path / "text").write_text("no database\n" * 100)
    with pytest.raises(EnvironmentFault, match="cannot open"):
        Database(tmp_path / "text")
    with pytest.raises(EnvironmentFault, match="cannot open"):
        Database(tmp_path / "missing" / "db")


def test_a_lock_is_one_processs(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    lock_file = lock(path)
    assert lock_file is not None
    assert is_locked(path)
    assert lock(path) is None
    import os

    os.close(lock_file)
    assert not is_locked(path)


def test_a_transaction_is_written_whole_or_not(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    with contextlib.suppress(ZeroDivisionError), database.transaction():
        database.put("one", b"1")
        with database.transaction():
            database.put("two", b"2")
        1 / 0
    assert (database.get("one"), database.get("two")) == (None, None)
    with database.transaction():
        database.put("one", b"1")
        assert Database(tmp_path / "db").get("one") is None
    assert Database(tmp_path / "db").get("one") == b"1"


def test_ended_jobs_are_packed_and_shown(tmp_path: Path) -> None:
    book = Book(Database(tmp_path / "db"))
    records = [
        submit(book, submission(), name="job", now=float(k), key=f"key {k}") for k in range(4)
    ]
    for record in records[1:3]:
        record.summary = {"exit": "done", "steps": 7}
        wish(book, record, Happening.CANCEL, now=9.0)
    for book_read in (book, Book(Database(tmp_path / "db"))):
        assert list(book_read.jobs) == ["job-1", "job-2", "job-3", "job-4"]
        assert [record.id for record in book_read.unfinished()] == ["job-1", "job-4"]
        assert list(book_read.jobs.unfinished) == ["job-1", "job-4"]
        assert book_read.jobs["job-2"] == records[1]
        assert book_read.jobs["job-2"].summary["steps"] == 7
        assert book_read.keyed("key 2") == records[2]
        assert [record.id for record in book_read.jobs.records_after("job-2")] == ["job-3", "job-4"]
        assert "job-9" not in book_read.jobs
        assert book_read.jobs.get("job-9") is None
    # What is open is the same object for everybody; what has ended is nobody's to change.
    assert book.jobs["job-1"] is records[0]
    book.jobs["job-2"].summary["steps"] = 8
    assert book.jobs["job-2"].summary["steps"] == 7


def test_disk_waits_skip_data_kept_elsewhere(tmp_path: Path) -> None:
    def level(database: Database) -> int:
        (found,) = database._sql.execute("pragma synchronous").fetchone()
        database.close()
        return int(found)

    cluster = ClusterSpec(cluster=Cluster.parse("1x4"))
    operators = open_book(tmp_path / "operator.db", [], memory=None, spec=cluster)
    assert (level(Database(tmp_path / "scheduler.db")), level(operators)) == (2, 1)
