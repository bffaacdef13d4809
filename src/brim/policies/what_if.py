"""A forecast for a job that is not yet submitted.

It is one cycle on a snapshot that has the job. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from brim.domain.schedule import Admitted, Decision, Policy, Snapshot, Verdict

_MAX_TRIALS = (
    20  # times that the span of deadlines tried is doubled: beyond that a policy promises nothing
)
_PRECISE = 0.01  # of the span: how exactly the earliest deadline is found


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionForecast:
    """The decision that a newcomer would get.

    Args:
        takes: workers that others would have less than now, by job.
        finish: by its plan, else on the workers that it would have now; None without any.
        earliest: the earliest deadline that would be promised, to a hundredth of the time until
            then; None where the policy promises nothing.
    """

    verdict: Verdict | None
    workers: int
    takes: Mapping[str, int]
    finish: float | None
    earliest: float | None


def what_if(snapshot: Snapshot, newcomer: str, decide: Policy) -> AdmissionForecast:
    """Return the decision of `decide` about a job that is in `snapshot` and has arrived.

    Args:
        newcomer: its id.
    """
    decision = decide(snapshot)
    state = next(state for state in snapshot.jobs if state.job.id == newcomer)
    workers = decision.workers.get(newcomer, 0)
    takes = {
        state.job.id: state.workers - decision.workers.get(state.job.id, 0)
        for state in snapshot.jobs
        if state.workers > decision.workers.get(state.job.id, 0)
    }
    verdict = _verdict(decision, newcomer)
    finish = verdict.finish if isinstance(verdict, Admitted) else None
    if finish is None and workers:
        start = snapshot.now + snapshot.overheads.cost(0, workers)
        finish = (
            start
            + state.remaining / state.job.curve.best[min(workers, len(state.job.curve.best) - 1)]
        )
    return AdmissionForecast(
        verdict=verdict,
        workers=workers,
        takes=takes,
        finish=finish,
        earliest=_earliest(snapshot, newcomer, decide),
    )


def _verdict(decision: Decision, job: str) -> Verdict | None:
    return next((verdict for verdict in decision.verdicts if verdict.job == job), None)


def _earliest(snapshot: Snapshot, newcomer: str, decide: Policy) -> float | None:
    def promised(delay: float) -> bool:
        jobs = tuple(
            state._replace(job=replace(state.job, deadline=snapshot.now + delay))
            if state.job.id == newcomer
            else state
            for state in snapshot.jobs
        )
        verdict = _verdict(decide(replace(snapshot, jobs=jobs)), newcomer)
        return isinstance(verdict, Admitted) and verdict.promises

    job = next(state.job for state in snapshot.jobs if state.job.id == newcomer)
    low, high = 0.0, job.shortest
    for _ in range(_MAX_TRIALS):
        if promised(high):
            break
        low, high = high, 2.0 * high
    else:
        return None
    while high - low > _PRECISE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if promised(middle) else (middle, high)
    return snapshot.now + high
