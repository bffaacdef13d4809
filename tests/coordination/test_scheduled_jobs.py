"""The lives of scheduled jobs as tables: events in, commands out.

Each row has a time, an event, and the answer: steps to take, and lines of stories.
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
    RangeChanged,
    Save,
    ScheduledJobs,
    Submitted,
    Unanswered,
    Wished,
)
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.domain.course import Change
from brim.domain.host_kind import HostKind
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.lifecycle import Happening, Life, Phase
from brim.domain.schedule import Admitted, Decision, Reason, Rejected, Standing, Verdict
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import InternalError
from brim.policies.cycle import cycle
from brim.user_code.policies import POLICIES
from coordination.scheduled import Transcript

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


def on(workers: int, **fields: Any) -> Seen:
    """A job that is alive, with so many workers."""
    workers_here = {NODE: workers} if workers else {}
    return Seen(alive=True, workers=workers_here, agents=frozenset({NODE}), **fields)


def dead(outcome: str = "", **fields: Any) -> Seen:
    return Seen(alive=False, outcome=outcome, **fields)


def yes(job: str, workers: int | None = None) -> Answered:
    return Answered(Suspend(job) if workers is None else Resize(job, {NODE: workers}))


def silence(job: str, workers: int) -> Unanswered:
    return Unanswered(Resize(job, {NODE: workers}))


def taken_back(start_time: float, *, end_time: float) -> list[Row]:
    """job-1 is started, and taken back before a step; it is not started again until then."""
    shortly_before = end_time - 0.1
    waits: list[Row] = [
        (shortly_before, plan(job_1=4), ["job-1 workers"]),
        (shortly_before, look(), []),
        (shortly_before, plan(), ["job-1 workers"]),
    ]
    return [
        (start_time, plan(job_1=4), ["job-1 workers"]),
        (start_time, look(), ["job-1 running", "start job-1: 4"]),
        (start_time, plan(), ["job-1 workers"]),
        (start_time, look(job_1=on(4)), ["force job-1: 0"]),
        (start_time, look(job_1=dead()), ["job-1 suspended"]),
        *(waits if end_time > start_time else []),
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
    "who has more workers for a moment is not forced": [  # new ones beside those that have died
        *EIGHT,
        (100.0, look(job_1=on(10)), []),
        (100.5, look(job_1=on(8)), []),
        (200.0, look(job_1=on(9)), []),
        (205.9, look(job_1=on(9)), []),
        (206.1, look(job_1=on(9)), ["job-1 forced", "force job-1: 8"]),
    ],
    "an old debt is none": [
        *EIGHT,
        (0.0, plan(job_1=3), ["job-1 workers"]),
        (0.0, look(job_1=on(8)), ["resize job-1: 3"]),
        (0.0, yes("job-1", 3), []),
        (1.0, look(job_1=on(3)), []),
        (100.0, look(job_1=on(5)), []),
        (101.0, look(job_1=on(3)), []),
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
            for time, retry in ((0.0, 1.0), (1.0, 3.0), (3.0, 7.0), (7.0, 15.0), (15.0, 31.0))
            for row in (
                (time, look(), ["job-1 running", "start job-1: 2"]),
                (time, Unanswered(Start("job-1", {NODE: 2}), "disk full"), ["job-1 suspended"]),
                (retry - 0.1, look(), []),
            )
        ),
        (31.0, look(), ["job-1 running", "start job-1: 2"]),
    ],
    **{
        f"what a restart would not mend has failed: {culprit}": [
            *EIGHT,
            (1.0, look(job_1=dead("failed", who=culprit, problem="KeyError")), ["job-1 failed"]),
        ]
        for culprit in ("user", "spec", "internal")
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
        *taken_back(0.0, end_time=0.0),
        *taken_back(0.0, end_time=1.0),
        *taken_back(1.0, end_time=4.0),
        *taken_back(4.0, end_time=11.0),
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
def transcript() -> Transcript:
    job_events = Transcript(grace=10.0)
    job_events.submit()
    job_events.submit()
    return job_events


@pytest.mark.parametrize("rows", TABLES.values(), ids=TABLES.keys())
def test_what_is_done(transcript: Transcript, rows: list[Row]) -> None:
    for moment, event, says in rows:
        assert (moment, transcript.hear(event, moment)) == (moment, says)
    launches = [job.starts.launches for job in transcript.known.values()]
    assert launches == [transcript.story.count(f"{job} running") for job in transcript.known]


@pytest.mark.parametrize(
    "name",
    [
        "the cluster goes down at once, and that is no setback",
        "who still warms up is suspended by force, and nobody calls it that",
    ],
)
def test_setbacks_are_those_that_nobody_asked_for(transcript: Transcript, name: str) -> None:
    for moment, event, _ in TABLES[name]:
        transcript.hear(event, moment)
    assert transcript.known["job-1"].starts.setbacks == 0


def test_a_takeover_repeats_no_memory_losses(transcript: Transcript) -> None:
    for moment, event, _ in TABLES["each worker that memory ran out for is told of once"]:
        transcript.hear(event, moment)
    assert transcript.known["job-1"].starts.out_of_memory == 2
    transcript.jobs = ScheduledJobs(
        transcript.known.values(), transcript.jobs.spec, transcript.lessons
    )
    same_look = look(job_1=on(8, out_of_memory=("w2", "w3")))
    assert transcript.hear(same_look, 2.0) == ["resize job-1: 8"]


def test_what_does_not_go_on_says_why(transcript: Transcript) -> None:
    name = "processes that die are started again, later each time and not for ever"
    for moment, event, _ in TABLES[name]:
        transcript.hear(event, moment)
    job = transcript.known["job-1"]
    assert job.problem == "5 starts in a row made no progress; the last: its processes died"
    assert (job.life.phase, job.ended, job.workers) == (Phase.FAILED, 11.0, 0)


def test_the_next_life_confirms_or_starts_jobs(transcript: Transcript) -> None:
    for moment, event in ((0.0, plan(job_1=5, job_2=3)), (0.0, look())):
        transcript.hear(event, moment)
    transcript.jobs = ScheduledJobs(
        transcript.known.values(), transcript.jobs.spec, transcript.lessons
    )
    assert transcript.hear(look(job_1=on(5), job_2=dead()), 1.0) == [
        "job-2 suspended",
        "job-2 running",
        "resize job-1: 5",  # nobody knows whether it heard
        "start job-2: 3",
    ]
    transcript.hear(yes("job-1", 5), 1.1)
    assert transcript.hear(look(job_1=on(5), job_2=on(3)), 1.2) == []


def test_job_that_ends_the_scheduler_twice_stays_ended(transcript: Transcript) -> None:
    transcript.hear(plan(job_1=5, job_2=3), 0.0)
    assert transcript.hear(look(), 0.0)[-2:] == ["start job-1: 5", "start job-2: 3"]
    next_life(transcript)
    # Each is started alone: nobody knows which of them it was.
    assert "start job-2: 3" not in transcript.hear(look(job_1=dead(), job_2=dead()), 1.0)
    next_life(transcript)
    commands = transcript.hear(look(job_1=dead()), 2.0)
    assert commands == ["job-1 failed", "job-2 running", "start job-2: 3"]
    assert "ended 2 times while it was starting" in transcript.known["job-1"].problem


def test_started_jobs_are_not_blamed_for_crashes(transcript: Transcript) -> None:
    transcript.hear(plan(job_1=5), 0.0)
    for life in range(4):
        moment = 100.0 * life
        commands = [
            *transcript.hear(look(job_1=dead()), moment),
            *transcript.hear(look(), moment + 50.0),
        ]
        assert "start job-1: 5" in commands
        transcript.hear(Answered(Start("job-1", {NODE: 5})), moment + 50.0)
        next_life(transcript)
    assert not transcript.known["job-1"].life.ended


def test_job_at_which_something_unforeseen_fails_has_failed(transcript: Transcript) -> None:
    transcript.hear(plan(job_1=5, job_2=3), 0.0)
    transcript.hear(look(), 0.0)
    assert transcript.hear(Faulted("job-1", "ValueError: embedded null byte"), 0.1) == [
        "job-1 failed"
    ]
    job = transcript.known["job-1"]
    assert (job.life.phase, job.problem) == (Phase.FAILED, "ValueError: embedded null byte")
    assert transcript.hear(Faulted("job-1", "late"), 0.2) == []
    assert transcript.known["job-2"].running


def next_life(transcript: Transcript) -> None:
    """Have another scheduler, which knows the notes of the last one."""
    unfinished = [job for job in transcript.known.values() if not job.life.ended]
    transcript.jobs = ScheduledJobs(unfinished, transcript.jobs.spec, transcript.lessons)


@pytest.mark.parametrize(
    ("addressed", "current", "planned"), [(8, 3, 3), (3, 8, 8), (8, 8, 3), (3, 3, 8)]
)
def test_the_next_life_requests_only_the_plan(
    transcript: Transcript, addressed: int, current: int, planned: int
) -> None:
    transcript.hear(plan(job_1=addressed), 0.0)
    transcript.hear(look(), 0.0)
    transcript.hear(look(job_1=on(addressed, step=1)), 0.0)
    transcript.hear(plan(job_1=planned), 1.0)  # it is asked, and nobody hears the answer
    next_jobs = ScheduledJobs(transcript.known.values(), transcript.jobs.spec, transcript.lessons)
    steps = next_jobs.handle(look(job_1=on(current, step=2)), 2.0)
    resizes = [step for step in steps if isinstance(step, Resize)]
    assert resizes == [Resize("job-1", {NODE: planned})]
    next_jobs.handle(Answered(resizes[0]), 2.1)
    steps = next_jobs.handle(look(job_1=on(planned, step=3)), 2.2)
    assert not [step for step in steps if isinstance(step, Resize | Force)]


def test_a_verdict_is_withdrawn_by_a_wish(transcript: Transcript) -> None:
    job = transcript.submit(deadline=500.0)
    good = Admitted(job=job.id, reason=Reason.FITS, finish=300.0, detail="2 workers will do")
    assert transcript.hear(plan(good), 1.0) == ["job-3 promised", "job-3 admitted"]
    assert (job.promised, job.judgement.standing) == (True, Standing.ADMITTED)
    assert (job.judgement.finish, job.judgement.detail) == (300.0, "2 workers will do")
    transcript.hear(Wished(job.id, Happening.HOLD), 2.0)
    assert (job.promised, job.judgement.judged) == (False, False)
    assert job.judgement.detail == "2 workers will do"
    bad = Rejected(job=job.id, reason=Reason.TOO_LATE, detail="late", earliest=700.0, runs=True)
    transcript.hear(plan(bad), 3.0)
    assert not job.judgement.judged, "who is held is not judged"
    transcript.hear(Wished(job.id, Happening.RELEASE), 4.0)
    assert transcript.hear(plan(bad), 5.0) == ["job-3 refused"]
    assert (job.judgement.standing, job.judgement.earliest) == (Standing.BEST_EFFORT, 700.0)
    assert job.judgement.finish is None


def test_an_impossible_event_is_an_error_without_effect(transcript: Transcript) -> None:
    job = transcript.known["job-1"]
    with pytest.raises(InternalError, match="job-1 is submitted: finish cannot happen to it"):
        transcript.jobs._require(job, Happening.FINISH, now=1.0)
    assert job.life == Life()


def test_nobody_looks_where_nothing_goes_by_the_clock(transcript: Transcript) -> None:
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
    for moment, event, rests in rows:
        transcript.hear(event, moment)
        assert (moment, event, transcript.jobs.rest(moment)) == (moment, event, rests)


def test_who_rests_has_not_been_away(transcript: Transcript) -> None:
    for moment, event in ((0.0, plan(job_1=2)), (0.0, look()), (0.0, look(job_1=on(2)))):
        transcript.hear(event, moment)
    for moment in range(1, 60):
        assert transcript.jobs.rest(float(moment))
    transcript.hear(look(job_1=on(2)), 60.0)
    assert transcript.known["job-1"].progress.attained == 120.0


def test_plans_are_made_again_while_a_job_runs(transcript: Transcript) -> None:
    assert transcript.jobs.wake_at(0.0) == math.inf
    for moment, event in ((0.0, plan(job_1=2)), (0.0, look()), (0.0, look(job_1=on(2)))):
        transcript.hear(event, moment)
    assert transcript.jobs.wake_at(0.0) == REPLAN


def test_jobs_wake_the_cluster_on_time(transcript: Transcript) -> None:
    for moment, event in ((0.0, plan(job_1=2)), (0.0, look()), (0.0, look(job_1=dead()))):
        transcript.hear(event, moment)
    transcript.hear(look(job_1=dead()), 0.0)
    assert transcript.known["job-1"].starts.not_before == 1.0
    assert transcript.jobs.wake_at(0.5) == 1.0
    assert [s.job.id for s in transcript.jobs.snapshot(0.5, memory=None).jobs] == ["job-2"]
    assert [s.job.id for s in transcript.jobs.snapshot(1.0, memory=None).jobs] == ["job-1", "job-2"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workers", ["10000000", "9:10000000", "1:10000000"])
def test_an_oversized_request_blocks_no_other_job(policy: str, workers: str) -> None:
    jobs = Transcript("1x8")
    worker_range = WorkerRange.parse(workers)
    spec = JobSpec(
        file="m.py", parameters={}, workers=worker_range, epochs=1, micro_batches=1 << 24
    )
    jobs.submit(spec=spec)
    jobs.submit("1:4")
    snapshot = jobs.jobs.snapshot(1.0, memory=None)
    found = cycle(snapshot, policy=POLICIES[policy], placed=False).workers
    assert sum(found.values()) <= 8
    if policy == "brim":
        assert bool(found.get("job-1")) == (workers == "1:10000000")
        assert found["job-2"]


def test_a_newcomer_is_shown_and_not_kept(transcript: Transcript) -> None:
    newcomer = Transcript().submit(at=1.0)
    newcomer.id = "new-?"
    snapshot = transcript.jobs.snapshot(1.0, memory=None, newcomer=newcomer)
    assert [state.job.id for state in snapshot.jobs] == ["job-1", "job-2", "new-?"]
    assert list(transcript.jobs.jobs) == ["job-1", "job-2"]


def test_a_submission_is_saved_and_triggers_a_decision(transcript: Transcript) -> None:
    job = Transcript().submit()
    job.id = "job-3"
    commands = transcript.jobs.handle(Submitted(job, "by ads"), 1.0)
    assert [type(command).__name__ for command in commands] == ["Save", "Change", "Decide"]


def test_masters_hear_once_of_a_lost_foreign_node() -> None:
    jobs, present = Transcript(), NodeSeen(up=True, brings=Node(id="n1", devices=2))
    for _ in range(2):
        jobs.submit()
    plans = {"job-1": {NODE: 1, "n1": 2}, "job-2": {NODE: 2}}
    counts = {job: sum(plan_of_job.values()) for job, plan_of_job in plans.items()}
    seen = {
        job: Seen(alive=True, workers=plan_of_job, agents=frozenset(plan_of_job), step=1)
        for job, plan_of_job in plans.items()
    }
    jobs.hear(Looked({NODE: UP, "n1": present}, {}), 0.0)
    jobs.hear(Decided(Decision(workers=counts, nodes=plans, verdicts=())), 0.0)
    jobs.hear(Looked({NODE: UP, "n1": present}, {}), 0.0)
    jobs.hear(Looked({NODE: UP, "n1": present}, seen), 1.0)
    silent = present._replace(up=False)  # it was not heard for a moment
    lost = silent._replace(gone=True, lost=True, problem="it has not been heard for 3 s")
    losses = []
    for now, node in [(2.0, silent), (4.0, lost), (4.2, lost), (6.0, present), (9.0, lost)]:
        jobs.hear(Looked({NODE: UP, "n1": node}, seen), now)
        losses += [(now, command) for command in jobs.commands if isinstance(command, Lose)]
    assert losses == [(4.0, Lose("job-1", "n1")), (9.0, Lose("job-1", "n1"))]


def test_a_job_reports_once_waiting_for_one_kind() -> None:
    jobs = Transcript()
    jobs.submit()
    decision_reason = (Reason.ONE_KIND, "n1 and n2 are not alike")
    for now in (1.0, 2.0):
        jobs.hear(Decided(Decision(workers={}, reasons={"job-1": decision_reason})), now)
    assert jobs.story.count("job-1 waits") == 1
    full = (Reason.CLUSTER_FULL, "no device is free")
    jobs.hear(Decided(Decision(workers={}, reasons={"job-1": full})), 3.0)
    jobs.hear(Decided(Decision(workers={}, reasons={"job-1": decision_reason})), 4.0)
    assert jobs.story.count("job-1 waits") == 3, "for devices, and again for those of one kind"
    (note,) = [command for command in jobs.commands if isinstance(command, Change)]
    assert (note.reason, note.detail) == ("exact-on-nodes-of-one-kind", decision_reason[1])


KIND = HostKind(python="3.12", brim="1", torch="2.13.0")
OTHER = replace(KIND, torch="2.12.0")


def exactly(transcript: Transcript, *, exact: bool = True, **fields: Any) -> ScheduledJob:
    """A job that has been submitted."""
    job = transcript.submit(**fields)
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


def at(node: str, **fields_of_seen: Any) -> dict[str, Seen]:
    fields = {"alive": True, "workers": {node: 2}, "agents": frozenset({node}), "step": 1}
    return {"job-1": Seen(**{**fields, **fields_of_seen})}


def given(node: str) -> Decided:
    return Decided(Decision(workers={"job-1": 2}, nodes={"job-1": {node: 2}}))


def run_on(
    transcript: Transcript,
    nodes: dict[str, NodeSeen],
    node: str,
    *,
    step: int = 1,
    now: float = 0.0,
) -> None:
    """Have job-1 run there and make steps."""
    for event in (Looked(nodes, {}), given(node), Looked(nodes, {})):
        transcript.hear(event, now)
    transcript.hear(Looked(nodes, at(node, step=step)), now)


def seen_by_policy(transcript: Transcript) -> tuple[str, ...] | None:
    (state,) = transcript.jobs.snapshot(9.0, memory=None).jobs
    return state.job.kinds


def end(transcript: Transcript, nodes: dict[str, NodeSeen], *, step: int = 1) -> None:
    """Have the plan of job-1 withdrawn, and its processes end."""
    transcript.hear(Decided(Decision(workers={})), 5.0)
    transcript.hear(Looked(nodes, {"job-1": dead(step=step)}), 5.0)


def test_a_job_continues_on_its_first_node_kind() -> None:
    jobs = Transcript()
    job = exactly(jobs)
    nodes = nodes_of(n1=KIND, n2=OTHER)
    run_on(jobs, nodes, "n2")
    assert job.kind == replace(OTHER, brim="")
    assert seen_by_policy(jobs) == ("2.12.0",)
    end(jobs, nodes)
    assert seen_by_policy(jobs) == ("2.12.0",)
    for nodes_left in (nodes_of(n1=KIND), nodes_of(n1=KIND, n2=None)):
        jobs.hear(Looked(nodes_left, {}), 6.0)
        assert seen_by_policy(jobs) == ()
    upgraded = nodes_of(n1=KIND, n3=replace(OTHER, brim="2"))
    jobs.hear(Looked(upgraded, {}), 7.0)
    assert seen_by_policy(jobs) == ("2.12.0",)


def test_node_kinds_survive_a_scheduler_change() -> None:
    """The scheduler's own kind has no label, and the next one may be on a host of another."""
    jobs = Transcript()
    job = exactly(jobs)
    run_on(jobs, nodes_of(n1=KIND), "n1")
    end(jobs, nodes_of(n1=KIND))
    next_jobs = Transcript()
    next_jobs.jobs = ScheduledJobs([job], jobs.jobs.spec, jobs.lessons)
    next_jobs.known = {job.id: job}
    own_node = nodes_of(n1=OTHER)["n1"]._replace(brings=Node(id="n1", devices=2))
    next_jobs.hear(Looked({"n1": own_node}, {}), 6.0)
    assert seen_by_policy(next_jobs) == ()
    back = nodes_of(n2=KIND)["n2"]._replace(brings=Node(id="n2", devices=2, kind="theirs"))
    next_jobs.hear(Looked({"n1": own_node, "n2": back}, {}), 7.0)
    assert seen_by_policy(next_jobs) == ("theirs",)


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
    jobs = Transcript()
    exactly(jobs, **job)
    run_on(jobs, nodes_of(n1=KIND), "n1", step=step)
    end(jobs, nodes_of(n1=KIND), step=step)
    jobs.hear(Looked(nodes_of(n1=OTHER), {}), 6.0)
    assert seen_by_policy(jobs) == (None if kind is None else ())
    jobs.hear(given("n1"), 7.0)
    if kind is None:
        jobs.hear(Looked(nodes_of(n1=OTHER), {}), 9.0)
        assert jobs.known["job-1"].kind == (replace(OTHER, brim="") if job["exact"] else None)


