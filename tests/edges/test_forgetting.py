"""Ended jobs are forgotten: nothing of them is left, nothing else goes, and a process that
dies in between leaves no half.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bookkeeping import submit, wish
from brim.cli.__main__ import cli
from brim.client import Client, _AnswerLost
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.course import Change
from brim.domain.lifecycle import Happening
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import EnvironmentFault, InternalError, SpecError
from brim.host.clock import VirtualClock
from brim.scheduler import forgetting as forgetting_module
from brim.scheduler.cluster_file import cluster_spec
from brim.scheduler.forgetting import Forgetting
from brim.scheduler.story import cluster_course
from brim.storage import removing
from brim.storage.book import Book
from brim.storage.database import Database
from brim.storage.removing import remove_run
from e2e.running import until
from edges.test_scheduler import TENANTS, Served, ask, brim, served
from edges.test_tenants import OTHER, OWNER, House, house, job_of
from submissions import submission

__all__ = ["house", "served"]
ROOT = os.geteuid() == 0


def ended(served: Served, *, tenant: str = "ads", key: str = "") -> str:
    """A job that has run and is done, with files in its directory."""
    job = served.client.submit(ask("1", tenant=tenant, key=key)).job
    until(lambda: served.processes.of(job).workers > 0, "its worker")
    write_run(served.folder / "jobs" / job)
    served.processes.end(job, "done", summary={"exit": "done"})
    served.client.wait(job, timeout=60.0)
    return job


def write_run(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "step-1").mkdir(parents=True)
    (run_dir / "checkpoints" / "step-1" / "weights").write_bytes(bytes(50_000))
    (run_dir / "events.jsonl").write_text("{}\n")


def cancelled(book: Book, *, now: float = 5.0, **fields: str) -> ScheduledJob:
    record = submit(book, submission(), name="job", now=0.0, **fields)
    wish(book, record, Happening.CANCEL, now=now)
    return record


def test_only_the_forgotten_job_disappears(served: Served) -> None:
    served.client.apply(ClusterSpec(cluster=Cluster.parse("1x8"), tenants=TENANTS))
    forgotten, stays = ended(served), ended(served)
    summary = served.client.forget(forgotten)
    assert summary.job == forgotten
    assert summary.bytes >= 50_000
    assert not (served.folder / "jobs" / forgotten).exists()
    assert (served.folder / "jobs" / stays / "events.jsonl").exists()
    assert [view.job for view in served.client.jobs()] == [stays]
    for look in (served.client.job, served.client.explain, served.client.forget):
        with pytest.raises(SpecError, match="need the id of a job"):
            look(forgotten)
    with contextlib.closing(sqlite3.connect(served.folder / "scheduler.db")) as sql:
        assert sql.execute("select distinct job from history where job != ''").fetchall() == [
            (stays,)
        ]
        assert sql.execute("select id from jobs").fetchall() == [(stays,)]
        assert sql.execute("select * from leavings").fetchall() == []
    page = brim("report", "--cluster")
    assert page.exit_code == 0, page.stderr


def test_job_numbers_are_unique_but_keys_reusable(served: Served) -> None:
    first = ended(served, key="nightly")
    assert served.client.submit(ask("1", key="nightly")).job == first
    served.client.forget(first)
    second_job = served.client.submit(ask("1", key="nightly"))
    assert (first, second_job.job) == ("job-1", "job-2"), "another job, with a number of its own"


def test_numbers_are_given_once_across_lives(tmp_path: Path) -> None:
    book = Book(Database(tmp_path / "db"))
    for _ in range(3):
        book.forget(cancelled(book))
    book = Book(Database(tmp_path / "db"))
    assert len(book.jobs) == 0
    assert submit(book, submission(), name="job", now=0.0).id == "job-4"


def test_unfinished_jobs_are_refused_with_a_hint(served: Served) -> None:
    job = served.client.submit(ask("1")).job
    done = ended(served)
    with pytest.raises(EnvironmentFault, match=f"cannot be forgotten: brim cancel {job} ends it"):
        served.client.forget(job)
    result = brim("forget", done, job, "--yes")
    assert result.exit_code == 1
    assert f"brim cancel {job} ends it" in result.stderr
    assert served.client.job(done).state == "done", "nothing was deleted"
    book = Book(Database(served.folder / "other.db"))
    with pytest.raises(InternalError):
        book.forget(submit(book, submission(), name="job", now=0.0))


def test_tenants_forget_only_their_own_jobs(house: House) -> None:
    own_job = house.as_(OWNER).submit(job_of("ads")).job
    house.as_(OWNER).cancel(own_job)
    until(lambda: house.client.job(own_job).has_ended, "its end")
    with pytest.raises(SpecError, match="need the id of a job"):
        house.as_(OTHER).forget(own_job)
    assert house.as_(OWNER).forget(own_job).job == own_job
    lines_audited = [(line["who"], line["request"], line["status"]) for line in house.audited]
    assert ("ads", f"DELETE /v1/jobs/{own_job}", 200) in lines_audited
    assert ("web", f"DELETE /v1/jobs/{own_job}", 404) in lines_audited


def test_the_command_confirms_and_reports_freed_space(served: Served) -> None:
    jobs = [ended(served), ended(served, tenant="web"), ended(served)]
    refused = brim("forget", *jobs)
    assert refused.exit_code == 2
    assert "--yes: got no terminal" in refused.stderr
    assert brim("forget", "--ended-before", "1h", "--yes").exit_code == 0
    assert len(served.client.jobs()) == 3, "none is that old"
    forgetting = brim("forget", "--tenant", "ads", "--yes", "--json")
    summary = json.loads(forgetting.stdout)
    assert [row["job"] for row in summary["forgotten"]] == [jobs[0], jobs[2]]
    assert summary["bytes"] == sum(row["bytes"] for row in summary["forgotten"]) >= 100_000
    last = brim("forget", jobs[1], "--yes")
    assert "forgot 1 job: " in last.stderr
    assert "KiB came back" in last.stderr
    for words in ((), ("job-1", "--tenant", "ads")):
        assert brim("forget", *words, "--yes").exit_code == 2


def test_what_was_forgotten_before_a_failure_is_said(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ended(served), ended(served)

    def no_account(*_: object, **__: object) -> int:
        raise EnvironmentFault("this host has no account 'nina'")

    remove = remove_run

    def fails_for_the_second(path: Path, *, user: str) -> int:
        return no_account() if path.name == second else remove(path, user=user)

    monkeypatch.setattr(forgetting_module, "remove_run", fails_for_the_second)
    output = brim("forget", first, second, "--yes")
    assert output.exit_code == 1
    assert f"forgotten before this failed: {first}" in output.stderr
    assert (
        f"{second} is forgotten, but its directory cannot be removed now: this host has no"
        in output.stderr
    )


def test_whoever_is_asked_can_say_no(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ended(served)
    monkeypatch.setattr("brim.cli.forget._can_answer", lambda: True)
    for answer, code in (("n\n", 1), ("y\n", 0)):
        result = CliRunner().invoke(cli, ["forget", job], input=answer)
        assert result.exit_code == code, result.output
        assert f"Delete 1 job ({job}) with all logs and checkpoints?" in result.stderr
        assert (job in [view.job for view in served.client.jobs()]) is (answer == "n\n")


def test_an_answer_that_was_lost_is_a_yes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    job, client, call = ended(served), served.client, Client._call
    lost = iter([True])

    def loses(self: Client, method: str, *words: Any, **options: Any) -> Any:
        answer: Any = call(self, method, *words, **options)
        if method == "DELETE" and next(lost, False):
            raise _AnswerLost("the line was cut", retryable=True)
        return answer

    monkeypatch.setattr(Client, "_call", loses)
    assert client.forget(job).job == job


def test_the_cluster_forgets_jobs_by_age(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting_module, "_POLL_INTERVAL", 0.05)
    job = ended(served)
    spec = ClusterSpec(cluster=Cluster.parse("1x8"), tenants=TENANTS)
    assert spec.keep_ended is None, "nothing is lost by surprise"
    assert (
        cluster_spec({"nodes": [{"name": "n", "workers": 1}], "keep_ended": "90d"}).keep_ended
        == 90 * 86_400
    )
    with pytest.raises(SpecError, match="keep_ended"):
        cluster_spec({"nodes": [{"name": "n", "workers": 1}], "keep_ended": "soon"})
    for nonsense in (0.0, -1.0, float("nan")):
        with pytest.raises(SpecError, match="keep_ended"):
            replace(spec, keep_ended=nonsense)
    running = served.client.submit(ask("1")).job
    served.client.apply(replace(spec, keep_ended=0.001))
    until(lambda: [view.job for view in served.client.jobs()] == [running], "the end of its time")
    until(lambda: not (served.folder / "jobs" / job).exists(), "its directory's")
    with contextlib.closing(Database(served.folder / "scheduler.db")) as database:
        lines_of_cluster = [
            (change.event, change.detail) for change in Book(database).cluster_story()
        ]
        assert ("jobs forgotten", "1 job, by age") in lines_of_cluster
        cluster_course(database, subject="here", now=None)


def test_only_what_is_old_enough_is_forgotten(tmp_path: Path) -> None:
    book, clock = Book(Database(tmp_path / "db")), VirtualClock(start=1_000.0)
    for now in (100.0, 500.0, 900.0):
        cancelled(book, now=now)
    keep = iter([None, 950.0, 450.0, 450.0])
    forgetting = Forgetting(book, jobs_folder=tmp_path, clock=clock, keep=lambda: next(keep))
    sizes = []
    for _ in range(4):
        forgetting.forget_old()
        sizes.append(len(book.jobs))
    assert sizes == [3, 3, 1, 1]
    assert list(Book(Database(tmp_path / "db")).jobs) == ["job-3"]


def test_the_next_scheduler_completes_removals(tmp_path: Path) -> None:
    """Killed between the two: the job is gone, and its directory is no orphan."""
    jobs = tmp_path / "jobs"
    book = Book(Database(tmp_path / "db"))
    record = cancelled(book)
    write_run(jobs / record.id)
    write_run(jobs / "job-77")  # nobody knows what it is: it may be all that is left of something
    book.forget(record)
    reopened = Book(Database(tmp_path / "db"))  # the first was not closed: as after kill -9
    assert record.id not in reopened.jobs
    assert reopened.leavings() == {record.id: ""}

    async def a_life() -> None:
        clearing = Forgetting(reopened, jobs_folder=jobs, clock=VirtualClock(), keep=lambda: None)
        task = asyncio.create_task(clearing.run())
        while reopened.leavings():
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(a_life(), 30.0))
    assert [path.name for path in jobs.iterdir()] == ["job-77"]


def test_failing_removals_are_reported_and_retried(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ended(served)
    remove = removing.remove_run

    def fails(path: Path, *, user: str = "") -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(forgetting_module, "_POLL_INTERVAL", 0.05)
    monkeypatch.setattr(forgetting_module, "remove_run", fails)
    with pytest.raises(
        EnvironmentFault, match=f"{job} is forgotten, but .*Input/output error.*tried again"
    ):
        served.client.forget(job)
    assert (served.folder / "jobs" / job).exists()
    monkeypatch.setattr(forgetting_module, "remove_run", remove)
    monkeypatch.setattr(forgetting_module, "_RETRY_INTERVAL", 0.0)
    until(lambda: not (served.folder / "jobs" / job).exists(), "the next attempt")


def test_the_file_becomes_smaller(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    book = Book(database)
    records = [cancelled(book) for _ in range(20)]
    for record in records:
        for _ in range(20):
            book.note(Change(1.0, record.id, "measured", detail="x" * 1_000))
    pages_before = pages(tmp_path / "db")
    for record in records:
        book.forget(record)
        book.cleared(record.id)
    database.close()
    assert pages(tmp_path / "db") < pages_before / 3


def pages(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as sql:
        (count,) = sql.execute("pragma page_count").fetchone()
        return int(count)


# What is removed ----------------------------------------------------------------------------------


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    write_run(precious)
    run_dir = tmp_path / "jobs" / "job-1"
    write_run(run_dir)
    (run_dir / "out").symlink_to(precious)
    (run_dir / "checkpoints" / "latest").symlink_to(precious / "checkpoints")
    os.mkfifo(run_dir / "pipe")
    remove_run(run_dir)
    assert not run_dir.exists()
    assert (precious / "checkpoints" / "step-1" / "weights").exists()
    run_dir.symlink_to(precious)
    assert remove_run(run_dir) == 0
    assert not run_dir.is_symlink()
    assert (precious / "events.jsonl").exists()
    assert remove_run(run_dir) == 0, "once is as good as twice"


@pytest.mark.skipif(not ROOT, reason="only root acts as others")
def test_tenants_directory_is_removed_with_its_own_rights(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    run_dir = tmp_path / "job-1"
    write_run(run_dir)
    for path in (run_dir, *run_dir.rglob("*")):
        os.chown(path, 65534, 65534)
    (run_dir / "checkpoints").chmod(0o500)  # as tools leave their caches
    run_dir.chmod(0o500)
    own_file = run_dir / "checkpoints" / "step-1" / "of-root"
    own_file.mkdir()
    (own_file / "secret").write_text("not the tenant's to delete")
    with pytest.raises(PermissionError):
        remove_run(run_dir, user="nobody")
    assert (own_file / "secret").exists()
    (own_file / "secret").unlink()
    own_file.rmdir()
    remove_run(run_dir, user="nobody")
    assert not run_dir.exists()


def deepen(run_dir: Path, levels: int) -> None:
    """Directories in each other, which together have a longer path than any call takes."""
    folder = os.open(run_dir, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("deep", dir_fd=folder)
        inner = os.open("deep", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.write(handle := os.open("file", os.O_WRONLY, dir_fd=folder), bytes(50_000))
    os.close(handle)
    os.close(folder)


@pytest.mark.parametrize("levels", [99, 101, 1_500])
def test_directories_may_lie_as_deep_as_they_like(tmp_path: Path, levels: int) -> None:
    run_dir = tmp_path / "job-1"
    write_run(run_dir)
    deepen(run_dir, levels)
    run_dir.chmod(0o500)
    gc.collect()  # what others have left open is closed now, and not meanwhile
    descriptors_before = len(os.listdir("/proc/self/fd"))
    assert remove_run(run_dir) >= 100_000
    assert not run_dir.exists()
    assert len(os.listdir("/proc/self/fd")) == descriptors_before


def test_a_job_with_deep_directories_is_forgotten(served: Served) -> None:
    job = ended(served)
    deepen(served.folder / "jobs" / job, 1_500)
    assert served.client.forget(job).bytes >= 100_000
    assert not (served.folder / "jobs" / job).exists()


def test_one_failing_directory_spares_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    book = Book(Database(tmp_path / "db"))
    first, second = cancelled(book), cancelled(book)
    for record in (first, second):
        write_run(tmp_path / "jobs" / record.id)
        book.forget(record)

    def fails_once(path: Path, *, user: str = "") -> int:
        if path.name == first.id:
            raise RecursionError("too deep")
        return remove_run(path, user=user)

    monkeypatch.setattr(forgetting_module, "remove_run", fails_once)

    async def a_life() -> None:
        clearing = Forgetting(
            book, jobs_folder=tmp_path / "jobs", clock=VirtualClock(), keep=lambda: None
        )
        task = asyncio.create_task(clearing.run())
        while second.id in book.leavings():
            assert not task.done()
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(a_life(), 30.0))
    assert list(book.leavings()) == [first.id]
    assert f"the directory of {first.id}, which was forgotten, cannot be removed" in caplog.text


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """The logged faults. Nothing is forgotten: the task that does it ends at once."""
    logged: list[BaseException] = []
    monkeypatch.setattr(
        "brim.scheduler.loop._log.error", lambda _, exc_info: logged.append(exc_info)
    )

    async def fails(_: Forgetting) -> None:
        raise RecursionError("of the task beside")

    monkeypatch.setattr(Forgetting, "run", fails)
    return logged


def test_background_failures_are_logged_and_end_nothing(
    faults: list[BaseException], served: Served
) -> None:
    served.client.down()
    served.thread.join(60.0)
    assert not served.thread.is_alive()
    assert served.failure is None
    assert {str(fault) for fault in faults} == {"of the task beside"}
