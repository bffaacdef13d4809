"""Which jobs wait for nothing but devices, so that more nodes would have them run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.coordination.cluster.scheduled_jobs import Decided, Looked, Wished
from brim.coordination.cluster.sightings import NodeSeen
from brim.domain.lifecycle import Happening
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
