"""When every job would end if nothing new happened: the cycle, run ahead on what it decides itself.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from brim.domain.resizing import Overheads
from brim.domain.schedule import Admitted, Decision, JobState, Policy, Snapshot, Standing

_FAR = 60  # cycles that are run ahead; who runs then is believed to go on as it is


def foresee(snapshot: Snapshot, decision: Decision, decide: Policy) -> dict[str, float]:
    """The ends of jobs, on the snapshot's clock, by id.

    Args:
        decision: what was decided on `snapshot`.
        decide: decides from then on, each time that a job ends or a decision is due again.

    Returns:
        Jobs that would not run within the cycles that are looked ahead are not in it.
    """
    now, ends, overheads = snapshot.now, dict[str, float](), snapshot.overheads
    states = [_judged(state, decision) for state in snapshot.jobs]
    for _ in range(_FAR):
        states = [_given(s, decision.workers.get(s.job.id, 0), now, overheads) for s in states]
        finish = {state.job.id: _finish(state, now) for state in states}
        wake = decision.wake if decision.wake is not None and decision.wake > now else math.inf
        until = min([wake, *finish.values()])
        if until == math.inf:
            return ends
        ends |= {job: end for job, end in finish.items() if end <= until}
        states = [
            _gone_on(state, now, until, overheads.end)
            for state in states
            if state.job.id not in ends
        ]
        now = until
        ahead = replace(snapshot, now=now, jobs=tuple(states), arrived=(), memory=decision.memory)
        decision = decide(ahead)
    return ends | {s.job.id: end for s in states if (end := _finish(s, now)) < math.inf}


def _judged(state: JobState, decision: Decision) -> JobState:
    verdicts: Mapping[str, object] = {verdict.job: verdict for verdict in decision.verdicts}
    verdict = verdicts.get(state.job.id)
    if verdict is None:
        return state
    promised = isinstance(verdict, Admitted) and state.job.deadline is not None
    return state._replace(standing=Standing.ADMITTED if promised else Standing.BEST_EFFORT)


def _given(state: JobState, workers: int, now: float, overheads: Overheads) -> JobState:
    if workers == state.workers:
        return state
    ready = now + overheads.cost(state.workers, workers)
    return state._replace(workers=workers, ready=ready, changed=now)


def _finish(state: JobState, now: float) -> float:
    """When it would end on the workers that it has."""
    rate = state.job.curve.rate(state.workers) if state.workers else 0.0
    return max(now, state.ready) + state.remaining / rate if rate else math.inf


def _gone_on(state: JobState, now: float, until: float, end: float) -> JobState:
    """Its end stays put before what it still has to do."""
    rate = state.job.curve.rate(state.workers) if state.workers else 0.0
    done = rate * max(0.0, until - max(now, state.ready - end))
    attained = state.attained + state.workers * (until - now)
    ready = max(state.ready, until + end)
    return state._replace(
        remaining=max(state.remaining - done, 1e-9), attained=attained, ready=ready
    )
