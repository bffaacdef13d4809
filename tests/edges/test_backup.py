"""A backup is whole or not there, has all that a scheduler remembers, and lets nothing be started
twice.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bookkeeping import submit, wish
from brim.cli.__main__ import cli
from brim.domain.course import Change
from brim.domain.lifecycle import Happening, Life, Phase
from brim.domain.scheduled_job import Allocation, JobProgress
from brim.storage import backup as backup_module
from brim.storage.backup import finish_restore, is_half_restored
from brim.storage.book import Book
from brim.storage.database import Database
from brim.storage.files import lock
from brim.storage.migrations import FORMAT
from edges.test_migrations import DATABASES, database_of
from submissions import submission

SMALL = {
    "token": "administrators",
    "tenant-tokens.json": '{"ads": "00"}',
    "audit.jsonl": '{"who": "ads"}\n',
    "authority.pem": "the cluster's",
    "nodes.token": "for nodes",
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of a scheduler that was killed: a job done, one running on a node, one waiting."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with opened(state) as book:
        for _ in range(3):
            submit(book, submission(), name="job", now=1.0, key="")
        done, running, _ = book.jobs.values()
        wish(book, done, Happening.CANCEL, now=2.0)
        running.life = Life(Phase.RUNNING)
        running.allocation = Allocation(plan={"n1": 2}, told={"n1": 2})
        running.progress = JobProgress(step=70)
        book.save(running)
    for name, content in SMALL.items():
        (state / name).write_text(content)
    return state


@contextlib.contextmanager
def opened(state: Path) -> Iterator[Book]:
    database = Database(state / "scheduler.db")
    try:
        yield Book(database)
    finally:
        database.close()


def brim(verb: str, file: Path, state: Path, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(
        cli, [verb, str(file), "--state", str(state), *words], catch_exceptions=False
    )
    assert result.exit_code == code, result.stderr
    return result


def backed_up(state: Path) -> Path:
    file = state.parent / "backup.tar.gz"
    brim("backup", file, state)
    return file


def test_all_is_there_on_another_host(state: Path, tmp_path: Path) -> None:
    output = brim("backup", tmp_path / "b.tar.gz", state)
    assert "backed up 3 jobs, 2 unfinished, and tokens" in output.stderr
    assert (
        f"not in it: run directories, with logs and checkpoints, in {state}/jobs" in output.stderr
    )
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "state"], (
        "nothing else is left"
    )
    other_state = tmp_path / "other"
    output = brim("restore", tmp_path / "b.tar.gz", other_state)
    assert (
        "start from scratch, since their run directories are not there: job-2, job-3"
        in output.stderr
    )
    assert sorted(path.name for path in other_state.iterdir()) == sorted(
        [".scheduler.lock", "scheduler.db", *SMALL]
    )
    assert {name: (other_state / name).read_text() for name in SMALL} == SMALL
    assert all(path.stat().st_mode & 0o077 == 0 for path in (other_state, *other_state.iterdir()))
    with opened(other_state) as book:
        done, running, waiting = book.jobs.values()
        assert [job.life.phase for job in (done, running, waiting)] == [
            Phase.CANCELLED,
            Phase.SUSPENDED,
            Phase.SUBMITTED,
        ]
        assert (running.allocation.told, running.allocation.plan, running.progress.step) == (
            {},
            {},
            0,
        ), "it is started, and not looked for"
        assert [(line.event, line.detail) for line in book.story(running)][-2:] == [
            ("restored", "its run directory is not here: starts from scratch"),
            ("suspended", "restored from a backup"),
        ]
        assert book.cluster_story()[-1].event == "restored"
    with opened(state) as book:
        assert book.jobs["job-2"].running, "what was backed up is as it was"


def test_older_backups_keep_the_present_authority(state: Path) -> None:
    """Which had none: tokens on other hosts and nodes go on."""
    for name in ("authority.pem", "nodes.token"):
        (state / name).unlink()
    files_before = backed_up(state)
    (state / "authority.pem").write_text("the cluster's")
    brim("restore", files_before, state, "--force")
    assert (state / "authority.pem").read_text() == "the cluster's"
    (aside,) = state.glob("before-restore-*")
    assert (aside / "token").exists()
    assert not (aside / "authority.pem").exists()


def test_concurrent_writes_do_not_delay_it(state: Path, tmp_path: Path) -> None:
    """A scheduler writes all the time, and each such write would make SQLite's own backup begin
    again from the start.
    """
    with opened(state) as book:
        for k in range(2_000):
            book.note(Change(1.0, "job-2", "measured", detail="x" * 5_000 + str(k)))
    stop = threading.Event()

    def write() -> None:
        with opened(state) as book:
            record = book.jobs["job-3"]
            while not stop.is_set():
                book.save(record)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        file = backed_up(state)
    finally:
        stop.set()
        writing.join(30.0)
    other_state = tmp_path / "other"
    brim("restore", file, other_state)
    with opened(other_state) as book:
        assert len(book.story(book.jobs["job-2"])) > 2_000


def test_a_killed_backup_leaves_the_previous_one(state: Path, tmp_path: Path) -> None:
    file = backed_up(state)
    bytes_before = file.read_bytes()
    for place in ("_manifest", "_add_file", "sync_directory"):
        code = f"""
