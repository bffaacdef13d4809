"""What to do about the difference between the workers that jobs hold and those they should have. Pure.

Shrinking comes first and needs nothing; growing and starting wait until the devices are really free: a device is
another's only once the worker that had it is gone, or the process that kept it. So what was observed wins over what
was planned, and repeating it on the same observations gives the same actions, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Action", "Force", "Holding", "Resize", "Start", "Suspend", "reconcile"]


class Holding(NamedTuple):
    """One job as it is observed.

    Attributes:
        alive: it has processes.
        workers: worker processes that are there, leaving ones included, or that may be about to start.
        target: workers that it was last asked to have; 0 where it was asked to suspend itself.
        since: when it was last asked for fewer than it had; None where it has given what was asked.
    """

    job: str
    alive: bool
    workers: int
    target: int
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Start the processes of a job, with so many workers."""

    job: str
    workers: int


@dataclass(frozen=True, slots=True)
class Resize:
    """Ask a running job to go to so many workers."""

    job: str
    workers: int


@dataclass(frozen=True, slots=True)
class Suspend:
    """Ask a running job to end at its next step boundary, with a checkpoint."""

    job: str


@dataclass(frozen=True, slots=True)
class Force:
    """The grace period is over: end workers until so many are left, or all processes where none is to be.

    Where that does not show within another grace period, nobody is there to see to it, and all processes end.
    """

    job: str
    workers: int


Action = Start | Resize | Suspend | Force


def reconcile(
    holdings: Sequence[Holding], desired: Mapping[str, int], *, capacity: int, now: float, grace: float
) -> list[Action]:
    """The next actions towards `desired`, in the order in which they are to be performed.

    Args:
        holdings: every job that has processes, or should have; the order of starts and growths.
        desired: workers by job; a job that is not named gets none.
        capacity: devices in all, for training.
        grace: seconds that a job has to give what it was asked for.

    >>> rows = [Holding("a", True, 4, 4), Holding("b", False, 0, 0)]
    >>> reconcile(rows, {"a": 2, "b": 2}, capacity=4, now=0.0, grace=30.0)
    [Resize(job='a', workers=2)]
    >>> reconcile([rows[0]._replace(workers=2, target=2), rows[1]], {"a": 2, "b": 2}, capacity=4, now=1.0, grace=30.0)
    [Start(job='b', workers=2)]
    """
    shrink: list[Action] = []
    grow: list[Action] = []
    free = capacity - sum(max(one.workers, one.target) for one in holdings if one.alive)
    for one in holdings:
        wanted = desired.get(one.job, 0)
        if not one.alive:
            if 0 < wanted <= free:
                free -= wanted
                grow.append(Start(one.job, wanted))
        elif one.target == 0:  # on its way to its end; it starts again from there
            if one.since is not None and now - one.since > grace:
                shrink.append(Force(one.job, 0))
        elif wanted == 0:
            shrink.append(Suspend(one.job))
        elif wanted < one.target:
            shrink.append(Resize(one.job, wanted))
        else:
            if one.since is not None and now - one.since > grace:
                shrink.append(Force(one.job, one.target if now - one.since <= 2.0 * grace else 0))
            more = wanted - max(one.workers, one.target)
            if wanted > one.target and more <= free:
                free -= max(more, 0)
                grow.append(Resize(one.job, wanted))
    return shrink + grow