def test_a_jobs_own_variable_makes_no_kind() -> None:
    jobs = Transcript()
    job = exactly(jobs)
    spec = replace(job.submission.spec, env={"MKL_CBWR": "AVX2"})
    job.submission = replace(job.submission, spec=spec)
    run_on(jobs, nodes_of(n1=KIND), "n1")
    set_ = replace(KIND, settings={"MKL_CBWR": "COMPATIBLE"})
    jobs.hear(Looked(nodes_of(n1=set_), {}), 6.0)
    assert seen_by_policy(jobs) is not None
    assert len(seen_by_policy(jobs) or ()) == 1


def test_older_jobs_take_the_kind_they_run_on() -> None:
    jobs = Transcript()
    job = exactly(jobs)
    run_on(jobs, nodes_of(n1=KIND), "n1")
    jobs.known["job-1"].kind = None  # as a record of before has it
    jobs.hear(Looked(nodes_of(n1=KIND), at("n1")), 1.0)
    assert job.kind == replace(KIND, brim="")
    assert any(isinstance(command, Save) for command in jobs.commands)


@pytest.mark.parametrize("is_known", [False, True])
def test_differences_of_present_nodes_are_described(is_known: bool) -> None:
    jobs = Transcript()
    job = exactly(jobs)
    first_nodes = nodes_of(n1=OTHER)
    run_on(jobs, first_nodes, "n1")
    end(jobs, first_nodes)
    lost = {"n1": first_nodes["n1"]._replace(up=False, gone=True, lost=True)} if is_known else {}
    # The scheduler's own node is of the kind that has no label.
    jobs.hear(Looked({**lost, **nodes_of(n2=KIND)}, {}), 6.0)
    decision_reason = Reason.ONE_KIND, "no node is of its kind"
    jobs.hear(Decided(Decision(workers={}, reasons={"job-1": decision_reason})), 7.0)
    detail = "no node is of its kind: torch 2.12.0 on the nodes where it began and 2.13.0 on node0"
    assert jobs.jobs.waits_for(job) == detail
    (note,) = [command for command in jobs.commands if isinstance(command, Change)]
    assert (note.event, note.detail) == ("waits", detail)


