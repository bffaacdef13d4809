"""Earliest deadline first, elastic: each job in turn takes as many workers as help it."""

from __future__ import annotations

from brim.domain.quantities import counted
from brim.domain.schedule import Admitted, Decision, JobState, Reason, Snapshot, Verdict


def largest_size(sizes: tuple[int, ...], limit: int) -> int:
    """The largest of the ascending `sizes` that is at most `limit`; 0 where none is.

    >>> largest_size((1, 2, 4, 8), 7)
    4
    """
    best = 0
    for size in sizes:
        if size > limit:
            break
        best = size
    return best


def admit_all(snapshot: Snapshot) -> tuple[Verdict, ...]:
    """Let every arrival in without promising anything."""
    return tuple(
        Admitted(job=job, reason=Reason.NO_ADMISSION, promises=False) for job in snapshot.arrived
    )


def _urgency(state: JobState) -> tuple[bool, bool, float, str]:
    """Return the sort key of a job's urgency.

    Jobs that must be measured before their deadline is known come first: that takes seconds.
    """
    deadline = state.job.deadline
    return (not state.unmeasured, deadline is None, deadline or state.job.submitted, state.job.id)


def edf(snapshot: Snapshot) -> Decision:
    """Give each job, by deadline, its peak or the largest measured size that is still free.

    The published code gives up to 64 workers even where the curve falls before that (section 3.12
    of the reference); here the peak is the most.
    """
    free = snapshot.capacity
    workers: dict[str, int] = {}
    for state in sorted(snapshot.jobs, key=_urgency):
        if free == 0:
            break
        size = largest_size(state.job.curve.sizes, min(free, state.job.ceiling))
        if size >= state.job.minimum:
            workers[state.job.id] = size
            free -= size
    reasons = {
        name: (Reason.ORDER, f"{counted(size, 'worker')} in deadline order")
        for name, size in workers.items()
    }
    return Decision(workers=workers, verdicts=admit_all(snapshot), reasons=reasons)
