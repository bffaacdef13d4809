"""The lives of scheduled jobs as tables: events in, commands out.

Each row has a time, an event, and what is said to it: steps to take, and lines of stories.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from brim.coordination.cluster.reconcile import Force, Resize, Start, Suspend
from brim.coordination.cluster.scheduled_jobs import (
    REPLAN,
    Answered,
    Decide,
    Decided,
    Described,
    Drained,
    Event,
    Faulted,
    KindFreed,
    Looked,
    Lose,
    Note,
    RangeChanged,
    Save,
    ScheduledJobs,
    Submitted,
    Unanswered,
    Wished,
)
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.domain.host_kind import HostKind
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.lifecycle import Happening, Life, Phase
from brim.domain.schedule import Admitted, Decision, Reason, Rejected, Standing, Verdict
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import InternalError
from brim.policies.cycle import cycle
from brim.user_code.policies import POLICIES
from coordination.scheduled import Heard

Row = tuple[float, Event, list[str]]
NODE = "node0"
UP = NodeSeen(up=True)


def plan(*verdicts: Verdict, **workers: int) -> Decided:
    """A decision that names jobs as `job_1`."""
    named = {job.replace("_", "-"): count for job, count in workers.items()}
    nodes = {job: {NODE: count} for job, count in named.items() if count}
    return Decided(Decision(workers=named, nodes=nodes, verdicts=verdicts))


def look(node: NodeSeen = UP, **jobs: Seen) -> Looked:
    return Looked({NODE: node}, {job.replace("_", "-"): seen for job, seen in jobs.items()})


def unseen(seconds: float, **jobs: Seen) -> Looked:
    return replace(look(UP, **jobs), unseen=seconds)


def on(workers: int, **more: Any) -> Seen:
    """A job that is alive, with so many workers."""
    held = {NODE: workers} if workers else {}
    return Seen(alive=True, workers=held, agents=frozenset({NODE}), **more)


def dead(outcome: str = "", **more: Any) -> Seen:
    return Seen(alive=False, outcome=outcome, **more)


def yes(job: str, workers: int | None = None) -> Answered:
    return Answered(Suspend(job) if workers is None else Resize(job, {NODE: workers}))


def silence(job: str, workers: int) -> Unanswered:
    return Unanswered(Resize(job, {NODE: workers}))


def taken_back(at: float, *, until: float) -> list[Row]:
    """job-1 is started, and taken back before a step; it is not started again until then."""
    soon = until - 0.1
    waits: list[Row] = [
        (soon, plan(job_1=4), ["job-1 workers"]),
        (soon, look(), []),
        (soon, plan(), ["job-1 workers"]),
    ]
    return [
        (at, plan(job_1=4), ["job-1 workers"]),
        (at, look(), ["job-1 running", "start job-1: 4"]),
        (at, plan(), ["job-1 workers"]),
        (at, look(job_1=on(4)), ["force job-1: 0"]),
        (at, look(job_1=dead()), ["job-1 suspended"]),
        *(waits if until > at else []),
    ]


# Eight workers of job-1 that have made steps, as the rest of a table finds them.
EIGHT: list[Row] = [
    (0.0, plan(job_1=8), ["job-1 workers"]),
    (0.0, look(), ["job-1 running", "start job-1: 8"]),
    (0.0, look(job_1=on(8, step=1)), []),
]

TABLES: dict[str, list[Row]] = {
    "devices are another's only once they are free": [
        *EIGHT,
        (1.0, plan(job_1=3, job_2=5), ["job-1 workers", "job-2 workers"]),
        (1.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (1.0, yes("job-1", 3), []),
        (2.0, look(job_1=on(4)), []),
        (3.0, look(job_1=on(3)), ["job-2 running", "start job-2: 5"]),
    ],
    "who finds no room to start is not started, and may have another plan by then": [
        (0.0, plan(job_1=3, job_2=3), ["job-1 workers", "job-2 workers"]),
        (0.0, replace(look(), room=1), ["job-1 running", "start job-1: 3"]),
        (0.1, replace(look(job_1=on(3)), room=0), []),
        (0.2, plan(job_1=3, job_2=5), ["job-2 workers"]),
        (0.3, replace(look(job_1=on(3)), room=1), ["job-2 running", "start job-2: 5"]),
    ],
    "workers that are only about to start have their devices": [
        (0.0, plan(job_1=6), ["job-1 workers"]),
        (0.0, look(), ["job-1 running", "start job-1: 6"]),
        (0.0, plan(job_1=2, job_2=6), ["job-1 workers", "job-2 workers"]),
        (0.0, look(job_1=on(0)), ["resize job-1: 2"]),
        (0.0, yes("job-1", 2), []),
        (1.0, look(job_1=on(0)), []),
        (1.0, look(job_1=on(3)), []),
        (1.0, look(job_1=on(6)), []),
        (1.0, look(job_1=on(4)), []),
        (1.0, look(job_1=on(2)), ["job-2 running", "start job-2: 6"]),
    ],
    "workers that were told before they were forked are not waited for for ever": [
        (0.0, plan(job_1=6), ["job-1 workers"]),
        (0.0, look(), ["job-1 running", "start job-1: 6"]),
        (0.0, plan(job_1=2, job_2=6), ["job-1 workers", "job-2 workers"]),
        (0.0, look(job_1=on(0)), ["resize job-1: 2"]),
        (0.0, yes("job-1", 2), []),
        (1.0, look(job_1=on(2)), []),
        (10.1, look(job_1=on(2)), ["job-2 running", "start job-2: 6"]),
    ],
    "who has got workers before it has said yes to them gives none": [
        (0.0, plan(job_1=3), ["job-1 workers"]),
        (0.0, look(), ["job-1 running", "start job-1: 3"]),
        (0.0, look(job_1=on(3, step=1)), []),
        (100.0, plan(job_1=8), ["job-1 workers"]),
        (100.0, look(job_1=on(3)), ["resize job-1: 8"]),
        (100.1, look(job_1=on(6)), []),
        (100.2, yes("job-1", 8), []),
        (100.3, look(job_1=on(8)), []),
    ],
    "who does not give within the grace period is forced": [
        *EIGHT,
        (0.0, plan(job_1=3), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (0.0, yes("job-1", 3), []),
        (5.9, look(job_1=on(8)), []),
        (6.1, look(job_1=on(8)), ["job-1 forced", "force job-1: 3"]),
        (6.2, look(job_1=on(8)), ["force job-1: 3"]),  # it is told once
        (6.4, look(job_1=on(3)), []),
    ],
    "where force does not show, all processes end": [
        *EIGHT,
        (0.0, plan(job_1=3), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (0.0, yes("job-1", 3), []),
        (6.1, look(job_1=on(8)), ["job-1 forced", "force job-1: 3"]),
        (7.9, look(job_1=on(8)), ["force job-1: 3"]),
        (8.1, look(job_1=on(8)), ["job-1 forced", "force job-1: 0"]),
        (8.2, look(job_1=dead()), ["job-1 suspended", "job-1 running", "start job-1: 3"]),
    ],
    "what is not heard is said again": [
        *EIGHT,
        (0.0, plan(job_1=2), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 2"]),
        (0.1, silence("job-1", 2), []),
        (0.2, look(job_1=on(8)), ["resize job-1: 2"]),
        (0.3, yes("job-1", 2), []),
        (0.4, look(job_1=on(2)), []),
    ],
    "a master is asked one thing at a time": [
        *EIGHT,
        (0.0, plan(job_1=6), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 6"]),
        (0.2, look(job_1=on(8)), []),
        (0.2, plan(job_1=2), ["job-1 workers"]),
        (0.4, look(job_1=on(8)), []),
        (0.5, yes("job-1", 6), []),
        (0.6, look(job_1=on(6)), ["resize job-1: 2"]),
    ],
    "who does not answer within the grace period is forced": [
        *EIGHT,
        (0.0, plan(job_1=2, job_2=6), ["job-1 workers", "job-2 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 2"]),
        (0.1, silence("job-1", 2), []),
        (7.9, look(job_1=on(8)), ["resize job-1: 2"]),
        (8.0, silence("job-1", 2), []),
        (8.1, look(job_1=on(8)), ["job-1 forced", "force job-1: 0"]),
        (
            8.3,
            look(job_1=dead()),
            [
                "job-1 suspended",
                "job-1 running",
                "job-2 running",
                "start job-1: 2",
                "start job-2: 6",
            ],
        ),
    ],
    "the grace period begins with the question, not with the answer": [
        *EIGHT,
        (0.0, plan(job_1=3), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (0.1, silence("job-1", 3), []),
        (5.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (5.0, yes("job-1", 3), []),
        (6.1, look(job_1=on(8)), ["job-1 forced", "force job-1: 3"]),
    ],
    "who is asked for more meanwhile has no more time": [
        *EIGHT,
        (0.0, plan(job_1=5), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 5"]),
        (0.0, yes("job-1", 5), []),
        (5.0, plan(job_1=3), ["job-1 workers"]),
        (5.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (5.0, yes("job-1", 3), []),
        (6.1, look(job_1=on(8)), ["job-1 forced", "force job-1: 3"]),
    ],
    "time in which nobody could see counts for nobody: who gives is not forced for it": [
        *EIGHT,
        (0.0, plan(job_1=3), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (0.0, yes("job-1", 3), []),
        (5.0, look(job_1=on(8)), []),
        (65.0, unseen(60.0, job_1=on(8)), []),
        (65.9, look(job_1=on(8)), []),
        (66.1, look(job_1=on(8)), ["job-1 forced", "force job-1: 3"]),
    ],
    "time in which nobody could see counts for nobody: who owes an answer is not forced": [
        *EIGHT,
        (0.0, plan(job_1=3), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (4.0, unseen(3.0, job_1=on(8)), []),
        (10.0, unseen(5.0, job_1=on(8)), []),
        (15.9, look(job_1=on(8)), []),
        (16.1, look(job_1=on(8)), ["job-1 forced", "force job-1: 0"]),
    ],
    "time in which nobody could see counts for nobody: who began meanwhile begins now": [
        *EIGHT,
        (0.0, plan(job_1=3), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (2.0, yes("job-1", 3), []),
        (5.0, unseen(60.0, job_1=on(8)), []),  # it was noticed late
        (10.9, look(job_1=on(8)), []),
        (11.1, look(job_1=on(8)), ["job-1 forced", "force job-1: 3"]),
    ],
    "time in which nobody could see counts for nobody: a pause goes on behind it": [
        (0.0, plan(job_1=2), ["job-1 workers"]),
        (0.0, look(), ["job-1 running", "start job-1: 2"]),
        (0.0, Unanswered(Start("job-1", {NODE: 2}), "disk full"), ["job-1 suspended"]),
        (0.5, look(), []),
        (9.5, unseen(9.0), []),
        (9.9, look(), []),
        (10.1, look(), ["job-1 running", "start job-1: 2"]),
    ],
    "time in which nobody could see counts for nobody: who was to be forced is asked again": [
        *EIGHT,
        (0.0, plan(job_1=3), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (0.0, yes("job-1", 3), []),
        (6.1, look(job_1=on(8)), ["job-1 forced", "force job-1: 3"]),
        (6.1, Unanswered(Force("job-1", {NODE: 3}), "away"), ["job-1 not forced"]),
        (66.1, unseen(60.0, job_1=on(8)), ["job-1 forced", "force job-1: 3"]),
    ],
    "who still warms up is asked again where force was not used": [
        (0.0, plan(job_1=4), ["job-1 workers"]),
        (0.0, look(), ["job-1 running", "start job-1: 4"]),
        (1.0, look(job_1=on(4)), []),
        (1.0, plan(), ["job-1 workers"]),
        (1.0, look(job_1=on(4)), ["force job-1: 0"]),
        (1.0, Unanswered(Force("job-1", {}), "away"), []),
        (61.0, unseen(60.0, job_1=on(4, step=9)), ["suspend job-1"]),
    ],
    "what a job owed ends with its processes": [
        *EIGHT,
        (0.0, plan(job_1=2), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 2"]),
        (8.1, look(job_1=on(8)), ["job-1 forced", "force job-1: 0"]),
        (8.2, look(job_1=dead()), ["job-1 suspended", "job-1 running", "start job-1: 2"]),
        (8.3, yes("job-1", 2), []),
        (30.0, look(job_1=on(2)), []),
    ],
    "a question that is dropped is no debt": [
        *EIGHT,
        (0.0, plan(job_1=3), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (0.1, silence("job-1", 3), []),
        (0.2, plan(job_1=8), ["job-1 workers"]),
        (0.2, look(job_1=on(8)), []),
        (60.0, look(job_1=on(8)), []),
        (60.0, plan(job_1=3), ["job-1 workers"]),
        (60.0, look(job_1=on(8)), ["resize job-1: 3"]),
    ],
    "processes that die are started again, later each time and not for ever": [
        (0.0, plan(job_1=2), ["job-1 workers"]),
        (0.0, look(), ["job-1 running", "start job-1: 2"]),
        (0.0, look(job_1=dead()), ["job-1 suspended", "job-1 running", "start job-1: 2"]),
        (0.0, look(job_1=dead()), ["job-1 suspended"]),
        (0.9, look(), []),
        (1.0, look(), ["job-1 running", "start job-1: 2"]),
        (1.0, look(job_1=dead()), ["job-1 suspended"]),
        (4.0, look(), ["job-1 running", "start job-1: 2"]),
        (4.0, look(job_1=dead()), ["job-1 suspended"]),
        (11.0, look(), ["job-1 running", "start job-1: 2"]),
        (11.0, look(job_1=dead()), ["job-1 failed"]),
        (99.0, look(), []),
    ],
    "a start that the environment does not allow is tried for as long as it takes": [
        (0.0, plan(job_1=2), ["job-1 workers"]),
        *(
            row
            for at, then in ((0.0, 1.0), (1.0, 3.0), (3.0, 7.0), (7.0, 15.0), (15.0, 31.0))
            for row in (
                (at, look(), ["job-1 running", "start job-1: 2"]),
                (at, Unanswered(Start("job-1", {NODE: 2}), "disk full"), ["job-1 suspended"]),
                (then - 0.1, look(), []),
            )
        ),
        (31.0, look(), ["job-1 running", "start job-1: 2"]),
    ],
    **{
        f"what a restart would not mend has failed: {who}": [
            *EIGHT,
            (1.0, look(job_1=dead("failed", who=who, problem="KeyError")), ["job-1 failed"]),
        ]
        for who in ("user", "spec", "internal")
    },
    "what the environment did is mended by a restart": [
        *EIGHT,
        (
            1.0,
            look(job_1=dead("failed", who="environment", step=9)),
            ["job-1 suspended", "job-1 running", "start job-1: 8"],
        ),
    ],
    "who has done all steps is done": [
        *EIGHT,
        (9.0, look(job_1=dead("done", step=90)), ["job-1 done"]),
        (9.0, plan(), []),
        (9.2, look(), []),
    ],
    "held and cancelled jobs get nothing": [
        (0.0, plan(job_1=4, job_2=4), ["job-1 workers", "job-2 workers"]),
        (0.0, look(), ["job-1 running", "job-2 running", "start job-1: 4", "start job-2: 4"]),
        (1.0, look(job_1=on(4, step=5), job_2=on(4, step=5)), []),
        (1.0, Wished("job-1", Happening.HOLD), ["job-1 hold"]),
        (1.0, Wished("job-1", Happening.HOLD), []),
        (1.0, Wished("job-2", Happening.CANCEL), ["job-2 cancel"]),
        (1.0, look(job_1=on(4, step=5), job_2=on(4, step=5)), ["suspend job-1", "suspend job-2"]),
        (1.1, yes("job-1"), []),
        (1.1, yes("job-2"), []),
        (
            2.0,
            look(job_1=dead("suspended"), job_2=dead("suspended")),
            ["job-1 suspended", "job-2 cancelled"],
        ),
        (3.0, Wished("job-1", Happening.RELEASE), ["job-1 release"]),
        (3.0, look(), ["job-1 running", "start job-1: 4"]),  # it still has its plan
        (3.0, Wished("job-2", Happening.RELEASE), []),
    ],
    "a job that waits is cancelled at once, and is not started": [
        *EIGHT,
        (0.0, plan(job_1=2, job_2=6), ["job-1 workers", "job-2 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 2"]),
        (0.1, Wished("job-2", Happening.CANCEL), ["job-2 cancelled"]),
        (0.2, yes("job-1", 2), []),
        (0.4, look(job_1=on(2)), []),
    ],
    "who still warms up is suspended by force, and nobody calls it that": [
        (0.0, plan(job_1=4), ["job-1 workers"]),
        (0.0, look(), ["job-1 running", "start job-1: 4"]),
        (1.0, look(job_1=on(4)), []),
        (1.0, plan(), ["job-1 workers"]),
        (1.0, look(job_1=on(4)), ["force job-1: 0"]),
        (1.2, look(job_1=dead()), ["job-1 suspended"]),
    ],
    "who is taken back before a step is started again later each time, until it makes one": [
        *taken_back(0.0, until=0.0),
        *taken_back(0.0, until=1.0),
        *taken_back(1.0, until=4.0),
        *taken_back(4.0, until=11.0),
        (11.0, plan(job_1=4), ["job-1 workers"]),
        (11.0, look(), ["job-1 running", "start job-1: 4"]),
        (12.0, look(job_1=on(4, step=1)), []),
        (12.0, plan(), ["job-1 workers"]),
        (12.0, look(job_1=on(4, step=1)), ["suspend job-1"]),
        (12.0, yes("job-1"), []),
        (12.0, look(job_1=dead(step=1)), ["job-1 suspended"]),
        (12.0, plan(job_1=4), ["job-1 workers"]),
        (12.0, look(), ["job-1 running", "start job-1: 4"]),
    ],
    "who is refused while it runs ends first": [
        *EIGHT,
        (
            1.0,
            plan(Rejected(job="job-1", reason=Reason.TOO_LATE, detail="9 s late")),
            ["job-1 refused", "job-1 workers"],
        ),
        (1.0, look(job_1=on(8, step=5)), ["suspend job-1"]),
        (1.1, yes("job-1"), []),
        (2.0, look(job_1=dead("suspended")), ["job-1 suspended", "job-1 refused"]),
    ],
    "while the node's agent is away nothing is started and nobody is asked to end": [
        (0.0, plan(job_1=2), ["job-1 workers"]),
        (0.0, look(), ["job-1 running", "start job-1: 2"]),
        (1.0, plan(job_1=2, job_2=2), ["job-2 workers"]),
        (1.0, look(NodeSeen(up=False), job_1=on(2)), []),
        (
            2.0,
            look(NodeSeen(up=False, gone=True, lost=True, problem="died"), job_1=dead()),
            ["cluster node lost", "job-1 suspended"],
        ),
        (
            3.0,
            look(),
            [
                "cluster node back",
                "job-1 running",
                "job-2 running",
                "start job-1: 2",
                "start job-2: 2",
            ],
        ),
    ],
    "the cluster goes down at step boundaries": [
        *EIGHT,
        (1.0, Drained(kill=False), []),
        (1.0, look(job_1=on(8, step=9)), ["suspend job-1"]),
        (1.1, yes("job-1"), []),
        (2.0, look(job_1=dead("suspended")), ["job-1 suspended"]),
        (2.2, look(), []),
    ],
    "the cluster goes down at once, and that is no setback": [
        *EIGHT,
        (1.0, Drained(kill=True), []),
        (1.0, look(job_1=on(8, step=9)), ["force job-1: 0"]),
        (1.2, look(job_1=dead()), ["job-1 suspended"]),
    ],
    "a range is changed once": [
        (0.0, RangeChanged("job-1", WorkerRange(minimum=1, maximum=2)), ["job-1 resized"]),
        (0.0, RangeChanged("job-1", WorkerRange(minimum=1, maximum=2)), []),
        (0.0, RangeChanged("job-9", WorkerRange(minimum=1, maximum=2)), []),
    ],
    "a node that is taken away is left": [
        *EIGHT,
        (1.0, Described(ClusterSpec(cluster=Cluster.parse("1x4"))), []),
        (1.0, plan(job_1=4), ["job-1 workers"]),
        (1.0, look(job_1=on(8)), ["resize job-1: 4"]),
    ],
    "each worker that memory ran out for is told of once": [
        *EIGHT,
        (1.0, look(job_1=on(8, out_of_memory=("w2",))), ["job-1 out of memory"]),
        (1.2, look(job_1=on(8, out_of_memory=("w2",))), []),
        (1.4, look(job_1=on(8, out_of_memory=("w2", "w3"))), ["job-1 out of memory"]),
    ],
}


@pytest.fixture
def heard() -> Heard:
    heard = Heard(grace=10.0)
    heard.submit()
    heard.submit()
    return heard


@pytest.mark.parametrize("rows", TABLES.values(), ids=TABLES.keys())
def test_what_is_done(heard: Heard, rows: list[Row]) -> None:
    for at, event, says in rows:
        assert (at, heard.hear(event, at)) == (at, says)
    launches = [job.starts.launches for job in heard.known.values()]
    assert launches == [heard.story.count(f"{job} running") for job in heard.known]


@pytest.mark.parametrize(
    "name",
    [
        "the cluster goes down at once, and that is no setback",
        "who still warms up is suspended by force, and nobody calls it that",
    ],
)
def test_setbacks_are_those_that_nobody_asked_for(heard: Heard, name: str) -> None:
    for at, event, _ in TABLES[name]:
        heard.hear(event, at)
    assert heard.known["job-1"].starts.setbacks == 0


def test_a_scheduler_that_takes_over_tells_of_lost_memory_no_second_time(heard: Heard) -> None:
    for at, event, _ in TABLES["each worker that memory ran out for is told of once"]:
        heard.hear(event, at)
    assert heard.known["job-1"].starts.out_of_memory == 2
    heard.jobs = ScheduledJobs(heard.known.values(), heard.jobs.spec, heard.lessons)
    again = look(job_1=on(8, out_of_memory=("w2", "w3")))
    assert heard.hear(again, 2.0) == ["resize job-1: 8"]


def test_what_does_not_go_on_says_why(heard: Heard) -> None:
    name = "processes that die are started again, later each time and not for ever"
    for at, event, _ in TABLES[name]:
        heard.hear(event, at)
    job = heard.known["job-1"]
    assert job.problem == "5 starts in a row came to nothing, the last: its processes died"
    assert (job.life.phase, job.ended, job.workers) == (Phase.FAILED, 11.0, 0)


def test_the_next_life_confirms_what_runs_and_starts_what_does_not(heard: Heard) -> None:
    for at, event in ((0.0, plan(job_1=5, job_2=3)), (0.0, look())):
        heard.hear(event, at)
    heard.jobs = ScheduledJobs(heard.known.values(), heard.jobs.spec, heard.lessons)
    assert heard.hear(look(job_1=on(5), job_2=dead()), 1.0) == [
        "job-2 suspended",
        "job-2 running",
        "resize job-1: 5",  # nobody knows whether it heard
        "start job-2: 3",
    ]
    heard.hear(yes("job-1", 5), 1.1)
    assert heard.hear(look(job_1=on(5), job_2=on(3)), 1.2) == []


def test_job_that_ends_the_scheduler_twice_is_not_started_again(heard: Heard) -> None:
    heard.hear(plan(job_1=5, job_2=3), 0.0)
    assert heard.hear(look(), 0.0)[-2:] == ["start job-1: 5", "start job-2: 3"]
    next_life(heard)
    # Each is started alone: nobody knows which of them it was.
    assert "start job-2: 3" not in heard.hear(look(job_1=dead(), job_2=dead()), 1.0)
    next_life(heard)
    said = heard.hear(look(job_1=dead()), 2.0)
    assert said == ["job-1 failed", "job-2 running", "start job-2: 3"]
    assert "ended 2 times while it was starting" in heard.known["job-1"].problem


def test_job_that_was_started_is_not_blamed_for_later_ends(heard: Heard) -> None:
    heard.hear(plan(job_1=5), 0.0)
    for life in range(4):
        at = 100.0 * life
        said = [*heard.hear(look(job_1=dead()), at), *heard.hear(look(), at + 50.0)]
        assert "start job-1: 5" in said
        heard.hear(Answered(Start("job-1", {NODE: 5})), at + 50.0)
        next_life(heard)
    assert not heard.known["job-1"].life.ended


def test_job_at_which_something_unforeseen_fails_has_failed(heard: Heard) -> None:
    heard.hear(plan(job_1=5, job_2=3), 0.0)
    heard.hear(look(), 0.0)
    assert heard.hear(Faulted("job-1", "ValueError: embedded null byte"), 0.1) == ["job-1 failed"]
    job = heard.known["job-1"]
    assert (job.life.phase, job.problem) == (Phase.FAILED, "ValueError: embedded null byte")
    assert heard.hear(Faulted("job-1", "late"), 0.2) == []
    assert heard.known["job-2"].running


def next_life(heard: Heard) -> None:
    """Have another scheduler, which knows what the last one has written down."""
    unfinished = [job for job in heard.known.values() if not job.life.ended]
    heard.jobs = ScheduledJobs(unfinished, heard.jobs.spec, heard.lessons)


@pytest.mark.parametrize(("told", "has", "planned"), [(8, 3, 3), (3, 8, 8), (8, 8, 3), (3, 3, 8)])
def test_the_next_life_asks_for_what_the_plan_has_and_not_for_what_was_before_it(
    heard: Heard, told: int, has: int, planned: int
) -> None:
    heard.hear(plan(job_1=told), 0.0)
    heard.hear(look(), 0.0)
    heard.hear(look(job_1=on(told, step=1)), 0.0)
    heard.hear(plan(job_1=planned), 1.0)  # it is asked, and nobody hears the answer
    later = ScheduledJobs(heard.known.values(), heard.jobs.spec, heard.lessons)
    steps = later.handle(look(job_1=on(has, step=2)), 2.0)
    asked = [step for step in steps if isinstance(step, Resize)]
    assert asked == [Resize("job-1", {NODE: planned})]
    later.handle(Answered(asked[0]), 2.1)
    steps = later.handle(look(job_1=on(planned, step=3)), 2.2)
    assert not [step for step in steps if isinstance(step, Resize | Force)]


def test_a_verdict_is_one_value_and_a_wish_withdraws_it(heard: Heard) -> None:
    job = heard.submit(deadline=500.0)
    good = Admitted(job=job.id, reason=Reason.FITS, finish=300.0, detail="2 workers will do")
    assert heard.hear(plan(good), 1.0) == ["job-3 promised", "job-3 admitted"]
    assert (job.promised, job.judgement.standing) == (True, Standing.ADMITTED)
    assert (job.judgement.finish, job.judgement.detail) == (300.0, "2 workers will do")
    heard.hear(Wished(job.id, Happening.HOLD), 2.0)
    assert (job.promised, job.judgement.judged) == (False, False)
    assert job.judgement.detail == "2 workers will do"
    bad = Rejected(job=job.id, reason=Reason.TOO_LATE, detail="late", earliest=700.0, runs=True)
    heard.hear(plan(bad), 3.0)
    assert not job.judgement.judged, "who is held is not judged"
    heard.hear(Wished(job.id, Happening.RELEASE), 4.0)
    assert heard.hear(plan(bad), 5.0) == ["job-3 refused"]
    assert (job.judgement.standing, job.judgement.earliest) == (Standing.BEST_EFFORT, 700.0)
    assert job.judgement.finish is None


def test_what_cannot_happen_is_an_error_and_changes_nothing(heard: Heard) -> None:
    job = heard.known["job-1"]
    with pytest.raises(InternalError, match="job-1 is submitted: finish cannot happen to it"):
        heard.jobs._must(job, Happening.FINISH, now=1.0)
    assert job.life == Life()


def test_nobody_looks_where_nothing_goes_by_the_clock(heard: Heard) -> None:
    rows: list[tuple[float, Event, bool]] = [
        (0.0, look(), True),  # both wait
        (0.0, plan(job_1=4), False),  # it is to be started
        (0.0, look(), False),  # it is being started
        (0.0, look(job_1=on(3)), False),  # one is missing
        (0.1, look(job_1=on(4)), True),
        (1.0, plan(job_1=2), False),
        (1.0, look(job_1=on(4, step=1)), False),  # it owes an answer
        (1.1, yes("job-1", 2), False),  # and then the workers
        (2.0, look(job_1=on(2, step=1)), True),
        (3.0, look(job_1=dead()), False),  # it is to be started again
        (4.0, Drained(kill=False), False),
    ]
    for at, event, rests in rows:
        heard.hear(event, at)
        assert (at, event, heard.jobs.rest(at)) == (at, event, rests)


def test_who_rests_has_not_been_away(heard: Heard) -> None:
    for at, event in ((0.0, plan(job_1=2)), (0.0, look()), (0.0, look(job_1=on(2)))):
        heard.hear(event, at)
    for at in range(1, 60):
        assert heard.jobs.rest(float(at))
    heard.hear(look(job_1=on(2)), 60.0)
    assert heard.known["job-1"].progress.attained == 120.0


def test_plans_are_made_again_while_a_job_runs(heard: Heard) -> None:
    assert heard.jobs.wake_at(0.0) == math.inf
    for at, event in ((0.0, plan(job_1=2)), (0.0, look()), (0.0, look(job_1=on(2)))):
        heard.hear(event, at)
    assert heard.jobs.wake_at(0.0) == REPLAN


def test_jobs_wake_the_cluster_when_their_time_has_come(heard: Heard) -> None:
    for at, event in ((0.0, plan(job_1=2)), (0.0, look()), (0.0, look(job_1=dead()))):
        heard.hear(event, at)
    heard.hear(look(job_1=dead()), 0.0)
    assert heard.known["job-1"].starts.not_before == 1.0
    assert heard.jobs.wake_at(0.5) == 1.0
    assert [s.job.id for s in heard.jobs.snapshot(0.5, memory=None).jobs] == ["job-2"]
    assert [s.job.id for s in heard.jobs.snapshot(1.0, memory=None).jobs] == ["job-1", "job-2"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workers", ["10000000", "9:10000000", "1:10000000"])
def test_a_job_that_asks_for_more_workers_than_there_can_be_is_in_nobodys_way(
    policy: str, workers: str
) -> None:
    heard = Heard("1x8")
    asked = WorkerRange.parse(workers)
    spec = JobSpec(file="m.py", parameters={}, workers=asked, epochs=1, micro_batches=1 << 24)
    heard.submit(spec=spec)
    heard.submit("1:4")
    snapshot = heard.jobs.snapshot(1.0, memory=None)
    found = cycle(snapshot, policy=POLICIES[policy], placed=False).workers
    assert sum(found.values()) <= 8
    if policy == "brim":
        assert bool(found.get("job-1")) == (workers == "1:10000000")
        assert found["job-2"]


def test_a_newcomer_is_shown_and_not_kept(heard: Heard) -> None:
    other = Heard().submit(at=1.0)
    other.id = "new-?"
    shown = heard.jobs.snapshot(1.0, memory=None, newcomer=other)
    assert [state.job.id for state in shown.jobs] == ["job-1", "job-2", "new-?"]
    assert list(heard.jobs.jobs) == ["job-1", "job-2"]


def test_a_submission_is_written_down_and_calls_for_a_decision(heard: Heard) -> None:
    job = Heard().submit()
    job.id = "job-3"
    commands = heard.jobs.handle(Submitted(job, "by ads"), 1.0)
    assert [type(command).__name__ for command in commands] == ["Save", "Note", "Decide"]


def test_masters_are_told_once_of_a_node_of_another_host_that_is_lost() -> None:
    heard, there = Heard(), NodeSeen(up=True, brings=Node(id="n1", devices=2))
    for _ in range(2):
        heard.submit()
    plans = {"job-1": {NODE: 1, "n1": 2}, "job-2": {NODE: 2}}
    counts = {job: sum(on.values()) for job, on in plans.items()}
    seen = {
        job: Seen(alive=True, workers=on, agents=frozenset(on), step=1) for job, on in plans.items()
    }
    heard.hear(Looked({NODE: UP, "n1": there}, {}), 0.0)
    heard.hear(Decided(Decision(workers=counts, nodes=plans, verdicts=())), 0.0)
    heard.hear(Looked({NODE: UP, "n1": there}, {}), 0.0)
    heard.hear(Looked({NODE: UP, "n1": there}, seen), 1.0)
    away = there._replace(up=False)  # it was not heard for a moment
    lost = away._replace(gone=True, lost=True, problem="it has not been heard for 3 s")
    told = []
    for now, node in [(2.0, away), (4.0, lost), (4.2, lost), (6.0, there), (9.0, lost)]:
        heard.hear(Looked({NODE: UP, "n1": node}, seen), now)
        told += [(now, each) for each in heard.commands if isinstance(each, Lose)]
    assert told == [(4.0, Lose("job-1", "n1")), (9.0, Lose("job-1", "n1"))]


def test_a_job_that_waits_for_nodes_of_one_kind_says_so_once() -> None:
    heard = Heard()
    heard.submit()
    why = (Reason.ONE_KIND, "n1 and n2 are not alike")
    for now in (1.0, 2.0):
        heard.hear(Decided(Decision(workers={}, reasons={"job-1": why})), now)
    assert heard.story.count("job-1 waits") == 1
    full = (Reason.CLUSTER_FULL, "no device is free")
    heard.hear(Decided(Decision(workers={}, reasons={"job-1": full})), 3.0)
    heard.hear(Decided(Decision(workers={}, reasons={"job-1": why})), 4.0)
    assert heard.story.count("job-1 waits") == 2
    (note,) = [each for each in heard.commands if isinstance(each, Note)]
    assert (note.reason, note.detail) == ("exact-on-nodes-of-one-kind", why[1])


KIND = HostKind(python="3.12", brim="1", torch="2.13.0")
OTHER = replace(KIND, torch="2.12.0")


def exactly(heard: Heard, *, exact: bool = True, **fields: Any) -> ScheduledJob:
    """A job that has been submitted."""
    job = heard.submit(**fields)
    job.submission = replace(
        job.submission, spec=replace(job.submission.spec, exact=exact, device="cpu")
    )
    return job


def nodes_of(**kinds: HostKind | None) -> dict[str, NodeSeen]:
    """Nodes of other hosts with two devices each, with a label for each kind."""
    return {
        name: NodeSeen(
            up=True,
            brings=Node(
                id=name, devices=2, kind="" if kind == KIND else kind.torch if kind else "?"
            ),
            kind=kind,
        )
        for name, kind in kinds.items()
    }


def at(node: str, **more: Any) -> dict[str, Seen]:
    fields = {"alive": True, "workers": {node: 2}, "agents": frozenset({node}), "step": 1}
    return {"job-1": Seen(**{**fields, **more})}


def given(node: str) -> Decided:
    return Decided(Decision(workers={"job-1": 2}, nodes={"job-1": {node: 2}}))


def run_on(
    heard: Heard, nodes: dict[str, NodeSeen], node: str, *, step: int = 1, now: float = 0.0
) -> None:
    """Have job-1 run there and make steps."""
    for event in (Looked(nodes, {}), given(node), Looked(nodes, {})):
        heard.hear(event, now)
    heard.hear(Looked(nodes, at(node, step=step)), now)


def seen_by_policy(heard: Heard) -> tuple[str, ...] | None:
    (state,) = heard.jobs.snapshot(9.0, memory=None).jobs
    return state.job.kinds


def end(heard: Heard, nodes: dict[str, NodeSeen], *, step: int = 1) -> None:
    """Have the plan of job-1 withdrawn, and its processes end."""
    heard.hear(Decided(Decision(workers={})), 5.0)
    heard.hear(Looked(nodes, {"job-1": dead(step=step)}), 5.0)


def test_a_job_goes_on_on_the_kind_on_which_it_began() -> None:
    heard = Heard()
    job = exactly(heard)
    nodes = nodes_of(n1=KIND, n2=OTHER)
    run_on(heard, nodes, "n2")
    assert job.kind == replace(OTHER, brim="")
    assert seen_by_policy(heard) == ("2.12.0",)
    end(heard, nodes)
    assert seen_by_policy(heard) == ("2.12.0",)
    for gone in (nodes_of(n1=KIND), nodes_of(n1=KIND, n2=None)):
        heard.hear(Looked(gone, {}), 6.0)
        assert seen_by_policy(heard) == ()
    upgraded = nodes_of(n1=KIND, n3=replace(OTHER, brim="2"))
    heard.hear(Looked(upgraded, {}), 7.0)
    assert seen_by_policy(heard) == ("2.12.0",)


def test_the_next_scheduler_knows_the_kind_by_what_it_was_and_not_by_its_own() -> None:
    """The scheduler's own kind has no label, and the next one may be on a host of another."""
    heard = Heard()
    job = exactly(heard)
    run_on(heard, nodes_of(n1=KIND), "n1")
    end(heard, nodes_of(n1=KIND))
    later = Heard()
    later.jobs = ScheduledJobs([job], heard.jobs.spec, heard.lessons)
    later.known = {job.id: job}
    own = nodes_of(n1=OTHER)["n1"]._replace(brings=Node(id="n1", devices=2))
    later.hear(Looked({"n1": own}, {}), 6.0)
    assert seen_by_policy(later) == ()
    back = nodes_of(n2=KIND)["n2"]._replace(brings=Node(id="n2", devices=2, kind="theirs"))
    later.hear(Looked({"n1": own, "n2": back}, {}), 7.0)
    assert seen_by_policy(later) == ("theirs",)


