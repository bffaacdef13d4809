"""Jobs that begin behind others, at a time, in an array, or once more after a failure."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

import pytest

from brim.coordination.cluster.scheduled_jobs import Decide, Decided, Looked, Wished
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.domain.conditions import Conditions, Predecessor, parse_array, parse_predecessor
from brim.domain.course import Change
from brim.domain.lifecycle import Happening
from brim.domain.schedule import Decision, Reason, Rejected
from brim.errors import SpecError
from coordination.scheduled import Transcript

NODE = "node0"
DEAD = Seen(alive=False, outcome="done")
FAILED = Seen(alive=False, outcome="failed", who="user", problem="exit status 1")


def shown(jobs: Transcript, now: float = 0.0) -> list[str]:
    """The jobs that a policy may give workers."""
    return [state.job.id for state in jobs.jobs.snapshot(now, memory=None).jobs]


def run(jobs: Transcript, *running: str, now: float = 0.0) -> list[str]:
    """Start these jobs, with a worker each."""
    nodes = {job: {NODE: 1} for job in running}
    jobs.hear(Decided(Decision(workers=dict.fromkeys(running, 1), nodes=nodes)), now)
    return look(jobs, now=now)


def look(
    jobs: Transcript, seen: Mapping[str, Seen] | None = None, *, now: float = 0.0
) -> list[str]:
    return jobs.hear(Looked({NODE: NodeSeen(up=True)}, seen or {}), now)


def behind(*jobs: str) -> Conditions:
    return Conditions(predecessors=tuple(map(parse_predecessor, jobs)))


def waits(jobs: Transcript, job: str) -> str:
    return jobs.jobs.waits_for(jobs.known[job])


def test_job_begins_once_all_before_it_have_ended() -> None:
    jobs = Transcript()
    jobs.submit()
    jobs.submit()
    jobs.submit(conditions=behind("job-1", "job-2:ok"))
    assert shown(jobs) == ["job-1", "job-2"]
    assert waits(jobs, "job-3") == "it begins after job-1, job-2"
    run(jobs, "job-1", "job-2")
    look(jobs, {"job-1": FAILED})
    assert (shown(jobs), waits(jobs, "job-3")) == (["job-2"], "it begins after job-2")
    look(jobs, {"job-2": DEAD})
    assert (shown(jobs), waits(jobs, "job-3")) == (["job-3"], "")
    assert jobs.story.count("job-3 waits") == 1


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_jobs_behind_a_failure_are_cancelled(end: str) -> None:
    jobs = Transcript()
    jobs.submit()
    jobs.submit(conditions=behind("job-1:ok"))
    jobs.submit(conditions=behind("job-2:ok"))
    jobs.submit(conditions=behind("job-2"))
    if end == "failed":
        run(jobs, "job-1")
        look(jobs, {"job-1": FAILED})
    else:
        jobs.hear(Wished("job-1", Happening.CANCEL), 0.0)
    verb = "has" if end == "failed" else "was"
    told = [command.detail for command in jobs.commands if isinstance(command, Change)][-2:]
    assert told == [
        f"job-1, which is needed first, {verb} {end}",
        "job-2, which is needed first, was cancelled",
    ]
    assert list(jobs.jobs.jobs) == shown(jobs) == ["job-4"]


def test_arrays_count_as_one_before_a_job() -> None:
    """Also behind its first job, which may have been forgotten."""
    jobs = Transcript()
    for _ in range(2):
        jobs.submit(conditions=Conditions(array="job-1"))
    jobs.submit(conditions=behind("job-1"))
    jobs.submit(conditions=behind("job-1:ok"))
    jobs.hear(Wished("job-1", Happening.RELEASE), 0.0)
    run(jobs, "job-1", "job-2")
    look(jobs, {"job-1": DEAD})
    assert (shown(jobs), waits(jobs, "job-3")) == (["job-2"], "it begins after the array of job-1")
    look(jobs, {"job-2": FAILED})
    assert shown(jobs) == list(jobs.jobs.jobs) == ["job-3"]


def test_jobs_behind_a_refusal_are_decided_on() -> None:
    jobs = Transcript()
    jobs.submit()
    jobs.submit(conditions=behind("job-1"))
    refused = Rejected(job="job-1", reason=Reason.NO_DEADLINE, detail="")
    jobs.hear(Decided(Decision(workers={}, verdicts=(refused,))), 0.0)
    assert shown(jobs) == ["job-2"]
    assert Decide() in jobs.commands


def test_long_lines_end_at_once() -> None:
    """A tenant's 5,000 jobs, each behind the one before, keep nobody waiting."""
    jobs = Transcript()
    jobs.submit()
    for number in range(1, 5000):
        jobs.submit(conditions=behind(f"job-{number}:ok"))
    began = time.process_time()
    jobs.hear(Wished("job-1", Happening.CANCEL), 0.0)
    assert time.process_time() - began < 1.0
    assert not jobs.jobs.jobs


