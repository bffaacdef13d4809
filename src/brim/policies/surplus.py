"""Surplus devices, which no promise needs.

Step by step, the next goes to the job with the largest marginal return.

Pure.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from brim.domain.scaling import ScalingCurve

_POWER = 4.0  # how much more an efficient worker counts than an inefficient one


class SurplusClaim(NamedTuple):
    """One job that could use more.

    Attributes:
        base: what it has for certain; grants come on top.
        holds: workers that it has now: units up to there are worth `stay` times as much, so that
            two jobs of nearly equal return do not pass devices back and forth.
        remaining: seconds that it still needs on one worker's speed, or any measure of what is left.
    """

    job: str
    curve: ScalingCurve
    base: int
    holds: int
    minimum: int
    ceiling: int
    remaining: float


def share_out(claims: Sequence[SurplusClaim], free: int, *, stay: float = 1.0) -> dict[str, int]:
    """Give out `free` devices along the corners of each job's concave envelope.

    A worker's return is its efficiency, to the fourth power, over the time that the job would still
    take on its smallest size. Efficiency is the speed that the worker adds over what each of the
    first ones adds: on a cluster that is too small an inefficient worker takes from others what
    they would have made more of. Dividing by what is left finishes short jobs first, which lowers
    the mean completion time most (Source: Berg et al., heSRPT, SIGMETRICS 2020). A job never gets a
    worker that does not speed it up. Powers from 2 to 8 met the same deadlines.

    Args:
        stay: how many times a worker that a job already holds counts.

    Returns:
        Workers by job, `base` included; every claim is in it.
    """
    grants = {claim.job: claim.base for claim in claims}
    heap = [entry for k, claim in enumerate(claims) if (entry := _next(claim, claim.base, stay, k))]
    heapq.heapify(heap)
    while heap and free > 0:
        _, name, k, step = heapq.heappop(heap)
        claim = claims[k]
        count = grants[name]
        if step > free:
            step = free if count + free >= claim.minimum else 0
        if step <= 0 or claim.curve.best[count + step] <= claim.curve.best[count]:
            continue  # no whole gang, or the part of a step that is left speeds nothing up
        grants[name] = count + step
        free -= step
        entry = _next(claim, count + step, stay, k)
        if entry:
            heapq.heappush(heap, entry)
    return grants


def _next(
    claim: SurplusClaim, count: int, stay: float, k: int
) -> tuple[float, str, int, int] | None:
    """The heap's entry for the next step of `claim`: (minus return, id, index, workers)."""
    curve, envelope = claim.curve, claim.curve.envelope
    if count >= claim.ceiling:
        return None
    place = bisect_right(curve.sizes, count)
    corner = curve.sizes[place] if place < len(curve.sizes) else count
    goal = claim.minimum if count < claim.minimum else corner
    goal = min(max(goal, count + 1), claim.ceiling)
    if (
        max(count, claim.minimum - 1) < claim.holds < goal
        and curve.best[claim.holds] > curve.best[count]
    ):
        goal = claim.holds  # a part of a step may be worth keeping
    first = envelope[curve.sizes[0]] / curve.sizes[0]
    efficiency = (envelope[goal] - envelope[count]) / (goal - count) / first
    if efficiency <= 0:
        return None
    gain = efficiency**_POWER * first / claim.remaining
    if goal <= claim.holds:
        gain *= stay
    return -gain, claim.job, k, goal - count
