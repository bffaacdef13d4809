"""The picture of a cluster over time, from the database that its scheduler left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from brim.cli.__main__ import cli
from brim.domain.course import Change, Course
from brim.report.course import render_course
from brim.scheduler.story import cluster_course, holdings_by
from edges.test_scheduler_dies import House, Points, spec_of
from pages import assert_loads_nothing


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    """A cluster in which jobs were promised, refused, held, killed, cancelled and suspended by
    `brim down`.
    """
    house = House(tmp_path_factory.mktemp("house"), Points())
    house.scheduler._note("up", "4 devices, policy brim")
    house.tell_the_story()
    house.scheduler._note("up", "4 devices, policy brim")
    house.scheduler.reconfigure(spec_of(3))
    house.tick()
    house.submit("<b>late", workers="1:4", tenant="web", deadline=house.clock.wall() + 1.5)
    house.tick()
    house.scheduler._note("down")
    return house


def course_of(house: House) -> Course:
    return cluster_course(house.database, subject="<i>here", now=None)


def test_what_jobs_had_is_what_was_counted(house: House) -> None:
    course = course_of(house)
    assert [job.job for job in course.jobs] == list(house.book.jobs)
    for job in course.jobs:
        assert job.attained == pytest.approx(house.book.jobs[job.job].progress.attained, abs=4.0)
        assert job.holdings[0].start == job.submitted
        assert [a.end for a in job.holdings[:-1]] == [b.start for b in job.holdings[1:]]
    for time in course.times()[:-1]:
        worker_counts = [
            s.workers for job in course.jobs for s in job.holdings if s.start <= time < s.end
        ]
        assert sum(worker_counts) <= 4
        by_tenant = {
            tenant: [n for moment, n in course.held(tenant) if moment <= time][-1]
            for tenant in course.tenants
        }
        assert sum(by_tenant.values()) == sum(worker_counts)
    assert [supply.guaranteed["ads"] for supply in course.supply][-1] == 3
    assert course.schedulers == 2


def test_who_is_refused_a_promise_runs_on() -> None:
    events = (
        ("submitted", 0),
        ("workers", 1),
        ("running", 0),
        ("refused", 0),
        ("workers", 3),
        ("suspended", 0),
    )
    story = [
        Change(float(moment), "a", event, 0, count, "", "")
        for moment, (event, count) in enumerate(events)
    ]
    spans = [span[:3] for span in holdings_by([*story, replace(story[2], at=6.0)], 9.0)]
    assert spans == [(0.0, 2.0, 0), (2.0, 4.0, 1), (4.0, 5.0, 3), (5.0, 6.0, 0), (6.0, 9.0, 3)]


def test_the_page_tells_what_happened_and_loads_nothing(house: House) -> None:
    page = render_course(course_of(house))
    assert_loads_nothing(page)
    for words in (
        "&lt;i&gt;here", "&lt;b&gt;late", "its processes died", "the one before ended without brim "
                                                                "down", "brim down",
        "brim apply: 4 devices, policy "
        "brim", "surplus-by-marginal-return", "promised, kept", "promised, withdrawn",
        "tenant ads (line: guaranteed 3)", 'data-tip="a-1: ',
    ):  # fmt: skip
        assert words in page


def test_the_command_needs_no_scheduler(house: House, tmp_path: Path) -> None:
    def brim(*words: str) -> str:
        return CliRunner().invoke(cli, ["report", *words], catch_exceptions=False).output

    path = Path(brim("--cluster", "--last", "1m", "--state", str(house.folder)).strip())
    assert "2 schedulers" not in path.read_text()
    listed = brim("--cluster", "--table", "--state", str(house.folder)).splitlines()
    assert listed[0].split()[:3] == ["job", "tenant", "state"]
    assert [line.split()[0] for line in listed[1:]] == list(house.book.jobs)
    assert "--cluster: got --table without it" in brim("--table", "a-1")
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "need the state directory of a scheduler" in brim("--cluster", "--state", str(tmp_path))
    assert "--cluster: got a RUN beside it" in brim("a-1", "--cluster")
    empty = House(tmp_path / "empty", Points())
    empty.database.close()
    assert "nothing has happened yet" in brim("--cluster", "--state", str(tmp_path / "empty"))
