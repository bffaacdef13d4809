"""Promised deadlines: a plan that keeps them all, found afresh each cycle or carried on from the last one.

Pure. The proof that no promise is broken while profiles are right and nothing fails:

1. A promise is made only together with a plan for every promised job, within capacity, in which each is
   done by its deadline and every change of workers costs what it costs (`change`, an upper bound).
2. A later cycle either finds another such plan from the jobs' actual state, or goes on with the last one.
3. Going on is always possible: a job that ran as planned is where the plan has it. A job that was given more
   workers than planned pays for at most two changes that the plan does not know, the one to the surplus
   and the one back; it is given a surplus only if its plan is done `2 change` seconds early (`spare`), and a
   plan that is carried on has those seconds taken off. More workers never make a job slower.

So by induction each promised job always has a plan that is done in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brim.domain.resizing import Overheads
from brim.domain.schedule import JobState
from brim.policies.timeline import Need, Piece, Timeline

__all__ = ["Promise", "carry_on", "need_of", "next_change", "plan_all", "workers_now"]

# Seconds by which floating-point sums over a plan may differ from one cycle to the next.
_ROUNDING = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The plan of one promised job.

    Args:
        pieces: workers by time, from now until done.
        spare: seconds by which it could be delayed; below `2 change` it gets no surplus.
    """

    pieces: tuple[Piece, ...]
    spare: float


def need_of(state: JobState, *, now: float, overheads: Overheads, margin: float) -> Need:
    """What `state` needs to be done `margin` changes before its deadline."""
    job = state.job
    assert job.deadline is not None
    ceiling = job.ceiling
    change = overheads.cost(0, ceiling)
    return Need(
        best=job.curve.best,
        left=state.remaining / state.pace,
        begin=max(now, state.ready) if state.workers else now,
        due=job.deadline - margin * change,
        holds=state.workers,
        change=change,
        minimum=job.minimum,
        ceiling=ceiling,
    )


def plan_all(
    needs: Sequence[tuple[str, Need, Need]], *, now: float, devices: int
) -> dict[str, Promise] | None:
    """A plan for every job, or None where this finds none.

    Args:
        needs: (id, need with its margin, need without), by deadline then id.
    """
    found = _side_by_side(needs, now, devices)
    if found is not None:
        return found
    plans: dict[str, Promise] = {}
    timeline = Timeline(now=now, devices=devices)
    for name, careful, bare in needs:
        pieces = timeline.fit(careful) or timeline.fit(bare)
        if pieces is None:
            return None
        timeline.take(pieces)
        plans[name] = Promise(pieces=tuple(pieces), spare=bare.due - pieces[-1].stop)
    return plans


def _side_by_side(
    needs: Sequence[tuple[str, Need, Need]], now: float, devices: int
) -> dict[str, Promise] | None:
    """The usual case: every job can have its smallest share at once, and no timeline is needed."""
    plans: dict[str, Promise] = {}
    now_free = devices
    for name, careful, bare in needs:
        need = careful
        share = careful.share()
        if share is None:
            need, share = bare, bare.share()
        if share is None or share > now_free:
            return None
        now_free -= share
        stop = need.finish(share)
        plans[name] = Promise(pieces=(Piece(now, stop, share),), spare=bare.due - stop)
    return plans


def carry_on(
    last: Mapping[str, Promise], needs: Sequence[tuple[str, Need, Need]], *, now: float, devices: int
) -> dict[str, Promise] | None:
    """The plans of the last cycle from now on, or None where one of them is late or they need too much."""
    plans: dict[str, Promise] = {}
    timeline = Timeline(now=now, devices=devices)
    for name, _, bare in needs:
        promise = last.get(name)
        if promise is None:
            return None
        pieces = tuple(
            Piece(max(piece.start, now), piece.stop, piece.workers)
            for piece in promise.pieces
            if piece.stop > now
        )
        pieces = _replayed(pieces, bare)
        if not pieces or pieces[-1].stop > bare.due + _ROUNDING:
            return None
        timeline.take(list(pieces))
        plans[name] = Promise(pieces=pieces, spare=bare.due - pieces[-1].stop)
    return None if min(timeline.free) < 0 else plans


def _replayed(pieces: tuple[Piece, ...], need: Need) -> tuple[Piece, ...]:
    """`pieces` as the job will live them from its actual state: cut where it is done; () if it never is.

    The last piece may be lived a little longer than it was planned: it was rounded.
    """
    held, busy, left = need.holds, need.begin, need.left
    lived: list[Piece] = []
    for k, piece in enumerate(pieces):
        start = piece.start
        if lived and lived[-1].stop < start:
            held = 0
        if piece.workers != held:
            busy = max(busy, start) + need.change
            held = piece.workers
        rate = need.best[piece.workers]
        begin = max(start, busy)
        done = begin + left / rate
        if done <= piece.stop or k == len(pieces) - 1:
            if done > piece.stop + _ROUNDING:
                return ()
            lived.append(Piece(start, done, piece.workers))
            return tuple(lived)
        left -= rate * max(piece.stop - begin, 0.0)
        lived.append(piece)
    return ()


def workers_now(promise: Promise, now: float) -> int:
    """Workers that the plan has at `now`."""
    for piece in promise.pieces:
        if now < piece.stop:
            return piece.workers if piece.start <= now else 0
    return 0


def next_change(plans: Mapping[str, Promise], now: float) -> float | None:
    """When a plan next changes a job's workers, its end excepted; None if none does."""
    times = [promise.pieces[0].stop for promise in plans.values() if len(promise.pieces) > 1]
    times += [promise.pieces[0].start for promise in plans.values() if promise.pieces[0].start > now]
    return min(times, default=None)
