"""The status of an ElasticJob: its shown and kept parts, and those that never change by themselves."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.domain.course import Change
from brim.domain.estimates import Estimate, Estimates
from brim.domain.lifecycle import ENDED, Life, Phase, Wish
from brim.domain.schedule import Judgement, Standing
from brim.domain.scheduled_job import Allocation, JobProgress, ScheduledJob, Starts
from brim.errors import EnvironmentFault, SpecError
from brim.kubernetes.objects.record_text import LARGEST, pack_record, unpack_record
from brim.kubernetes.objects.schemas import UNSEEN
from brim.kubernetes.objects.status import (
    CONDITIONS,
    INVALID_SPEC,
    LONGEST_LINE,
    MOST_LINES,
    UNREADABLE,
    Stall,
    can_wait,
    records_the_same,
    says_the_same,
    stall_of,
    stalled_status,
    status_of,
)
from edges.test_fuzz import damaged
from edges.test_nonsense import plain_msgpack, twisted
from elastic_jobs import elastic_job, everything, submitted

NOW, LATER = 1_796_000_000.0, 1_796_000_060.0
LIVES = [Life(phase) for phase in Phase] + [Life(Phase.SUSPENDED, Wish.HOLD)]
CLUSTER_FULL = Judgement(
    standing=Standing.BEST_EFFORT, reason="not-enough-capacity", detail="4 of 2", earliest=NOW + 9
)


def status(job: ScheduledJob, **fields: Any) -> dict[str, Any]:
    return status_of(
        job, **{"generation": 3, "before": None, "now": NOW, "selector": "a=b"} | fields
    )


def holding(shown_status: dict[str, Any]) -> list[str]:
    return [
        condition["type"]
        for condition in shown_status["conditions"]
        if condition["status"] == "True"
    ]


def running() -> ScheduledJob:
    job = submitted(elastic_job(deadlineIn="2h"))
    job.life = Life(Phase.RUNNING)
    job.judgement = Judgement(standing=Standing.ADMITTED, promised=True, reason="fits", detail="ok")
    job.allocation = Allocation(plan={"n1": 3}, told={"n1": 2, "n2": 1}, home="masters")
    job.progress = JobProgress(step=120, steps=400, started=NOW - 60)
    job.estimates = Estimates(last=Estimate(at=NOW, finish=NOW + 90, step=120))
    return job


def test_a_job_that_runs() -> None:
    story = [
        Change(NOW - 60, "j", "submitted", 0, 0, "", ""),
        Change(NOW - 50, "j", "workers", 1, 3, "surplus-by-marginal-return", "+2"),
        Change(NOW - 40, "j", "out of memory", 0, 0, "", "w1\nand its trace"),
    ]
    result = status(running(), story=story, ready=2)
    assert result["phase"] == "Running"
    assert result["workers"] == {
        "wanted": 3, "ready": 2, "summary": "2/1-4", "selector": "a=b", "nodes": {"n1": 2, "n2": 1},
    }  # fmt: skip
    assert (result["progress"], result["promised"], result["deadline"]) == (
        "120/400",
        "Yes",
        "2026-11-24T19:00:00Z",
    )
    assert (result["startTime"], result["estimatedEnd"]) == (
        "2026-11-30T00:52:20Z",
        "2026-11-30T00:54:50Z",
    )
    assert result["reason"] == "SurplusByMarginalReturn"
    assert result["message"].startswith("out of memory (w1")
    assert result["story"] == [
        "2026-11-30T00:52:20Z submitted",
        "2026-11-30T00:52:30Z workers 1 -> 3 (surplus-by-marginal-return: +2)",
        "2026-11-30T00:52:40Z out of memory (w1",
    ]
    assert holding(result) == ["Admitted", "Promised", "Running"]
    assert "null" not in json.dumps(result)


@pytest.mark.parametrize(
    ("life", "judgement", "conditions"),
    [
        (Life(), Judgement(), ["Reconciling"]),
        (Life(Phase.SUBMITTED, Wish.HOLD), Judgement(), ["Suspended"]),
        (Life(Phase.ADMITTED), CLUSTER_FULL, ["Admitted", "Reconciling"]),
        (Life(Phase.RUNNING), CLUSTER_FULL, ["Admitted", "Running"]),
        (Life(Phase.RUNNING, Wish.HOLD), CLUSTER_FULL, ["Admitted", "Running"]),
        (Life(Phase.SUSPENDED), CLUSTER_FULL, ["Admitted", "Suspended", "Reconciling"]),
        (Life(Phase.SUSPENDED, Wish.HOLD), CLUSTER_FULL, ["Admitted", "Suspended"]),
        (Life(Phase.DONE), CLUSTER_FULL, ["Admitted", "Succeeded"]),
        (Life(Phase.FAILED), CLUSTER_FULL, ["Admitted", "Failed", "Stalled"]),
        (Life(Phase.CANCELLED), CLUSTER_FULL, ["Admitted", "Failed", "Stalled"]),
        (Life(Phase.REFUSED), CLUSTER_FULL, ["Failed", "Stalled"]),
    ],
)
def test_conditions(life: Life, judgement: Judgement, conditions: list[str]) -> None:
    job = submitted()
    job.life, job.judgement = life, judgement
    result = status(job)
    assert holding(result) == conditions
    assert [condition["type"] for condition in result["conditions"]] == [
        name for name in CONDITIONS if name != "Promised"
    ]
    assert all(
        condition["reason"] and condition["observedGeneration"] == 3
        for condition in result["conditions"]
    )


def test_a_refused_deadline_says_what_could_be_promised() -> None:
    job = running()
    job.judgement = CLUSTER_FULL
    result = status(job)
    (promised,) = [
        condition for condition in result["conditions"] if condition["type"] == "Promised"
    ]
    assert (promised["status"], promised["reason"]) == ("False", "NotEnoughCapacity")
    assert promised["message"].endswith("the earliest that could be promised: 2026-11-30T00:53:29Z")
    assert (result["promised"], result["earliestDeadline"]) == ("No", "2026-11-30T00:53:29Z")


def test_a_job_that_waits_says_why() -> None:
    def reason(job: ScheduledJob, **fields: Any) -> str:
        conditions = {
            condition["type"]: condition for condition in status(job, **fields)["conditions"]
        }
        return str(conditions["Reconciling"]["message"])

    job = submitted()
    assert reason(job) == "it waits for workers"
    story = [Change(NOW, "j", "workers", 1, 0, "cluster-full", "4 of 4 devices are taken")]
    assert reason(job, story=story) == "workers 1 -> 0 (cluster-full: 4 of 4 devices are taken)"


def test_equal_inputs_give_an_equal_status() -> None:
    previous = status(running())
    assert status(running(), before=previous, now=LATER) == previous


def test_time_of_a_condition_follows_its_status_alone() -> None:
    job = running()
    previous = status(job)
    job.life = Life(Phase.SUSPENDED)
    job.problem = "its node is lost"
    times = {
        condition["type"]: condition["lastTransitionTime"]
        for condition in status(job, before=previous, now=LATER)["conditions"]
    }
    changed = {name for name, options in times.items() if options == "2026-11-30T00:54:20Z"}
    assert changed == {"Running", "Suspended", "Reconciling"}
    assert set(times.values()) == {"2026-11-30T00:54:20Z", "2026-11-30T00:53:20Z"}


def test_servers_condition_gets_its_time_from_the_operator() -> None:
    result = status(submitted(elastic_job()), before={"conditions": [UNSEEN]})
    assert UNSEEN["lastTransitionTime"] == "1970-01-01T00:00:00Z"
    (reconciling,) = (
        condition for condition in result["conditions"] if condition["type"] == "Reconciling"
    )
    assert reconciling["status"] == UNSEEN["status"]
    assert reconciling["lastTransitionTime"] == "2026-11-30T00:53:20Z"


def test_running_job_shows_its_problems_as_well() -> None:
    wrong = SpecError("spec.workers.max", got="8", need="at most 4")
    result = status(running(), stall=stall_of([wrong]))
    assert holding(result) == ["Admitted", "Promised", "Running", "Stalled"]
    assert result["conditions"][-1]["message"] == str(wrong)
    assert result["conditions"][-1]["reason"] == INVALID_SPEC


def test_invalid_object_keeps_only_an_earlier_status() -> None:
    options: dict[str, Any] = {"generation": 4, "now": LATER}
    result = stalled_status(None, Stall(INVALID_SPEC, "spec.epochs: got 0"), **options)
    assert (result["phase"], holding(result)) == ("Invalid", ["Stalled"])
    previous = status(running())
    unreadable = Stall(UNREADABLE, "version '9'")
    result = stalled_status(previous, unreadable, **options)
    assert (result["record"], result["phase"]) == (previous["record"], "Running")
    assert holding(result) == ["Admitted", "Promised", "Running", "Stalled"]
    assert stalled_status(result, unreadable, **options) == result
    assert stalled_status([], unreadable, **options)["phase"] == "Invalid"


def test_what_people_and_processes_say_is_within_limits() -> None:
    job = running()
    job.life, job.ended = Life(Phase.FAILED), NOW
    job.problem = "\x1b[2J" + "x" * 100_000
    job.summary = {
        "exit": "failed",
        "metrics": {"auc": 0.5, "loss": float("nan")},
        "many": {str(n): n for n in range(999)},
    }
    story = [Change(NOW, "j", "workers", 1, n, "order", "y" * 9_999) for n in range(99)]
    result = status(job, story=story)
    assert len(result["story"]) == MOST_LINES
    assert {len(line) for line in result["story"]} == {LONGEST_LINE}
    assert (result["summary"]["metrics.auc"], result["summary"]["metrics.loss"]) == (0.5, "nan")
    assert len(json.dumps(result, allow_nan=False)) < 200_000
    assert "\x1b" not in json.dumps({**result, "record": ""}, ensure_ascii=False)


# Records ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("life", LIVES)
def test_a_record_comes_back_as_it_was(life: Life) -> None:
    job = running()
    job.life = life
    assert unpack_record(pack_record(job), uid=job.key) == job
    job = submitted(everything())
    assert unpack_record(pack_record(job), uid=job.key) == job


def test_status_without_news_is_not_written() -> None:
    job = running()
    previous = status(job)
    job.progress = replace(job.progress, attained=99.0)
    assert says_the_same(previous, status(job, before=previous), uid=job.key)
    assert status(job, before=previous) != previous
    changed_statuses = [
        status(job, before=previous, ready=1),
        status(job, before=previous, generation=4),
        {**previous, "record": "1.damaged"},
    ]
    job.allocation = replace(job.allocation, asked=NOW)  # since when it owes an answer
    changed_statuses.append(status(job, before=previous))
    assert not any(
        says_the_same(previous, status_changed, uid=job.key) for status_changed in changed_statuses
    )
    # Nobody has to wait for what people read alone before something is done.
    sameness = [
        records_the_same(previous, status_changed, uid=job.key)
        for status_changed in changed_statuses
    ]
    assert sameness == [True, True, False, False]
    assert not any(
        says_the_same(empty, previous, uid=job.key) for empty in (None, dict[str, Any]())
    )


@pytest.mark.parametrize(
    ("changes", "is_so"),
    [
        ({}, True),
        ({"submitted": NOW - 121}, False),
        ({"life": Life(), "allocation": Allocation()}, True),
        ({"life": Life(), "allocation": Allocation(), "submitted": NOW - 6}, False),
        ({"life": Life(Phase.SUBMITTED, Wish.HOLD), "allocation": Allocation()}, False),
        ({"allocation": Allocation()}, False),
        ({"starts": Starts(launches=1)}, False),
        ({"life": Life(Phase.ADMITTED, Wish.HOLD)}, False),
        ({"judgement": Judgement(standing=Standing.ADMITTED, promised=True)}, False),
    ],
)
def test_status_can_wait_only_for_unsettled_jobs(changes: dict[str, Any], is_so: bool) -> None:
    job = submitted(elastic_job())
    job.submitted, job.life = NOW, Life(Phase.ADMITTED)
    job.allocation = Allocation(plan={"n1": 3})
    assert can_wait(replace(job, **changes), NOW) == is_so


def test_unreadable_record_restarts_no_job() -> None:
    job = running()
    text = pack_record(job)
    for damaged_text, words in (
        (None, "damaged"),
        (3, "damaged"),
        ("", "damaged"),
        (text[:-8], "damaged"),
        (f"{text[:40]}A{text[41:]}", "damaged"),
        (f"{text}AAAA", "damaged"),
        (f"2{text[1:]}", "of version '2': an operator of another version of brim wrote it"),
        ("1." + "A" * (LARGEST + 4), "damaged"),
        (
            "1." + base64.b64encode(zlib.compress(bytes(64 << 20))).decode(),
            "damaged: it has another length",
        ),
    ):
        with pytest.raises(EnvironmentFault, match=words):
            unpack_record(damaged_text, uid=job.key)
    with pytest.raises(EnvironmentFault, match="that of another object"):
        unpack_record(text, uid="other")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_record_that_is_none_ends_nothing(data: st.DataObject) -> None:
    tree = msgspec.to_builtins(running())
    damaged_text = data.draw(
        damaged(msgspec.msgpack.encode(tree)) | twisted(tree).map(plain_msgpack)
    )
    text = data.draw(
        st.text() | st.just("1." + base64.b64encode(zlib.compress(damaged_text)).decode())
    )
    previous = data.draw(twisted(status(running())))
    try:
        job = unpack_record(text, uid="uid-of-flights")
    except EnvironmentFault as fault:
        stalled_status(previous, Stall(UNREADABLE, str(fault)), generation=1, now=NOW)
    else:
        json.dumps(status(job, before=previous), allow_nan=False)


def test_record_too_long_drops_its_last_words() -> None:
    job = running()
    job.problem = base64.b64encode(bytes(range(256)) * 8_000).decode()
    job.summary = {
        "exit": "failed",
        "steps": 3,
        "metrics": {str(n): str(n**9) for n in range(99_999)},
    }
    text = pack_record(job)
    assert len(text) < LARGEST
    restored = unpack_record(text, uid=job.key)
    assert restored.summary == {"exit": "failed", "steps": 3}
    assert replace(restored, summary={}, problem="") == replace(job, summary={}, problem="")


def test_invalid_last_words_are_left_out() -> None:
    job = running()
    job.problem = "\ud800"
    job.summary = {"exit": "failed", "steps": 10**30, "half": "\ud800"}
    restored = unpack_record(pack_record(job), uid=job.key)
    assert (restored.summary, restored.problem) == ({"exit": "failed"}, "?")
    json.dumps(status(job), ensure_ascii=False).encode()


def test_each_final_phase_is_a_terminal_condition() -> None:
    for phase in ENDED:
        job = submitted()
        job.life = Life(phase)
        assert len({"Succeeded", "Failed"} & set(holding(status(job)))) == 1