import os, signal, sys
from pathlib import Path
from brim.storage import backup
did = backup.{place}
def dies(*words):
    done = did(*words)
    os.kill(os.getpid(), signal.SIGKILL)
if {place!r} == "sync_directory":
    backup.os.fsync = dies_first = lambda _: os.kill(os.getpid(), signal.SIGKILL)
backup.{place} = dies
backup.write_backup(Path(sys.argv[1]), Path(sys.argv[2]), now=5.0, progress=lambda _: None)
"""
        done = subprocess.run([sys.executable, "-c", code, str(state), str(file)], check=False)
        assert done.returncode == -signal.SIGKILL, place
        assert file.read_bytes() == bytes_before, place
    brim("backup", file, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar.gz", "state"], (
        "the drafts are gone"
    )
    brim("restore", file, tmp_path / "other")


def test_foreign_files_beside_it_are_untouched(state: Path, tmp_path: Path) -> None:
    """A backup by root into a directory where everybody may write."""
    folder, precious = tmp_path / "everybody's", tmp_path / "precious"
    folder.mkdir(mode=0o777)
    precious.write_text("as it was")
    names = (".b.db", "..b.db.draft", ".b.tar", "..b.db.draft-wal")
    for name in names:
        (folder / name).symlink_to(precious)
    brim("backup", folder / "b", state)
    assert precious.read_text() == "as it was"
    assert {path.name for path in folder.iterdir()} == {"b", *names}, (
        "it touches only what is its own"
    )
    assert (folder / "b").stat().st_mode & 0o777 == 0o600
    brim("restore", folder / "b", tmp_path / "other")


def test_concurrent_backups_of_one_file_are_independent(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar.gz"
    manifests: list[backup_module.Manifest] = []

    def second(_: float) -> None:
        if not manifests:
            manifests.append(
                backup_module.write_backup(state, file, now=7.0, progress=lambda _: None)
            )

    first = backup_module.write_backup(state, file, now=5.0, progress=second)
    assert [manifest.jobs for manifest in (first, *manifests)] == [3, 3]
    assert backup_module.read_manifest(file) == first, "who ends last has the file"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar.gz", "state"]
    brim("restore", file, tmp_path / "other")


def test_a_log_rotated_meanwhile_is_included(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = backup_module._add_file

    def rotates(*words: Any) -> None:
        add(*words)
        (state / "audit.jsonl").rename(state / "audit.1.jsonl")

    monkeypatch.setattr(backup_module, "_add_file", rotates)
    brim("restore", backed_up(state), tmp_path / "other")
    assert (tmp_path / "other" / "audit.jsonl").read_text() == SMALL["audit.jsonl"]


def test_forcing_over_jobs_keeps_the_old_state(state: Path) -> None:
    file = backed_up(state)
    with opened(state) as book:
        submit(book, submission(), name="later", now=9.0)
    (state / "clock.json").write_text("{}")  # not in the backup
    for name in ("job-2", "later-4", "strange"):
        (state / "jobs" / name).mkdir(parents=True)
    refused = brim("restore", file, state, code=2)
    assert "add --force" in refused.stderr
    summary = json.loads(brim("restore", file, state, "--force", "--json").stdout)
    aside = Path(summary["aside"])
    assert aside.parent == state
    assert aside.name.startswith("before-restore-")
    assert (summary["go_on"], summary["begin_anew"]) == (["job-2"], ["job-3"])
    assert summary["unknown"] == ["later-4", "strange"]
    assert {"scheduler.db", "token", "clock.json"} <= {path.name for path in aside.iterdir()}
    assert not (state / "clock.json").exists()
    with opened(aside) as book:
        assert "later-4" in book.jobs
    with opened(state) as book:
        assert (book.jobs["job-2"].progress.step, book.jobs["job-3"].progress.step) == (70, 0)
        # Else it would find the checkpoints of a job that it has nothing to do with.
        assert submit(book, submission(), name="later", now=9.0).id == "later-5"


def test_numbers_without_directories_are_not_reused(state: Path) -> None:
    file = backed_up(state)
    with opened(state) as book:
        submit(book, submission(), name="job", now=9.0)
    brim("restore", file, state, "--force")
    with opened(state) as book:
        assert submit(book, submission(), name="job", now=9.0).id == "job-5"


def test_forgotten_job_numbers_are_not_reused(state: Path) -> None:
    file = backed_up(state)
    with opened(state) as book:
        for _ in range(7):
            record = submit(book, submission(), name="job", now=9.0)
            wish(book, record, Happening.CANCEL, now=9.0)
            book.forget(record)
    brim("restore", file, state, "--force")
    with opened(state) as book:
        assert submit(book, submission(), name="job", now=9.0).id == "job-11"


@pytest.mark.parametrize("format", range(1, FORMAT + 1))
def test_old_format_job_numbers_are_not_reused(format: int, state: Path, tmp_path: Path) -> None:
    file, old = backed_up(state), tmp_path / "old"
    old.mkdir()
    database_of(format, old)
    brim("restore", file, old, "--force")
    with opened(old) as book:
        assert submit(book, submission(), name="job", now=9.0).id == "job-5"


@pytest.mark.parametrize("name", [".agent.lock", ".agent.lock.n2", ".journal.lock"])
def test_where_jobs_train_on_nothing_is_restored(state: Path, name: str) -> None:
    file = backed_up(state)
    run_dir = state / "jobs" / "job-2"
    run_dir.mkdir(parents=True)
    lock_file = lock(run_dir / name)
    assert lock_file is not None
    try:
        refused = brim("restore", file, state, "--force", code=1)
        assert f"jobs train on in {state}, without a scheduler: job-2" in refused.stderr
        assert "hint: brim up" in refused.stderr
    finally:
        os.close(lock_file)
    with opened(state) as book:
        assert book.jobs["job-2"].running
    brim("restore", file, state, "--force")


def test_where_a_scheduler_runs_nothing_is_restored(state: Path) -> None:
    file = backed_up(state)
    lock_file = lock(state / ".scheduler.lock")
    assert lock_file is not None
    try:
        assert "a scheduler runs in" in brim("restore", file, state, "--force", code=1).stderr
    finally:
        os.close(lock_file)


@pytest.mark.parametrize("format", range(1, FORMAT + 1))
def test_old_backups_can_be_restored(format: int, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    database_of(format, old)
    file = backed_up(old)
    brim("restore", file, tmp_path / "new")
    with opened(tmp_path / "new") as book:
        assert len(book.jobs) == 4
        assert book.jobs["digits-2"].promised
    assert not list((tmp_path / "new").glob("scheduler.db.*"))
    assert len(list(DATABASES.iterdir())) == FORMAT


def test_a_killed_restore_is_completed_or_harmless(state: Path, tmp_path: Path) -> None:
    """At every rename and removal of it, one after the other."""
    file = backed_up(state)
    with opened(state) as book:
        submit(book, submission(), name="later", now=9.0)
    code = """