def test_its_owner_may_allow_another_node_kind() -> None:
    jobs = Transcript()
    job = exactly(jobs)
    run_on(jobs, nodes_of(n1=KIND), "n1")
    jobs.hear(KindFreed("job-1", "by ads"), 1.0)
    assert not jobs.commands, "it runs, and needs no other"
    end(jobs, nodes_of(n1=KIND))
    other_nodes = nodes_of(n2=OTHER)
    jobs.hear(Looked(other_nodes, {}), 6.0)
    assert seen_by_policy(jobs) == ()
    jobs.hear(KindFreed("job-1", "by ads"), 7.0)
    assert [type(command).__name__ for command in jobs.commands] == ["Save", "Change", "Decide"]
    assert seen_by_policy(jobs) is None
    jobs.hear(KindFreed("job-1", "by ads"), 7.0)
    assert not jobs.commands, "once is as good as twice"
    run_on(jobs, other_nodes, "n2", now=8.0)
    assert job.kind == replace(OTHER, brim="")
    assert seen_by_policy(jobs) == ("2.12.0",)


@pytest.mark.parametrize(
    ("exact", "commands"),
    [(True, ["suspend job-1"]), (False, ["resize job-1: 2 on n3"])],
)
def test_exact_jobs_checkpoint_before_changing_node_kind(exact: bool, commands: list[str]) -> None:
    jobs = Transcript()
    job = jobs.submit()
    spec = replace(job.submission.spec, exact=exact)
    job.submission = replace(job.submission, spec=spec)
    nodes = {
        name: NodeSeen(up=True, brings=Node(id=name, devices=2, kind=kind))
        for name, kind in (("n1", "one"), ("n2", "one"), ("n3", "other"))
    }
    looked = {NODE: UP, **nodes}

    def seen(node: str) -> dict[str, Seen]:
        return {"job-1": Seen(alive=True, workers={node: 2}, agents=frozenset({node}), step=1)}

    def decision_on(node: str) -> Decided:
        return Decided(Decision(workers={"job-1": 2}, nodes={"job-1": {node: 2}}))

    jobs.hear(Looked(looked, {}), 0.0)
    jobs.hear(decision_on("n1"), 0.0)
    jobs.hear(Looked(looked, {}), 0.0)
    jobs.hear(Looked(looked, seen("n1")), 1.0)
    jobs.hear(decision_on("n2"), 2.0)
    assert jobs.hear(Looked(looked, seen("n1")), 2.0) == ["resize job-1: 2 on n2"]
    jobs.hear(Answered(Resize("job-1", {"n2": 2})), 2.0)
    jobs.hear(Looked(looked, seen("n2")), 3.0)
    jobs.hear(decision_on("n3"), 4.0)
    assert jobs.hear(Looked(looked, seen("n2")), 4.0) == commands
    if exact:
        jobs.hear(Answered(Suspend("job-1")), 4.0)
        ended = jobs.hear(Looked(looked, {"job-1": dead()}), 5.0)
        assert ended == ["job-1 suspended", "job-1 running", "start job-1: 2 on n3"]
        assert jobs.known["job-1"].allocation.told == {"n3": 2}


