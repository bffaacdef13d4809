"""A scheduler whose disk fails holds, says why, tries again and goes on; with processes that are
fakes.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest

from bookkeeping import submit
from brim.cli import down as cli_down
from brim.cli.__main__ import cli
from brim.client import Client
from brim.coordination.cluster.sightings import NodeSeen
from brim.errors import EnvironmentFault, StorageFault
from brim.host.clock import SystemClock
from brim.scheduler.loop import Scheduler
from brim.storage.book import Book
from brim.storage.contact import read_scheduler_contact
from brim.storage.database import Alarm, Database
from brim.storage.files import is_lock_of, lock
from brim.storage.migrations import check_format
from e2e.running import DEADLINE, ROOT, until
from edges.test_scheduler import Served, ask, brim, served
from submissions import submission

__all__ = ["served"]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """As by people that look at the database with tools of their own."""
    sql = sqlite3.connect(folder / "scheduler.db", isolation_level=None)
    sql.execute("begin immediate")
    yield
    sql.execute("rollback")
    sql.close()


def problem(client: Client) -> str:
    return client.cluster().problem


def test_locked_databases_keep_scheduler_and_records(served: Served) -> None:
    client = served.client
    client.submit(ask("1:4"))
    until(lambda: served.processes.of("job-1").workers == 4, "4 workers")
    with locked(served.folder):
        with pytest.raises(EnvironmentFault, match="database is locked"):
            client.cancel("job-1")
        until(lambda: bool(problem(client)), "the hold")
        assert "decides nothing for now" in problem(client)
        assert "jobs train on, and it tries again" in problem(client)
        with pytest.raises(EnvironmentFault, match="decides nothing for now"):
            client.submit(ask("1:4"))
        # What was not written down has not happened.
        (view,) = client.jobs()
        assert (view.state, view.wish) == ("running", "run")
        assert "database is locked" in brim("jobs").stderr
        assert "database is locked" in brim("status", "job-1").stderr
        served.processes.end("job-1", "done", summary={"exit": "done"})
    assert client.wait("job-1", timeout=DEADLINE).state == "done"
    assert problem(client) == ""
    assert served.processes.of("job-1").starts == 1
    events = [
        change.event for change in Book(Database(served.folder / "scheduler.db")).cluster_story()
    ]
    assert events == ["up", "went on"]
    client.submit(ask("1:4"))
    until(lambda: client.job("job-2").workers == 4, "workers of the next job")


def test_waiters_hear_of_ends_stored_on_disk(served: Served) -> None:
    client = served.client
    client.submit(ask("1:4"))
    until(lambda: served.processes.of("job-1").workers == 4, "4 workers")
    with locked(served.folder):
        served.processes.end("job-1", "done", summary={"exit": "done"})
        until(lambda: bool(problem(client)), "the hold")
        assert client.wait("job-1", timeout=0.5).state == "running"
    assert client.wait("job-1", timeout=DEADLINE).state == "done"


def test_undecodable_records_hold_the_scheduler(
    served: Served,
) -> None:
    client = served.client
    for _ in range(2):
        client.submit(ask("1:4"))
    until(lambda: client.job("job-2").workers == 4, "4 workers")
    sql = sqlite3.connect(served.folder / "scheduler.db", isolation_level=None)
    (whole,) = sql.execute("select record from jobs where id = 'job-1'").fetchone()
    sql.execute("update jobs set record = x'c1' where id = 'job-1'")
    with locked(served.folder):
        until(lambda: "locked" in problem(client), "the hold")
    until(lambda: "the record of job-1 cannot be decoded" in problem(client), "the next hold")
    assert [view.job for view in client.jobs()] == ["job-2"]
    starts = {name: job.starts for name, job in served.processes.jobs.items()}
    sql.execute("update jobs set record = ? where id = 'job-1'", (whole,))
    sql.close()
    until(lambda: not problem(client), "its end")
    assert [view.state for view in client.jobs()] == ["running", "running"]
    assert {name: job.starts for name, job in served.processes.jobs.items()} == starts


def test_one_damaged_record_spares_the_others(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    database.put_job(1, "odd", b"\xc1")
    book = Book(database)
    assert (list(book.jobs), list(book.damaged)) == ([], ["odd"])


def test_replacing_a_damaged_file_mends_the_scheduler(
    served: Served,
) -> None:
    client = served.client
    client.submit(ask("1:4"))
    until(lambda: client.job("job-1").workers == 4, "4 workers")
    path, copy = served.folder / "scheduler.db", served.folder / "copy.db"
    with (
        contextlib.closing(sqlite3.connect(path)) as sql,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        sql.backup(target)
    draft = served.folder / "draft"
    draft.write_bytes(b"no database\n" * 10_000)
    for suffix in ("-wal", "-shm"):
        (served.folder / f"scheduler.db{suffix}").unlink()
    draft.rename(path)
    until(lambda: "scheduler.db" in problem(client), "the hold")
    until(lambda: "not a database" in problem(client), "the reason")
    assert [view.job for view in client.jobs()] == ["job-1"]
    copy.rename(path)
    until(lambda: not problem(client), "its end")
    assert client.job("job-1").state == "running"
    assert served.processes.of("job-1").starts == 1


def test_deleting_the_state_directory_is_explained(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    served = Served(tmp_path / "state")
    served.client.submit(ask("1:4"))
    until(lambda: served.processes.of("job-1").starts == 1, "its start")
    while (tmp_path / "state").exists():  # it writes meanwhile
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
    served.thread.join(60.0)
    assert not served.thread.is_alive()
    assert isinstance(served.failure, EnvironmentFault)
    assert "moved or deleted under its scheduler" in str(served.failure)
    assert served.processes.of("job-1").starts == 1
    assert not (tmp_path / "state").exists()


def test_a_lock_is_that_of_its_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock_file = lock(path)
    assert lock_file is not None
    assert is_lock_of(lock_file, path)
    path.unlink()
    assert not is_lock_of(lock_file, path)
    path.touch()
    assert not is_lock_of(lock_file, path)


def test_a_database_never_writes_to_a_replaced_file(tmp_path: Path) -> None:
    faults: list[StorageFault] = []
    database = Database(tmp_path / "db", alarm=faults.append)
    database.put("one", b"1")
    (tmp_path / "db").rename(tmp_path / "elsewhere")
    (tmp_path / "db").touch()
    with pytest.raises(StorageFault, match="db was removed or replaced"):
        database.put("one", b"2")
    with pytest.raises(StorageFault, match="db was removed or replaced"), database.transaction():
        pass
    assert len(faults) == 2
    assert database.get("one") == b"1"


def test_environment_faults_at_start_are_retried(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from brim.coordination.cluster import scheduled_jobs

    monkeypatch.setattr(scheduled_jobs, "_BACKOFF", 0.01)
    monkeypatch.setattr(scheduled_jobs, "_LONGEST_BACKOFF", 0.02)
    client, tried, start = served.client, list[str](), served.processes.start

    async def full(*_: object) -> None:
        tried.append("")
        raise EnvironmentFault("no space left on device")

    served.processes.start = full  # type: ignore[method-assign,assignment]
    client.submit(ask("1:4"))
    until(lambda: len(tried) > 8, "many attempts")
    assert "no space left on device" in client.job("job-1").problem
    served.processes.start = start  # type: ignore[method-assign]
    until(lambda: client.job("job-1").workers == 4, "4 workers")


def test_an_unreadable_node_is_shown(served: Served) -> None:
    served.processes.others["node0"] = NodeSeen(
        up=False,
        gone=True,
        lost=True,
        again=3.0,
        problem="its agent cannot be started: no space left",
    )
    client = served.client
    client.submit(ask("1:4"))
    until(lambda: "its agent cannot be started: no space left" in problem(client), "the problem")
    assert "no space left" in brim("status", "job-1").stderr
    del served.processes.others["node0"]
    until(lambda: client.job("job-1").workers == 4, "4 workers")


def status_of(served: Served, path: str) -> tuple[int, str]:
    contact = read_scheduler_contact(served.folder)
    assert contact is not None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{contact.port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_health_and_readiness_reveal_no_secrets(served: Served) -> None:
    assert status_of(served, "/healthz") == status_of(served, "/readyz") == (200, "ok\n")
    served.client.submit(ask("1:4"))
    with locked(served.folder):
        until(lambda: status_of(served, "/readyz")[0] == 503, "the hold")
        assert str(served.folder) not in status_of(served, "/readyz")[1]
        assert status_of(served, "/healthz")[0] == 200
    until(lambda: status_of(served, "/readyz")[0] == 200, "its end")


def test_the_unit_calls_existing_verbs_and_options() -> None:
    unit = (ROOT / "examples" / "04-service" / "brim.service").read_text()
    calls = [
        line.partition("=")[2].split() for line in unit.splitlines() if line.startswith("Exec")
    ]
    assert [words[1] for words in calls] == ["up", "down"]
    for _, verb, *words in calls:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        command.make_parser(click.Context(command)).parse_args(
            words
        )  # raises for an option that there is not
    assert "KillMode=process" in unit
    assert "Restart=on-failure" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = (ROOT / "examples" / "04-service" / "brim.service").read_text()
    unit_file = tmp_path / "brim-under-test.service"
    unit_file.write_text(
        unit.replace("/opt/brim/bin/brim", sys.executable)
    )  # it must be there, no more
    verify = ["systemd-analyze", "verify", "--man=no", str(unit_file)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# What is damaged when a scheduler comes up --------------------------------------------------------


def restarted(served: Served, *statements: str) -> Served:
    """Another scheduler on the same directory, in whose database this was done meanwhile."""
    served.close()
    with contextlib.closing(
        sqlite3.connect(served.folder / "scheduler.db", isolation_level=None)
    ) as database:
        for statement in statements:
            assert database.execute(statement).rowcount > 0
    return Served(served.folder)


def cluster_story(served: Served) -> list[tuple[str, str]]:
    book = Book(Database(served.folder / "scheduler.db"))
    return [(change.event, change.detail) for change in book.cluster_story()]


def test_promises_survive_a_lost_cycle_memory(
    served: Served,
) -> None:
    served.client.submit(ask("1:4", deadline=SystemClock().wall() + 3600.0))
    until(lambda: served.processes.of("job-1").workers > 0, "workers")
    served.processes.say("job-1", first_step=SystemClock().wall(), steps=20)
    until(lambda: served.client.job("job-1").promised, "its promise")
    last = "number = (select max(number) from cycles)"
    second = restarted(served, f"update cycles set memory = x'c1' where {last}")
    try:
        until(lambda: second.client.job("job-1").workers > 0, "workers")
        assert second.client.job("job-1").promised
        assert "what a cycle left to the next one is damaged" in problem(second.client)
        assert "promises stand, and plans are made again" in brim("status", "job-1").stderr
        assert not second.client.cluster().holds
        assert "went on without" in [event for event, _ in cluster_story(second)]
        assert "decided again: the same plans" in brim("simulate", "replay").stdout
    finally:
        second.close()
    third = restarted(second)  # what it wrote itself is whole
    try:
        assert problem(third.client) == ""
    finally:
        third.close()


def test_a_scheduler_works_without_learned_costs(served: Served) -> None:
    second = restarted(served, "insert or replace into settings values ('costs', x'7b')")
    try:
        second.client.submit(ask("1:4"))
        until(lambda: second.client.job("job-1").workers == 4, "4 workers")
        assert "is learned again" in problem(second.client)
        assert "went on without" in [event for event, _ in cluster_story(second)]
    finally:
        second.close()


def test_a_misplaced_record_is_damaged(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    book = Book(database)
    first = submit(book, submission(), name="job", now=1.0)
    submit(book, submission(), name="job", now=1.0)
    content = msgspec.msgpack.encode(first)
    reason = "it is that of job-1, number 1"
    database.put_job(2, "job-2", content)
    assert Book(database).damaged == {"job-2": reason}
    database.put_job(3, "job-1", content)  # in place of its own
    found = Book(database)
    assert (list(found.jobs), found.damaged) == ([], {"job-1": reason, "job-2": reason})


class HeldFromTheStart(Served):
    """A scheduler that cannot read anything when it comes up."""

    reason = "scheduler.db: file is not a database"
    fault: EnvironmentFault | None = None

    def _begin(self, alarm: Alarm) -> Scheduler:
        if self.reason:
            raise self.fault or StorageFault(self.reason)
        return super()._begin(alarm)


@pytest.fixture
def held_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldFromTheStart]:
    monkeypatch.setenv("BRIM_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    held_start = HeldFromTheStart(tmp_path)
    yield held_start
    held_start.close()


def test_start_problems_are_reported_and_retried(held_scheduler: HeldFromTheStart) -> None:
    client = held_scheduler.client
    assert client.cluster().holds
    assert "file is not a database" in problem(client)
    assert status_of(held_scheduler, "/readyz")[0] == 503
    for ask_it in (
        client.jobs,
        client.tenants,
        lambda: client.submit(ask("1:4")),
        lambda: client.job("j"),
    ):
        with pytest.raises(EnvironmentFault, match="file is not a database") as caught:
            ask_it()
        assert caught.value.retryable
    assert "file is not a database" in brim("jobs").stderr
    held_scheduler.reason = ""
    until(lambda: not problem(client), "its end")
    client.submit(ask("1:4"))
    until(lambda: client.job("job-1").workers == 4, "4 workers")


def test_newer_databases_hold_the_scheduler(
    held_scheduler: HeldFromTheStart,
) -> None:
    """Somebody puts one in place of an unreadable part: that ends no scheduler."""
    client = held_scheduler.client
    with pytest.raises(EnvironmentFault) as newer:
        check_format(held_scheduler.folder / "scheduler.db", 99)
    held_scheduler.fault = newer.value
    until(
        lambda: (
            not held_scheduler.thread.is_alive() or "newer version of brim wrote" in problem(client)
        ),
        "its look",
    )
    assert client.cluster().holds
    held_scheduler.reason = ""
    until(lambda: not problem(client), "its end")
    client.submit(ask("1:4"))


def test_tenants_are_told_of_a_held_scheduler(served: Served) -> None:
    contact = read_scheduler_contact(served.folder)
    assert contact is not None
    token = served.client.give_token("ads")
    served.close()
    held_start = HeldFromTheStart(served.folder)
    try:
        contact = read_scheduler_contact(served.folder)
        assert contact is not None
        with pytest.raises(EnvironmentFault, match="file is not a database"):
            Client(address=f"127.0.0.1:{contact.port}", token=token).jobs()
    finally:
        held_start.close()


@pytest.mark.parametrize("words", [(), ("--kill",)])
def test_a_held_scheduler_ends_without_writing(
    served: Served, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.client
    client.submit(ask("1:4"))
    until(lambda: client.job("job-1").workers == 4, "4 workers")
    with locked(served.folder):
        with pytest.raises(EnvironmentFault, match="database is locked"):
            client.cancel("job-1")
        until(lambda: bool(problem(client)), "the hold")
        monkeypatch.setattr(cli_down, "_TO_GO_DOWN", 0.0)
        done = brim("down", *words)
        assert f"its jobs {'were killed' if words else 'keep training'}" in done.stderr
        served.thread.join(60.0)
        assert not served.thread.is_alive()
    book = Book(Database(served.folder / "scheduler.db"))
    assert [event.event for event in book.cluster_story()] == ["up"]
    assert book.jobs["job-1"].running
    assert served.processes.of("job-1").workers == 4