import os, signal, sys
from pathlib import Path
left = int(sys.argv[3])
def counted(name):
    does = getattr(os, name)
    def did(*words, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return does(*words, **more)
    return did
for name in ("rename", "replace", "fsync"):
    setattr(os, name, counted(name))
from brim.storage import backup
from brim.storage.files import lock
held = lock(Path(sys.argv[2]) / ".scheduler.lock")
backup.prepare_restore(Path(sys.argv[1]), Path(sys.argv[2]), now=50.0, aside="aside")
backup.finish_restore(Path(sys.argv[2]))
"""
    outcomes = []
    for count in range(100):
        state_copy = tmp_path / f"state-{count}"
        shutil.copytree(state, state_copy)
        done = subprocess.run(
            [sys.executable, "-c", code, str(file), str(state_copy), str(count)], check=False
        )
        half = is_half_restored(state_copy)
        lock_file = lock(state_copy / ".scheduler.lock")
        assert lock_file is not None
        finish_restore(state_copy)
        os.close(lock_file)
        with opened(state_copy) as book:
            new = "later-4" not in book.jobs
        assert not half or new
        assert (state_copy / "token").read_text() == SMALL["token"]
        if new:
            with opened(state_copy / "aside") as book:
                assert "later-4" in book.jobs, "what was there is kept"
        outcomes.append((half, new))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert outcomes[0] == (False, False)
    assert outcomes[-1] == (False, True)
    assert (True, True) in outcomes
    assert outcomes == sorted(outcomes, key=lambda entry: (entry[1], not entry[0])), (
        "first nothing, then all"
    )


# What is no backup --------------------------------------------------------------------------------


def archive(path: Path, *entries: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            entry.size, entry.type, entry.linkname = len(content), kind, "/etc/passwd"
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_invalid_backup_is_refused_and_changes_nothing(state: Path, tmp_path: Path) -> None:
    good = backed_up(state).read_bytes()
    manifest = json.dumps(
        {
            "written": 1.0,
            "version": "9",
            "state": "/s",
            "files": ["scheduler.db"],
            "jobs": 0,
            "unfinished": 0,
        }
    ).encode()
    later_manifest = manifest.replace(b'"jobs"', b'"format": 2, "jobs"')
    odd = manifest.replace(b"scheduler.db", b"../../etc/passwd")
    files = {
        "empty": b"",
        "text": b"no backup\n" * 100,
        "cut": good[: len(good) // 2],
        "gzip": gzip.compress(b"no tar" * 1_000),
        "other": archive(tmp_path / "x", ("a", b"b")).read_bytes(),
        "link": archive(tmp_path / "x", ("backup.json", b""), kind=tarfile.SYMTYPE).read_bytes(),
        "later": archive(tmp_path / "x", ("backup.json", later_manifest)).read_bytes(),
        "odd": archive(tmp_path / "x", ("backup.json", odd)).read_bytes(),
        "less": archive(tmp_path / "x", ("backup.json", manifest)).read_bytes(),
        "more": archive(tmp_path / "x", ("backup.json", manifest), ("../x", b"")).read_bytes(),
    }
    for name, content in files.items():
        file = tmp_path / name
        file.write_bytes(content)
        other_state = tmp_path / "elsewhere"
        refused = brim("restore", file, other_state, code=2)
        assert "FILE: got" in refused.stderr, name
        assert not (other_state / "scheduler.db").exists(), name
        assert not is_half_restored(other_state), name
    assert "no directory" in brim("backup", tmp_path / "none" / "b", state, code=2).stderr
    assert "scheduler.db" in brim("backup", tmp_path / "b", tmp_path / "none", code=2).stderr
    assert "No such file" in brim("restore", tmp_path / "none", state, code=2).stderr


def test_a_damaged_database_is_no_backup(state: Path, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(state / "scheduler.db")) as sql:
        sql.execute("pragma wal_checkpoint(truncate)")
    with (state / "scheduler.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 20_000)
    output = brim("backup", tmp_path / "b", state, code=1)
    assert "damaged" in output.stderr or "malformed" in output.stderr
    assert not (tmp_path / "b").exists()


def test_a_filling_disk_is_reported_without_leftovers(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = backed_up(state)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    output = brim("restore", file, tmp_path / "other", code=1)
    assert "cannot restore into" in output.stderr
    assert "No space left" in output.stderr
    assert [path.name for path in (tmp_path / "other").iterdir()] == [".scheduler.lock"]
