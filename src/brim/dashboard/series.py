"""Curves of a cluster and of a run: numbers for charts. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brim.dashboard.sight import ClusterSight
from brim.domain.course import Change
from brim.domain.step_records import StepRecord
from brim.wire.cluster import JobView

MOST_CURVES = 10  # with a name of their own
REST = "others"
OTHER_TENANTS = "other tenants"
_MOST_TIMES = 120  # points of a curve
_MOST_PLANNED = 0.5  # of the time shown before now: the most that is shown behind it
# `refused` is also said of a deadline whose job runs nevertheless.
_PHASES_WITHOUT_WORKERS = frozenset({"submitted", "suspended", "done", "failed", "cancelled"})

Steps = Sequence[tuple[float, int]]  # (time, value from then on), in order


class Curve(NamedTuple):
    """Values of one name, one for each time of the picture."""

    name: str
    values: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Devices in use over time, as stacked curves, and the plan.

    Args:
        times: seconds since 1970; each value holds until the next time.
        now: the last time that has happened.
        past, planned: curves, of the same names and in the same order; the values of `planned`
            begin at `now`.
        future: the times of the planned values.
        devices: those that there are, at each of `times`.
    """

    times: list[float]
    now: float
    past: list[Curve]
    future: list[float]
    planned: list[Curve]
    devices: list[int]


def workers_over_time(view: JobView | None, story: Sequence[Change], *, now: float) -> Steps:
    """The workers of a job at each change.

    Args:
        story: its lines, or the last of them: where the first are missing, the first known one
            tells the workers before it.

    >>> from brim.domain.course import Change
    >>> lines = [Change(2.0, "a", "workers", 0, 4), Change(2.0, "a", "running")]
    >>> lines += [Change(5.0, "a", "workers", 4, 2), Change(9.0, "a", "done")]
    >>> workers_over_time(None, lines, now=10.0)
    [(2.0, 4), (5.0, 2), (9.0, 0)]
    """
    steps: list[tuple[float, int]] = []
    count, runs = _first_workers(story)
    if runs and story:
        steps.append((0.0, count))
    for line in story:
        if line.event == "workers":
            count = line.after
        elif line.event == "running":
            runs = True
        elif line.event in _PHASES_WITHOUT_WORKERS:
            runs = False
        workers = count if runs else 0
        if workers != (steps[-1][1] if steps else 0):
            steps.append((line.at, workers))
    if view is not None and not story and view.workers:
        steps.append((view.started or view.submitted, view.workers))
    elif view is not None and view.workers != (steps[-1][1] if steps else 0):
        steps.append((now, view.workers))
    return _last_of_each_moment(steps)


def _last_of_each_moment(steps: Steps) -> Steps:
    """Leave out steps that another one follows at the same time."""
    found: dict[float, int] = dict(steps)
    return sorted(found.items())


def _first_workers(story: Sequence[Change]) -> tuple[int, bool]:
    """Return the workers before the first line, and whether the job ran then."""
    if not story or story[0].event in ("submitted", "accepted", "admitted"):
        return 0, False
    first = next((line for line in story if line.event == "workers"), None)
    return (first.before, first.before > 0) if first else (0, False)


def picture_of(sight: ClusterSight, *, grouping: str, seconds: float) -> Picture:
    """Devices in use, over the last seconds and as planned.

    Args:
        grouping: `job` or `tenant`.
    """
    now = sight.timestamp
    start = max(now - seconds, _beginning(sight, now))
    names: Callable[[JobView], str] = (
        (lambda view: view.tenant) if grouping == "tenant" else (lambda view: view.job)
    )
    stories = _by_job(sight.changes)
    past = _summed(
        (names(view), workers_over_time(view, stories.get(view.job, ()), now=now))
        for view in sight.jobs.values()
        if view.ended is None or view.ended > start
    )
    plans = _by_job(change for change in sight.plan if change.event == "workers")
    planned = _summed(
        (names(view), _planned(view, plans.get(view.job, ()), now))
        for view in sight.jobs.values()
        if view.ended is None
    )
    if sight.tenant is not None:
        past[OTHER_TENANTS] = _of_other_tenants(sight, past)
    end = min(
        max((moment for steps in planned.values() for moment, _ in steps), default=now),
        now + _MOST_PLANNED * (now - start),
    )
    supply = [(sample.timestamp, sample.devices) for sample in sight.samples]
    times = _grid([*past.values(), supply], start, now)
    future = _grid(planned.values(), now, end) if end > now else []
    largest = _largest(past, planned, start, now, end)
    order = [name for name in past | planned if name in largest]
    order.sort(key=lambda name: (name == OTHER_TENANTS, _natural(name)))
    devices = [value or _first(supply) for value in _sampled(supply, times)]
    return Picture(
        times=times,
        now=now,
        past=_stacked(order, past, times),
        future=future,
        planned=_stacked(order, planned, future),
        devices=devices,
    )


def _beginning(sight: ClusterSight, now: float) -> float:
    """The first time that anything is known of."""
    first = sight.changes[0].at if sight.changes else now
    return min(first, sight.samples[0].timestamp if sight.samples else now, now - 60.0)


