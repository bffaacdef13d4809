"""ElasticFlow as the paper describes it.

Minimum satisfactory share, admission, marginal return of device time.

Pure. Repaired against the published code (section 3 of the reference): arrivals are judged one at a
time, by comparing the promises that can be kept before and after; a late job blocks no other; the
greedy step prefers the grant that costs the least device time; one change of workers is in the
plan. Sizes stay the measured ones. A refused job is kept as best effort, as if its user had
submitted it again without the deadline.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from brim.domain.quantities import counted
from brim.domain.resizing import Overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import (
    Admitted,
    Decision,
    JobState,
    Reason,
    Rejected,
    Snapshot,
    Standing,
    Verdict,
)
from brim.domain.workload import Job
from brim.policies.promises import Promise, next_change, plan_all, plan_most, workers_now
from brim.policies.timeline import Need

_Needs = tuple[str, Need, Need]


class _Fixed(NamedTuple):
    """Values that stay the same while a job's curve does, computed once.

    Attributes:
        best: rates by workers where only measured sizes may be used; `floor`: those sizes, by
            workers.
        steps: for each size the next one and, per step of remaining work, the device time that it
            costs.
        change: seconds that a change of workers costs at most.
    """

    best: tuple[float, ...]
    floor: tuple[int, ...]
    steps: dict[int, tuple[int, float]]
    change: float
    ceiling: int
    curve: ScalingCurve

    def holds_for(self, job: Job, overheads: Overheads) -> bool:
        """Return whether the values still hold.

        Jobs that really run are measured meanwhile.
        """
        return (self.curve, self.ceiling, self.change) == (
            job.curve,
            job.ceiling,
            overheads.cost(0, self.ceiling),
        )


def elasticflow(snapshot: Snapshot) -> Decision:
    """Decide one cycle; the memory is the fixed part of each job."""
    fixed_jobs: dict[str, _Fixed] = snapshot.memory or {}
    fixed = {
        state.job.id: _fixed(fixed_jobs, state.job, snapshot.overheads) for state in snapshot.jobs
    }
    fresh = frozenset(snapshot.arrived)
    needs = [
        _need(state, snapshot.now, fixed[state.job.id])
        for state in snapshot.jobs
        if state.standing is Standing.ADMITTED
        and state.job.id not in fresh
        and state.job.deadline is not None
    ]
    needs.sort(key=_by_due)
    verdicts, plans = _admit(snapshot, needs, fixed)
    workers = {name: workers_now(promise, snapshot.now) for name, promise in plans.items()}
    _grant(snapshot.jobs, workers, snapshot.capacity - sum(workers.values()), fixed)
    reasons = {
        name: (Reason.SURPLUS, f"{counted(count, 'worker')}, its share included")
        for name, count in workers.items()
    }
    wake = next_change(plans, snapshot.now)
    return Decision(
        workers=workers, verdicts=tuple(verdicts), wake=wake, reasons=reasons, memory=fixed
    )


def _admit(
    snapshot: Snapshot, needs: list[_Needs], fixed: Mapping[str, _Fixed]
) -> tuple[list[Verdict], dict[str, Promise]]:
    """Judge arrivals one at a time: each must find its share without taking anybody else's."""
    now, devices = snapshot.now, snapshot.capacity
    fresh = frozenset(snapshot.arrived)
    verdicts: list[Verdict] = []
    plans: dict[str, Promise] | None = None
    for state in snapshot.jobs:
        name = state.job.id
        if name not in fresh:
            continue
        if state.job.deadline is None:
            verdicts.append(Admitted(job=name, reason=Reason.NO_DEADLINE, promises=False))
            continue
        wider = sorted([*needs, _need(state, now, fixed[name])], key=_by_due)
        found = plan_all(wider, now=now, devices=devices)
        if (
            found is None and plans is None
        ):  # somebody may be late already: then not everybody must fit
            needs, plans = _keep(needs, now, devices)
            wider = sorted([*needs, _need(state, now, fixed[name])], key=_by_due)
            found = plan_all(wider, now=now, devices=devices)
        if found is None:
            others = counted(len(needs), "promised job")
            text = f"no minimum share beside {others} on {counted(devices, 'device')}"
            verdicts.append(Rejected(job=name, reason=Reason.NO_CAPACITY, detail=text, runs=True))
        else:
            needs, plans = wider, found
            share = max(piece.workers for piece in found[name].pieces)
            text = f"its minimum satisfactory share is {counted(share, 'worker')}"
            verdicts.append(Admitted(job=name, reason=Reason.FITS, share=share, detail=text))
    if plans is None:
        needs, plans = _keep(needs, now, devices)
    return verdicts, plans


def _keep(needs: list[_Needs], now: float, devices: int) -> tuple[list[_Needs], dict[str, Promise]]:
    """Keep as many promises as still can be kept, by deadline.

    Late jobs compete for the surplus.
    """
    plans = plan_all(needs, now=now, devices=devices)
    if plans is not None:
        return needs, plans
    plans = plan_most(needs, now=now, devices=devices)
    return [need for need in needs if need[0] in plans], plans


def _by_due(need: _Needs) -> tuple[float, str]:
    return need[2].due, need[0]


def _need(state: JobState, now: float, fixed: _Fixed) -> _Needs:
    job = state.job
    assert job.deadline is not None
    best, floor, _, change, ceiling, _ = fixed
    begin = state.ready if state.workers and state.ready > now else now
    time_left, due, minimum = state.remaining / state.pace, job.deadline, job.minimum
    return (
        job.id,
        Need(best, time_left, begin, due - change, state.workers, change, minimum, ceiling, floor),
        Need(best, time_left, begin, due, state.workers, change, minimum, ceiling, floor),
    )


def _fixed(fixed_jobs: Mapping[str, _Fixed], job: Job, overheads: Overheads) -> _Fixed:
    last = fixed_jobs.get(job.id)
    return last if last is not None and last.holds_for(job, overheads) else _fix(job, overheads)


def _fix(job: Job, overheads: Overheads) -> _Fixed:
    curve, ceiling = job.curve, job.ceiling
    sizes = [0, *(n for n in curve.sizes if job.minimum <= n <= ceiling)]
    steps = {}
    for size, goal in pairwise(sizes):
        spent = size / curve.rates[size] if size else 0.0
        steps[size] = goal, (goal / curve.rates[goal] - spent) / (goal - size)
    best = tuple(curve.best[n] for n in curve.floor)
    return _Fixed(best, curve.floor, steps, overheads.cost(0, ceiling), ceiling, curve)


def _grant(
    states: Sequence[JobState], workers: dict[str, int], free: int, fixed: Mapping[str, _Fixed]
) -> None:
    """Size by size to the job whose device time grows least by it; jobs without a worker first.

    Of these, the first are jobs to be measured before they can be judged: that takes seconds.
    """
    if free <= 0:
        return
    heap: list[tuple[float, str, int, float]] = []
    for state in states:
        name = state.job.id
        count = workers.get(name, 0)
        step = fixed[name].steps.get(count)
        if step is not None:
            first = -2.0 if state.unmeasured else -1.0
            key = state.remaining * step[1] if count else first
            heap.append((key, name, step[0] - count, state.remaining))
    heapq.heapify(heap)
    while heap and free > 0:
        _, name, added, time_left = heapq.heappop(heap)
        if added > free:
            continue
        count = workers.get(name, 0) + added
        workers[name] = count
        free -= added
        step = fixed[name].steps.get(count)
        if step is not None:
            heapq.heappush(heap, (time_left * step[1], name, step[0] - count, time_left))
