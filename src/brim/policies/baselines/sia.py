"""Sia with a fixed batch: each minute an integer programme over the sizes that jobs could have.

Source: Jayaram Subramanya et al., Sia (SOSP 2023), its scheduling policy. Where the batch is fixed, goodput
is throughput times a constant that the normalisation removes. With one type of device the
programme is a multiple-choice knapsack. Sizes are powers of two on a node, then whole nodes.

Simplified: a job's speed does not depend on its nodes, and is known for all sizes; a job grows to
at most twice its largest size so far all the same, from its smallest one, as where it has to be
measured first. The artifact rounds values to two places; here they are exact.
"""

from __future__ import annotations

from typing import TypeAlias

from brim.domain.quantities import counted
from brim.domain.schedule import Decision, JobState, Reason, Snapshot
from brim.policies.baselines.edf import admit_all
from brim.policies.baselines.knapsack import Choice, choose

_INTERVAL = 60.0  # seconds
_POWER = -0.5  # p: how much the programme prefers slow jobs
_UNALLOCATED = 1.1  # lambda: the price of a job without a device
_EPSILON = 1e-6

# Size, changes after the first start, and largest size so far, by job.
_Past: TypeAlias = dict[str, tuple[int, int, int]]


def sia(snapshot: Snapshot) -> Decision:
    """Solve the programme each minute, and at once where the devices no longer suffice."""
    now = snapshot.now
    start: tuple[float, _Past] = (now - _INTERVAL, {})
    last, past = snapshot.memory or start
    states = sorted(snapshot.jobs, key=lambda state: state.job.id)
    workers = {s.job.id: past[s.job.id][0] for s in states if s.job.id in past}
    if now - last >= _INTERVAL - _EPSILON or sum(workers.values()) > snapshot.capacity:
        last = now
        past = {state.job.id: _past(state, past) for state in states}
        workers = _allocate(states, past, snapshot)
        past = {name: _next_past(entry, workers.get(name, 0)) for name, entry in past.items()}
    reasons = {
        name: (Reason.ORDER, f"{counted(count, 'worker')} by the programme of this minute")
        for name, count in workers.items()
        if count
    }
    is_settled = all(workers.get(s.job.id, 0) == _sizes(s, snapshot)[-1] for s in states)
    return Decision(
        workers={name: count for name, count in workers.items() if count},
        verdicts=admit_all(snapshot),
        wake=None if is_settled else last + _INTERVAL,
        reasons=reasons,
        memory=(last, past),
    )


def _past(state: JobState, past: _Past) -> tuple[int, int, int]:
    """Return a job's past: without a memory, the workers that it has."""
    return past.get(state.job.id, (state.workers, 0, state.workers))


def _next_past(entry: tuple[int, int, int], size: int) -> tuple[int, int, int]:
    previous, changes, largest = entry
    is_change = largest > 0 and size not in (0, previous)
    return size, changes + is_change, max(largest, size)


def _sizes(state: JobState, snapshot: Snapshot) -> list[int]:
    """Return the sizes that the job could have, ascending; its minimum where no other would do."""
    job, node = state.job, max(snapshot.cluster.node_size, 1)
    limit = min(job.ceiling, snapshot.cluster.devices)
    powers = [1 << k for k in range(node.bit_length()) if 1 << k < node]
    sizes = [
        size
        for size in (*powers, *range(node, limit + 1, node))
        if job.minimum <= size <= limit and job.curve.rate(size) > 0
    ]
    return sizes or [max(job.minimum, job.curve.points[0][0])]


def values(state: JobState, entry: tuple[int, int, int], snapshot: Snapshot) -> dict[int, float]:
    """Return the value of each size that the job may have in this minute.

    A value is what the size saves of the price of a job without a device: lambda less the power of
    the job's normalised speed, which a change of a job that runs lowers by the restart factor.

    Source: the objective of the paper; for p below zero the programme is minimised.
    """
    sizes = _sizes(state, snapshot)
    size_now, changes, largest = entry
    rates = {size: state.job.curve.rate(size) for size in sizes}
    unit = sizes[0] / max(min(rates.values()), 1e-12)
    found = {}
    for size in sizes:
        if size > max(2 * largest, sizes[0]):
            break
        speed = rates[size] * unit
        if size_now not in (0, size):
            speed *= _restart_factor(state, changes, snapshot, size)
        found[size] = _UNALLOCATED - speed**_POWER if speed > 0 else 0.0
    return found


def _restart_factor(state: JobState, changes: int, snapshot: Snapshot, size: int) -> float:
    """Return the part of the job's life that changes leave it, if it changed once more."""
    seconds = _seconds_of_change(state, snapshot, size)
    age = snapshot.now - state.job.submitted
    return 1.0 if age < seconds else max(age - changes * seconds, 0.0) / max(age + seconds, 1e-12)


def _seconds_of_change(state: JobState, snapshot: Snapshot, size: int) -> float:
    return max(snapshot.overheads.cost(state.workers, size), state.restart)


def _allocate(states: list[JobState], past: _Past, snapshot: Snapshot) -> dict[str, int]:
    """Return the workers of each job; one whose last change is not over keeps them."""
    capacity = snapshot.capacity
    changing = {
        state.job.id: past[state.job.id][0]
        for state in states
        if past[state.job.id][0]
        and snapshot.now - state.changed
        < _seconds_of_change(state._replace(workers=0), snapshot, past[state.job.id][0])
    }
    if sum(changing.values()) > capacity:
        changing = {}
    choices = {
        state.job.id: [
            Choice(size, value)
            for size, value in values(state, past[state.job.id], snapshot).items()
        ]
        for state in states
        if state.job.id not in changing
    }
    return changing | choose(choices, capacity=capacity - sum(changing.values()))
