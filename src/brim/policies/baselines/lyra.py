"""Lyra: fewest workers for the shortest jobs first, then more where that saves the most time.

Source: Li et al., Lyra (EuroSys 2023), its two phases: an inelastic job, and the fewest workers of an
elastic one, wait for their turn by the seconds that they need; what is left goes to elastic jobs
by a multiple-choice knapsack over the seconds that more workers save. A job that runs is stopped
only where devices that were on loan are taken back.

Simplified: devices are lent and taken back by number. Which servers go, and which jobs are on
them, is for the cycle's placement, so that the cost of a server here is the jobs that stop: those
with many workers stop first, which makes them few.
"""

from __future__ import annotations

from brim.domain.quantities import counted
from brim.domain.schedule import Decision, JobState, Reason, Snapshot
from brim.policies.baselines.edf import admit_all
from brim.policies.baselines.knapsack import Choice, choose


def lyra(snapshot: Snapshot) -> Decision:
    """Hand out the fewest workers of each job by its turn, then the rest by seconds saved."""
    free = snapshot.capacity
    started: list[JobState] = []
    for state in sorted(snapshot.jobs, key=_turn):
        if _fewest(state) <= free:
            started.append(state)
            free -= _fewest(state)
    choices = {state.job.id: savings(state) for state in started}
    extra = choose(choices, capacity=free)
    workers = {s.job.id: _fewest(s) + extra.get(s.job.id, 0) for s in started}
    reasons = {
        s.job.id: (
            (
                Reason.SURPLUS,
                f"{extra[s.job.id]} beyond {counted(_fewest(s), 'worker')} save the most time",
            )
            if s.job.id in extra
            else (Reason.ORDER, f"{counted(_fewest(s), 'worker')}, its fewest, in its turn")
        )
        for s in started
    }
    return Decision(workers=workers, verdicts=admit_all(snapshot), reasons=reasons)


def savings(state: JobState) -> list[Choice]:
    """Return the workers that a job could have beyond its fewest, and the seconds they save.

    Source: the paper, reduction of the completion time.
    """
    fewest = _fewest(state)
    return [
        Choice(size - fewest, _seconds(state, fewest) - _seconds(state, size))
        for size in state.job.curve.sizes
        if fewest < size <= state.job.ceiling
    ]


def _turn(state: JobState) -> tuple[bool, float, str]:
    """Return the sort key of a job's turn: those that run, then the shortest."""
    is_waiting = state.workers == 0
    return (
        is_waiting,
        _seconds(state, _fewest(state)) if is_waiting else float(_fewest(state)),
        state.job.id,
    )


def _fewest(state: JobState) -> int:
    return max(state.job.minimum, state.job.curve.points[0][0])


def _seconds(state: JobState, workers: int) -> float:
    return state.remaining / state.job.curve.rate(workers)
