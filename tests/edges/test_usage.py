"""`brim usage`, in Python and over HTTP: forgotten jobs stay counted, and tenants see their own."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from brim.cli.__main__ import cli
from brim.coordination.cluster import metering
from brim.domain.usage import Shares, month_of
from brim.errors import SpecError
from brim.host.clock import SystemClock
from brim.scheduler.cycles import decode_cycle
from brim.scheduler.replay import replay
from brim.storage.book import Book
from brim.storage.database import Database
from e2e.running import until
from edges.test_scheduler import Served, ask
from edges.test_tenants import OTHER, OWNER, House, house

__all__ = ["house"]


def brim(house: House, *words: str) -> Result:
    return CliRunner().invoke(cli, ["usage", *words, "--state", str(house.folder)])


def done(served: Served, *, tenant: str) -> str:
    """A job that has held 2 devices for a moment."""
    job = served.client.submit(ask("2", tenant=tenant)).job
    until(lambda: served.client.job(job).workers == 2, "2 workers")
    until(lambda: served.client.job(job).attained_seconds > 0.2, "some usage")
    served.processes.end(job, "done", summary={"exit": "done"})
    served.client.wait(job, timeout=60.0)
    return job


def test_usage_of_jobs_is_shown_and_survives_forgetting(house: House) -> None:
    empty = brim(house)
    assert empty.exit_code == 0
    first, second = done(house, tenant="ads"), done(house, tenant="web")
    view = house.client.usage(group_by="job")
    attained = {job: house.client.job(job).attained_seconds for job in (first, second)}
    used = {row.name: row.used_seconds for row in view.rows}
    assert used == pytest.approx(attained, rel=0.2, abs=0.3)
    assert view.month == view.first_month == month_of(SystemClock().wall())
    before = {row.name: row for row in house.client.usage().rows}
    assert before["ads"].used_seconds == pytest.approx(used[first])
    assert (before["ads"].owned_seconds or 0.0) > 0.0
    house.client.forget(first)
    assert {row.name: row.used_seconds for row in house.client.usage().rows} == {
        name: row.used_seconds for name, row in before.items()
    }
    rows = {
        (row.tenant, row.name): row.used_seconds for row in house.client.usage(group_by="job").rows
    }
    assert rows == {("ads", ""): used[first], ("web", second): used[second]}
    assert "(forgotten jobs)" in brim(house, "--by", "job").stdout
    (account,) = house.client.usage(group_by="user").rows
    assert account.name == ""
    assert account.used_seconds == pytest.approx(sum(used.values()))


def test_a_tenant_sees_its_own(house: House) -> None:
    done(house, tenant="ads")
    for grouping, expected in (("tenant", {"web"}), ("job", set()), ("user", set())):
        assert {row.name for row in house.as_(OTHER).usage(group_by=grouping).rows} == expected
    assert {row.name for row in house.as_(OWNER).usage().rows} == {"ads"}


def test_recent_use_is_shown_and_replayed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "_INTERVAL", 0.2)
    assert {view.lately for view in house.client.tenants()} == {None}
    house.client.apply(replace(house.spec, usage_half_life=60.0))
    job = house.client.submit(ask("8", tenant="ads")).job

    def lately() -> float:
        (view,) = (view for view in house.client.tenants() if view.tenant == "ads")
        return view.lately or 0.0

    until(lambda: lately() > 0.02, "something that was borrowed")
    shown = CliRunner().invoke(cli, ["tenants", "--state", str(house.folder)])
    assert "borrows  lately  jobs" in shown.stdout
    (row,) = (row for row in house.client.usage().rows if row.name == "ads")
    assert (row.lately or 0.0) > 0.02
    assert (row.lately_share, row.weight) == (1.0, 1.0)
    (row,) = house.as_(OTHER).usage().rows
    assert (row.name, row.lately, row.lately_share) == ("web", 0.0, 0.0)
    assert {row.lately for row in house.client.usage("2026-01").rows} <= {None}
    assert {row.lately for row in house.client.usage(group_by="job").rows} == {None}
    table = brim(house).stdout.splitlines()
    assert table[0].split()[-3:] == ["lately", "share", "weight"]
    assert table[1].split()[-2:] == ["1.00", "1"]
    (in_csv, _) = rows_of(brim(house, "--csv").stdout)
    assert (in_csv["lately_share"], in_csv["weight"]) == ("1.00", "1")
    assert float(in_csv["lately_devices"]) > 0.01
    second = house.client.submit(ask("1:8", tenant="web")).job
    until(lambda: house.client.job(second).judged, "a cycle after it")
    house.client.cancel(job)
    house.close()
    with contextlib.closing(Database(house.folder / "scheduler.db")) as database:
        recent = Book(database).recent
        cycles = list(database.cycles())
        assert replay(cycles).differences == ()
    assert recent is not None
    assert recent.half_life == 60.0
    assert recent.borrowed["ads"] > 0.02
    snapshots = [decode_cycle(row.content)[0] for row in cycles]
    assert any(shot.recent and shot.recent.borrowed.get("ads") for shot in snapshots)


def test_wrong_and_empty_months_are_clear(house: House) -> None:
    for month in ("2026-13", "soon", "9999-01"):
        refused = brim(house, "--month", month)
        assert refused.exit_code == 2
        assert f"--month: got '{month}', need" in refused.stderr
    with pytest.raises(SpecError, match="--by"):
        house.client.usage(group_by="node")
    assert house.ask(OWNER, "GET", "/v1/usage?group_by=node")[0] == 422
    done(house, tenant="ads")
    month = house.client.usage().month
    early = brim(house, "--month", "2020-02")
    assert (early.exit_code, early.stdout) == (0, "")
    assert early.stderr == f"no usage in 2020-02: it is counted since {month}\n"
    assert f"{month} is not over: until " in brim(house).stderr
    assert " UTC" in brim(house).stderr


def test_the_month_follows_the_hosts_clock(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    now = SystemClock().wall()
    monkeypatch.setattr(SystemClock, "set_by", lambda _: 40 * 86_400.0)
    view = house.client.usage()
    assert view.until == pytest.approx(now + 40 * 86_400.0, abs=60.0)
    assert view.month == month_of(view.until)
    assert view.month > month_of(now)


@pytest.fixture
def month(house: House) -> str:
    """A month that is over, in which two tenants shared 8 devices."""

    async def charge() -> None:
        hours = 3600.0
        house.book.charge(
            {
                ("2026-01", "ads", "", "=1+1-1"): 12.5 * hours,
                ("2026-01", "ads", "alice", "job-9"): 1 * hours,
                ("2026-01", "web", "", "job-8"): 3 * hours,
            },
            {
                ("2026-01", "ads"): Shares(10 * hours, 4 * hours, 0.0),
                ("2026-01", "web"): Shares(1, 0, 2),
            },
            counted=0.0,
        )

    asyncio.run_coroutine_threadsafe(charge(), house.loop).result(60.0)
    return "2026-01"


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_of_a_month_that_is_over(house: House, month: str) -> None:
    found = brim(house, "--month", month, "--csv")
    assert (found.exit_code, found.stderr) == (0, "")
    assert rows_of(found.stdout)[0] == {
        "month": "2026-01", "tenant": "ads", "used_device_hours": "13.50", "owned_device_hours": "10.00",
        "borrowed_device_hours": "4.00", "lent_device_hours": "0.00",
    }  # fmt: skip
    jobs = rows_of(brim(house, "--month", month, "--by", "job", "--csv").stdout)
    assert [(row["tenant"], row["job"], row["used_device_hours"]) for row in jobs] == [
        ("ads", "'=1+1-1", "12.50"), ("ads", "job-9", "1.00"), ("web", "job-8", "3.00"),
    ]  # fmt: skip
    users = rows_of(brim(house, "--month", month, "--by", "user", "--csv").stdout)
    assert {row["user"]: row["used_device_hours"] for row in users} == {
        "(the scheduler's account)": "15.50", "alice": "1.00",
    }  # fmt: skip
    seen: dict[str, Any] = msgspec.json.decode(brim(house, "--month", month, "--json").stdout)
    assert seen["until"] == seen["end"]
    assert brim(house, "--csv", "--json").exit_code == 2


def test_two_schedulers_add_up(tmp_path: Path) -> None:
    for _ in range(2):
        book = Book(Database(tmp_path / "db"))
        used = {("2026-01", "ads", "", "job-1"): 5.0}
        book.charge(used, {("2026-01", "ads"): Shares(3.0, 2.0, 1.0)}, counted=7.0)
    assert Book(Database(tmp_path / "db")).counted == 7.0
    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as sql:
        assert sql.execute("select used from usage").fetchall() == [(10.0,)]
        assert sql.execute("select owned, borrowed, lent from lending").fetchall() == [
            (6.0, 4.0, 2.0)
        ]


@pytest.fixture(autouse=True)
def _entries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "_INTERVAL", 0.0)
