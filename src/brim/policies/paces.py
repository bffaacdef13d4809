"""Trust in profiles.

A job may be as slow, against its own profile, as the slowest job was lately. Pure.
"""

from __future__ import annotations

from brim.domain.schedule import JobState, Snapshot

_HISTORY = 30 * 86400.0  # seconds that a measurement counts

Paces = tuple[tuple[float, float], ...]
"""(when, measured speed over that of the profile):
the slowest, the slowest since then, and so on; times ascend.
"""


def is_measured(state: JobState) -> bool:
    """Return whether the job's pace was seen."""
    return state.remaining < state.job.work


def joined_by(seen: Paces, snapshot: Snapshot) -> Paces:
    """Add the paces that are measured now, and drop those that are too old.

    Nothing is remembered of a measurement behind which there is a slower one, so that these are
    few.
    """
    now = snapshot.now
    slowest = min([state.pace for state in snapshot.jobs if is_measured(state)], default=None)
    recent = tuple(measurement for measurement in seen if measurement[0] > now - _HISTORY)
    if slowest is None:
        return recent
    return (*(measurement for measurement in recent if measurement[1] < slowest), (now, slowest))


def slower(state: JobState, seen: Paces) -> float:
    """Return how many times as long as by its profile a job may take.

    1 once it was measured, and where profiles are right.
    """
    if not seen or is_measured(state):
        return 1.0
    return max(state.pace / seen[0][1], 1.0)
