"""Gangs: the shared part of the policies of fixed size.

A job has the workers that its user asked for, or none.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from brim.domain.quantities import counted
from brim.domain.schedule import Decision, JobState, Reason, Snapshot
from brim.policies.baselines.edf import admit_all


def size_of(state: JobState, capacity: int) -> int:
    """Workers of the job's gang; a request beyond the cluster is cut to the cluster."""
    return min(state.job.requested, capacity)


def pack(
    snapshot: Snapshot,
    order: Iterable[JobState],
    *,
    strict: bool = False,
    wake: float | None = None,
    memory: object = None,
) -> Decision:
    """Give gangs out in `order` while they fit; `strict` stops at the first that does not."""
    free = snapshot.capacity
    workers: dict[str, int] = {}
    reasons: dict[str, tuple[Reason, str]] = {}
    for state in order:
        size = size_of(state, snapshot.capacity)
        if size <= free:
            workers[state.job.id] = size
            free -= size
            reasons[state.job.id] = (Reason.ORDER, f"a gang of {size}, in its turn")
            continue
        reasons[state.job.id] = (
            Reason.GANG_INCOMPLETE,
            f"a gang of {size} does not fit into {counted(free, 'free device')}",
        )
        if strict:
            break
    return Decision(
        workers=workers, verdicts=admit_all(snapshot), reasons=reasons, wake=wake, memory=memory
    )
