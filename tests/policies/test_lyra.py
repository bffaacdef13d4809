"""The two phases of Lyra, worked out by hand."""

from __future__ import annotations

import pytest

from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import JobState, Snapshot
from brim.domain.workload import Job
from brim.policies.baselines.lyra import lyra, savings
from brim.simulator.engine import Settings, simulate

pytest.importorskip("highspy", reason="the solver is in the extra `simulate`")

LINEAR = ScalingCurve(points=((1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0)))


def _state(
    name: str, seconds: float, *, minimum: int = 1, maximum: int | None = None, workers: int = 0
) -> JobState:
    """A job that takes `seconds` on one worker."""
    job = Job(id=name, submitted=0.0, work=seconds, curve=LINEAR, minimum=minimum, maximum=maximum)
    return JobState(job, seconds, workers)


def _decided(*states: JobState, capacity: int) -> dict[str, int]:
    snapshot = Snapshot(
        now=0.0,
        cluster=Cluster.parse(f"1x{capacity}"),
        capacity=capacity,
        jobs=states,
        overheads=OVERHEADS["none"],
    )
    return dict(lyra(snapshot).workers)


def test_savings_are_seconds_over_the_fewest_workers() -> None:
    assert savings(_state("a", 400.0)) == [(1, 200.0), (3, 300.0), (7, 350.0)]
    assert savings(_state("a", 400.0, minimum=2, maximum=4)) == [(2, 100.0)]
    assert savings(_state("a", 400.0, minimum=4, maximum=4)) == []


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        # 6 devices beyond the fewest: 75 + 300 s with 3 each; with 1 and 3 only 50 + 300
        (8, {"a": 4, "b": 4}),
        # 8 devices: 50 + 350 s with 1 and 7; with 3 each 75 + 300
        (10, {"a": 2, "b": 8}),
    ],
)
def test_surplus_goes_where_it_saves_most(capacity: int, expected: dict[str, int]) -> None:
    assert _decided(_state("a", 100.0), _state("b", 400.0), capacity=capacity) == expected


def test_waiting_jobs_take_surplus_workers() -> None:
    """Both fewest first: 4 and 4 on 8 devices, although 8 would save the first one time."""
    elastic = _state("a", 800.0, minimum=4, workers=8)
    assert _decided(elastic, _state("b", 80.0, minimum=4, maximum=4), capacity=8) == {
        "a": 4,
        "b": 4,
    }


def test_shortest_jobs_start_first_without_preemption() -> None:
    long, short = _state("a", 900.0, minimum=4, maximum=4), _state("b", 90.0, minimum=4, maximum=4)
    assert _decided(long, short, capacity=4) == {"b": 4}
    assert _decided(long._replace(workers=4), short, capacity=4) == {"a": 4}


def test_a_reclaim_stops_few_jobs() -> None:
    """Of 8 devices 4 are left: the one job with 4 stops, not the two with 2."""
    states = [
        _state("a", 900.0, minimum=4, maximum=4, workers=4),
        _state("b", 900.0, minimum=2, maximum=2, workers=2),
        _state("c", 900.0, minimum=2, maximum=2, workers=2),
    ]
    assert _decided(*states, capacity=4) == {"b": 2, "c": 2}


def test_loaned_devices_come_and_go() -> None:
    """4 devices, 8 from 100 to 200 s: an elastic job grows on the loan and gives it back unharmed."""
    job = _state("a", 1200.0).job
    loan = Settings(overheads=OVERHEADS["none"], capacity=((0.0, 4), (100.0, 8), (200.0, 4)))
    run = simulate([job], Cluster.parse("1x8"), lyra, settings=loan)
    assert run.outcomes[0].finished == pytest.approx(200.0)
    assert [used for _, used, _ in run.usage] == [4, 8, 0]
