"""Finds workers that are consistently slower than their peers, and shares that make up for it.

Pure.

Reports of ranks on each committed step go in; advice comes out, rarely. Shares that look better
are put on trial first: on the steps that follow, which they were not made from, they must save a
tenth of the time, and many times what a new round costs. Noise looks like a straggler now and then,
but does not keep it up. Each piece of advice doubles the price of the next, so shares cannot swing
to and fro.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from brim.coordination.job.reduction import even_shares

_SETTLE = (
    3  # steps at the start of a round that are not typical: memory is touched for the first time
)
_WINDOW = 15  # steps that a pace is the median of
_TRIAL_STEPS = 30  # steps of a trial, at least
_GAIN = 0.1  # of the step time: less is not worth a round
_PRICE = 0.5  # seconds that a trial must have saved: about 25 times what a round costs
_MOST_DOUBLINGS = 6
_FAR_TOO_SLOW = 1.5  # times the step that the others would make by themselves


class Load(NamedTuple):
    """One member's part of a step: a number of micro-batches, and the seconds of its own work."""

    worker: str
    share: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """Other shares would pay; `paces` are seconds per micro-batch, in rank order."""

    paces: tuple[tuple[str, float], ...]
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The worker that all others wait for, however little it is given.

    Args:
        worker: which.
        times: as slow as its peers, for a micro-batch.
        speedup: of the job, if it were not there.
    """

    worker: str
    times: float
    speedup: float


Advice = Uneven | Bottleneck


def best_shares(parts: int, paces: Sequence[float]) -> tuple[int, ...]:
    """Shares of at least 1 with which the last rank is done soonest.

    Each part goes to the rank that would be done with it first, which is optimal for parts of equal
    size.

    Args:
        parts: micro-batches of a step, at least one per rank.
        paces: seconds that each rank needs for one.

    >>> best_shares(8, [1.0, 1.0, 1.0, 3.0]), best_shares(8, [1.0, 20.0])
    ((3, 2, 2, 1), (7, 1))
    """
    shares = [1] * len(paces)
    for _ in range(parts - len(paces)):
        soonest = min(range(len(paces)), key=lambda rank: (paces[rank] * (shares[rank] + 1), rank))
        shares[soonest] += 1
    return tuple(shares)


def shares_for(parts: int, paces: Sequence[float | None]) -> tuple[int, ...]:
    """Return the shares of ranks of which some are known to be slow or fast.

    The others count as average.

    Where there are more ranks than parts, the last have none.

    >>> shares_for(8, [None, None, None]), shares_for(8, [3.0, 1.0, None, 1.0]), shares_for(2, [None, 1.0, 1.0])
    ((2, 3, 3), (1, 3, 2, 2), (1, 1, 0))
    """
    known_paces = [pace for pace in paces if pace is not None]
    if len(paces) > parts:
        return (1,) * parts + (0,) * (len(paces) - parts)
    if not known_paces:
        return even_shares(parts, len(paces))
    usual = median(known_paces)
    return best_shares(parts, [usual if pace is None else pace for pace in paces])


def _time(paces: Sequence[float], shares: Sequence[int]) -> float:
    """Seconds until the last rank is done."""
    return max([pace * share for pace, share in zip(paces, shares, strict=True)])


def least_time(paces: Sequence[float], parts: int) -> float:
    """Seconds that no shares of so many parts can beat: those of parts cut as finely as one likes.

    >>> least_time([1.0, 1.0, 2.0], 10)
    4.0
    """
    return parts / sum(1 / pace for pace in paces) if all(paces) else 0.0


@dataclass(slots=True)
class _Trial:
    """Shares that looked better, and how the steps since then would have gone with them."""

    paces: list[float]
    shares: tuple[int, ...]
    steps: int = 0
    seconds: float = 0.0
    saved: float = 0.0

    @property
    def pays(self) -> bool:
        return self.saved >= _GAIN * self.seconds


@dataclass(slots=True, kw_only=True)
class Stragglers:
    """Watches the members of one job over all its rounds.

    >>> stragglers = Stragglers()
    >>> loads = [Load("w1", 4, 0.4), Load("w2", 4, 1.6)]
    >>> advice = [each for _ in range(60) for each in stragglers.committed(1, loads, other_seconds=0.0)]
    >>> advice[0].cause
    'w2 is 4.0 times slower'
    """

    _paces: dict[str, list[float]] = field(default_factory=dict)  # the newest of each worker
    _round: int = 0
    _steps: int = 0
    _advised: int = 0
    _advised_in: int = 0  # the round that ends with the advice given
    _trial: _Trial | None = None
    _held_up: dict[str, int] = field(
        default_factory=dict
    )  # worker -> steps in a row that it held everyone up
    _reported: set[str] = field(default_factory=set)

    def committed(self, round: int, loads: Sequence[Load], *, other_seconds: float) -> list[Advice]:
        """Take the reports of a round's members on a step.

        Args:
            round: its number.
            loads: of all members, in rank order.
            other_seconds: seconds of the step that do not depend on shares.
        """
        if round != self._round:
            self._begin(round, [load.worker for load in loads])
        self._steps += 1
        if len(loads) < 2 or self._steps <= _SETTLE or any(load.share < 1 for load in loads):
            return []
        for load in loads:
            paces = self._paces.setdefault(load.worker, [])
            paces.append(load.seconds / load.share)
            del paces[:-_WINDOW]
        if any(len(self._paces[load.worker]) < _WINDOW for load in loads):
            return []
        paces = [median(self._paces[load.worker]) for load in loads]
        return [
            *self._uneven(loads, paces, other_seconds),
            *self._bottleneck(loads, paces, other_seconds),
        ]

    def _begin(self, round: int, members: Sequence[str]) -> None:
        self._round, self._steps, self._trial = round, 0, None
        self._paces = {worker: paces for worker, paces in self._paces.items() if worker in members}
        self._held_up.clear()

    def _uneven(
        self, loads: Sequence[Load], paces: list[float], other_seconds: float
    ) -> list[Advice]:
        shares = [load.share for load in loads]
        trial = self._trial
        if self._advised_in == self._round:
            return []
        looked_best = trial.shares if trial else shares
        better = _try(looked_best, paces, other_seconds)
        if (
            better or trial is None
        ):  # a trial of shares that were made while paces changed proves little
            self._trial = better
            return []
        now = max(load.seconds for load in loads)
        trial.steps += 1
        trial.seconds += now + other_seconds
        trial.saved += now - _time([load.seconds / load.share for load in loads], trial.shares)
        if trial.steps < _TRIAL_STEPS:
            return []
        if not trial.pays:
            self._trial = None
            return []
        if trial.saved < _PRICE * 2 ** min(self._advised, _MOST_DOUBLINGS):
            return []
        self._advised += 1
        self._advised_in, self._trial = self._round, None
        named = tuple((load.worker, pace) for load, pace in zip(loads, trial.paces, strict=True))
        return [Uneven(paces=named, cause=_cause(named))]

    def _bottleneck(
        self, loads: Sequence[Load], paces: list[float], other_seconds: float
    ) -> list[Advice]:
        shares = [load.share for load in loads]
        parts, slowest = sum(shares), max(range(len(paces)), key=paces.__getitem__)
        worker = loads[slowest].worker
        peers = [pace for rank, pace in enumerate(paces) if rank != slowest]
        now, least = _time(paces, shares), least_time(peers, parts)
        if now + other_seconds < _FAR_TOO_SLOW * (least + other_seconds):
            self._held_up.clear()  # so it is with the best shares: mostly nobody is slow
            return []
        at_best = _time(paces, best_shares(parts, paces)) + other_seconds
        time_without = _time(peers, best_shares(parts, peers)) + other_seconds
        if at_best < _FAR_TOO_SLOW * time_without:
            self._held_up.clear()
            return []
        self._held_up = {worker: self._held_up.get(worker, 0) + 1}
        if self._held_up[worker] < _TRIAL_STEPS or worker in self._reported:
            return []
        self._reported.add(worker)
        return [
            Bottleneck(
                worker=worker, times=paces[slowest] / median(peers), speedup=at_best / time_without
            )
        ]


def _try(shares: Sequence[int], paces: list[float], other_seconds: float) -> _Trial | None:
    """A trial of the shares that these paces call for, where they promise enough."""
    parts, now = sum(shares), _time(paces, shares)
    worth_it = _GAIN * (now + other_seconds)
    if now - least_time(paces, parts) < worth_it:
        return None
    best = best_shares(parts, paces)
    return _Trial(paces, best) if now - _time(paces, best) >= worth_it else None


def _cause(paces: Sequence[tuple[str, float]]) -> str:
    """Say in words why the shares change."""
    worker, slowest = max(paces, key=lambda entry: entry[1])
    times = slowest / median(pace for name, pace in paces if name != worker)
    return (
        f"{worker} is {times:.1f} times slower"
        if times >= 1 + _GAIN
        else "all are equally fast again"
    )