@pytest.mark.parametrize(
    ("job", "step", "kind"),
    [
        ({"exact": True}, 1, replace(KIND, brim="")),
        ({"exact": True}, 0, None),  # nothing was computed
        ({"exact": False}, 1, None),
    ],
)
def test_only_what_was_computed_exactly_is_bound(
    job: dict[str, bool], step: int, kind: HostKind | None
) -> None:
    heard = Heard()
    exactly(heard, **job)
    run_on(heard, nodes_of(n1=KIND), "n1", step=step)
    end(heard, nodes_of(n1=KIND), step=step)
    heard.hear(Looked(nodes_of(n1=OTHER), {}), 6.0)
    assert seen_by_policy(heard) == (None if kind is None else ())
    heard.hear(given("n1"), 7.0)
    if kind is None:
        heard.hear(Looked(nodes_of(n1=OTHER), {}), 9.0)
        assert heard.known["job-1"].kind == (replace(OTHER, brim="") if job["exact"] else None)


def test_a_variable_that_a_job_sets_itself_makes_no_kind() -> None:
    heard = Heard()
    job = exactly(heard)
    spec = replace(job.submission.spec, env={"MKL_CBWR": "AVX2"})
    job.submission = replace(job.submission, spec=spec)
    run_on(heard, nodes_of(n1=KIND), "n1")
    set_ = replace(KIND, settings={"MKL_CBWR": "COMPATIBLE"})
    heard.hear(Looked(nodes_of(n1=set_), {}), 6.0)
    assert seen_by_policy(heard) is not None
    assert len(seen_by_policy(heard) or ()) == 1


