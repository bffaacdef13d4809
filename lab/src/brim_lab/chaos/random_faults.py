"""Schedules of faults drawn by chance.

Pure: the same seed and kinds of faults give the same schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from brim.domain.faults import FROM_OUTSIDE, ON_HOSTS, ON_NETWORK, Fault, FaultKind
from brim.domain.job import WorkerRange
from brim.domain.seeds import mix

T = TypeVar("T")
LEAST_TO_MOVE = 3  # hosts of a run that goes on where that of its master is killed
MOST_WORKERS = 8  # as many as a step has micro-batches, where nobody says
_MOST_FAULTS = 4
# These take seconds or a new life of the job each: one of a kind is enough for a short run.
_ONCE = ON_HOSTS | {
    FaultKind.KILL_AGENT,
    FaultKind.STOP_AGENT,
    FaultKind.KILL_COMMAND,
    FaultKind.KILL_EVERYTHING,
    FaultKind.INTERRUPT,
    FaultKind.FILL_DISK,
    FaultKind.SLOW,
}
_SECONDS = {
    FaultKind.STOP: (0.2, 0.5, 2.0, 0.0),
    FaultKind.STOP_MASTER: (0.2, 0.5, 1.0, 2.0),
    # Where it is the only one it is waited for, however long it is silent.
    FaultKind.STOP_AGENT: (0.5, 2.0, 20.0),
    FaultKind.DELAY: (0.5, 1.0, 2.0),
    FaultKind.SLOW: (1.0, 2.0, 5.0),
    FaultKind.FILL_DISK: (0.3, 1.0, 2.0),
    # A silent host is waited for for 3 s where others go on, else for 15.
    **dict.fromkeys(
        (FaultKind.CUT, FaultKind.CUT_FROM, FaultKind.CUT_TO), (0.2, 0.5, 1.0, 6.0, 20.0)
    ),
}
_FAULT_DURATIONS = {
    FaultKind.DELAY: (0.005, 0.02, 0.05),
    FaultKind.SLOW: (0.02, 0.05, 0.1),
    FaultKind.JUMP_CLOCK: (1.0, -1.0, 60.0, -60.0, 3600.0, -3600.0, 86400.0, -86400.0),
}


class Draws:
    """A stream of choices that follows from a seed."""

    def __init__(self, *seed: int) -> None:
        self._seed, self._drawn = seed, 0

    def below(self, bound: int) -> int:
        self._drawn += 1
        return mix(*self._seed, self._drawn) % bound

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]


def random_workers(seed: int, limits: WorkerRange) -> WorkerRange:
    """Return how many workers the run of this seed has: a range within the given one.

    >>> str(random_workers(3, WorkerRange.parse("2:4")))
    '2'
    """
    draws = Draws(seed, 0)
    low, high = sorted(
        limits.minimum + draws.below(limits.maximum - limits.minimum + 1) for _ in range(2)
    )
    return WorkerRange(minimum=low, maximum=high)


def random_faults(
    seed: int,
    *,
    kinds: Sequence[FaultKind],
    steps: int,
    workers: int,
    servers: int = 0,
    hosts: int = 1,
) -> tuple[Fault, ...]:
    """One to four faults, in the order in which they strike.

    A third of them strike at the step of the one before or at the next, while the job still
    recovers. There is always a worker left that nobody told to go, and never more than there are
    micro-batches.

    Args:
        kinds: to draw from; what cannot be (a cut with one host) is left out.
        steps: how many the whole run has.
        workers: how many the job wants at its start.
        servers: how many it has beside them, to be struck as they are.
        hosts: how many it has.

    >>> from brim.domain.faults import describe
    >>> [describe(f) for f in random_faults(4, kinds=[FaultKind.KILL, FaultKind.ADD], steps=90, workers=3)]
    ['kill rank 0 at step 4', 'kill rank 0 at step 4', 'kill rank 1 at step 58', 'add 1 at step 59']
    """
    draws = Draws(seed, 1)
    room, current, used, faults = MOST_WORKERS - workers, workers, set[FaultKind](), []
    steps_struck = _fault_steps(draws, steps)
    for index, step in enumerate(steps_struck):
        possible = [
            kind for kind in kinds if _possible(kind, used, hosts=hosts, current=current, room=room)
        ]
        if not possible:
            break
        kind = draws.one_of(possible)
        fault = _fault(kind, step, draws, hosts=hosts, current=current, room=room, servers=servers)
        # The host of the master is the last to be struck: others have no command behind it.
        if (
            kind is FaultKind.KILL_HOST
            and hosts >= LEAST_TO_MOVE
            and index == len(steps_struck) - 1
        ):
            fault = replace(fault, host=1 + draws.below(hosts))
        faults.append(fault)
        used |= ON_NETWORK if fault.kind in ON_NETWORK else {fault.kind}
        match fault.kind:
            case FaultKind.ADD:
                room, current = room - fault.count, current + fault.count
            case FaultKind.REMOVE:
                current -= fault.count
            case FaultKind.TERM:
                current -= 1  # where it strikes a server there is one worker more than that
    return tuple(faults)


def _fault_steps(draws: Draws, steps: int) -> list[int]:
    count, last = 1 + draws.below(_MOST_FAULTS), max(1, steps * 9 // 10)
    fault_steps = sorted(1 + draws.below(last) for _ in range(count))
    for index in range(1, count):
        if not draws.below(3):
            fault_steps[index] = min(fault_steps[index], fault_steps[index - 1] + draws.below(2))
    return fault_steps


def _possible(
    kind: FaultKind, used: set[FaultKind], *, hosts: int, current: int, room: int
) -> bool:
    if kind in _ONCE and kind in used:
        return False
    match kind:
        case FaultKind.ADD:
            return room > 0
        case FaultKind.REMOVE | FaultKind.TERM:
            return current > 1
        case FaultKind.STOP_AGENT:
            return hosts == 1
        case _:
            return kind not in ON_HOSTS or hosts > 1


def _fault(
    kind: FaultKind, step: int, draws: Draws, *, hosts: int, current: int, room: int, servers: int
) -> Fault:
    counts = {FaultKind.ADD: min(room, 2), FaultKind.REMOVE: min(current - 1, 2)}
    has_rank = kind is FaultKind.SLOW or kind not in (*FROM_OUTSIDE, *counts)
    return Fault(
        kind=kind,
        step=step,
        rank=draws.below(current + servers) if has_rank else 0,
        count=1 + draws.below(counts[kind]) if kind in counts else 0,
        host=_host(kind, draws, hosts),
        seconds=draws.one_of(_SECONDS[kind]) if kind in _SECONDS else 0.0,
        by=draws.one_of(_FAULT_DURATIONS[kind]) if kind in _FAULT_DURATIONS else 0.0,
    )


def _host(kind: FaultKind, draws: Draws, hosts: int) -> int:
    if kind is FaultKind.KILL_AGENT:
        return 1 + draws.below(hosts)
    return 2 + draws.below(hosts - 1) if kind in ON_HOSTS else 0
