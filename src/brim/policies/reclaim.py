"""The choice of victims when jobs hold more than they may.

Shrink before suspend, and take from the smallest set of jobs. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class ReclaimCandidate(NamedTuple):
    """The devices that one job would keep if none were taken from it.

    Attributes:
        workers: that many.
        protected: the fewest that it can go on with: its promised share, or its gang. The rest is
            elastic surplus.
        priority: whole jobs of the lowest go first.
        promised: its deadline is; among equals it goes last.
        lost: seconds of work since its last checkpoint, times its workers: what a suspension may
            undo.
    """

    job: str
    workers: int
    protected: int
    priority: int = 0
    promised: bool = False
    lost: float = 0.0

    @property
    def surplus(self) -> int:
        """The devices that can be taken while the job goes on."""
        return self.workers - self.protected


def give_back(holdings: Sequence[ReclaimCandidate], limit: int) -> dict[str, int]:
    """Workers by job so that together they have at most `limit`; every holding is in it.

    Surplus goes first, from as few jobs as can give it. Only where all surplus is not enough whole
    jobs are suspended: the lowest priority first and wholly before the next, in it the fewest jobs,
    and of those the ones that lose least. What a suspended job gives beyond the need spares others'
    surplus.

    >>> a, b = ReclaimCandidate("a", 10, 1, lost=60.0), ReclaimCandidate("b", 2, 1)
    >>> give_back([a, b], 8), give_back([a, b], 1)
    ({'a': 6, 'b': 2}, {'a': 1, 'b': 0})
    """
    workers = {holding.job: holding.workers for holding in holdings}
    excess = sum(workers.values()) - limit
    if excess <= 0:
        return workers
    stopped = _stopped(holdings, excess - sum(holding.surplus for holding in holdings))
    for holding in stopped:
        workers[holding.job] = 0
        excess -= holding.workers
    rest = [holding for holding in holdings if workers[holding.job] and holding.surplus]
    while excess > 0 and rest:
        holding = _last_or_largest(rest, excess)
        rest.remove(holding)
        reduction = min(holding.surplus, excess)
        workers[holding.job] -= reduction
        excess -= reduction
    return workers


def _last_or_largest(rest: Sequence[ReclaimCandidate], excess: int) -> ReclaimCandidate:
    """Choose the lowest priority's smallest surplus that is enough alone, else the largest.

    So the fewest jobs give.
    """
    sufficient = [holding for holding in rest if holding.surplus >= excess]
    if sufficient:
        return min(
            sufficient,
            key=lambda holding: (holding.priority, holding.promised, holding.surplus, holding.job),
        )
    return min(
        rest,
        key=lambda holding: (-holding.surplus, holding.priority, holding.promised, holding.job),
    )


def _stopped(holdings: Iterable[ReclaimCandidate], short: int) -> list[ReclaimCandidate]:
    """The jobs to suspend, whose `kept` makes up for `short` devices."""
    found: list[ReclaimCandidate] = []
    rest = [holding for holding in holdings if holding.protected]
    while short > 0 and rest:
        lowest = min((holding.priority, holding.promised) for holding in rest)
        level = [holding for holding in rest if (holding.priority, holding.promised) == lowest]
        sufficient = [holding for holding in level if holding.protected >= short]
        if sufficient:
            victim = min(
                sufficient, key=lambda holding: (holding.lost, holding.protected, holding.job)
            )
        else:
            victim = min(level, key=lambda holding: (-holding.protected, holding.lost, holding.job))
        rest.remove(victim)
        found.append(victim)
        short -= victim.protected
    # The last one may be large enough to make an earlier one unnecessary: a job that can go on
    # does, the highest first.
    for victim in sorted(
        found,
        key=lambda holding: (-holding.priority, -holding.promised, -holding.lost, holding.job),
    ):
        if short + victim.protected <= 0:
            found.remove(victim)
            short += victim.protected
    return found
