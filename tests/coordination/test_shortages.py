"""Which jobs wait for nothing but devices, so that more nodes would have them run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.coordination.cluster.scheduled_jobs import Decided, Foretold, Looked, Wished
from brim.coordination.cluster.shortages import ExpectedStart, expected_starts
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.domain.course import Change
from brim.domain.lifecycle import Happening
from brim.domain.measuring import Measured
from brim.domain.schedule import Admitted, Decision, Reason
from brim.domain.tenancy import Tenant
from brim.domain.workload import Priority
from brim.policies.cycle import cycle
from brim.user_code.policies import POLICIES
from coordination.scheduled import Transcript

FULL = Reason.CLUSTER_FULL, "no device is left for it"


def short(transcript: Transcript) -> list[str]:
    found = transcript.jobs.short_of_devices()
    assert found is not None
    return [job.id for job in found]


def waiting(transcript: Transcript, **reasons: Reason) -> None:
    """A decision that gives no job anything, with these reasons by jobs as `job_1`."""
    reasons_of_jobs = {job.replace("_", "-"): (reason, "") for job, reason in reasons.items()}
    transcript.hear(Decided(Decision(workers={}, reasons=reasons_of_jobs)), 0.0)


@pytest.mark.parametrize("reason", list(Reason))
def test_more_devices_help_only_who_waits_for_devices(reason: Reason) -> None:
    jobs = Transcript()
    jobs.submit()
    waiting(jobs, job_1=reason)
    helps = reason in (Reason.CLUSTER_FULL, Reason.GANG_INCOMPLETE, Reason.ITS_NODES)
    assert short(jobs) == (["job-1"] if helps else [])


def test_before_a_decision_nobody_knows() -> None:
    jobs = Transcript()
    jobs.submit()
    assert jobs.jobs.short_of_devices() is None


def test_held_planned_and_running_jobs_are_not_short() -> None:
    jobs = Transcript()
    for _ in range(4):
        jobs.submit()
    full = dict.fromkeys(("job_1", "job_2", "job_3", "job_4"), Reason.CLUSTER_FULL)
    waiting(jobs, **full)
    assert short(jobs) == ["job-1", "job-2", "job-3", "job-4"]
    jobs.hear(Wished("job-1", Happening.HOLD), 1.0)
    jobs.hear(Wished("job-2", Happening.CANCEL), 1.0)
    assert short(jobs) == ["job-3", "job-4"]
    plan = Decision(workers={"job-3": 2}, nodes={"job-3": {"node0": 2}}, reasons={"job-4": FULL})
    jobs.hear(Decided(plan), 2.0)
    assert short(jobs) == ["job-4"]
    jobs.hear(Looked({"node0": NodeSeen(up=True)}, {}), 2.0)
    waiting(jobs, job_3=Reason.CLUSTER_FULL)
    assert short(jobs) == [], "its processes have not ended yet"


def test_the_highest_right_comes_first() -> None:
    jobs = Transcript()
    jobs.submit()
    jobs.submit(priority=Priority.ONLINE)
    jobs.submit(deadline=1e6)
    jobs.submit(priority=Priority.ONLINE)
    jobs.hear(
        Decided(
            Decision(
                workers={},
                verdicts=(Admitted(job="job-3", reason=Reason.FITS),),
                reasons=dict.fromkeys(jobs.known, FULL),
            )
        ),
        0.0,
    )
    assert short(jobs) == ["job-3", "job-2", "job-4", "job-1"]


def test_nobody_exceeds_a_tenants_limit() -> None:
    jobs = Transcript(tenants=(Tenant(id="ads", guaranteed=4, limit=6),))
    jobs.submit("4", tenant="ads")
    jobs.submit("3", tenant="ads")
    jobs.submit("2", tenant="ads")
    jobs.submit("9", tenant="maps")
    reasons = dict.fromkeys(["job-2", "job-3", "job-4"], FULL)
    plan = Decision(workers={"job-1": 4}, nodes={"job-1": {"node0": 4}}, reasons=reasons)
    jobs.hear(Decided(plan), 0.0)
    assert short(jobs) == ["job-3", "job-4"]


def test_jobs_served_by_others_surplus_are_not_short() -> None:
    """As the policy of the operator has it: a new job gets its fewest, a third one finds no room."""
    jobs = Transcript("1x8")
    jobs.submit("2:8")
    jobs.submit("4")
    jobs.submit("4")

    def decide(now: float) -> None:
        snapshot = jobs.jobs.snapshot(now, memory=None)
        decision = cycle(snapshot, policy=POLICIES["brim"], placed=False)
        nodes = {job: {"node0": count} for job, count in decision.workers.items() if count}
        jobs.hear(Decided(replace(decision, nodes=nodes)), now)

    decide(0.0)
    assert short(jobs) == ["job-3"]
    jobs.hear(Wished("job-2", Happening.CANCEL), 1.0)
    decide(1.0)
    assert short(jobs) == []


UNFORESEEN = "it begins once enough come free, which cannot be foreseen yet"


def crowd(*tenants: str, **spec: object) -> Transcript:
    """A cluster of 8 devices on which job-1 runs on all of them, and one more job of each tenant."""
    jobs = Transcript("1x8", **spec)
    jobs.submit("8", tenant=tenants[0])
    for tenant in tenants[1:]:
        jobs.submit("2:8", tenant=tenant)
    waiting = dict.fromkeys(list(jobs.known)[1:], FULL)
    plan = Decision(workers={"job-1": 8}, nodes={"job-1": {"node0": 8}}, reasons=waiting)
    for now in (0.0, 1.0):
        jobs.hear(Decided(plan), now)
        measured = Measured({8: (20.0, 2.0)})
        seen = Seen(alive=True, workers={"node0": 8}, step=20, steps=600, measured=measured)
        sights = {"job-1": seen} if now else {}
        jobs.hear(Looked({"node0": NodeSeen(up=True)}, sights), now)
    return jobs


def waits(jobs: Transcript, id: str) -> str:
    return jobs.jobs.waits_for(jobs.known[id])


def test_waiting_jobs_say_who_holds_their_devices() -> None:
    jobs = crowd("ads", "ads", "web")
    text = "it needs 2 devices, and none is free: {} has 8; " + UNFORESEEN
    assert waits(jobs, "job-1") == ""
    assert waits(jobs, "job-2") == text.format("job-1")
    assert waits(jobs, "job-3") == text.format("tenant ads"), "another tenant's jobs have no names"


def test_jobs_larger_than_the_cluster_say_so() -> None:
    jobs = crowd("ads")
    jobs.submit("9", tenant="web")
    plan = Decision(workers={"job-1": 8}, nodes={"job-1": {"node0": 8}}, reasons={"job-2": FULL})
    jobs.hear(Decided(plan), 2.0)
    words = "it needs 9 devices, and the cluster has 8: it waits for further nodes, or for fewer workers"
    assert waits(jobs, "job-2") == words


def test_waiting_jobs_say_when_they_begin() -> None:
    jobs = crowd("ads", "ads", "web")
    start = ExpectedStart(moment=91.0, giver="job-1", ends=True)
    jobs.hear(Foretold({}, 1.0, {"job-2": start, "job-3": start}), 1.0)
    assert waits(jobs, "job-2").endswith("; it is expected to begin in 1m30s, when job-1 ends")
    assert waits(jobs, "job-3").endswith("in 1m30s, when a job of tenant ads ends")
    jobs.hear(Decided(Decision(workers={}, reasons={"job-2": FULL})), 30.0)
    assert waits(jobs, "job-2").endswith("in 1m1s, when job-1 ends")


def test_ends_of_unmeasured_jobs_foretell_nothing() -> None:
    jobs = crowd("ads", "ads")
    start = ExpectedStart(moment=91.0, giver="job-2", ends=True)  # of which nothing was measured
    jobs.hear(Foretold({}, 1.0, {"job-2": start}), 1.0)
    assert waits(jobs, "job-2").endswith(UNFORESEEN)


def test_stories_have_each_reason_to_wait_once() -> None:
    jobs = crowd("ads", "ads")
    for reason in (Reason.OVER_QUOTA, Reason.CLUSTER_FULL, Reason.OVER_QUOTA):
        plan = Decision(
            workers={"job-1": 8}, nodes={"job-1": {"node0": 8}}, reasons={"job-2": (reason, "so")}
        )
        jobs.hear(Decided(plan), 2.0)
    assert jobs.story.count("job-2 waits") == 2
    assert waits(jobs, "job-2") == f"so: job-1 has 8; {UNFORESEEN}"
    for happening in (Happening.HOLD, Happening.RELEASE):
        jobs.hear(Wished("job-2", happening), 3.0)
        assert waits(jobs, "job-2") == "" or happening is Happening.RELEASE
        reasons = {} if happening is Happening.HOLD else {"job-2": FULL}
        jobs.hear(Decided(Decision(workers={}, reasons=reasons)), 3.0)
    assert jobs.story.count("job-2 waits") == 3, "it waits for the second time"


def test_drained_nodes_are_named_to_those_that_wait() -> None:
    jobs = crowd("ads", "ads", drained=frozenset({"node0"}))
    assert "it needs 2 devices, and none is free: node0 is drained; " in waits(jobs, "job-2")


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ([], None),
        ([("b", 9.0, 0, 2)], ExpectedStart(9.0)),
        ([("a", 9.0, 2, 0), ("b", 9.0, 0, 2)], ExpectedStart(9.0, "a", ends=True)),
        ([("b", 9.0, 0, 2), ("a", 9.0, 4, 2)], ExpectedStart(9.0, "a")),
        ([("a", 1.0, 2, 0), ("b", 9.0, 0, 2)], ExpectedStart(9.0)),
        ([("b", 9.0, 0, 2), ("b", 10.0, 2, 0), ("b", 11.0, 0, 2)], ExpectedStart(9.0)),
        ([("b", 9.0, 2, 4)], None),
    ],
)
def test_a_start_follows_a_gift_of_its_moment(
    changes: list[tuple[str, float, int, int]], start: ExpectedStart | None
) -> None:
    found = expected_starts(
        [Change(moment, job, "workers", old, new) for job, moment, old, new in changes]
    )
    assert found.get("b") == start