def test_the_kind_of_a_job_from_before_is_that_on_which_it_runs() -> None:
    heard = Heard()
    job = exactly(heard)
    run_on(heard, nodes_of(n1=KIND), "n1")
    heard.known["job-1"].kind = None  # as a record of before has it
    heard.hear(Looked(nodes_of(n1=KIND), at("n1")), 1.0)
    assert job.kind == replace(KIND, brim="")
    assert any(isinstance(each, Save) for each in heard.commands)


@pytest.mark.parametrize("known", [False, True])
def test_it_says_how_the_nodes_that_are_there_differ(known: bool) -> None:
    heard = Heard()
    job = exactly(heard)
    began = nodes_of(n1=OTHER)
    run_on(heard, began, "n1")
    end(heard, began)
    lost = {"n1": began["n1"]._replace(up=False, gone=True, lost=True)} if known else {}
    # The scheduler's own node is of the kind that has no label.
    heard.hear(Looked({**lost, **nodes_of(n2=KIND)}, {}), 6.0)
    why = Reason.ONE_KIND, "no node is of its kind"
    heard.hear(Decided(Decision(workers={}, reasons={"job-1": why})), 7.0)
    said = "no node is of its kind: torch 2.12.0 on the nodes where it began and 2.13.0 on node0"
    assert heard.jobs.waits_for(job) == said
    (note,) = [each for each in heard.commands if isinstance(each, Note)]
    assert (note.event, note.detail) == ("waits", said)