def test_the_story_names_nodes_on_start() -> None:
    """A job in line has another plan in each decision, since those before it take their places."""
    jobs = Transcript()
    jobs.submit()
    nodes = nodes_of(n1=None, n2=None)
    jobs.hear(Looked(nodes, {}), 0.0)

    def notes_of(event: Event, now: float) -> list[tuple[str, str]]:
        jobs.hear(event, now)
        return [
            (command.event, command.detail)
            for command in jobs.commands
            if isinstance(command, Change)
        ]

    assert notes_of(given("n2"), 1.0) == [("workers", "")]
    assert notes_of(given("n1"), 2.0) == []
    assert notes_of(Looked(nodes, {}), 3.0) == [("placed", "2 on n1"), ("running", "2 workers")]
    jobs.hear(Looked(nodes, at("n1")), 4.0)
    assert notes_of(given("n2"), 5.0) == [("placed", "2 on n2")]


def test_a_node_accepting_jobs_triggers_a_decision() -> None:
    """Nothing else may happen: no job runs, and no device comes or goes."""
    jobs = Transcript()
    jobs.submit()

    def decides(*refused: str) -> bool:
        seen = {
            name: node._replace(refuses=frozenset(refused))
            for name, node in nodes_of(n1=None, n2=None).items()
        }
        jobs.hear(Looked(seen, {}), 1.0)
        return Decide() in jobs.commands

    assert decides("job-1")  # there are nodes
    assert not decides("job-1")
    assert decides()
    assert not decides()
    assert decides("job-1")


