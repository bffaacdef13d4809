"""The course of a job from its submission: steps, workers, metrics, and the cost of changes.

Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from brim.domain.quantities import counted
from brim.domain.resizing import Overheads
from brim.errors import EnvironmentFault

_SETTLED = 4  # steps of a new world after which its change is over

Workers = tuple[tuple[float, int], ...]
"""(seconds, workers from then on), in order; the last says 0. So are slots of others counted."""


class Request(NamedTuple):
    """A request, at `at` seconds, that the job have so many workers."""

    at: float
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCourse:
    """One job from its submission to its end.

    Times are seconds since the first submission of its experiment.

    Args:
        steps: when each was committed, in order.
        workers: of its world; there is none before its first round.
        metric: the test split's AUC, by step.
        digest: of its weights.
        redone: steps that were done twice.
    """

    name: str
    submitted: float
    ended: float
    steps: tuple[float, ...]
    workers: Workers
    metric: tuple[tuple[int, float], ...] = ()
    digest: str = ""
    redone: int = 0

    @property
    def to_first_step(self) -> float:
        """Seconds from its submission to its first step."""
        return self.steps[0] - self.submitted

    def steps_by(self, moment: float) -> int:
        """Steps that were done at a time."""
        return sum(step <= moment for step in self.steps)


def count_at(points: Workers, time: float) -> int:
    """Return how many there are at a time.

    >>> [count_at(((1.0, 4), (2.0, 0)), time) for time in (0.5, 1.0, 2.0)]
    [0, 4, 0]
    """
    return next((count for moment, count in reversed(points) if moment <= time), 0)


def left_for(demand: Workers, workers: Workers, slots: int) -> Workers:
    """Return a service's part of its demanded slots, where a job's workers have others.

    >>> left_for(((0.0, 0), (2.0, 4)), ((1.0, 8), (2.5, 4)), 8)
    ((0.0, 0), (1.0, 0), (2.0, 0), (2.5, 4))
    """
    times = sorted({moment for moment, _ in (*demand, *workers)})
    return tuple(
        (moment, min(count_at(demand, moment), slots - count_at(workers, moment)))
        for moment in times
    )


def waits(demand: Workers, had: Workers) -> list[float]:
    """Return the seconds that each rise of the demand has waited for its slots.

    One that was not had before less was wanted has waited until then.

    >>> waits(((0.0, 0), (2.0, 4), (4.0, 2), (6.0, 3), (7.0, 0)), ((2.5, 3), (3.0, 4), (4.0, 2)))
    [1.0, 1.0]
    """
    return [
        _reached(had, count, start=moment, end=end) - moment
        for (_, previous), (moment, count), (end, _) in zip(
            demand, demand[1:], demand[2:], strict=False
        )
        if count > previous
    ]


def _reached(points: Workers, count: int, *, start: float, end: float) -> float:
    """The first time of an interval at which there were so many; its end where there never were."""
    if count_at(points, start) >= count:
        return start
    return next(
        (moment for moment, current in points if start <= moment < end and current >= count), end
    )


def use_of(parts: Sequence[Workers], slots: int, *, begin: float, end: float) -> float:
    """Return the part of the slots that was used, on average over a time.

    Args:
        parts: who used them.

    >>> use_of([((0.0, 4), (8.0, 2)), ((5.0, 4),)], 8, begin=0.0, end=10.0)
    0.7
    """
    times = sorted(
        {begin, end, *(moment for part in parts for moment, _ in part if begin < moment < end)}
    )
    used = sum(
        (next_moment - moment) * count_at(part, moment)
        for moment, next_moment in pairwise(times)
        for part in parts
    )
    return used / (slots * (end - begin))


def makespan(courses: Iterable[TrainingCourse]) -> float:
    """Seconds from the first submission to the last end."""
    courses = list(courses)
    return max(course.ended for course in courses) - min(course.submitted for course in courses)


def overheads_of(
    course: TrainingCourse, requests: Sequence[Request], rates: Mapping[int, float]
) -> Overheads:
    """Return the cost of starts and changes of workers for this job, in seconds without progress.

    Args:
        requests: the submission, and those for other numbers of workers, each granted before the
            next.
        rates: steps per second by number of workers.

    Raises:
        EnvironmentFault: one was never granted.

    >>> steps = [3.0, 4.0, 5.0, 6.0, 7.0] + [8.5 + 2 * k for k in range(4)]
    >>> asked = [Request(0.0, 2), Request(7.0, 1)]
    >>> had = ((2.0, 2), (7.1, 1), (14.7, 0))
    >>> course = TrainingCourse(name="a", submitted=0.0, ended=15.0, steps=tuple(steps), workers=had)
    >>> found = overheads_of(course, asked, {1: 0.5, 2: 1.0})
    >>> round(found.cost(0, 2), 3), round(found.cost(2, 1), 3), found.end
    (2.0, 0.0, 0.5)
    """
    first, *later_losses = (max(0.0, _lost(course, request, rates)) for request in requests)
    return Overheads(
        name="measured",
        start=first,
        fixed=statistics.fmean(later_losses) if later_losses else 0.0,
        end=course.ended - course.steps[-1],
    )


def _lost(course: TrainingCourse, request: Request, rates: Mapping[int, float]) -> float:
    """Return the seconds that a request cost.

    They run from the request to some steps of the world that it asked for, less what these steps
    take there.

    Raises:
        EnvironmentFault: that world never formed, or made no step.
    """
    requested_at, workers = request
    formed = next(
        (moment for moment, count in course.workers if moment >= requested_at and count == workers),
        None,
    )
    if formed is None:
        raise EnvironmentFault(
            f"{course.name} never had {counted(workers, 'worker')}, as was asked for"
        )
    steps_before = course.steps_by(requested_at)
    steps_as_formed = course.steps_by(formed)
    settled = min(steps_as_formed + _SETTLED, len(course.steps))
    if settled == steps_as_formed:
        raise EnvironmentFault(
            f"{course.name} ended as soon as it was resized to {workers}: this host is too busy to "
            "measure the job on"
        )
    reached = course.steps[settled - 1]
    return (
        reached
        - requested_at
        - (settled - steps_before - _step_fraction(course, requested_at)) / rates[workers]
    )


def _step_fraction(course: TrainingCourse, moment: float) -> float:
    """The part of a step that was done at a time, by that step's length; 0 before the first."""
    done = course.steps_by(moment)
    if not 0 < done < len(course.steps):
        return 0.0
    return (moment - course.steps[done - 1]) / (course.steps[done] - course.steps[done - 1])
