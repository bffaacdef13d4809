"""Pollux: workers that maximise the fair mean of speedups.

It decides again each minute, without deadlines.

Source: Qiao et al., Pollux (OSDI 2021), section 4.2. The traces fix the batch size, so that
statistical efficiency is one and goodput is throughput; in place of the genetic search a greedy
one, which on concave speedups finds the optimum of the same objective (the power mean with p = -1).
"""

from __future__ import annotations

import heapq

from brim.domain.quantities import counted
from brim.domain.schedule import Decision, JobState, Reason, Snapshot
from brim.policies.baselines.edf import admit_all

_INTERVAL = 60.0
_RESTART = 30.0


def pollux(snapshot: Snapshot) -> Decision:
    """Reallocate all workers a minute after the last time, or when devices are free."""
    last, last_workers = snapshot.memory or (-_INTERVAL, {})
    states = {state.job.id: state for state in snapshot.jobs}
    continuing = {name: count for name, count in last_workers.items() if name in states}
    due = snapshot.now - last >= _INTERVAL - 1e-6
    if (
        not due
        and not snapshot.arrived
        and sum(continuing.values()) <= snapshot.capacity
        and len(continuing) == len(last_workers)
    ):
        workers = continuing
    else:
        workers, last = _allocate(list(states.values()), snapshot.capacity), snapshot.now
    reasons = {
        name: (Reason.ORDER, f"{counted(count, 'worker')} by fair speedup")
        for name, count in workers.items()
    }
    waiting = len([name for name, count in workers.items() if count]) < len(states)
    return Decision(
        workers=workers,
        verdicts=admit_all(snapshot),
        wake=snapshot.now + _INTERVAL if waiting else None,
        reasons=reasons,
        memory=(last, workers),
    )


def _allocate(states: list[JobState], capacity: int) -> dict[str, int]:
    """Steps along each envelope by the fall of 1/speedup.

    Jobs without a worker first, oldest first.
    """
    workers = {state.job.id: 0 for state in states}
    heap = [((-1.0, state.job.submitted), state.job.id, k, 1) for k, state in enumerate(states)]
    heapq.heapify(heap)
    free = capacity
    while heap and free:
        _, name, k, step = heapq.heappop(heap)
        if step > free:
            continue
        workers[name] += step
        free -= step
        entry = _next(states[k], workers[name], k)
        if entry is not None:
            heapq.heappush(heap, entry)
    return workers


def _next(state: JobState, count: int, k: int) -> tuple[tuple[float, float], str, int, int] | None:
    job = state.job
    goal = next((n for n in job.curve.sizes if n > count), count)
    if goal == count or goal > job.ceiling:
        return None
    base_rate = job.curve.envelope[1] or job.curve.envelope[goal]
    fall = base_rate / max(job.curve.envelope[count], 1e-12) - base_rate / job.curve.envelope[goal]
    # A change pauses the job: discounted by the part of its life so far that pauses would be.
    age = max(_INTERVAL, state.attained / max(state.workers, 1))
    if state.workers and goal > state.workers:
        fall *= max(0.0, age - _RESTART) / (age + _RESTART)
    if fall <= 0:
        return None
    return (-min(fall / (goal - count), 0.999), 0.0), job.id, k, goal - count