def test_each_failure_counts_once_whoever_looks(transcript: Transcript) -> None:
    for moment, event, _ in [*EIGHT, (1.0, look(job_1=on(8, failed={"u1": 1})), [])]:
        transcript.hear(event, moment)
    transcript.jobs = ScheduledJobs(
        transcript.known.values(), transcript.jobs.spec, transcript.lessons
    )
    transcript.hear(look(job_1=on(8, failed={"u1": 1})), 2.0)
    assert transcript.known["job-1"].starts.failures == 1
    transcript.hear(look(job_1=on(8)), 3.0)  # it is gone
    transcript.hear(look(job_1=on(8, failed={"u2": 2})), 4.0)
    assert transcript.known["job-1"].starts.failures == 3


def anywhere(transcript: Transcript) -> ScheduledJob:
    """A job whose workers others place: the plan has them on n1."""
    job = transcript.submit(anywhere=True)
    for event in (Looked(nodes_of(n1=None, n2=None), {}), given("n1")):
        transcript.hear(event, 0.0)
    assert transcript.hear(Looked(nodes_of(n1=None, n2=None), {}), 0.0) == [
        "job-1 running",
        "start job-1: 2 on n1",
    ]
    return job


def test_externally_placed_jobs_keep_workers_anywhere() -> None:
    jobs = Transcript()
    job = anywhere(jobs)
    nodes = nodes_of(n1=None, n2=None)
    both_nodes = frozenset({"n1", "n2"})
    assert jobs.hear(Looked(nodes, at("n2", workers={"n2": 1}, agents=both_nodes)), 1.0) == []
    assert job.held == {"n1": 1, "n2": 1}
    assert jobs.hear(Looked(nodes, at("n2")), 2.0) == []
    assert job.held == job.allocation.plan == {"n2": 2}
    assert jobs.hear(given("n1"), 3.0) == []  # a plan moves nobody
    assert jobs.hear(Looked(nodes, at("n2")), 3.0) == []
    assert jobs.jobs.snapshot(9.0, memory=None).jobs[0].nodes == {"n2": 2}
    assert not [line for line in jobs.story if "placed" in line]


