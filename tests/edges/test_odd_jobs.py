"""One odd job spoils no verb and no page: all content of the database is shown."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bookkeeping import job_of
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.course import Change
from brim.domain.estimates import Estimate
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.lifecycle import Life, Phase, Wish
from brim.domain.schedule import Standing
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import SpecError
from brim.host.clock import SystemClock
from brim.scheduler.loop import CLUSTER
from brim.storage.book import Book
from brim.storage.database import Database
from brim.storage.scheduler_clock import own_clock
from brim.wire.cluster import Submit
from e2e.running import until
from edges.test_scheduler import Served, ask, brim, served
from submissions import submission

__all__ = ["served"]

NAMES = (
    r"a$\frac{$b",
    "_underlined",
    "-dash",
    "...",
    "[a-z]*",
    "<script>alert(1)<b>",
    "\"quoted\" & 'so'",
    "名前",
    "🦄",
    "e\u0301́",
    "%s %(x)d {0}",
    "\\" * 9,
    "x" * 200,
    "~",
    "a b",
)
FAR = (99999999 * 3600.0, 1e30, 1e300)


def odd_records(now: float) -> list[ScheduledJob]:
    """Values that an earlier version may have accepted, or a tool written."""
    records: list[ScheduledJob] = []

    def add(name: str, **fields: Any) -> None:
        number = len(records) + 1
        job = fields.pop("submission", submission(tenant="ads"))
        records.append(
            job_of(
                number=number, id=f"{name}-{number}", submission=job, submitted=now - 60.0, **fields
            )
        )

    for name in NAMES:
        add(name)
        add(name, life=Life(Phase.DONE), started=now - 50.0, ended=now - 1.0, step=7, steps=7)
    for far in FAR:
        job = submission(tenant="ads", deadline=now + far)
        add(
            "far",
            submission=job,
            promised=True,
            standing=Standing.ADMITTED,
            earliest=now + far,
            finish=now + far,
        )
        add("far", submission=job, life=Life(Phase.CANCELLED, Wish.CANCEL), ended=now)
        add(
            "past",
            submission=submission(tenant="ads", deadline=-far),
            life=Life(Phase.DONE),
            ended=now,
        )
    endless = Estimate(at=now, finish=math.inf, step=0)
    add("endless", last=endless, first=endless, half=endless, finish=math.inf)
    add(
        "failed",
        life=Life(Phase.FAILED),
        ended=now,
        problem="\x1b[2J\x00 $x$ \ud7ff\n" * 9,
        step=2**62,
    )
    add(
        "tenant",
        submission=submission(tenant="\x1b[31m\n$\\frac{$ <b>"),
        life=Life(Phase.DONE),
        ended=now,
    )
    add("long", submission=submission(tenant="t" * 5000), life=Life(Phase.DONE), ended=now)
    return records


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A state directory with nothing but odd jobs; their ids."""
    monkeypatch.setenv("BRIM_HOME", str(tmp_path))
    database, now = Database(tmp_path / "scheduler.db"), SystemClock().wall()
    book, records = Book(database), odd_records(now)
    with database.transaction():
        database.put(CLUSTER, msgspec.json.encode(ClusterSpec(cluster=Cluster.parse("1x8"))))
        for record in records:
            book.save(record)
            book.note(Change(now - 60.0, record.id, "submitted", detail=r"$\frac{$ \x1b"))
            if record.ended is not None:
                book.note(
                    Change(
                        now - 50.0, record.id, "workers", after=2, reason="fits", detail=record.id
                    )
                )
                book.note(Change(now - 50.0, record.id, "running"))
                book.note(
                    Change(record.ended, record.id, record.life.phase.value, detail=record.problem)
                )
    database.close()
    return [record.id for record in records]


def test_whatever_the_database_has_every_verb_shows_it(odd: list[str], tmp_path: Path) -> None:
    served = Served(tmp_path)
    try:
        assert [view.job for view in served.client.jobs()] == odd
        for words in (["jobs"], ["jobs", "--all"], ["tenants"]):
            done = brim(*words)
            assert done.exit_code == 0, done.output
        assert len(json.loads(brim("jobs", "--json").stdout)["jobs"]) == len(odd)
        for job in odd:
            done = brim("status", "--", job)
            assert done.exit_code == 0, done.output
            done = brim("explain", "--", job)
            assert done.exit_code == 0, done.output
        # And the others are scheduled all the same.
        view = served.client.submit(ask("1:4"))
        until(lambda: served.client.job(view.job).judged, "its turn")
    finally:
        served.close()


