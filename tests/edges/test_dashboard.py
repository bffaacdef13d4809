"""What a dashboard shows: rows, curves and sentences, from what the scheduler has answered."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from brim.client import Client
from brim.dashboard import charts, sentences
from brim.dashboard.records import JobRecordReader
from brim.dashboard.rows import (
    comparison_rows,
    job_row,
    lent_by,
    node_rows,
    service_of,
    summary_of,
    tenant_rows,
    time_rows,
    usage_rows,
)
from brim.dashboard.series import (
    MOST_CURVES,
    OTHER_TENANTS,
    REST,
    course_of_steps,
    picture_of,
    workers_over_time,
)
from brim.dashboard.sight import ClusterSight
from brim.dashboard.typed import files_in, typed_request, words_of
from brim.dashboard.usage import usage_by_month
from brim.domain.course import Change
from brim.domain.step_records import StepRecord
from brim.errors import SpecError
from brim.report.run import render_report
from brim.telemetry.history import RunReader
from brim.wire.cluster import (
    ClusterView,
    Effect,
    Forecast,
    JobView,
    News,
    NodeView,
    ServiceView,
    TenantView,
    Times,
    UsageRow,
    UsageView,
)
from recorded_run import RecordedRun, spec

NO_TIMES = Times(count=1, median_ms=1.0, p99_ms=1.0)


def clock(at: float) -> str:
    return f"t{at:.0f}"


def job(name: str = "a-1", **fields: Any) -> JobView:
    usual: dict[str, Any] = {
        "job": name, "state": "running", "wish": "run", "run": "/runs", "tenant": "ads",
        "priority": "preemptible", "minimum": 1, "maximum": 4, "nodes": {"n1": 2}, "workers": 2, "planned": 2,
        "step": 10, "steps": 40, "submitted": 100.0, "started": 110.0, "ended": None, "deadline": None,
        "promised": False, "judged": True, "reason": "surplus", "detail": "2 from it", "earliest": None,
        "estimate": None, "finish": None, "first_estimate": None, "half_estimate": None,
        "attained_seconds": 7200.0, "launches": 1, "problem": "", "summary": {},
    }  # fmt: skip
    return JobView(**{**usual, **fields})


WAITING = job(state="admitted", workers=0, planned=0, nodes={}, step=0)
DONE = job(state="done", workers=0, planned=0, ended=180.0, deadline=200.0, promised=True)


def node(name: str, **fields: Any) -> NodeView:
    usual: dict[str, Any] = {
        "devices": 4, "held": 0, "switch": 0, "address": "", "state": "up", "drained": False, "problem": "",
    }  # fmt: skip
    return NodeView(node=name, **{**usual, **fields})


def tenant(name: str, owed: int, holds: int, **fields: Any) -> TenantView:
    borrows = max(0, holds - owed)
    return TenantView(tenant=name, guaranteed=owed, holds=holds, borrows=borrows, jobs=1, **fields)


def news(*jobs: JobView, timestamp: float = 200.0, **fields: Any) -> News:
    held = sum(view.workers for view in jobs)
    cluster = ClusterView(
        policy="brim", devices=8, headroom=0, held=held, nodes={"n1": 8}, unfinished=len(jobs),
        cycles=NO_TIMES, looks=NO_TIMES,
    )  # fmt: skip
    usual: dict[str, Any] = {
        "place": "x.1.1", "complete": True, "forgotten": [], "changes": [], "nodes": [], "tenants": [],
        "tenant": None, "cluster": cluster,
    }  # fmt: skip
    return News(jobs=list(jobs), timestamp=timestamp, **{**usual, **fields})


def sight(*answers: News) -> ClusterSight:
    seen = ClusterSight()
    for answer in answers:
        seen.take(answer)
    return seen


# Rows ---------------------------------------------------------------------------------------------

ROWS: list[tuple[JobView, dict[str, Any]]] = [
    (job(), {"state": "running", "workers_text": "2 of 1–4", "progress": 25.0, "active": True}),
    (job(planned=3), {"workers_text": "2 → 3 of 1–4"}),
    (job(minimum=2, maximum=2), {"workers_text": "2 of 2"}),
    (job(wish="hold"), {"state": "running (held)"}),
    (job(steps=None), {"progress": None, "steps_text": "10"}),
    (job(), {"why": "surplus: 2 from it", "deadline_text": "", "finish_text": ""}),
    (job(deadline=300.0), {"deadline_text": "t300 not promised", "late": False}),
    (job(deadline=300.0, judged=False), {"deadline_text": "t300 not judged yet"}),
    (job(deadline=300.0, promised=True, finish=290.0), {"finish_text": "t290", "late": False}),
    (job(deadline=300.0, promised=True, finish=310.0), {"late": True}),
    (WAITING, {"why": "surplus: 2 from it", "workers_text": "0 of 1–4"}),
    (job(waits="a-0 is to end first"), {"why": "a-0 is to end first"}),
    (DONE, {"deadline_text": "t200 promised, kept", "finish_text": "t180", "progress": 100.0}),
    (DONE, {"active": False, "workers_text": ""}),
    (
        job(state="done", ended=210.0, deadline=200.0),
        {"deadline_text": "t200 not promised, missed"},
    ),
    (job(state="failed", ended=1.0, problem="line 1\nline 2"), {"why": "line 1 line 2"}),
    (job(detail="x" * 900), {"why": "surplus: " + "x" * 290 + "…"}),
]


@pytest.mark.parametrize(("view", "expected"), ROWS)
def test_row_of_a_job(view: JobView, expected: dict[str, Any]) -> None:
    row = job_row(view, clock)
    assert {name: row[name] for name in expected} == expected


def test_nodes_say_whose_workers_they_have() -> None:
    views = (job("a-0", ended=150.0), job(), job("b-2", nodes={"n1": 1}))
    jobs = {view.job: view for view in views}
    rows = node_rows([node("n1", held=3), node("n2", drained=True, address="10.0.0.2")], jobs)
    assert rows[0]["jobs"] == "a-1 (2), b-2 (1)"
    assert (rows[0]["free"], rows[0]["host"]) == (1, "the scheduler's")
    assert (rows[1]["free"], rows[1]["state"]) == (0, "up, drained")


LOANS = [
    ([tenant("a", 4, 4), tenant("b", 4, 2)], {"a": 0, "b": 0}),  # idle, and nobody borrows
    ([tenant("a", 4, 6), tenant("b", 4, 2)], {"a": 0, "b": 2}),
    ([tenant("a", 0, 3), tenant("b", 4, 2), tenant("c", 2, 0)], {"a": 0, "b": 2, "c": 1}),
    ([tenant("a", 0, 1), tenant("b", 4, 0, exclusive=4), tenant("c", 1, 0)], {"b": 0, "c": 1}),
    ([tenant("a", 0, 2), tenant("b", 4, 0, cohort="other")], {"b": 0}),  # headroom nobody owns
]


@pytest.mark.parametrize(("tenants", "lent"), LOANS)
def test_lent_devices_are_those_that_others_borrow(
    tenants: list[TenantView], lent: dict[str, int]
) -> None:
    found = lent_by(tenants)
    assert {name: found[name] for name in lent} == lent
    assert [row["lent"] for row in tenant_rows(tenants)] == list(found.values())


def test_usage_of_every_month_is_asked_for_once() -> None:
    asked = []

    class Counting:
        def usage(self, month: str = "") -> UsageView:
            asked.append(month)
            used = [UsageRow(name="web", tenant="web", used_seconds=3600.0)]
            used += [UsageRow(name="ads", tenant="ads", used_seconds=7200.0, owned_seconds=1800.0)]
            return UsageView(
                month=month or "2027-01", group_by="tenant", start=0.0, end=1.0, until=1.0,
                first_month="2026-11", rows=used,
            )  # fmt: skip

    rows = usage_rows(usage_by_month(cast(Client, Counting())))
    assert asked == ["", "2026-12", "2026-11"]
    assert [(row["month"], row["tenant"], row["used"], row["owned"]) for row in rows[:3]] == [
        ("2027-01", "ads", 2.0, 0.5),
        ("2027-01", "web", 1.0, None),
        ("2026-12", "ads", 2.0, 0.5),
    ]


def test_jobs_in_a_line() -> None:
    views = [job(), WAITING, DONE, job(deadline=1.0, finish=2.0)]
    jobs = {str(k): view for k, view in enumerate(views)}
    assert summary_of(jobs) == "2 running, 1 waiting, 1 deadline at risk"


def test_comparison_has_options_that_differ_and_all_facts() -> None:
    rows = comparison_rows(
        {"State": "done", "Ends": ""},
        {"State": "running", "Test auc": "0.8000"},
        {"seed": 1, "lr": 0.1, "workers": "1:4"},
        {"seed": 2, "lr": 0.1, "epochs": 3},
    )
    assert [tuple(row.values()) for row in rows] == [
        ("option epochs", "", "3"),
        ("option seed", "1", "2"),
        ("option workers", "1:4", ""),
        ("State", "done", "running"),
        ("Test auc", "", "0.8000"),
    ]
    # Of a job whose records are not there, no option is known.
    assert comparison_rows({}, {}, {"seed": 1}, {}) == []


def test_time_has_the_parts_of_the_report(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(), samples=8192)
    run.begin()
    run.train(4)
    records = JobRecordReader(cast(Client, SimpleNamespace(
        is_elsewhere=False, job=lambda _: job(run=str(tmp_path)),
    )), "a-1")  # fmt: skip
    assert records.look()
    rows = time_rows(records.time_parts)
    assert "compute: forward and backward" in [row["part"] for row in rows]
    assert sum(row["share"] for row in rows) == pytest.approx(100.0, abs=0.5)
    assert sum(row["seconds"] for row in rows) > 0.0
    reader = RunReader(tmp_path)
    reader.poll()
    page = render_report(reader.history)
    assert all(f"{row['seconds']:.3f}" in page for row in rows)


def test_two_curves_share_a_chart() -> None:
    options = charts.pair_chart(
        ("a-1", "b-2"), ([(1, 0.5), (2, None)], [(1, 0.7)]), unit="step", from_zero=False
    )
    assert [series["data"] for series in options["series"]] == [[[1, 0.5], [2, None]], [[1, 0.7]]]
    assert options["legend"]["data"] == ["a-1", "b-2"]
    assert options["xAxis"]["type"] == "value"


# What is kept -------------------------------------------------------------------------------------


def test_reader_gets_what_has_changed_since() -> None:
    seen = ClusterSight()
    seen.take_all([job(), job("b-2")])
    seen.take(news(job(), job("b-2")))
    version = seen.version
    seen.take(news(job(), job("b-2", step=11), job("c-3")))
    assert [view.job for view in seen.changed_after(version)] == ["b-2", "c-3"]
    version = seen.version
    seen.take(news(job(), forgotten=["b-2", "never-9"]))
    assert (seen.changed_after(version), seen.forgotten_after(version)) == ([], ["b-2"])
    seen.take_all([job("c-3")])
    assert set(seen.jobs) == {"c-3"}
    assert seen.forgotten_after(version) == ["b-2", "a-1"]


def test_newest_ended_jobs_are_kept() -> None:
    seen = ClusterSight()
    ended = [job(f"e-{k}", state="done", ended=float(k)) for k in range(1500)]
    seen.take_all([*ended, WAITING])
    assert len(seen.jobs) == 1001
    assert "e-1499" in seen.jobs
    assert "e-499" not in seen.jobs


def test_silence_of_the_scheduler_is_news_once() -> None:
    seen = sight(news(job()))
    version = seen.version
    seen.fail("no answer")
    seen.fail("no answer")
    assert seen.version == version + 1
    seen.take(news(job()))
    assert seen.problem == ""


# Curves -------------------------------------------------------------------------------------------

SUBMITTED, RUNNING = Change(100.0, "a-1", "submitted"), Change(110.0, "a-1", "running")
START = Change(110.0, "a-1", "workers", 0, 2)
STORIES: list[tuple[JobView | None, list[Change], list[tuple[float, int]]]] = [
    (job(), [SUBMITTED, START, RUNNING], [(110.0, 2)]),
    (job(), [Change(150.0, "a-1", "workers", 4, 2)], [(0.0, 4), (150.0, 2)]),  # the first are gone
    (job(), [], [(110.0, 2)]),
    (WAITING, [SUBMITTED], []),
    (DONE, [START, RUNNING, Change(180.0, "a-1", "done")], [(110.0, 2), (180.0, 0)]),
    (job(), [START, RUNNING, Change(120.0, "a-1", "refused")], [(110.0, 2)]),  # its deadline was
    (WAITING, [START, RUNNING, Change(120.0, "a-1", "suspended")], [(110.0, 2), (120.0, 0)]),
    (job(workers=3), [START, RUNNING], [(110.0, 2), (200.0, 3)]),  # no line has said so yet
]


@pytest.mark.parametrize(("view", "story", "steps"), STORIES)
def test_workers_follow_from_the_story(
    view: JobView | None, story: list[Change], steps: list[tuple[float, int]]
) -> None:
    assert list(workers_over_time(view, story, now=200.0)) == steps


def test_devices_are_stacked_with_the_plan() -> None:
    changes = [SUBMITTED, START, RUNNING, Change(150.0, "b-2", "submitted")]
    seen = sight(
        news(job(), job("b-2", tenant="web", workers=0, planned=0, nodes={}), changes=changes)
    )
    seen.plan = [
        Change(210.0, "a-1", "workers", 2, 0, "finished"),
        Change(210.0, "b-2", "workers", 0, 4, "surplus"),
    ]
    picture = picture_of(seen, grouping="job", seconds=100.0)
    assert picture.times == [100.0, 110.0, 200.0]
    assert {curve.name: curve.values for curve in picture.past} == {
        "a-1": [0, 2, 2],
        "b-2": [0, 0, 0],
        REST: [0, 0, 0],
    }
    assert picture.future == [200.0, 210.0]
    assert {curve.name: curve.values for curve in picture.planned} == {
        "a-1": [2, 0],
        "b-2": [0, 4],
        REST: [0, 0],
    }
    assert [curve.name for curve in picture_of(seen, grouping="tenant", seconds=100.0).past] == [
        "ads",
        "web",
        REST,
    ]
    assert charts.words_of(picture).startswith("Now 2 of 8 devices: a-1 2. Right of now, paler: ")


def test_small_jobs_share_one_curve() -> None:
    views = [job(f"j-{k}", workers=1, planned=1) for k in range(30)]
    picture = picture_of(sight(news(*views)), grouping="job", seconds=100.0)
    assert len(picture.past) == MOST_CURVES + 1
    assert sum(curve.values[-1] for curve in picture.past) == 30
    assert picture.past[-1].values[-1] == 30 - MOST_CURVES


def test_tenant_sees_others_as_one_curve() -> None:
    own = job()
    answer = news(own, tenant="ads")
    cluster = msgspec.structs.replace(answer.cluster, held=7)
    seen = sight(msgspec.structs.replace(answer, cluster=cluster))
    picture = picture_of(seen, grouping="job", seconds=100.0)
    assert {curve.name: curve.values[-1] for curve in picture.past} == {
        "a-1": 2,
        OTHER_TENANTS: 5,
        REST: 0,
    }


def test_steps_become_a_curve_of_loss_and_rate() -> None:
    steps = [
        StepRecord(
            at=float(k), round=1, step=k, epoch=0, loss=1.0 / k, samples=32, parts=(), seconds={}
        )
        for k in range(1, 1001)
    ]
    course = course_of_steps(steps, limit=100)
    assert len(course.times) == 100
    assert course.loss[-1] == 0.001
    assert course.rate[5] == pytest.approx(32.0)
    assert course_of_steps([]) == ([], [], [], [])


def test_names_keep_their_colours() -> None:
    few = charts.colours_of(["a-1", "b-2", REST])
    more = charts.colours_of(["a-1", "b-2", "c-3", "d-13", REST])
    assert all(more[name] == colour for name, colour in few.items())
    assert len(set(more.values())) == 5  # 1 and 13 would have the same


# Sentences ----------------------------------------------------------------------------------------

LATE = job(deadline=300.0, promised=True, finish=290.0)
SAID = [
    (sentences.on_suspend(job(), clock), "It gives back 2 devices."),
    (sentences.on_suspend(WAITING, clock), "It holds no device now."),
    (sentences.on_suspend(LATE, clock), "The deadline stays while it is suspended: t300 promised; "),
    (sentences.on_resume(job(minimum=2), clock), "as soon as the policy gives it 2 devices or more"),
    (sentences.on_cancel(job(), clock), "It ends for good at step 10 / 40, after 2.00 device hours."),
    (sentences.on_resize(job(), 1, 1), "It gives 1 device back at a step boundary"),
    (sentences.on_resize(job(), 3, 4), "It runs on 2 and needs 3: without 1 more device"),
    (sentences.on_resize(job(), 1, 8), "It may have 1–8 workers instead of 1–4."),
    (sentences.on_drain(node("n1", held=2), {"a-1": job()}, [node("n2")]),
     "2 workers of a-1 (2) leave at a step boundary"),
    (sentences.on_drain(node("n1", held=2), {"a-1": job()}, [node("n2")]),
     "Other nodes have 4 free devices: they start there at the same moment."),
    (sentences.on_drain(node("n1", held=2), {}, [node("n2", held=3)]), "1 device fewer for the jobs"),
    (sentences.on_drain(node("n1"), {}, []), "No worker is there now."),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "part"), SAID)
def test_what_a_change_would_do_is_said_first(lines: list[str], part: str) -> None:
    assert part in " ".join(lines)


def effect(
    name: str, workers: tuple[int, int], finish: tuple[float | None, float | None]
) -> Effect:
    return Effect(
        job=name, workers=workers[0], workers_after=workers[1], finish=finish[0], finish_after=finish[1]
    )  # fmt: skip


MEANT = [
    (effect("a-1", (2, 1), (290.0, 350.0)),
     "a-1: 2 → 1 worker at once, ends 60 s later, at t350, misses its promised deadline of t300."),
    (effect("b-2", (0, 2), (900.0, 300.0)), "b-2: 0 → 2 workers at once, ends 10 min earlier, at t300."),
    (effect("b-2", (1, 0), (900.0, None)), "b-2: 1 → 0 workers at once, no end can be foreseen any more."),
]  # fmt: skip


@pytest.mark.parametrize(("effect", "sentence"), MEANT)
def test_what_a_change_means_for_a_job(effect: Effect, sentence: str) -> None:
    assert sentences.of_effects([effect], {"a-1": LATE}, clock) == [sentence]


def test_only_the_largest_effects_are_named() -> None:
    many = [effect(f"j-{k}", (1, 2), (None, None)) for k in range(9)]
    lines = sentences.of_effects(many, {}, clock)
    assert len(lines) == 7
    assert lines[-1] == "And 3 other jobs, for which less changes."
    assert len(sentences.of_effects([], {}, clock)) == 1


def test_forecast_in_sentences() -> None:
    forecast = Forecast(
        known=True, admitted=False, reason="too-late", detail="4 workers would be late", workers=2,
        takes={"a-1": 2}, finish=400.0, earliest=390.0,
    )  # fmt: skip
    assert sentences.of_forecast(forecast, clock) == [
        "Not promised (too-late): 4 workers would be late.",
        "It would begin at once with 2 workers.",
        "Taken from others: 2 of a-1.",
        "Expected to end at t400.",
        "The earliest deadline that could be promised: t390.",
    ]


# Submissions --------------------------------------------------------------------------------------


def test_form_is_read_as_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").write_text("import brim\n\njob = brim.join()\n")
    (tmp_path / "job.yaml").write_text("command: python loop.py\nrestart: true\nworkers: '2'\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.py").touch()
    (tmp_path / "notes.txt").touch()
    assert files_in(tmp_path) == ["job.yaml", "loop.py"]
    fields = {"file": "job.yaml", "workers": "1:2", "tenant": "ads", "more": "--name 'a/b'"}
    with pytest.raises(SpecError, match="--name"):
        typed_request(words_of(fields), folder=tmp_path)
    request, _ = typed_request(words_of(fields | {"more": "--name mine"}), folder=tmp_path)
    spec = request.submission.spec
    assert (request.name, request.submission.tenant, str(spec.workers)) == ("mine", "ads", "1:2")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"file": "../other.py"}, "where brim dashboard was started"),
        ({"file": "/etc/passwd"}, "where brim dashboard was started"),
        ({"file": ""}, "where brim dashboard was started"),
        ({"file": "a.py", "more": "--bogus 1"}, "No such option"),
        ({"file": "a.py", "more": "'"}, "No closing quotation"),
        ({"file": "a.py", "workers": "many"}, "--workers"),
    ],
)
def test_wrong_form_is_refused(tmp_path: Path, fields: dict[str, str], message: str) -> None:
    (tmp_path / "a.py").write_text("import brim\n")
    with pytest.raises(SpecError, match=message):
        typed_request(words_of(fields), folder=tmp_path)


def test_service_is_shown_with_its_address() -> None:
    service = ServiceView(
        address="10.0.0.7:8000",
        load="requests",
        per_replica=10.0,
        minimum=1,
        maximum=4,
        current=24.8,
        foreseen=30.0,
        notice=2.0,
        wanted=3,
        ready=2,
        replicas=[],
    )
    shown = service_of(job(service=service))
    assert shown == "at 10.0.0.7:8000, 2 of 3 replicas ready, load 24.8"
    assert service_of(job()) == ""