def test_externally_placed_jobs_leave_drained_nodes() -> None:
    jobs = Transcript()
    job = anywhere(jobs)
    nodes = nodes_of(n1=None, n2=None)
    jobs.hear(Looked(nodes, at("n2")), 1.0)
    nodes["n2"] = nodes["n2"]._replace(up=False, leaving=True)
    jobs.hear(Looked(nodes, at("n2")), 2.0)
    jobs.hear(given("n1"), 2.0)
    assert jobs.hear(Looked(nodes, at("n2")), 2.0) == ["resize job-1: 2 on n1"]
    assert (job.held, job.allocation.plan) == ({"n2": 2}, {"n1": 2})


def test_missing_workers_reserve_no_closed_node() -> None:
    """It would never be made: it counts where the plan has it now."""
    jobs = Transcript()
    job = anywhere(jobs)
    nodes = nodes_of(n1=None, n2=None)
    jobs.hear(Looked(nodes, at("n2")), 1.0)
    nodes["n2"] = nodes["n2"]._replace(up=False)
    decided = Decision(workers={"job-1": 2}, nodes={"job-1": {"n1": 1, "n2": 1}})
    lost_one = at("n2", workers={"n2": 1}, agents=frozenset())
    jobs.hear(Looked(nodes, lost_one), 2.0)
    jobs.hear(Decided(decided), 2.0)
    assert jobs.hear(Looked(nodes, lost_one), 2.0) == ["resize job-1: 1 on n1, 1 on n2"]
    assert job.held == {"n1": 1, "n2": 1}
