"""Many clients that wait, many jobs: none polls, lists come by pages, a report takes seconds."""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from bookkeeping import job_of
from brim import client as client_module
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.course import Change
from brim.domain.lifecycle import Life, Phase
from brim.errors import SpecError
from brim.scheduler.loop import CLUSTER, Scheduler
from brim.scheduler.waiting import Waiting
from brim.storage.book import Book
from brim.storage.database import Database
from e2e.running import until
from edges.test_scheduler import Served, ask, brim, served
from submissions import submission

__all__ = ["served"]

JOBS = 5_000


def soon() -> float:
    return asyncio.get_running_loop().time() + 20.0


def test_waiters_are_woken_by_their_own_job(tmp_path: Path) -> None:
    async def story() -> None:
        waiting = Waiting()
        own_task, other_task = (
            asyncio.create_task(waiting.news(job, deadline=soon())) for job in ("a", "b")
        )
        lines = asyncio.create_task(waiting.lines("a", tmp_path, deadline=soon()))
        await lines  # nobody knows yet how much it has read
        lines = asyncio.create_task(waiting.lines("a", tmp_path, deadline=soon()))
        (tmp_path / "w1.log").write_text("one\n")
        await lines
        waiting.ring("a")
        await own_task
        assert not other_task.done()
        lines = asyncio.create_task(waiting.lines("a", tmp_path, deadline=soon()))
        await asyncio.sleep(0)
        waiting.ring_all()
        await lines
        await other_task
        await waiting.news("a", deadline=asyncio.get_running_loop().time())  # its time is over

    asyncio.run(asyncio.wait_for(story(), 30.0))


def test_nobody_looks_for_those_who_wait(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client, looked = served.client, list[str]()
    client.submit(ask("1:4"))
    until(lambda: client.job("job-1").workers == 4, "4 workers")
    look = Scheduler.job

    def counted(scheduler: Scheduler, id: str) -> object:
        looked.append(id)
        return look(scheduler, id)

    monkeypatch.setattr(Scheduler, "job", counted)
    with ThreadPoolExecutor(20) as threads:
        waiting = [threads.submit(client.wait, "job-1") for _ in range(20)]
        until(lambda: len(looked) >= 20, "all that wait")
        looks = served.backend.looks
        until(lambda: len(looks) > 20, "some seconds")
        looks.clear()
        until(lambda: len(looks) > 10, "some more")
        assert len(looked) < 100
        served.processes.end("job-1", "done", summary={"exit": "done"})
        assert {future.result(30.0).state for future in waiting} == {"done"}


def test_jobs_come_by_pages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client = served.client
    for _ in range(5):
        client.submit(ask("1"))
    client.cancel("job-2")
    monkeypatch.setattr(client_module, "_PAGE", 2)
    assert [view.job for view in client.jobs()] == [f"job-{k}" for k in range(1, 6)]
    until(lambda: client.job("job-2").has_ended, "its end")
    assert [view.job for view in client.jobs(unfinished=True)] == [
        "job-1",
        "job-3",
        "job-4",
        "job-5",
    ]
    for words, message in {
        "limit=0": "limit: got '0', need a whole number from 1 to 500",
        "limit=x": "limit: got 'x'",
        "unfinished=perhaps": "unfinished: got 'perhaps', need true or false",
        "after=jobb-3": "did you mean 'job-3'",
    }.items():
        with pytest.raises(SpecError, match=message):
            client._call("GET", f"/v1/jobs?{words}", list)


def test_reports_of_thousands_of_jobs_are_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_HOME", str(tmp_path))
    many_jobs(tmp_path)
    started = time.process_time()
    done = brim("report", "--cluster")
    took = time.process_time() - started
    assert (done.exit_code, done.stderr) == (0, "")
    assert took < 15.0, (
        took
    )  # 4 s on a machine that has nothing else to do; for ever, where each job is drawn
    page = (tmp_path / "report.html").read_text()
    assert page.count("<details>") == 1 + 60  # the jobs, and the story of each
    assert f'<summary><i style="background:var(--j9)"></i>job-{JOBS}</summary>' in page
    assert f"60 jobs of {JOBS:,}" in page
    assert "devices, by tenant" in page
    assert len(re.findall(r"<td>job-\d+</td>", page)) == JOBS


def many_jobs(folder: Path) -> None:
    database = Database(folder / "scheduler.db")
    book, start = Book(database), 1.7e9
    with database.transaction():
        database.put(CLUSTER, msgspec.json.encode(ClusterSpec(cluster=Cluster.parse("8x8"))))
        for k in range(JOBS):
            moment, job = (
                start + 10.0 * k,
                submission(tenant=f"t{k % 5}", deadline=start + 10.0 * k + 250.0 + k),
            )
            record = job_of(
                number=k + 1, id=f"job-{k + 1}", submission=job, submitted=moment, promised=True,
                life=Life(Phase.DONE), ended=moment + 300.0,
            )  # fmt: skip
            book.save(record)
            book.note(Change(moment, record.id, "submitted"))
            for part in range(6):
                sizes = {"before": part, "after": 1 + part % 3}
                book.note(
                    Change(
                        moment + 1 + 40.0 * part,
                        record.id,
                        "workers",
                        **sizes,
                        reason="surplus",
                        detail="grew",
                    )
                )
                book.note(Change(moment + 1 + 40.0 * part, record.id, "running"))
            book.note(Change(moment + 300.0, record.id, "done"))
    database.close()
