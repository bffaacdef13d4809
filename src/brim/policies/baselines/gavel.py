"""Gavel: each job is due a share of the time, and rounds of six minutes give it, gang by gang.

Source: Narayanan et al., Gavel (OSDI 2020), section 4 for the policies and section 5 for the
rounds. With one type of device the allocation matrix has one column, and the programmes of the
three policies need no solver: the share of each job falls as one common level rises, and the level
is the lowest at which the devices suffice. The artifact's programmes leave it to their solver who
gets what is left beyond the worst share; here the level goes on falling for those whom it helps.

Simplified: jobs neither share a device nor differ in weight. Repaired against the artifact: a
newcomer competes from the next round on, not from the next reset, and waits for no round where all
gangs fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from brim.domain.schedule import Decision, JobState, Snapshot
from brim.policies.baselines.gang import pack, size_of

_ROUND = 360.0  # seconds
_RESET = 1920.0  # seconds after which the time that jobs have received may be reset
_EPSILON = 1e-6
_HALVINGS = 60  # of the interval in which the level is

_Array: TypeAlias = NDArray[np.float64]


class Gangs(NamedTuple):
    """The jobs as the programmes see them: arrays with an entry for each.

    Attributes:
        sizes: workers of the gang.
        runtime: seconds that the rest of the job takes, if it runs all the time.
        ages: seconds since its submission.
        isolated: seconds that its steps so far would have taken it on 1/n of the devices.
    """

    sizes: _Array
    runtime: _Array
    ages: _Array
    isolated: _Array


class _Account(NamedTuple):
    """A job at the beginning of a round.

    Attributes:
        share: of the time, that it is due.
        due: seconds that it was due so far.
        attained: worker-seconds that it had at the last reset.
        runtime, isolated: see `Gangs`.
        runs: whether it is in the round.
    """

    share: float = 0.0
    due: float = 0.0
    attained: float = 0.0
    runtime: float = 0.0
    isolated: float = 0.0
    runs: bool = False


_Target: TypeAlias = Callable[[Gangs, int], _Array]


def gavel(snapshot: Snapshot) -> Decision:
    """Least attained service: the smallest part of the devices that a job gets is the largest."""
    return _in_rounds(snapshot, equal_parts)


def gavel_finish_time(snapshot: Snapshot) -> Decision:
    """Finish-time fairness: the job that sharing delays most is delayed least."""
    return _in_rounds(snapshot, fair_finish_times)


def gavel_makespan(snapshot: Snapshot) -> Decision:
    """Let the last of the jobs end as early as possible."""
    return _in_rounds(snapshot, one_finish_time)


def equal_parts(gangs: Gangs, capacity: int) -> _Array:
    """Return the share of the time of each gang, so that all have as many devices on average.

    A gang that is smaller than its part runs all the time.

    Source: section 4.1, as for LAS: throughputs and weights are one.
    """
    return _shares(gangs.sizes, capacity, lambda level: 1.0 / (level * gangs.sizes))


def one_finish_time(gangs: Gangs, capacity: int) -> _Array:
    """Return the shares with which all jobs have ended as early as that can be.

    What is left where one job by itself takes that long is given in equal parts.

    Source: section 4.2, minimise makespan.
    """
    sizes, runtime = gangs.sizes, gangs.runtime
    needed = runtime / max(float(sizes @ runtime) / capacity, float(runtime.max()))
    return _shares(sizes, capacity, lambda level: np.maximum(needed, 1.0 / (level * sizes)))


def fair_finish_times(gangs: Gangs, capacity: int) -> _Array:
    """Return the shares with which all jobs end late by the same factor.

    The factor compares a job's end with that on 1/n of the devices, where n is the number of jobs
    at each time.

    Source: section 4.2, finish-time fairness.
    """
    expected = gangs.isolated + gangs.runtime / _part(gangs.sizes, capacity, len(gangs.sizes))

    def due(level: float) -> _Array:
        return gangs.runtime / np.maximum(level * expected - gangs.ages, _EPSILON)

    return _shares(gangs.sizes, capacity, due)


def _part(sizes: _Array, capacity: int, jobs: int) -> _Array:
    """Share of the time for which each gang can run on 1/`jobs` of the devices."""
    return np.minimum(1.0, capacity / max(jobs, 1) / sizes)


def _shares(sizes: _Array, capacity: int, due: Callable[[float], _Array]) -> _Array:
    """Return the shares at the lowest level at which the gangs fit on average.

    Args:
        due: the shares at a level above zero, which fall as it rises; those above one count as one.
    """
    if sizes.sum() <= capacity:
        return np.ones(len(sizes))

    def fits(level: float) -> bool:
        used = float(sizes @ np.minimum(1.0, due(level)))
        return used <= capacity * (1.0 + 1e-12)

    lower, upper = 0.0, 1.0
    while not fits(upper):
        lower, upper = upper, 2.0 * upper
    for _ in range(_HALVINGS):
        middle = (lower + upper) / 2.0
        lower, upper = (lower, middle) if fits(middle) else (middle, upper)
    return np.minimum(1.0, due(upper))


def _in_rounds(snapshot: Snapshot, target: _Target) -> Decision:
    """Keep the gangs of a round that is not over; then run those that are furthest behind.

    The priority of a job is its share over the time that it has received since the last reset,
    half a round at first.
    """
    now, capacity = snapshot.now, snapshot.capacity
    start, end, reset, is_stale, rows = snapshot.memory or (now, now, now - _RESET, True, {})
    accounts = {name: _Account(*row) for name, row in rows.items()}
    states = sorted(snapshot.jobs, key=lambda s: (s.job.submitted, s.job.id))
    is_stale = is_stale or accounts.keys() != {s.job.id for s in states}
    members = [s for s in states if s.job.id in accounts and accounts[s.job.id].runs]
    if now < end - _EPSILON and members:
        memory = (start, end, reset, is_stale, accounts)
        decision = pack(snapshot, members, wake=end, memory=memory)
        if len(decision.workers) == len(members):
            return decision
    if capacity <= 0:
        return pack(snapshot, states, memory=snapshot.memory)
    is_reset = is_stale and now - reset >= _RESET - _EPSILON
    if is_reset:
        reset, is_stale = now, False
    gangs = _gangs(states, accounts, now, capacity)
    shares = target(gangs, capacity) if states else gangs.sizes
    books: dict[str, _Account] = {}
    for k, state in enumerate(states):
        last = accounts.get(state.job.id, _Account(attained=state.attained))
        books[state.job.id] = _Account(
            share=float(shares[k]),
            due=last.due + last.share * (now - start),
            attained=state.attained if is_reset else last.attained,
            runtime=float(gangs.runtime[k]),
            isolated=float(gangs.isolated[k]),
        )
    order = sorted(states, key=lambda state: _turn(state, books[state.job.id], capacity))
    workers = pack(snapshot, order).workers
    books = {name: entry._replace(runs=name in workers) for name, entry in books.items()}
    wake = None if len(workers) == len(states) else now + _ROUND
    memory = (now, wake or now, reset, is_stale, books)
    return pack(snapshot, order, wake=wake, memory=memory)


def _turn(state: JobState, account: _Account, capacity: int) -> tuple[float, float, float, str]:
    """Return the sort key of a job's turn: by priority, then by the seconds that it is behind."""
    size = size_of(state, capacity)
    received = (state.attained - account.attained) / size
    deficit = account.due - state.attained / size
    priority = account.share / (_ROUND / 2.0 + received)
    return -priority, -deficit, state.job.submitted, state.job.id


def _gangs(
    states: Sequence[JobState], accounts: Mapping[str, _Account], now: float, capacity: int
) -> Gangs:
    """Return the jobs as arrays; a gang that is too small to run has next to nothing to do."""
    sizes = np.array([float(size_of(state, capacity)) for state in states])
    rates = np.array([state.job.curve.rate(size_of(state, capacity)) for state in states])
    remaining = np.array([state.remaining for state in states])
    runtime = np.maximum(remaining / np.where(rates > 0, rates, np.inf), _EPSILON)
    last = [accounts.get(state.job.id) for state in states]
    done = np.array([0.0 if a is None else a.runtime for a in last])
    done = np.maximum(np.where(done > 0, done - runtime, 0.0), 0.0)
    isolated = np.array([0.0 if a is None else a.isolated for a in last])
    return Gangs(
        sizes=sizes,
        runtime=runtime,
        ages=np.array([now - state.job.submitted for state in states]),
        isolated=isolated + done / _part(sizes, capacity, len(accounts)),
    )
