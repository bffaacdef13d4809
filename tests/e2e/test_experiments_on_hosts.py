"""Experiments 1 and 3 with a scheduler on one host and the slots on three others, in small.

In full: `python -m benchmarks.live-experiments.run 1 --hosts`, and 3.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brim_lab.chaos.hosts import can_make_hosts
from brim_lab.experiments import scale
from brim_lab.experiments.changing_workers import changing_workers
from brim_lab.experiments.course import TrainingCourse
from brim_lab.experiments.joined import joined_cluster
from brim_lab.experiments.two_jobs import two_jobs

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]
TWO_JOBS = replace(
    scale.QUICK_TWO_JOBS,
    slots=3,
    workers=2,
    micro_batches=6,
    wait=0.3e-3,
    sizes=(2, 1),
    steps_each=4,  # of 34: the rest is for changes on a busy host
    gap=0.5,
    fixed=(2,),
)
CHANGING = replace(
    scale.QUICK_CHANGING_WORKERS,
    slots=3,
    workers=3,
    micro_batches=6,
    wait=0.3e-3,
    sizes=(3, 1),
    steps_each=6,
    epochs=2,
    service=(0, 1, 2, 0),
    every=1.5,
    fixed=(2,),
)


def _silent(_: str) -> None:
    """Report no progress."""


def _most_at_once(courses: list[TrainingCourse]) -> int:
    changes = [
        (moment, n, count) for n, course in enumerate(courses) for moment, count in course.workers
    ]
    now: dict[int, int] = {}
    maximum = 0
    for _, number, count in sorted(changes):
        now[number] = count
        maximum = max(maximum, sum(now.values()))
    return maximum


@pytest.mark.long
def test_two_jobs_on_one_host_have_undisturbed_weights(tmp_path: Path) -> None:
    found = two_jobs(TWO_JOBS, tmp_path, _silent, make_cluster=joined_cluster)
    results = {claim.claim: claim for claim in found.claims}
    weights_claim = results["the weights are those of undisturbed runs, bit for bit"]
    assert weights_claim.held, weights_claim
    (sides,) = found.rounds
    assert [n for job in sides["gang"] for _, n in job.workers] == [2, 0, 2, 0]
    assert _most_at_once(list(sides["gang"])) == 2
    assert _most_at_once(list(sides["elastic"])) <= 3
    assert [job.redone for side in sides.values() for job in side] == [0] * 4


@pytest.mark.long
def test_changing_workers_leave_no_trace(tmp_path: Path) -> None:
    found = changing_workers(CHANGING, tmp_path, _silent, make_cluster=joined_cluster)
    of_time = "the scheduler changed the number of workers all the time"
    assert [claim for claim in found.claims if not claim.held and claim.claim != of_time] == []
    (course,) = found.rounds
    assert len({count for _, count in course.workers}) >= 3
