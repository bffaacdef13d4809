"""EDF with admission: a newcomer is refused if it, or anyone promised before, would be late.

Pure.
"""

from __future__ import annotations

from dataclasses import replace

from brim.domain.quantities import counted
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
from brim.policies.baselines.edf import edf, largest_size


def edf_admission(snapshot: Snapshot) -> Decision:
    """Judge arrivals one at a time by running EDF ahead.

    Then run EDF, refused jobs after promised ones.
    """
    fresh = frozenset(snapshot.arrived)
    promised = [
        s for s in snapshot.jobs if s.standing is Standing.ADMITTED and s.job.id not in fresh
    ]
    late = _late(promised, snapshot)
    verdicts: list[Verdict] = []
    for state in snapshot.jobs:
        if state.job.id not in fresh:
            continue
        name = state.job.id
        if state.job.deadline is None:
            verdicts.append(Admitted(job=name, reason=Reason.NO_DEADLINE, promises=False))
            continue
        found = _late([*promised, state], snapshot)
        if found <= late:
            promised.append(state)
            verdicts.append(
                Admitted(job=name, reason=Reason.FITS, detail="no job is late under EDF")
            )
        else:
            text = f"{counted(len(found - late), 'job')}, itself perhaps, would be late under EDF"
            verdicts.append(
                Rejected(job=name, reason=Reason.BREAKS_PROMISE, detail=text, runs=True)
            )
    promised_ids = frozenset(state.job.id for state in promised)
    first = edf(replace(snapshot, jobs=tuple(promised), arrived=()))
    free = snapshot.capacity - sum(first.workers.values())
    candidates = tuple(s for s in snapshot.jobs if s.job.id not in promised_ids)
    rest = edf(replace(snapshot, jobs=candidates, arrived=(), capacity=free))
    return Decision(
        workers={**first.workers, **rest.workers},
        verdicts=tuple(verdicts),
        reasons={**first.reasons, **rest.reasons},
    )


def _late(states: list[JobState], snapshot: Snapshot) -> frozenset[str]:
    """Return the jobs that would be late if no other came.

    EDF is run ahead from completion to completion.
    """
    queue = sorted(states, key=lambda s: (s.job.deadline or 0.0, s.job.id))
    times_left = {s.job.id: s.remaining / s.pace for s in queue}
    ready = {s.job.id: s.ready for s in queue}
    workers_of = {s.job.id: s.workers for s in queue}
    now, late = snapshot.now, set()
    while queue:
        free, ends = snapshot.capacity, []
        for state in queue:
            name = state.job.id
            size = largest_size(state.job.curve.sizes, min(free, state.job.ceiling))
            free -= size
            if size != workers_of[name]:
                ready[name] = now + snapshot.overheads.cost(workers_of[name], size)
                workers_of[name] = size
            if size:
                ends.append(
                    (max(now, ready[name]) + times_left[name] / state.job.curve.rates[size], name)
                )
        soonest = min(ends)[0]
        for state in queue:
            name = state.job.id
            if workers_of[name]:
                times_left[name] -= (
                    max(soonest - max(now, ready[name]), 0.0)
                    * state.job.curve.rates[workers_of[name]]
                )
        done = {name for end, name in ends if end <= soonest + 1e-6}
        late |= {s.job.id for s in queue if s.job.id in done and soonest > (s.job.deadline or 0.0)}
        queue = [state for state in queue if state.job.id not in done]
        now = soonest
    return frozenset(late)
