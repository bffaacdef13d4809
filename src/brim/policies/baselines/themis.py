"""Themis: finish-time fairness.

Jobs that sharing delays most, against a cluster of their own share, come first.

Source: Mahajan et al., Themis (NSDI 2020), section 3. Repaired against ElasticFlow's artifact: the
isolated time is that on a fair share of the devices, and past holdings lower a job's priority
(leases rotate).
"""

from __future__ import annotations

from brim.domain.schedule import Decision, JobState, Snapshot
from brim.policies.baselines.gang import pack, size_of

_LEASE = 600.0  # seconds that a grant lasts at least


def unfairness(state: JobState, *, now: float, jobs: int, capacity: int) -> float:
    """rho: time to finish in the shared cluster, run from now on, over that on 1/`jobs` of it."""
    size = size_of(state, capacity)
    rate = state.job.curve.rate(size)
    if not rate:
        return 0.0  # it needs more than there is: sharing does not delay it
    share = min(1.0, capacity / jobs / size)
    shared = now - state.job.submitted + state.remaining / rate
    return shared / (state.job.work / rate / share)


def themis(snapshot: Snapshot) -> Decision:
    """Leases run out; then the gangs with the largest rho that fit.

    For a given bound on rho the least shares are known in closed form and add up to one number, so
    that the min-max itself needs no solver (the `:as-coded` variant computes it); with whole gangs
    only the order remains of it.
    """
    now, count = snapshot.now, len(snapshot.jobs)

    def key(state: JobState) -> tuple[bool, float, str]:
        leased = state.workers > 0 and now - state.changed < _LEASE - 1e-6
        rho = unfairness(state, now=now, jobs=count, capacity=snapshot.capacity)
        return not leased, -rho, state.job.id

    order = sorted(snapshot.jobs, key=key)
    decision = pack(snapshot, order)
    if len(decision.workers) == count:
        return decision
    return pack(snapshot, order, wake=now + _LEASE)
