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
        kept: the fewest that it can go on with: its promised share, or its gang. The rest is
            elastic surplus.
        priority: whole jobs of the lowest go first.
        promised: its deadline is; among equals it goes last.
        lost: seconds of work since its last checkpoint, times its workers: what a suspension may
            undo.
    """

    job: str
    workers: int
    kept: int
    priority: int = 0
    promised: bool = False
    lost: float = 0.0

    @property
    def surplus(self) -> int:
        """The devices that can be taken while the job goes on."""
        return self.workers - self.kept


def give_back(holdings: Sequence[ReclaimCandidate], most: int) -> dict[str, int]:
    """Workers by job so that together they have at most `most`; every holding is in it.

    Surplus goes first, from as few jobs as can give it. Only where all surplus is not enough whole
    jobs are suspended: the lowest priority first and wholly before the next, in it the fewest jobs,
    and of those the ones that lose least. What a suspended job gives beyond the need spares others'
    surplus.

    >>> a, b = ReclaimCandidate("a", 10, 1, lost=60.0), ReclaimCandidate("b", 2, 1)
    >>> give_back([a, b], 8), give_back([a, b], 1)
    ({'a': 6, 'b': 2}, {'a': 1, 'b': 0})
    """
    workers = {one.job: one.workers for one in holdings}
    over = sum(workers.values()) - most
    if over <= 0:
        return workers
    stopped = _stopped(holdings, over - sum(one.surplus for one in holdings))
    for one in stopped:
        workers[one.job] = 0
        over -= one.workers
    rest = [one for one in holdings if workers[one.job] and one.surplus]
    while over > 0 and rest:
        one = _last_or_largest(rest, over)
        rest.remove(one)
        taken = min(one.surplus, over)
        workers[one.job] -= taken
        over -= taken
    return workers


def _last_or_largest(rest: Sequence[ReclaimCandidate], over: int) -> ReclaimCandidate:
    """Choose the lowest priority's smallest surplus that is enough alone, else the largest.

    So the fewest jobs give.
    """
    enough = [one for one in rest if one.surplus >= over]
    if enough:
        return min(enough, key=lambda one: (one.priority, one.promised, one.surplus, one.job))
    return min(rest, key=lambda one: (-one.surplus, one.priority, one.promised, one.job))


def _stopped(holdings: Iterable[ReclaimCandidate], short: int) -> list[ReclaimCandidate]:
    """The jobs to suspend, whose `kept` makes up for `short` devices."""
    found: list[ReclaimCandidate] = []
    rest = [one for one in holdings if one.kept]
    while short > 0 and rest:
        lowest = min((one.priority, one.promised) for one in rest)
        level = [one for one in rest if (one.priority, one.promised) == lowest]
        enough = [one for one in level if one.kept >= short]
        if enough:
            one = min(enough, key=lambda one: (one.lost, one.kept, one.job))
        else:
            one = min(level, key=lambda one: (-one.kept, one.lost, one.job))
        rest.remove(one)
        found.append(one)
        short -= one.kept
    # The last one may be large enough to make an earlier one unnecessary: a job that can go on
    # does, the highest first.
    for one in sorted(found, key=lambda one: (-one.priority, -one.promised, -one.lost, one.job)):
        if short + one.kept <= 0:
            found.remove(one)
            short += one.kept
    return found
