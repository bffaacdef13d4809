"""Shares and rounds of Gavel, worked out by hand from sections 4 and 5 of its paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Decision, JobState, Snapshot
from brim.domain.workload import Job
from brim.policies.baselines.gavel import (
    Gangs,
    equal_parts,
    fair_finish_times,
    gavel,
    gavel_finish_time,
    gavel_makespan,
    one_finish_time,
)
from brim.simulator.engine import Settings, simulate

ROUND = 360.0


def _state(name: str, size: int, seconds: float) -> JobState:
    """A gang that takes `seconds` alone."""
    curve = ScalingCurve.linear(rate=1.0, maximum=size)
    job = Job(id=name, submitted=0.0, work=seconds * size, curve=curve, requested=size)
    return JobState(job, job.work)


def _snapshot(*states: JobState, now: float, memory: object = None, capacity: int = 2) -> Snapshot:
    return Snapshot(
        now=now,
        cluster=Cluster.parse("1x2"),
        capacity=capacity,
        jobs=states,
        overheads=OVERHEADS["none"],
        memory=memory,
    )


@pytest.mark.parametrize(
    ("shares", "gangs", "capacity", "expected"),
    [
        pytest.param(
            # d devices each: min(1, d) + min(1, d) + min(4, d) = 4, so d = 2
            equal_parts, [(1, 900.0), (1, 900.0), (4, 900.0)], 4, [1.0, 1.0, 0.5],
            id="a part of 2 devices is more than a gang of one can use",
        ),
        pytest.param(
            # 2 min(1, d) + min(2, d) = 2, so d = 2 / 3
            equal_parts, [(1, 900.0), (1, 900.0), (2, 900.0)], 2, [2 / 3, 2 / 3, 1 / 3],
            id="parts of two thirds",
        ),
        pytest.param(
            equal_parts, [(1, 900.0), (2, 900.0)], 4, [1.0, 1.0], id="room for all"
        ),
        pytest.param(
            # (2 * 300 + 1 * 200) / T = 2, so T = 400
            one_finish_time, [(2, 300.0), (1, 200.0)], 2, [0.75, 0.5],
            id="all end after 400 s",
        ),
        pytest.param(
            # the first takes 1,000 s even alone, so that 0.3 and 0.1 do for the others; half each
            one_finish_time, [(1, 1000.0), (1, 300.0), (1, 100.0)], 2, [1.0, 0.5, 0.5],
            id="what is left is given in equal parts",
        ),
        pytest.param(
            # 0.8 and 0.1 are needed; 0.1 is left for the last
            one_finish_time, [(1, 1000.0), (1, 800.0), (1, 100.0)], 2, [1.0, 0.8, 0.2],
            id="equal parts for those that need less",
        ),
        pytest.param(
            # isolated, on half of it, each takes 200 s: 100 / (200 rho) + 100 / (200 rho) = 1
            fair_finish_times, [(1, 100.0), (1, 100.0)], 1, [0.5, 0.5], id="rho of 1",
        ),
    ],
)  # fmt: skip
def test_shares_are_those_of_the_programme(
    shares: Callable[[Gangs, int], Any],
    gangs: list[tuple[float, float]],
    capacity: int,
    expected: list[float],
) -> None:
    sizes, runtime = np.array(gangs).T
    zeros = np.zeros(len(gangs))
    assert list(shares(Gangs(sizes, runtime, zeros, zeros), capacity)) == pytest.approx(expected)


def test_waiting_earns_a_larger_fair_share() -> None:
    """After 100 s, 100 / (200 rho - 100) + 50 / (200 rho - 100) = 1 at rho = 1.25.

    Both would take 200 s on half of a device; one has done half, for which it would have had 100 s.
    """
    gangs = Gangs(
        sizes=np.ones(2),
        runtime=np.array([100.0, 50.0]),
        ages=np.array([100.0, 100.0]),
        isolated=np.array([0.0, 100.0]),
    )
    assert list(fair_finish_times(gangs, 1)) == pytest.approx([2 / 3, 1 / 3])


def test_late_ends_count_from_the_submission() -> None:
    """On half of a device in 200 and 100 s: 100 / (200 rho - 100) + 50 / (100 rho) = 1.

    So rho is (3 + 5 ** 0.5) / 4, for one job that has waited for 100 s and one that has just come.
    """
    gangs = Gangs(
        sizes=np.ones(2),
        runtime=np.array([100.0, 50.0]),
        ages=np.array([100.0, 0.0]),
        isolated=np.zeros(2),
    )
    assert list(fair_finish_times(gangs, 1)) == pytest.approx([0.618034, 0.381966])


def test_steps_count_as_on_a_fair_part() -> None:
    """A round beside one other job counts twice, for half of a device would have taken as long."""
    runner, waiter = _state("a", 1, 900.0), _state("b", 1, 900.0)
    decision = gavel_finish_time(_snapshot(runner, waiter, now=0.0, capacity=1))
    assert decision.workers == {"a": 1}
    runner = runner._replace(remaining=540.0, workers=1, attained=ROUND)
    decision = gavel_finish_time(
        _snapshot(runner, waiter, now=ROUND, memory=decision.memory, capacity=1)
    )
    accounts = decision.memory[4]
    assert (accounts["a"].isolated, accounts["b"].isolated) == pytest.approx((2 * ROUND, 0.0))


def _rounds(jobs: list[tuple[str, int]], policy: Callable[[Snapshot], Decision]) -> list[str]:
    """Return the jobs that run in each of the first rounds on two devices."""
    rounds: dict[float, str] = {}

    def watched(snapshot: Snapshot) -> Decision:
        decision = policy(snapshot)
        rounds.setdefault(snapshot.now, "".join(sorted(decision.workers)))
        return decision

    gangs = [_state(name, size, 8000.0).job for name, size in jobs]
    simulate(gangs, Cluster.parse("1x2"), watched, settings=Settings(overheads=OVERHEADS["none"]))
    return [rounds[k * ROUND] for k in range(10)]


def test_rounds_follow_share_over_time_received() -> None:
    """The gang of two has 1/3, the others 2/3.

    Priorities, in thousandths: 3.7 and 1.9, then 1.2 and 1.9, 1.2 and 0.6, 0.7 and 0.6, 0.5 and 0.6.
    """
    order = _rounds([("a", 1), ("b", 1), ("L", 2)], gavel)
    assert order[:5] == ["ab", "L", "ab", "ab", "L"]
    assert order.count("L") in (3, 4)


@pytest.mark.parametrize("policy", [gavel, gavel_finish_time, gavel_makespan])
def test_equal_gangs_take_turns(policy: Callable[[Snapshot], Decision]) -> None:
    order = _rounds([("x", 2), ("y", 2)], policy)
    assert (order[:2], order[:6].count("x")) == (["x", "y"], 3)


def _next_round(
    *states: JobState, due: dict[str, float], reset: float = 0.0, capacity: int = 2
) -> dict[str, int]:
    """Return the gangs of a round after 5,000 s, in which the jobs have been due these seconds."""
    now = 5000.0
    accounts = {name: (0.0, seconds, 0.0, 0.0, 0.0, False) for name, seconds in due.items()}
    memory = (now, now, reset, False, accounts)
    return dict(gavel(_snapshot(*states, now=now, memory=memory, capacity=capacity)).workers)


@pytest.mark.parametrize(("received", "runs"), [(170.0, {"a": 1}), (190.0, {"L": 2})])
def test_half_a_round_counts_as_received(received: float, runs: dict[str, int]) -> None:
    """1 / (180 + received) of the small gang and 0.5 / 180 of the other meet at 180 s."""
    small = _state("a", 1, 900.0)._replace(attained=received)
    due = dict.fromkeys("aL", 0.0)
    assert _next_round(small, _state("L", 2, 900.0), due=due) == runs


def test_equal_priorities_go_by_seconds_behind() -> None:
    states = [_state("a", 1, 900.0), _state("b", 1, 900.0)]
    assert _next_round(*states, due={"a": 100.0, "b": 300.0}, capacity=1) == {"b": 1}


def test_time_received_is_reset_for_other_jobs() -> None:
    """After 1,920 s, and only where jobs have come or gone."""
    states = [_state("a", 2, 900.0)._replace(attained=1440.0), _state("b", 2, 900.0)]
    due = {"a": 900.0, "b": 100.0}
    assert _next_round(*states, due=due) == {"b": 2}
    assert _next_round(*states, due={**due, "gone": 0.0}) == {"a": 2}
    assert _next_round(*states, due={**due, "gone": 0.0}, reset=4000.0) == {"b": 2}


def test_newcomers_wait_for_the_end_of_a_round() -> None:
    gangs = [_state("a", 2, 900.0), _state("b", 2, 900.0)]
    decision = gavel(_snapshot(*gangs, now=0.0))
    assert (decision.workers, decision.wake) == ({"a": 2}, ROUND)
    newcomer = _state("c", 1, 10.0)
    newcomer = newcomer._replace(job=replace(newcomer.job, submitted=100.0))
    running = [gangs[0]._replace(workers=2, attained=200.0), gangs[1]]
    decision = gavel(_snapshot(*running, newcomer, now=100.0, memory=decision.memory))
    assert (decision.workers, decision.wake) == ({"a": 2}, ROUND)
    running = [gangs[0]._replace(workers=2, attained=720.0), gangs[1]]
    decision = gavel(_snapshot(*running, newcomer, now=ROUND, memory=decision.memory))
    assert decision.workers == {"c": 1}, "(2 / 3) / 180 is more than the (1 / 3) / 180 of b"


def test_rounds_end_early_when_devices_go() -> None:
    states = [_state("a", 1, 900.0), _state("b", 1, 900.0), _state("c", 1, 900.0)]
    decision = gavel(_snapshot(*states, now=0.0))
    assert decision.workers == {"a": 1, "b": 1}
    decision = gavel(_snapshot(*states, now=50.0, memory=decision.memory, capacity=1))
    assert (sum(decision.workers.values()), decision.wake) == (1, 50.0 + ROUND)


def test_no_rounds_where_all_gangs_fit() -> None:
    decision = gavel(_snapshot(_state("a", 1, 900.0), now=0.0))
    assert (decision.workers, decision.wake) == ({"a": 1}, None)
    states = [_state("a", 1, 900.0)._replace(workers=1), _state("b", 1, 900.0)]
    decision = gavel(_snapshot(*states, now=10.0, memory=decision.memory))
    assert (decision.workers, decision.wake) == ({"a": 1, "b": 1}, None)


@pytest.mark.parametrize("policy", [gavel, gavel_finish_time, gavel_makespan])
def test_round_without_jobs_is_empty(policy: Callable[[Snapshot], Decision]) -> None:
    decision = policy(_snapshot(now=0.0))
    assert decision.workers == {}
    assert decision.wake is None
