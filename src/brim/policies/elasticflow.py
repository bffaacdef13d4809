"""ElasticFlow as the paper means it: minimum satisfactory share, admission, marginal return of device time.

Pure. Repaired against the published code (section 3 of the reference): arrivals are judged one at a time, by
comparing the promises that can be kept before and after; a late job blocks nobody; the greedy step prefers
the grant that costs the least device time; one change of workers is in the plan. Sizes stay the measured ones,
refused jobs are dropped, as the paper has it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache

from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Admitted, Decision, JobState, Reason, Rejected, Snapshot, Standing, Verdict
from brim.policies.promises import Promise, next_change, plan_all, workers_now
from brim.policies.timeline import Need

__all__ = ["elasticflow"]


def elasticflow(snapshot: Snapshot) -> Decision:
    """Decide one cycle."""
    now = snapshot.now
    fresh = frozenset(snapshot.arrived)
    needs = [
        (state.job.id, *_need(state, snapshot))
        for state in snapshot.jobs
        if state.standing is Standing.ADMITTED and state.job.id not in fresh and state.job.deadline is not None
    ]
    kept, plans = _keep(sorted(needs, key=_by_due), now, snapshot.capacity)
    verdicts: list[Verdict] = []
    refused = set()
    for state in snapshot.jobs:
        if state.job.id not in fresh:
            continue
        name = state.job.id
        if state.job.deadline is None:
            verdicts.append(Admitted(job=name, reason=Reason.NO_DEADLINE, promises=False))
            continue
        wider = sorted([*kept, (name, *_need(state, snapshot))], key=_by_due)
        found = plan_all(wider, now=now, devices=snapshot.capacity)
        if found is None:
            pass
            text = f"no minimum share beside {len(kept)} promised jobs on {snapshot.capacity} devices"
            verdicts.append(Rejected(job=name, reason=Reason.NO_CAPACITY, detail=text, runs=True))
        else:
            kept, plans = wider, found
            share = max(piece.workers for piece in plans[name].pieces)
            text = f"{share} workers are its minimum satisfactory share"
            verdicts.append(Admitted(job=name, reason=Reason.FITS, share=share, detail=text))
    workers = {name: workers_now(promise, now) for name, promise in plans.items()}
    running = [state for state in snapshot.jobs if state.job.id not in refused]
    _grant(running, workers, snapshot.capacity - sum(workers.values()))
    reasons = {name: (Reason.SURPLUS, f"{count} workers, its share included") for name, count in workers.items()}
    return Decision(workers=workers, verdicts=tuple(verdicts), wake=next_change(plans, now), reasons=reasons)


def _keep(
    needs: Sequence[tuple[str, Need, Need]], now: float, devices: int
) -> tuple[list[tuple[str, Need, Need]], dict[str, Promise]]:
    """As many promises as can still be kept, by deadline; late ones compete for the surplus."""
    plans = plan_all(needs, now=now, devices=devices)
    if plans is not None:
        return list(needs), plans
    kept: list[tuple[str, Need, Need]] = []
    plans = {}
    for need in needs:
        wider = plan_all([*kept, need], now=now, devices=devices)
        if wider is not None:
            kept.append(need)
            plans = wider
    return kept, plans


def _by_due(need: tuple[str, Need, Need]) -> tuple[float, str]:
    return need[2].due, need[0]


def _need(state: JobState, snapshot: Snapshot) -> tuple[Need, Need]:
    job, now = state.job, snapshot.now
    assert job.deadline is not None
    best, floor = _stepped(job.curve)
    change = snapshot.overheads.cost(0, job.ceiling)
    begin = max(now, state.ready) if state.workers else now
    left = state.remaining / state.pace
    bare = Need(best, left, begin, job.deadline, state.workers, change, job.minimum, job.ceiling, floor)
    return bare._replace(due=job.deadline - change), bare


@lru_cache(maxsize=1024)
def _stepped(curve: ScalingCurve) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """(rates by workers, largest measured size by workers), where only measured sizes may be used."""
    floor, size = [], 0
    for workers in range(len(curve.rates)):
        size = workers if workers in curve.sizes else size
        floor.append(size)
    return tuple(curve.best[n] for n in floor), tuple(floor)


def _grant(states: Sequence[JobState], workers: dict[str, int], free: int) -> None:
    """Level by level to the job whose device time grows least by it; jobs without a worker first."""
    by_name = {state.job.id: state for state in states}
    heap = [entry for state in states if (entry := _next(state, workers.get(state.job.id, 0)))]
    heapq.heapify(heap)
    while heap and free > 0:
        _, name, step = heapq.heappop(heap)
        if step > free:
            continue
        workers[name] = workers.get(name, 0) + step
        free -= step
        entry = _next(by_name[name], workers[name])
        if entry:
            heapq.heappush(heap, entry)


def _next(state: JobState, have: int) -> tuple[float, str, int] | None:
    job = state.job
    goal = next((n for n in job.curve.sizes if n > have and n >= job.minimum), have)
    if goal == have or goal > job.ceiling:
        return None
    if have == 0:
        return -1.0, job.id, goal
    rates = job.curve.rates
    cost = state.remaining * (goal / rates[goal] - have / rates[have]) / (goal - have)
    return cost, job.id, goal - have
