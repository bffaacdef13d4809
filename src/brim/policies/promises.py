"""Promised deadlines.

A plan keeps them all; it is found afresh each cycle, or carried on from the last one.

Pure. The proof that no promise is broken while profiles are right and nothing fails:

1. A promise is made only together with a plan for every promised job, within capacity, in which
   each is done by its deadline and every change of workers costs what it costs (`change`, an upper
   bound).
2. A later cycle either finds another such plan from the jobs' actual state, or goes on with the
   last one.
3. Going on is always possible. A job that ran as planned is where the plan has it. What the plan
   does not know is the change to a surplus, the change back, and a migration; each costs at most
   `change` seconds of the plan's progress, and more workers never make a job slower. A plan
   therefore reserves devices for longer than the job needs them, `spare` says how much longer, and
   a job is given a surplus only while `spare` is two changes, and is moved only while it is three.

So by induction each promised job always has devices reserved with which it is done in time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from brim.domain.resizing import Overheads
from brim.domain.schedule import JobState
from brim.policies.timeline import Need, Piece, Timeline

# Seconds by which floating-point sums over a plan may differ from one cycle to the next.
_ROUNDING = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The plan of one promised job.

    Args:
        pieces: workers by time, from now until it is done or, if it has to spare, a little longer.
        spare: seconds of its fastest piece that it could lose and still be done within its pieces.
    """

    pieces: tuple[Piece, ...]
    spare: float


def need_of(state: JobState, *, now: float, overheads: Overheads, doubt: float = 0.0) -> Need:
    """Return the needs of `state` to be done by its deadline.

    Args:
        doubt: seconds that it may lose first.
    """
    job, workers = state.job, state.workers
    assert job.deadline is not None
    curve, ceiling = job.curve, job.ceiling
    return Need(
        curve.best,
        state.remaining / state.pace,
        (max(now, state.ready) if workers else now) + doubt,
        job.deadline,
        workers,
        max(overheads.cost(0, ceiling), state.restart),
        job.minimum,
        ceiling,
        curve.floor if curve.stepped else None,  # in between devices are held for nothing
    )


def plan_all(
    needs: Sequence[tuple[str, Need, Need]], *, now: float, devices: int
) -> dict[str, Promise] | None:
    """A plan for every job, or None where this finds none.

    Args:
        needs: (id, need with its margin, need without), by deadline then id.
    """
    plans = side_by_side(needs, now, devices)
    return _one_by_one(needs, now, devices, drop=False) if plans is None else plans


def plan_most(
    needs: Sequence[tuple[str, Need, Need]], *, now: float, devices: int
) -> dict[str, Promise]:
    """A plan for as many jobs as this finds one for, by deadline; the others are not in it."""
    plans = _one_by_one(needs, now, devices, drop=True)
    assert plans is not None
    return plans


def _one_by_one(
    needs: Sequence[tuple[str, Need, Need]], now: float, devices: int, *, drop: bool
) -> dict[str, Promise] | None:
    plans: dict[str, Promise] = {}
    timeline = Timeline(now=now, devices=devices)
    for name, careful, bare in needs:
        pieces = timeline.fit(careful) or timeline.fit(bare)
        if pieces is None:
            if drop:
                continue
            return None
        timeline.take(pieces)
        plans[name] = promised(pieces, bare, now)
    return plans


def side_by_side(
    needs: Iterable[tuple[str, Need, Need]], now: float, devices: int
) -> dict[str, Promise] | None:
    """The usual case: every job can have its smallest share at once, and no timeline is needed."""
    plans: dict[str, Promise] = {}
    free = devices
    for name, careful, bare in needs:
        need = careful
        share = careful.share()
        if share is None:
            need, share = bare, bare.share()
        if share is None or share > free:
            return None
        free -= share
        stop = need.finish(share)
        plans[name] = Promise(pieces=(Piece(now, stop, share),), spare=need.begin - bare.begin)
    return plans


