"""Gandiva: everyone runs, in turns: gangs of the requested size share the devices by time slicing.

Source: Xiao et al., Gandiva (OSDI 2018), section 3.1. Repaired against ElasticFlow's artifact:
turns are taken whenever somebody waits, not when the clock happens to be a multiple of a minute,
and no node is promised twice.
"""

from __future__ import annotations

from brim.domain.schedule import Decision, JobState, Snapshot
from brim.policies.baselines.gang import pack, size_of

# Seconds of a turn. A suspension costs seconds, so that one-minute turns of the paper would cost a
# tenth.
_TURN = 600.0


def gandiva(snapshot: Snapshot) -> Decision:
    """Keep the jobs whose turn is not over.

    Then run the jobs with the least time on devices so far.
    """

    def key(state: JobState) -> tuple[bool, float, float, str]:
        in_turn = state.workers > 0 and snapshot.now - state.changed < _TURN - 1e-6
        had = state.attained / size_of(state, snapshot.capacity)
        return not in_turn, 0.0 if in_turn else had, state.job.submitted, state.job.id

    decision = pack(snapshot, sorted(snapshot.jobs, key=key))
    if len(decision.workers) == len(snapshot.jobs):
        return decision
    ends = [
        s.changed + _TURN if s.workers else snapshot.now + _TURN
        for s in snapshot.jobs
        if s.job.id in decision.workers
    ]
    wake = min((end for end in ends if end > snapshot.now + 1e-6), default=snapshot.now + _TURN)
    return pack(snapshot, sorted(snapshot.jobs, key=key), wake=wake)
