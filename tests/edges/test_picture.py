"""What changes cost is learned from the clocks of two processes, where these can be compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brim.backends.picture import Picture
from brim.backends.processes import Reached, Seen
from brim.domain.measuring import Measured
from brim.storage.book import Book, JobRecord
from brim.storage.database import Database
from submissions import submission

NIGHT = 28_800.0


class Course:
    """One job that starts, grows and ends, seen by a scheduler.

    Args:
        apart: seconds by which the clock of its processes is ahead of the scheduler's.
    """

    def __init__(self, folder: Path, apart: float = 0.0) -> None:
        self.book = Book(Database(folder / "db"))
        self.record: JobRecord = self.book.submit(submission("1:8"), name="job", now=0.0)
        self.picture, self.apart, self.now = Picture(self.book), apart, 1e9
        self.seen = Seen(alive=True, measured=Measured({2: (20.0, 2.0), 4: (20.0, 1.0)}))

    def pass_(self, seconds: float) -> None:
        """With the looks that there are meanwhile."""
        for _ in range(round(seconds / 0.2)):
            self.now += 0.2
            self.look()

    def look(self) -> None:
        self.picture.look(self.now)
        self.picture.see(self.record, self.seen, self.now)
        self.record.step = self.seen.step
        self.picture.reckon(self.record)

    def ask(self, workers: int) -> None:
        if not self.record.told:
            self.picture.begin(self.record, self.now)
        self.picture.change(self.record, {"node0": workers}, self.now)
        self.record.told = {"node0": workers}

    def step(self) -> None:
        """On as many workers as it was asked to have."""
        made, step = self.now + self.apart, self.seen.step + 1
        reached, workers = self.seen.reached, self.record.target
        if reached is None or reached.workers != workers:
            reached = Reached(workers, made, step)
        self.seen = replace(self.seen, last_step=made, step=step, reached=reached)
        self.pass_(0.2)

    def end(self) -> None:
        self.seen = replace(self.seen, outcome="done")
        self.look()
        self.picture.end(self.record, self.now)


@pytest.mark.parametrize("apart", [0.0, NIGHT, -NIGHT, 5.0, -5.0])
def test_a_cost_is_learned_only_from_clocks_that_agree(tmp_path: Path, apart: float) -> None:
    course = Course(tmp_path, apart)
    course.ask(2)
    course.pass_(3.0)
    course.step()
    course.ask(4)
    course.pass_(1.0)
    course.step()
    course.pass_(0.6)
    course.end()
    learned = {
        kind: [round(each, 2) for each in seconds] for kind, seconds in course.book.costs.items()
    }
    # Of a start and of a resize, its first step is a part that was to be made anyway.
    assert learned == ({} if apart else {"start": [2.9], "resize": [0.95], "end": [0.8]})


def test_a_nights_sleep_is_no_cost(tmp_path: Path) -> None:
    course = Course(tmp_path)
    course.record.plan = {"node0": 2}
    course.look()
    course.picture.want(course.record, course.now)
    course.now += NIGHT  # while others give way
    course.look()
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
    assert course.book.costs == {}


def test_clocks_that_agree_again_teach_again(tmp_path: Path) -> None:
    course = Course(tmp_path, apart=NIGHT)
    course.ask(2)
    course.pass_(1.0)
    course.step()
    course.apart = 0.0
    course.step()
    course.end()
    assert list(course.book.costs) == ["end"]
