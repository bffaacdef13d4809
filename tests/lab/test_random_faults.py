"""A schedule drawn by chance can be performed, leaves somebody to train, and is the same for the
same seed.
"""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from brim.domain.faults import FROM_OUTSIDE, ON_HOSTS, FaultKind, describe, parse_faults
from brim.domain.job import JobSpec, WorkerRange
from brim_lab.chaos.random_faults import random_faults, random_workers

seeds = st.integers(0, 2**63)
kinds = st.lists(st.sampled_from(list(FaultKind)), min_size=1, unique=True)
ANY = tuple(FaultKind)


@given(seeds, kinds, st.integers(1, 500), st.integers(1, 8), st.integers(1, 3))
def test_a_schedule_can_be_performed(
    seed: int, kinds: list[FaultKind], steps: int, workers: int, hosts: int
) -> None:
    faults = random_faults(seed, kinds=kinds, steps=steps, workers=workers, hosts=hosts)
    assert [fault.step for fault in faults] == sorted(fault.step for fault in faults)
    current = workers
    for fault in faults:
        assert fault.kind in kinds
        assert 1 <= fault.step <= steps
        assert fault.rank < max(current, 1)
        assert hosts > 1 or fault.kind not in ON_HOSTS
        takes_master = fault.kind is FaultKind.KILL_HOST and fault is faults[-1]
        first = 1 if (takes_master and hosts > 2) or fault.kind is FaultKind.KILL_AGENT else 2
        assert fault.host in (0, *range(first, hosts + 1))
        current += fault.count * (-1 if fault.kind is FaultKind.REMOVE else 1)
        current -= fault.kind is FaultKind.TERM
        assert 1 <= current <= 8
    assert parse_faults("; ".join(map(describe, faults))) == faults
    own_faults = tuple(fault for fault in faults if fault.kind not in FROM_OUTSIDE)
    JobSpec(
        file="x.py",
        parameters={},
        workers=WorkerRange(minimum=1, maximum=workers),
        faults=own_faults,
    )


@given(seeds)
def test_remaining_faults_suit_the_next_life(seed: int) -> None:
    """`--resume` starts with the number of workers of the spec again, and gets the faults that did
    not strike.
    """
    faults = [
        f for f in random_faults(seed, kinds=ANY, steps=90, workers=4) if f.kind not in FROM_OUTSIDE
    ]
    for struck in range(len(faults)):
        limits = WorkerRange(minimum=1, maximum=4)
        JobSpec(file="x.py", parameters={}, workers=limits, faults=tuple(faults[struck:]))


@given(seeds)
def test_the_same_seed_gives_the_same_schedule(seed: int) -> None:
    first, two = (random_faults(seed, kinds=ANY, steps=90, workers=3, hosts=2) for _ in range(2))
    assert first == two


def test_seeds_give_every_kind_and_different_schedules() -> None:
    schedules = {
        hosts: [
            random_faults(seed, kinds=ANY, steps=90, workers=3, hosts=hosts) for seed in range(300)
        ]
        for hosts in (1, 2)
    }
    drawn = {
        hosts: {fault.kind for faults in schedules_of_hosts for fault in faults}
        for hosts, schedules_of_hosts in schedules.items()
    }
    assert drawn[1] == set(ANY) - ON_HOSTS
    assert drawn[2] == set(ANY) - {FaultKind.STOP_AGENT}
    assert all(len(set(schedule)) > 290 for schedule in schedules.values())


@given(seeds, st.integers(1, 4), st.integers(0, 4))
def test_the_workers_are_within_the_range(seed: int, low: int, span: int) -> None:
    limits = WorkerRange(minimum=low, maximum=low + span)
    drawn = random_workers(seed, limits)
    assert limits.minimum <= drawn.minimum <= drawn.maximum <= limits.maximum


@given(seeds, st.integers(1, 4))
def test_servers_are_struck_too(seed: int, servers: int) -> None:
    job = {"steps": 200, "workers": 2}
    faults = random_faults(seed, kinds=ANY, servers=servers, **job)
    own_faults = tuple(fault for fault in faults if fault.kind not in FROM_OUTSIDE)
    JobSpec(
        file="x.py",
        parameters={},
        workers=WorkerRange(minimum=1, maximum=2),
        micro_batches=8,
        servers=servers,
        faults=own_faults,
    )
    assert random_faults(seed, kinds=ANY, servers=0, **job) == random_faults(seed, kinds=ANY, **job)


def test_a_server_is_struck_by_its_rank() -> None:
    faults = partial(random_faults, kinds=[FaultKind.KILL], steps=200, workers=1, servers=2)
    ranks = {fault.rank for seed in range(50) for fault in faults(seed)}
    assert ranks == {0, 1, 2}
