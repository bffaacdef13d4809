"""The judge of a cluster that was broken on purpose finds planted faults, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from bookkeeping import job_of
from brim.domain.course import Change
from brim.domain.lifecycle import Life, Phase
from brim.domain.scheduled_job import ScheduledJob
from brim.storage.database import Database
from brim_lab.chaos.census import Census, Recount, take_census
from brim_lab.chaos.cluster_promises import database_is_sound, state_is_whole
from brim_lab.chaos.deeds import parse_deeds
from brim_lab.chaos.judging import (
    Acknowledged,
    deadlines_are_kept,
    nobody_is_forgotten,
    promised_at,
    stories_make_sense,
)
from brim_lab.driver import MarkedProcesses
from submissions import submission

SUBMITTED, CANCELLED = parse_deeds("submit 1:2 of ads for 4 epochs at 0s; cancel job 1 at 1s")


def record(phase: Phase = Phase.DONE, **fields: object) -> ScheduledJob:
    parts: dict[str, Any] = {
        "number": 1,
        "id": "job-1",
        "submission": submission(deadline=100.0),
        "submitted": 0.0,
        **fields,
    }
    return job_of(life=Life(phase), **parts)


def story(*events: str) -> dict[str, list[Change]]:
    return {
        "job-1": [Change(float(k), "job-1", event, 0, 0, "", "") for k, event in enumerate(events)]
    }


def test_who_is_forgotten_or_ends_otherwise_is_found() -> None:
    done, failed = record(), record(Phase.FAILED, problem="it burnt")
    acknowledged = [Acknowledged(SUBMITTED, "job-1")]
    assert nobody_is_forgotten(acknowledged, {"job-1": done}) == []
    assert nobody_is_forgotten(acknowledged, {}) == ["job-1 was acknowledged and is forgotten"]
    assert nobody_is_forgotten(acknowledged, {"job-1": failed}) == [
        "job-1 ended as failed: it burnt"
    ]
    cancelled_jobs = {"job-1": record(Phase.CANCELLED)}
    assert nobody_is_forgotten(acknowledged, cancelled_jobs) == ["job-1 ended as cancelled: "]
    assert (
        nobody_is_forgotten([*acknowledged, Acknowledged(CANCELLED, "job-1")], cancelled_jobs) == []
    )


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        (("submitted", "running", "suspended", "running", "done"), []),
        (("submitted", "running", "running"), ["job-1 was started while it ran"]),
        (("submitted", "hold", "running"), ["job-1 was started while it was held"]),
        (("submitted", "hold", "release", "running"), []),
        (("running",), ["job-1 was submitted 0 times in its story"]),
        (("submitted", "promised"), ["job-1 was promised its deadline, and that is forgotten"]),
        (("submitted", "promised", "hold"), []),
    ],
)
def test_a_story_that_makes_no_sense_is_found(events: tuple[str, ...], broken: list[str]) -> None:
    assert stories_make_sense(story(*events), {"job-1": record()}) == broken


def test_deadlines_are_missed_only_by_fault_time() -> None:
    story_told = story("submitted", "promised")
    assert promised_at(story_told["job-1"]) == 1.0
    jobs = {"job-1": record(ended=122.0, promised=True)}
    missed = "job-1 was 22.0 s late for a promised deadline; faults took {:.1f} s since then"
    assert deadlines_are_kept(story_told, jobs, [], []) == [missed.format(0.0)]
    overlapping = [(-5.0, 3.0), (2.0, 4.0), (20.0, 25.0), (120.0, 300.0)]
    assert (
        deadlines_are_kept(story_told, jobs, overlapping, []) == []
    )  # 3 + 5 + 1 s, a second, and a tenth of 121 s
    assert deadlines_are_kept(story_told, jobs, overlapping[:3], []) == [missed.format(8.0)]
    assert deadlines_are_kept(story_told, jobs, [], [50.0]) == []  # its tenant may own less since
    assert deadlines_are_kept(story("submitted", "promised", "resized"), jobs, [], []) == []


def test_surplus_is_reported_once_seen_twice() -> None:
    recount = Recount({"n1": 2, "n2": 1})
    twice = Census(
        schedulers=[10, 11],
        agents={"job-1": [7, 8, 9]},
        workers={"job-1": [1, 2], "job-2": [3, 4]},
        where={7: "n1", 8: "n1", 9: "n2", 1: "n2", 2: "n2"},
    )
    recount.add(twice, now=0.0)
    recount.add(
        Census(agents={"job-1": [8, 9]}, where={8: "n1", 9: "n2"}), now=0.1
    )  # who is just about to go counts once
    recount.add(twice, now=0.2)
    assert recount.broken == []
    recount.add(twice, now=0.3)
    recount.add(twice, now=0.4)
    assert recount.broken == [
        "2 agents of job-1 on n1 at once",
        "2 schedulers at once",
        "2 workers at once on 1 devices of n2",
        "4 workers at once on 3 devices",
    ]


def test_replicas_left_behind_and_second_fronts_are_found() -> None:
    recount = Recount({"n1": 2})
    census = Census(fronts={"web-1": [3, 4], "web-2": [5]}, orphans=[7, 8])
    recount.add(census, now=0.0)
    recount.add(Census(orphans=[7]), now=1.9)
    recount.add(Census(orphans=[7, 8]), now=2.1)
    assert recount.broken == []
    recount.add(census, now=2.2)
    assert recount.broken == ["replica 7 has outlived its worker"]
    recount.add(census, now=2.3)
    assert recount.broken[1:] == ["2 fronts of web-1 at once"]


def test_a_census_ignores_fresh_forks(
    tmp_path: Path,
) -> None:
    mark = MarkedProcesses(uuid.uuid4().hex)
    logs = tmp_path / "jobs" / "job-7" / "logs"
    logs.mkdir(parents=True)
    processes = []
    for text, name in (
        ("import os, time; os.fork(); time.sleep(60)", "agent.log"),
        ("import time; time.sleep(60)", "agent.log"),
        ("import time; open('/proc/self/comm', 'w').write('brim-w3'); time.sleep(60)", "w3.log"),
    ):
        with (logs / name).open("ab") as log:
            environment = {**os.environ, **mark.environment}
            processes.append(
                subprocess.Popen([sys.executable, "-c", text], stdout=log, env=environment)
            )
    try:
        end = time.monotonic() + 30
        while not take_census(mark, tmp_path).workers and time.monotonic() < end:
            time.sleep(0.01)
        while len(mark.alive()) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        census = take_census(mark, tmp_path)
        assert sorted(census.agents["job-7"]) == sorted(process.pid for process in processes[:2])
        assert census.workers == {"job-7": [processes[2].pid]}
    finally:
        mark.kill()
        for process in processes:
            process.wait()


def test_damaged_databases_and_leftovers_are_found(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.db"
    database = Database(path)
    for number in range(200):
        database.put_job(number, f"job-{number}", bytes(100))
    database.close()
    assert (database_is_sound(path), state_is_whole(tmp_path)) == ([], [])
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    (tmp_path / ".scheduler.json.x.draft").touch()
    (tmp_path / "scheduler.log").write_text('Traceback\n File "/x/brim/y.py"\nKeyError: 3\n')
    assert len(database_is_sound(path)) == 1
    assert state_is_whole(tmp_path) == [
        "left behind: .scheduler.json.x.draft",
        "a traceback in scheduler.log: KeyError: 3",
    ]