def test_its_owner_lets_it_go_on_on_another_kind() -> None:
    heard = Heard()
    job = exactly(heard)
    run_on(heard, nodes_of(n1=KIND), "n1")
    heard.hear(KindFreed("job-1", "by ads"), 1.0)
    assert not heard.commands, "it runs, and needs no other"
    end(heard, nodes_of(n1=KIND))
    other = nodes_of(n2=OTHER)
    heard.hear(Looked(other, {}), 6.0)
    assert seen_by_policy(heard) == ()
    heard.hear(KindFreed("job-1", "by ads"), 7.0)
    assert [type(each).__name__ for each in heard.commands] == ["Save", "Note", "Decide"]
    assert seen_by_policy(heard) is None
    heard.hear(KindFreed("job-1", "by ads"), 7.0)
    assert not heard.commands, "once is as good as twice"
    run_on(heard, other, "n2", now=8.0)
    assert job.kind == replace(OTHER, brim="")
    assert seen_by_policy(heard) == ("2.12.0",)


@pytest.mark.parametrize(
    ("exact", "said"),
    [(True, ["suspend job-1"]), (False, ["resize job-1: 2 on n3"])],
)
def test_an_exact_job_ends_with_a_checkpoint_before_nodes_of_another_kind_have_it(
    exact: bool, said: list[str]
) -> None:
    heard = Heard()
    job = heard.submit()
    spec = replace(job.submission.spec, exact=exact)
    job.submission = replace(job.submission, spec=spec)
    nodes = {
        name: NodeSeen(up=True, brings=Node(id=name, devices=2, kind=kind))
        for name, kind in (("n1", "one"), ("n2", "one"), ("n3", "other"))
    }
    looked = {NODE: UP, **nodes}

    def seen(node: str) -> dict[str, Seen]:
        return {"job-1": Seen(alive=True, workers={node: 2}, agents=frozenset({node}), step=1)}

    def given(node: str) -> Decided:
        return Decided(Decision(workers={"job-1": 2}, nodes={"job-1": {node: 2}}))

    heard.hear(Looked(looked, {}), 0.0)
    heard.hear(given("n1"), 0.0)
    heard.hear(Looked(looked, {}), 0.0)
    heard.hear(Looked(looked, seen("n1")), 1.0)
    heard.hear(given("n2"), 2.0)
    assert heard.hear(Looked(looked, seen("n1")), 2.0) == ["resize job-1: 2 on n2"]
    heard.hear(Answered(Resize("job-1", {"n2": 2})), 2.0)
    heard.hear(Looked(looked, seen("n2")), 3.0)
    heard.hear(given("n3"), 4.0)
    assert heard.hear(Looked(looked, seen("n2")), 4.0) == said
    if exact:
        heard.hear(Answered(Suspend("job-1")), 4.0)
        ended = heard.hear(Looked(looked, {"job-1": dead()}), 5.0)
        assert ended == ["job-1 suspended", "job-1 running", "start job-1: 2 on n3"]
        assert heard.known["job-1"].allocation.told == {"n3": 2}


