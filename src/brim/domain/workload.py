"""A job as a scheduler sees it: an amount of work, a scaling curve, a deadline, rights.

Pure values.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports numpy, which no client of a scheduler should have to wait for
    from brim.domain.scaling import ScalingCurve


class Priority(enum.IntEnum):
    """Decides which jobs may take workers from others; a higher one comes first.

    `ONLINE` is a service and never a victim; `PRESERVED` may wait, but once it runs only gives back
    what it borrowed; `PREEMPTIBLE` gives way to both.
    """

    PREEMPTIBLE = 0
    PRESERVED = 1
    ONLINE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job to be scheduled.

    Args:
        id: unique; ties break by it.
        submitted: when it was submitted, seconds on the trace's clock.
        work: steps to do in all.
        curve: steps per second by number of workers.
        deadline: on the same clock as `submitted`; None for a best-effort job.
        requested: workers that the user asked for, for policies that cannot change it.
        duration: seconds alone on `requested` workers.
        minimum: fewest workers that it runs with (its gang); it has these or none.
        maximum: most workers that it may have; None leaves that to the curve's peak.
        tenant: who pays, see `brim.domain.tenancy`.
        label: what it is, for people: model and global batch size.
        exact: all its workers have to be on nodes of one kind.
        kinds: those of nodes on which it goes on with the same bits; None: it can begin on any.
        nodes: the ids of those that it can be on, as its owner has chosen; None: all.
    """

    id: str
    submitted: float
    work: float
    curve: ScalingCurve
    deadline: float | None = None
    requested: int = 1
    duration: float = 0.0
    minimum: int = 1
    maximum: int | None = None
    tenant: str = "default"
    priority: Priority = Priority.PREEMPTIBLE
    label: str = ""
    exact: bool = False
    kinds: tuple[str, ...] | None = None
    nodes: tuple[str, ...] | None = None

    @property
    def ceiling(self) -> int:
        """The most workers worth giving.

        The curve's peak, or the user's maximum where that is lower.
        """
        return self.curve.peak if self.maximum is None else min(self.maximum, self.curve.peak)

    @property
    def shortest(self) -> float:
        """Seconds alone on as many workers as help.

        No policy finishes it sooner after its start.
        """
        return self.work / self.curve.best[self.ceiling]