def test_job_begins_at_its_time() -> None:
    jobs = Transcript()
    jobs.submit(conditions=Conditions(earliest=90.0))
    assert (shown(jobs), waits(jobs, "job-1")) == ([], "it begins in 1m30s")
    assert jobs.jobs.wake_at(0.0) == 90.0
    jobs.hear(Looked({NODE: NodeSeen(up=True)}, {}, unseen=50.0), 60.0)  # it is no longer for that
    assert jobs.jobs.wake_at(0.0) == 90.0
    assert shown(jobs, 90.0) == ["job-1"]


@pytest.mark.parametrize("seed", range(20))
def test_no_more_of_an_array_run_than_may(seed: int) -> None:
    rng, jobs, together = random.Random(seed), Transcript(), 1 + seed % 3
    array = Conditions(array="job-1", limit=together)
    for _ in range(7):
        jobs.submit(conditions=array)
    jobs.submit()
    order = []
    while jobs.jobs.jobs:
        choice = [job for job in shown(jobs) if job != "job-8" or len(jobs.jobs.jobs) == 1]
        assert len(choice) == min(together, len(jobs.jobs.jobs) - ("job-8" in jobs.jobs.jobs) or 1)
        run(jobs, *choice)
        ending = rng.choice(choice)
        order.append(ending)
        if rng.random() < 0.3:
            look(jobs, {ending: FAILED})
        else:
            jobs.hear(Wished(ending, Happening.CANCEL), 0.0)
            look(jobs, {ending: Seen(alive=False)})
    assert len(order) == 8


def test_suspended_jobs_of_arrays_keep_their_turns() -> None:
    jobs = Transcript()
    for _ in range(3):
        jobs.submit(conditions=Conditions(array="job-1", limit=1))
    jobs.hear(Wished("job-1", Happening.HOLD), 0.0)
    assert shown(jobs) == ["job-2"]  # nobody waits for a job on hold
    run(jobs, "job-2")
    run(jobs)
    look(jobs, {"job-2": Seen(alive=False, step=3)})
    jobs.hear(Wished("job-1", Happening.RELEASE), 0.0)
    assert shown(jobs, 5.0) == ["job-2"]
    assert waits(jobs, "job-1") == "its array runs 1 at a time"


def test_failures_are_followed_by_allowed_starts() -> None:
    jobs = Transcript()
    job = jobs.submit(retries=2)
    for now, wait in ((0.0, 1.0), (10.0, 2.0)):
        run(jobs, "job-1", now=now)
        assert look(jobs, {"job-1": FAILED}, now=now) == ["job-1 suspended"]
        assert job.starts.not_before == now + wait
    run(jobs, "job-1", now=20.0)
    assert look(jobs, {"job-1": FAILED}, now=20.0) == ["job-1 failed"]
    assert (job.starts.retries, job.starts.launches) == (2, 3)


def test_cancelled_jobs_are_not_tried_again() -> None:
    jobs = Transcript()
    jobs.submit(retries=2)
    run(jobs, "job-1")
    jobs.hear(Wished("job-1", Happening.CANCEL), 0.0)
    assert look(jobs, {"job-1": FAILED}) == ["job-1 cancelled"]


@pytest.mark.parametrize("text", ["", "a", "5-3", "1,1", "1-5000", "1-3%0", "-1", "1-2%", "1;2"])
def test_wrong_arrays_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--array: got"):
        parse_array(text)


@pytest.mark.parametrize("text", ["", ":ok", "job-1:", "job-1:failed"])
def test_wrong_predecessors_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--after: got"):
        parse_predecessor(text)
    assert parse_predecessor("a:b:ok") == Predecessor(job="a:b", success=True)