def test_the_story_says_where_a_job_is_placed_once_it_starts_there() -> None:
    """A job in line has another plan in each decision, since those before it take their places."""
    heard = Heard()
    heard.submit()
    nodes = nodes_of(n1=None, n2=None)
    heard.hear(Looked(nodes, {}), 0.0)

    def told(event: Event, now: float) -> list[tuple[str, str]]:
        heard.hear(event, now)
        return [(each.event, each.detail) for each in heard.commands if isinstance(each, Note)]

    assert told(given("n2"), 1.0) == [("workers", "")]
    assert told(given("n1"), 2.0) == []
    assert told(Looked(nodes, {}), 3.0) == [("placed", "2 on n1"), ("running", "2 workers")]
    heard.hear(Looked(nodes, at("n1")), 4.0)
    assert told(given("n2"), 5.0) == [("placed", "2 on n2")]


def test_a_node_that_takes_a_job_now_is_a_reason_to_decide() -> None:
    """Nothing else may happen: no job runs, and no device comes or goes."""
    heard = Heard()
    heard.submit()

    def decides(*refused: str) -> bool:
        seen = {
            name: each._replace(refuses=frozenset(refused))
            for name, each in nodes_of(n1=None, n2=None).items()
        }
        heard.hear(Looked(seen, {}), 1.0)
        return Decide() in heard.commands

    assert decides("job-1")  # there are nodes
    assert not decides("job-1")
    assert decides()
    assert not decides()
    assert decides("job-1")


