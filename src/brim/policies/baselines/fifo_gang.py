"""First come, first served, in gangs of the requested size.

No job is preempted, and none overtakes.
"""

from __future__ import annotations

from brim.domain.schedule import Decision, Snapshot
from brim.policies.baselines.gang import pack


def fifo_gang(snapshot: Snapshot) -> Decision:
    """Run gangs in order of submission; the first that does not fit blocks those behind it."""
    order = sorted(snapshot.jobs, key=lambda s: (s.workers == 0, s.job.submitted, s.job.id))
    return pack(snapshot, order, strict=True)