def test_the_clusters_report_shows_them_too(odd: list[str], tmp_path: Path) -> None:
    done = brim("report", "--cluster")
    assert (done.exit_code, done.stderr) == (0, "")
    page = (tmp_path / "report.html").read_text()
    assert "<script>alert" not in page
    assert all(escape(job) in page for job in odd)
    assert (tmp_path / "report.png").stat().st_size > 1000


@pytest.mark.parametrize("name", NAMES)
def test_odd_job_names_work(served: Served, name: str) -> None:
    view = served.client.submit(Submit(submission=submission(tenant="ads"), name=name))
    until(lambda: served.client.job(view.job).workers > 0, "its workers")
    served.processes.end(view.job, "done", summary={"exit": "done"})
    assert served.client.wait(view.job, timeout=60.0).state == "done"


def test_what_cannot_be_kept_is_refused_at_submission(served: Served) -> None:
    client, now = served.client, SystemClock().wall()
    for far in FAR:
        with pytest.raises(SpecError, match=r"--deadline: got .*, need a time within 10 years"):
            client.submit(ask(deadline=now + far))
        with pytest.raises(SpecError, match=r"--deadline: got .*, need a time within 10 years"):
            client.forecast(ask(deadline=now + far))
    with pytest.raises(SpecError, match=r"--key: got .*, need at most 200 characters"):
        client.submit(ask(key="k" * 5000))
    long = replace(submission(tenant="ads").spec, env={"A": "x" * 300_000})
    with pytest.raises(SpecError, match=r"--set and --env: got .* KiB, need at most 128 KiB"):
        client.submit(ask(spec=long))
    assert client.jobs() == []


@pytest.mark.parametrize(
    "field",
    ["epochs", "global_batch_size", "micro_batches", "threads", "loaders", "keep", "spares"],
)
def test_spec_numbers_are_bounded(field: str) -> None:
    values: dict[str, Any] = {field: 2**63}
    with pytest.raises(SpecError, match=r"need at most 1,000,000,000"):
        JobSpec(file="m.py", parameters={}, workers=WorkerRange.parse("1"), **values)


def test_command_line_deadlines_are_within_ten_years(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    (served.folder / "m.py").write_text("")
    monkeypatch.setattr("brim.runs.submitting.check_training_file", lambda *_: None)
    for deadline in ("99999999h", "1e300", "9999-12-31T23:59"):
        done = brim("submit", "m.py", "--tenant", "ads", "--deadline", deadline)
        assert done.exit_code == 2, done.output
        assert "--deadline: got" in done.stderr
        assert "10 years" in done.stderr


def test_deadlines_follow_the_schedulers_own_clock(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, deadlines, started = served.client, list[float](), time.time()
    for offset in (0.0, 36_000.0, -36_000.0):
        monkeypatch.setattr(served.clock, "set_by", lambda offset=offset: offset)
        # As the host's clock has it now, as people and commands do.
        host = time.time() + offset
        view = client.submit(ask(deadline=host + 3600.0))
        assert view.deadline == pytest.approx(host + 3600.0, abs=1.0)
        assert host - 1.0 < view.submitted < time.time() + offset + 1.0
        deadlines.append(served.book.jobs[view.job].submission.deadline or 0.0)
        assert host - 1.0 < client.explain(view.job)[0].at < time.time() + offset + 1.0
        client.forecast(ask(deadline=host + 3600.0))  # and raises nothing
    # By its own clock each has an hour.
    for deadline in deadlines:
        assert started - 1.0 < deadline - 3600.0 < time.time() + 1.0


def test_a_clock_knows_the_hosts_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, real = SystemClock(), time.time
    assert clock.set_by() == 0.0
    monkeypatch.setattr(time, "time", lambda: real() + 7200.0)
    first = clock.set_by()
    assert first == pytest.approx(7200.0, abs=1.0)
    assert clock.set_by() == first  # the same, whenever it is asked
    monkeypatch.setattr(time, "time", real)
    assert clock.set_by() == pytest.approx(0.0, abs=1.0)


def test_the_next_scheduler_keeps_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, real = own_clock(tmp_path, keep=True), time.time
    monkeypatch.setattr(time, "time", lambda: real() + 7200.0)
    second = own_clock(tmp_path, keep=True)
    assert second.wall() == pytest.approx(first.wall(), abs=1.0)
    assert second.set_by() == pytest.approx(7200.0, abs=1.0)
    boot = tmp_path / "boot"
    boot.write_text("another life of the host")
    monkeypatch.setattr("brim.storage.scheduler_clock._BOOT_ID", boot)
    assert own_clock(tmp_path).set_by() == 0.0
    (tmp_path / "clock.json").write_bytes(b"\xff")
    assert own_clock(tmp_path, keep=True).set_by() == 0.0