def test_each_failure_counts_once_whoever_looks(heard: Heard) -> None:
    for at, event, _ in [*EIGHT, (1.0, look(job_1=on(8, failed={"u1": 1})), [])]:
        heard.hear(event, at)
    heard.jobs = ScheduledJobs(heard.known.values(), heard.jobs.spec, heard.lessons)
    heard.hear(look(job_1=on(8, failed={"u1": 1})), 2.0)
    assert heard.known["job-1"].starts.failures == 1
    heard.hear(look(job_1=on(8)), 3.0)  # it is gone
    heard.hear(look(job_1=on(8, failed={"u2": 2})), 4.0)
    assert heard.known["job-1"].starts.failures == 3


def anywhere(heard: Heard) -> ScheduledJob:
    """A job whose workers others place: the plan has them on n1."""
    job = heard.submit(anywhere=True)
    for event in (Looked(nodes_of(n1=None, n2=None), {}), given("n1")):
        heard.hear(event, 0.0)
    assert heard.hear(Looked(nodes_of(n1=None, n2=None), {}), 0.0) == [
        "job-1 running",
        "start job-1: 2 on n1",
    ]
    return job


def test_a_job_that_others_place_has_its_workers_wherever_they_are() -> None:
    heard = Heard()
    job = anywhere(heard)
    nodes = nodes_of(n1=None, n2=None)
    both = frozenset({"n1", "n2"})
    assert heard.hear(Looked(nodes, at("n2", workers={"n2": 1}, agents=both)), 1.0) == []
    assert job.held == {"n1": 1, "n2": 1}
    assert heard.hear(Looked(nodes, at("n2")), 2.0) == []
    assert job.held == job.allocation.plan == {"n2": 2}
    assert heard.hear(given("n1"), 3.0) == []  # a plan moves nobody
    assert heard.hear(Looked(nodes, at("n2")), 3.0) == []
    assert heard.jobs.snapshot(9.0, memory=None).jobs[0].nodes == {"n2": 2}
    assert not [line for line in heard.story if "placed" in line]


