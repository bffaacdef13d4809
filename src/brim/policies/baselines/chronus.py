"""Chronus: leases for gangs with deadlines, chosen by a small mixed-integer programme.

The rest is best effort.

Source: Gao et al., Chronus (SoCC 2021), section 4: deadline jobs are packed backwards from their
deadlines; one that does not fit is degraded to best effort, never refused; each lease a MILP picks
who runs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

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
from brim.policies.baselines.gang import pack, size_of

_LEASE = 240.0  # seconds
_PADDING = 1.1  # of the estimated duration


class _Lease(NamedTuple):
    """A job that competes for the current lease: workers, urgency and whether it was promised."""

    state: JobState
    size: int
    value: float
    is_forced: bool


def chronus(snapshot: Snapshot) -> Decision:
    """Judge arrivals by the latest leases that would do.

    Then a knapsack picks the jobs that run in this lease.
    """
    fresh = frozenset(snapshot.arrived)
    promised = [
        s for s in snapshot.jobs if s.standing is Standing.ADMITTED and s.job.id not in fresh
    ]
    verdicts: list[Verdict] = []
    for state in snapshot.jobs:
        if state.job.id not in fresh:
            continue
        if state.job.deadline is not None and _packs([*promised, state], snapshot):
            promised.append(state)
            verdicts.append(
                Admitted(job=state.job.id, reason=Reason.FITS, detail="whole leases fit backwards")
            )
        else:
            text = "no whole leases of its gang are left before the deadline"
            verdicts.append(
                Rejected(job=state.job.id, reason=Reason.NO_CAPACITY, detail=text, runs=True)
            )
    promised_ids = frozenset(state.job.id for state in promised)
    leases = [_lease(state, snapshot, state.job.id in promised_ids) for state in snapshot.jobs]
    chosen = _knapsack(leases, snapshot.capacity)
    order = sorted(snapshot.jobs, key=lambda s: (s.job.id not in chosen, s.job.submitted, s.job.id))
    full = pack(snapshot, order)
    wake = None if len(full.workers) == len(snapshot.jobs) else snapshot.now + _LEASE
    return Decision(workers=full.workers, verdicts=tuple(verdicts), wake=wake, reasons=full.reasons)


def _leases_needed(state: JobState, capacity: int) -> int:
    seconds = state.remaining / state.job.curve.rate(size_of(state, capacity)) * _PADDING
    return max(math.ceil(seconds / _LEASE), 1)


def _packs(states: list[JobState], snapshot: Snapshot) -> bool:
    """Return whether whole leases for all jobs fit, by deadline.

    Each job's leases are as late as its deadline allows.
    """
    deadlines = {s.job.id: int(((s.job.deadline or 0.0) - snapshot.now) // _LEASE) for s in states}
    horizon = max(deadlines.values())
    if horizon <= 0:
        return False
    free = np.full(horizon, snapshot.capacity)
    for state in sorted(states, key=lambda s: (-deadlines[s.job.id], s.job.id)):
        size, need = size_of(state, snapshot.capacity), _leases_needed(state, snapshot.capacity)
        open_ = np.flatnonzero(free[: max(deadlines[state.job.id], 0)] >= size)
        if len(open_) < need:
            return False
        free[open_[-need:]] -= size
    return True


def _lease(state: JobState, snapshot: Snapshot, promised: bool) -> _Lease:
    size = size_of(state, snapshot.capacity)
    if not promised or state.job.deadline is None:
        waited = snapshot.now - state.job.submitted
        return _Lease(state, size, size * (0.1 + 0.05 * (state.workers > 0) + 1e-7 * waited), False)
    spare = (state.job.deadline - snapshot.now) // _LEASE - _leases_needed(state, snapshot.capacity)
    return _Lease(
        state,
        size,
        size * (1.0 + 1.0 / (1.0 + max(spare, 0.0)) + 0.1 * (state.workers > 0)),
        spare <= 0,
    )


def _knapsack(leases: list[_Lease], capacity: int) -> frozenset[str]:
    """Choose the jobs to run: the most value within capacity, jobs without slack first."""
    if sum(lease.size for lease in leases) <= capacity:
        return frozenset(lease.state.job.id for lease in leases)
    import highspy  # here, since only this policy and the ceiling need a solver

    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_max_nodes", 200)
    solver.setOptionValue("threads", 1)
    runs = [
        solver.addBinary(obj=-(lease.value + 1e3 * lease.size * lease.is_forced))
        for lease in leases
    ]
    solver.addConstr(
        sum(lease.size * run for lease, run in zip(leases, runs, strict=True)) <= capacity
    )
    solver.minimize()
    values = solver.getSolution().col_value
    return frozenset(
        lease.state.job.id for lease, value in zip(leases, values, strict=True) if value > 0.5
    )