def carry_on(
    last: Mapping[str, Promise],
    needs: Sequence[tuple[str, Need, Need]],
    *,
    now: float,
    devices: int,
) -> dict[str, Promise] | None:
    """Return the plans of the last cycle from now on.

    None where one of them is late or they need too much.

    Jobs without a plan there (their promise is broken already) are not in it.
    """
    plans: dict[str, Promise] = {}
    timeline = Timeline(now=now, devices=devices)
    for name, _, bare in needs:
        promise = last.get(name)
        if promise is None:
            continue
        going_on = as_planned(promise, bare, now)
        if going_on is None:
            return None
        timeline.take(list(going_on.pieces), exact=True)
        plans[name] = going_on
    return None if timeline.overdrawn(_ROUNDING) else plans


def mend(
    last: Mapping[str, Promise],
    needs: Sequence[tuple[str, Need, Need]],
    *,
    now: float,
    devices: int,
) -> dict[str, Promise]:
    """Keep as many promises as possible where not all can be kept.

    Jobs that are in time by the last plan go on with it; the others fit in or are left out.

    So a job's loss is not made good at the cost of another.
    """
    plans: dict[str, Promise] = {}
    timeline = Timeline(now=now, devices=devices)
    for name, _, bare in needs:
        going_on = as_planned(last[name], bare, now) if name in last else None
        if going_on is not None and all(
            timeline.fewest_free(piece.start, piece.stop) >= piece.workers
            for piece in going_on.pieces
        ):
            timeline.take(list(going_on.pieces), exact=True)
            plans[name] = going_on
    for name, _, bare in needs:
        pieces = None if name in plans else timeline.fit(bare)
        if pieces is not None:
            timeline.take(pieces)
            plans[name] = promised(pieces, bare, now)
    return plans


def promised(pieces: tuple[Piece, ...], bare: Need, now: float) -> Promise:
    """`pieces` as a job's plan."""
    return Promise(pieces=pieces, spare=_spare(pieces, bare, now))


def as_planned(promise: Promise, bare: Need, now: float) -> Promise | None:
    """Return the rest of a plan.

    None where the job would be late by it.
    """
    pieces = promise.pieces
    if pieces[0].start < now:
        pieces = tuple(
            Piece(max(piece.start, now), piece.stop, piece.workers)
            for piece in pieces
            if piece.stop > now
        )
    spare = _spare(pieces, bare, now)
    if spare < -_ROUNDING or pieces[-1].stop > bare.due + _ROUNDING:
        return None
    return Promise(pieces=pieces, spare=spare)


def _spare(pieces: Sequence[Piece], need: Need, now: float) -> float:
    """Return the capacity of `pieces` beyond the need, in seconds of the fastest one.

    Negative where it is too little.

    The last piece may be a rounding longer than it was planned.
    """
    best, remaining, busy, _, busy_workers, change, _, _, _ = need
    fastest, last, most = 0.0, now, len(best) - 1
    for start, stop, workers in pieces:  # every job's, each cycle: without calls
        if workers > most:  # its owner allows fewer by now
            return -math.inf
        if last < start:  # it was suspended in between
            busy_workers = 0
        last = stop
        if workers != busy_workers:
            busy = (start if start > busy else busy) + change
            busy_workers = workers
        rate = best[workers]
        if rate > fastest:
            fastest = rate
        begin = start if start > busy else busy
        if stop > begin:
            remaining -= rate * (stop - begin)
    return -remaining / fastest if fastest else -math.inf


def workers_now(promise: Promise, now: float) -> int:
    """Workers that the plan has at `now`."""
    for piece in promise.pieces:
        if now < piece.stop:
            return piece.workers if piece.start <= now else 0
    return 0


def next_change(plans: Mapping[str, Promise], now: float) -> float | None:
    """Return the next time at which a plan changes a job's workers, its end excepted.

    None if none does.
    """
    times = [promise.pieces[0].stop for promise in plans.values() if len(promise.pieces) > 1]
    times += [
        promise.pieces[0].start for promise in plans.values() if promise.pieces[0].start > now
    ]
    return min(times, default=None)
