"""The cost of changes is learned from the clocks of two processes, where these can be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.coordination.cluster.reconcile import Resize, Start
from brim.coordination.cluster.scheduled_jobs import Answered, Decided, Looked
from brim.coordination.cluster.sightings import NodeSeen, Reached, Seen
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.measuring import Measured
from brim.domain.schedule import Decision
from brim.domain.scheduled_job import ScheduledJob
from coordination.scheduled import Transcript

NIGHT = 28_800.0
RANGE = WorkerRange(minimum=1, maximum=4)


class Course:
    """One job that starts, grows and ends, seen by a scheduler.

    Args:
        clock_offset: seconds by which the clock of its processes is ahead of the scheduler's.
    """

    def __init__(self, clock_offset: float = 0.0) -> None:
        self.heard, self.apart, self.now = Transcript(), clock_offset, 1e9
        self.job = self.heard.submit(at=self.now)
        measured = Measured({2: (20.0, 2.0), 4: (20.0, 1.0)})
        self.seen = Seen(alive=True, agents=frozenset({"node0"}), measured=measured)

    def pass_(self, seconds: float) -> None:
        """With the looks that there are meanwhile."""
        for _ in range(round(seconds / 0.2)):
            self.now += 0.2
            self.look()

    def look(self) -> None:
        seen = {job.id: self.seen for job in self.heard.jobs.to_look_at()}
        self.heard.hear(Looked({"node0": NodeSeen(up=True)}, seen), self.now)

    def plan(self, workers: int) -> None:
        nodes = {self.job.id: {"node0": workers}}
        decision = Decision(workers={self.job.id: workers}, nodes=nodes)
        self.heard.hear(Decided(decision), self.now)

    def ask(self, workers: int) -> None:
        self.plan(workers)
        self.agree()

    def agree(self) -> None:
        self.look()
        for command in self.heard.commands:
            if isinstance(command, Start | Resize):
                self.heard.hear(Answered(command), self.now)

    def step(self) -> None:
        """On as many workers as it was asked to have."""
        step_time, step = self.now + self.apart, self.seen.step + 1
        reached, workers = self.seen.reached, self.job.target
        if reached is None or reached.workers != workers:
            reached = Reached(workers, step_time, step)
        self.seen = replace(self.seen, last_step=step_time, step=step, reached=reached)
        self.pass_(0.2)

    def end(self) -> None:
        self.seen = replace(self.seen, outcome="done", alive=False)
        self.look()


@pytest.mark.parametrize("clock_offset", [0.0, NIGHT, -NIGHT, 5.0, -5.0])
def test_costs_are_learned_only_from_agreeing_clocks(clock_offset: float) -> None:
    course = Course(clock_offset)
    course.ask(2)
    course.pass_(3.0)
    course.step()
    course.ask(4)
    course.pass_(1.0)
    course.step()
    course.pass_(0.6)
    course.end()
    learned = {
        kind: [round(duration, 2) for duration in seconds]
        for kind, seconds in course.heard.lessons.costs.items()
    }
    # Of a start and of a resize, its first step is a part that was to be made anyway.
    assert learned == ({} if clock_offset else {"start": [2.9], "resize": [0.95], "end": [0.8]})


def test_new_job_begins_from_earlier_restarts() -> None:
    course = Course()
    spec = JobSpec(command=("python", "train.py"), restart=True, workers=RANGE)
    course.job = course.heard.submit(at=course.now, spec=spec)
    assert restart_of(course.job, course) == 10.0  # what nobody has seen is believed
    course.ask(2)
    course.pass_(30.0)
    course.step()
    course.pass_(0.6)
    assert course.heard.lessons.costs == {}  # those are of jobs that go on
    another = course.heard.submit(at=course.now, spec=spec)
    assert restart_of(another, course) == pytest.approx(29.9, abs=0.3)
    other = JobSpec(command=("python", "other.py"), restart=True, workers=RANGE)
    assert restart_of(course.heard.submit(at=course.now, spec=other), course) == 10.0


def restart_of(job: ScheduledJob, course: Course) -> float:
    """The price of a restart that a policy sees."""
    snapshot = course.heard.jobs.snapshot(course.now, memory=None)
    return next(state.restart for state in snapshot.jobs if state.job.id == job.id)


def test_a_nights_sleep_is_no_cost() -> None:
    course = Course()
    course.look()
    course.plan(2)
    course.now += NIGHT  # while others give way
    course.ask(2)
    course.now += NIGHT  # while it starts
    course.look()
    course.step()
    course.ask(4)
    course.now += NIGHT  # while it grows: at the morning's first look it has
    course.step()
    course.step()
    course.now += NIGHT  # while it ends
    course.end()
    assert course.job.life.ended
    assert course.heard.lessons.costs == {}


def test_clocks_that_agree_again_teach_again() -> None:
    course = Course(clock_offset=NIGHT)
    course.ask(2)
    course.pass_(1.0)
    course.step()
    course.apart = 0.0
    course.step()
    course.end()
    assert list(course.heard.lessons.costs) == ["end"]