def test_a_job_that_others_place_leaves_a_node_that_all_are_to_leave() -> None:
    heard = Heard()
    job = anywhere(heard)
    nodes = nodes_of(n1=None, n2=None)
    heard.hear(Looked(nodes, at("n2")), 1.0)
    nodes["n2"] = nodes["n2"]._replace(up=False, leaving=True)
    heard.hear(Looked(nodes, at("n2")), 2.0)
    heard.hear(given("n1"), 2.0)
    assert heard.hear(Looked(nodes, at("n2")), 2.0) == ["resize job-1: 2 on n1"]
    assert (job.held, job.allocation.plan) == ({"n2": 2}, {"n1": 2})


def test_a_worker_that_is_missed_is_not_kept_for_a_node_on_which_none_can_start() -> None:
    """Nobody would make it: it counts where the plan has it now."""
    heard = Heard()
    job = anywhere(heard)
    nodes = nodes_of(n1=None, n2=None)
    heard.hear(Looked(nodes, at("n2")), 1.0)
    nodes["n2"] = nodes["n2"]._replace(up=False)
    decided = Decision(workers={"job-1": 2}, nodes={"job-1": {"n1": 1, "n2": 1}})
    lost_one = at("n2", workers={"n2": 1}, agents=frozenset())
    heard.hear(Looked(nodes, lost_one), 2.0)
    heard.hear(Decided(decided), 2.0)
    assert heard.hear(Looked(nodes, lost_one), 2.0) == ["resize job-1: 1 on n1, 1 on n2"]
    assert job.held == {"n1": 1, "n2": 1}