def _by_job(changes: Iterable[Change]) -> Mapping[str, Sequence[Change]]:
    found: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        if change.job:
            found[change.job].append(change)
    return found


def _planned(view: JobView, plan: Sequence[Change], now: float) -> Steps:
    """The workers of a job from now on; without a plan, until it is expected to end."""
    steps = [(now, view.planned)]
    if plan:
        return [*steps, *((max(now, change.at), change.after) for change in plan)]
    if view.planned and view.finish is not None:
        steps.append((max(now, view.finish), 0))
    return steps


def _summed(parts: Iterable[tuple[str, Steps]]) -> dict[str, list[tuple[float, int]]]:
    """Add up steps by name."""
    deltas: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for name, steps in parts:
        previous = 0
        for moment, value in steps:
            if value != previous:
                deltas[name].append((moment, value - previous))
            previous = value
    found: dict[str, list[tuple[float, int]]] = {}
    for name, changes in deltas.items():
        total = 0
        found[name] = []
        for moment, change in sorted(changes):
            total += change
            found[name].append((moment, total))
    return found


def _of_other_tenants(sight: ClusterSight, parts: Mapping[str, Steps]) -> list[tuple[float, int]]:
    """The devices that other tenants held, as far as it was seen."""
    times = [sample.timestamp for sample in sight.samples]
    own_sums = [
        sum(values)
        for values in zip(*(_sampled(steps, times) for steps in parts.values()), strict=True)
    ]
    own_sums = own_sums or [0] * len(times)
    return [
        (sample.timestamp, max(0, sample.used - part))
        for sample, part in zip(sight.samples, own_sums, strict=True)
    ]


def _grid(parts: Iterable[Steps], start: float, end: float) -> list[float]:
    """The times of a chart: those of all changes, or evenly many of them."""
    moments = {moment for steps in parts for moment, _ in steps if start < moment < end}
    if len(moments) > _MOST_TIMES:
        moments = {start + (end - start) * k / _MOST_TIMES for k in range(1, _MOST_TIMES)}
    return sorted({start, *moments, end})


def _sampled(steps: Steps, times: Sequence[float]) -> list[int]:
    """The value of steps at each time.

    >>> _sampled([(1.0, 5), (3.0, 2)], [0.0, 1.0, 2.0, 3.0])
    [0, 5, 5, 2]
    """
    moments = [moment for moment, _ in steps]
    places = [bisect_right(moments, time) for time in times]
    return [steps[place - 1][1] if place else 0 for place in places]


def _first(steps: Steps) -> int:
    return steps[0][1] if steps else 0


def _largest(
    past: Mapping[str, Steps],
    planned: Mapping[str, Steps],
    start: float,
    now: float,
    end: float,
) -> set[str]:
    """The names with most device-seconds, which get a curve of their own."""

    def weight(name: str) -> tuple[bool, float]:
        """Jobs that hold devices now, or will, come first."""
        planned_area = _area(planned.get(name, ()), now, end)
        return planned_area > 0, planned_area + _area(past.get(name, ()), start, now)

    names = set(past) | set(planned)
    return set(sorted(names, key=lambda name: (weight(name), name), reverse=True)[:MOST_CURVES])


def _area(steps: Steps, start: float, end: float) -> float:
    total = 0.0
    for place, (moment, value) in enumerate(steps):
        step_end = steps[place + 1][0] if place + 1 < len(steps) else end
        total += value * max(0.0, min(step_end, end) - max(moment, start))
    return total


def _stacked(
    order: Sequence[str], parts: Mapping[str, Steps], times: Sequence[float]
) -> list[Curve]:
    if not times:
        return []
    curves = [Curve(name, _sampled(parts.get(name, ()), times)) for name in order]
    rest = [_sampled(steps, times) for name, steps in parts.items() if name not in order]
    total = [sum(values) for values in zip(*rest, strict=True)] if rest else [0] * len(times)
    return [*curves, Curve(REST, total)]


def _natural(name: str) -> tuple[str, int]:
    """The order of names that end with numbers.

    >>> sorted(["a-10", "a-9"], key=_natural)
    ['a-9', 'a-10']
    """
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (name, 0)


class StepCurves(NamedTuple):
    """A run's steps over time: loss, and samples per second."""

    times: list[float]
    loss: list[float | None]
    rate: list[float]
    steps: list[int]


def course_of_steps(steps: Sequence[StepRecord], *, limit: int = _MOST_TIMES) -> StepCurves:
    """The loss and the rate of a run, at evenly many of its steps.

    Args:
        limit: points at most; each stands for the steps since the one before.
    """
    size = max(1, -(-len(steps) // limit))
    times, losses, rates, numbers = [], [], [], []
    for first in range(0, len(steps), size):
        part = steps[first : first + size]
        begin = steps[first - 1].at if first else part[0].at
        span = part[-1].at - begin
        done = sum(step.samples for step in (part if first else part[1:]))
        times.append(part[-1].at)
        losses.append(part[-1].loss)
        numbers.append(part[-1].step)
        rates.append(done / span if span > 0 else 0.0)
    return StepCurves(times, losses, rates, numbers)
