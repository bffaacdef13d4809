"""One plan for the deadlines that are promised and as many of the others as can still be met. Pure.

Source: Moore and Hodgson's rule for the most jobs in time on one machine (Moore, Management Science
1968): take jobs in order of their deadlines, and where one does not fit give up the dearest so far.
Here the machine is a timeline of devices, a job's cost is the device-seconds that it still needs,
and who was promised is never given up.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from brim.policies.promises import Promise, promised, side_by_side
from brim.policies.timeline import Need, Piece, Timeline

_UNKNOWN = -1  # a share before it is worked out
_RETRIES = 8  # of the given up, the cheapest, that are tried once more behind all others


BY_DEADLINE = attrgetter("bare.due", "job")
"""The order in which candidates are planned."""


@dataclass(slots=True, eq=False)
class PlanCandidate:
    """A job that should be in time.

    Args:
        bare: what it needs if nothing disturbs it.
        margin: seconds that its plan should have to spare, if there is time.
        cost: device-seconds that it needs at least; None where it is promised, and so cannot be
            given up.
        slower: how many times as long as by its profile it may take; its plan should last so long,
            if there is room.
    """

    job: str
    bare: Need
    margin: float
    cost: float | None = None
    slower: float = 1.0
    _share: int | None = field(default=_UNKNOWN, init=False, repr=False)

    @property
    def doubtful(self) -> Need:
        """The need if the profile is as wrong as it may be."""
        return self.bare.disturbed(0.0, self.slower)

    @property
    def share(self) -> int | None:
        """The share with margin and doubt, worked out once, and only where new plans are made."""
        if self._share == _UNKNOWN:
            self._share = self.bare.share(self.margin, self.slower)
        return self._share

    @property
    def is_possible(self) -> bool:
        """Return whether it would be in time alone: with margin and doubt it needs no fewer workers."""
        return self.share is not None or self.bare.share() is not None

    @property
    def needs(self) -> tuple[str, Need, Need]:
        """Arguments of `promises`: the id, the need with margin and doubt, and the need without."""
        return self.job, self.bare.disturbed(self.margin, self.slower), self.bare


def plan_jointly(
    candidates: Sequence[PlanCandidate],
    *,
    now: float,
    devices: int,
    last: Mapping[str, Promise],
    fixed_plans: Mapping[str, Promise] | None = None,
    givable: Sequence[PlanCandidate] = (),
) -> dict[str, Promise] | None:
    """Plan every promised job, and as many others as there is room for.

    None where a promised job has no plan.

    Args:
        last: earlier plans: their shares are guessed first.
        fixed_plans: plans that stay as they are, and are in the result.
        givable: those of them that may be given up for a cheaper job.
    """
    if not fixed_plans and _least_devices(candidates) <= devices:
        plans = side_by_side((candidate.needs for candidate in candidates), now, devices)
        if plans is not None:
            return plans
    joint = _Joint(now, devices, last, fixed_plans or {}, givable)
    for candidate in sorted(candidates, key=BY_DEADLINE):
        if not joint.add(candidate) and candidate.cost is None:
            return None
    joint.retry()
    return joint.plans


def _least_devices(candidates: Sequence[PlanCandidate]) -> int:
    """Devices that all jobs' smallest shares with a margin need together."""
    return sum(candidate.share or 0 for candidate in candidates)


class _Joint:
    """A plan as it grows."""

    def __init__(
        self,
        now: float,
        devices: int,
        last: Mapping[str, Promise],
        fixed_plans: Mapping[str, Promise],
        givable: Sequence[PlanCandidate],
    ) -> None:
        pieces = [piece for promise in fixed_plans.values() for piece in promise.pieces]
        self.line = Timeline.without_pieces(pieces, now=now, devices=devices)
        self.plans = dict(fixed_plans)
        self.last = last
        self.given_up: list[PlanCandidate] = []
        self.dearest = [
            (-(candidate.cost or 0.0), candidate.job, candidate) for candidate in givable
        ]
        heapq.heapify(self.dearest)

    def add(self, candidate: PlanCandidate) -> bool:
        """Add a job to the plan if possible; return whether it is in now.

        Others may have been given up for it.
        """
        pieces = self._fit(candidate)
        if pieces is None and candidate.cost is None:
            while pieces is None and self.dearest:
                self._give_up(heapq.heappop(self.dearest)[2])
                pieces = self._fit(candidate)
        elif pieces is None and candidate.cost is not None:
            pieces = self._swapped(candidate, candidate.cost)
        if pieces is None:
            self.given_up.append(candidate)
            return False
        self._keep(candidate, pieces)
        return True

    def _swapped(self, candidate: PlanCandidate, cost: float) -> tuple[Piece, ...] | None:
        """Return the job's pieces in place of the dearest job's.

        None unless that job is dearer and makes enough room.
        """
        if not self.dearest or -self.dearest[0][0] <= cost:
            return None
        dearest = self.dearest[0][2]
        pieces_of_others = self.plans[dearest.job].pieces
        self.line.give_back(pieces_of_others)
        pieces = self._fit(candidate)
        if pieces is None:
            self.line.take(pieces_of_others, exact=True)
            return None
        heapq.heappop(self.dearest)
        del self.plans[dearest.job]
        self.given_up.append(dearest)
        return pieces

    def _give_up(self, candidate: PlanCandidate) -> None:
        self.line.give_back(self.plans.pop(candidate.job).pieces)
        self.given_up.append(candidate)

    def retry(self) -> None:
        """Fill the room left between plans."""
        for candidate in sorted(
            self.given_up, key=lambda candidate: (candidate.cost or 0.0, candidate.job)
        )[:_RETRIES]:
            pieces = self._fit(candidate)
            if pieces is not None:
                self._keep(candidate, pieces)

    def _fit(self, candidate: PlanCandidate) -> tuple[Piece, ...] | None:
        last, share = self.last.get(candidate.job), candidate.share
        last_plan = last.pieces if last else ()
        if share is not None:
            pieces = self.line.fit_from(
                share,
                candidate.bare,
                delay=candidate.margin,
                slower=candidate.slower,
                last_plan=last_plan,
            )
            if pieces is not None:
                return pieces
        return self.line.fit(candidate.bare, last_plan=last_plan)

    def _keep(self, candidate: PlanCandidate, pieces: tuple[Piece, ...]) -> None:
        self.line.take(pieces)
        self.plans[candidate.job] = promised(pieces, candidate.bare, self.line.times[0])
        if candidate.cost is not None:
            heapq.heappush(self.dearest, (-candidate.cost, candidate.job, candidate))
