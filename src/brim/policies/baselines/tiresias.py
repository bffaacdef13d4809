"""Tiresias: least attained service in three queues, gangs of the requested size, preemptive.

Source: Gu et al., Tiresias (NSDI 2019), section 3.2, discretised 2D-LAS. Repaired against
ElasticFlow's artifact: a job leaves a queue when its device-time says so, and the time of that is
computed in device-time.
"""

from __future__ import annotations

from brim.domain.schedule import Decision, JobState, Snapshot
from brim.policies.baselines.gang import pack, size_of

_LIMITS = (3250.0, 7200.0)  # device-seconds, as the artifact has them


def _queue(state: JobState) -> int:
    return sum(state.attained >= limit - 1e-6 for limit in _LIMITS)


def tiresias(snapshot: Snapshot) -> Decision:
    """Serve the queue of least attained service first; in a queue running jobs, then first come."""
    order = sorted(
        snapshot.jobs, key=lambda s: (_queue(s), s.workers == 0, s.job.submitted, s.job.id)
    )
    decision = pack(snapshot, order)
    demotions = [
        snapshot.now + (_LIMITS[_queue(state)] - state.attained) / size_of(state, snapshot.capacity)
        for state in snapshot.jobs
        if decision.workers.get(state.job.id) and _queue(state) < len(_LIMITS)
    ]
    # A job that is alone in wanting its devices need not be looked at when it changes queues.
    if len(decision.workers) == len(snapshot.jobs) or not demotions:
        return decision
    return pack(snapshot, order, wake=max(min(demotions), snapshot.now + 1.0))
