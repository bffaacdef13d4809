"""The programme of Sia with a fixed batch, worked out by hand from the formulas of its paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS, Overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Decision, JobState, Snapshot
from brim.domain.workload import Job
from brim.policies.baselines.sia import sia, values
from workloads import CONCAVE

pytest.importorskip("highspy", reason="the solver is in the extra `simulate`")

FIXED = Overheads(name="fixed", fixed=20.0)
LINEAR = ScalingCurve.linear(rate=1.0, maximum=16)


def _state(name: str, *, curve: ScalingCurve = CONCAVE, minimum: int = 1) -> JobState:
    return JobState(Job(id=name, submitted=0.0, work=1e6, curve=curve, minimum=minimum), 1e6)


def _snapshot(
    *states: JobState,
    cluster: str = "1x4",
    now: float = 0.0,
    memory: object = None,
    overheads: Overheads = OVERHEADS["none"],
) -> Snapshot:
    nodes = Cluster.parse(cluster)
    return Snapshot(
        now=now,
        cluster=nodes,
        capacity=nodes.devices,
        jobs=states,
        overheads=overheads,
        memory=memory,
    )


def test_value_is_price_of_none_less_slowness() -> None:
    """Speeds of 1, 1.9 and 3.4 times the slowest: 1.1 less 1, less 0.7255, less 0.5423."""
    assert values(_state("a"), (0, 0, 4), _snapshot(_state("a"))) == pytest.approx(
        {1: 0.1, 2: 0.37452, 4: 0.55767}, abs=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # r = 100 / 120; (1.9 r) ** -0.5 = 0.79472
        (0, {1: 0.1, 2: 0.30528}),
        # r = (100 - 4 * 20) / 120; (1.9 r) ** -0.5 = 1.77705, worse than no device
        (4, {1: 0.1, 2: -0.67705}),
    ],
)
def test_changes_cost_the_restart_factor(changes: int, expected: dict[int, float]) -> None:
    state = _state("a")._replace(workers=1)
    snapshot = _snapshot(state, cluster="1x2", now=100.0, overheads=FIXED)
    assert values(state, (1, changes, 1), snapshot) == pytest.approx(expected, abs=1e-5)


def test_a_young_job_changes_for_nothing() -> None:
    state = _state("a")._replace(workers=1)
    snapshot = _snapshot(state, cluster="1x2", now=10.0, overheads=FIXED)
    assert values(state, (1, 0, 1), snapshot)[2] == pytest.approx(0.37452, abs=1e-5)


def test_speed_counts_in_units_of_the_smallest_size() -> None:
    """A job of at least two workers is twice as fast as one worker: 1.1 less 2 ** -0.5."""
    state = _state("a", curve=LINEAR, minimum=2)
    assert values(state, (0, 0, 4), _snapshot(state)) == pytest.approx(
        {2: 0.39289, 4: 0.6}, abs=1e-5
    )


def _decided(sizes: dict[str, int], cluster: str) -> dict[str, int]:
    """Workers of jobs that have had as many before, and have none."""
    states = [_state(name) for name in sizes]
    memory = (-60.0, {name: (0, 0, size) for name, size in sizes.items()})
    return dict(sia(_snapshot(*states, cluster=cluster, memory=memory)).workers)


def test_the_programme_weighs_jobs_against_each_other() -> None:
    """On 4 devices two and two are worth 0.749, four 0.558, two and one 0.475."""
    assert _decided({"a": 4, "b": 4}, "1x4") == {"a": 2, "b": 2}


def test_a_third_job_waits_as_coded() -> None:
    """One device more for each of two jobs is worth 0.549, a device for the third only 0.1."""
    assert sorted(_decided({"a": 4, "b": 4, "c": 4}, "1x4").values()) == [2, 2]


def test_sizes_are_powers_of_two_then_whole_nodes() -> None:
    state = _state("a", curve=LINEAR)
    assert list(values(state, (0, 0, 16), _snapshot(state, cluster="4x4"))) == [1, 2, 4, 8, 12, 16]


def _cycle(state: JobState, now: float, previous: Decision | None) -> tuple[JobState, Decision]:
    memory = previous.memory if previous else None
    decision = sia(_snapshot(state, cluster="4x4", now=now, memory=memory, overheads=FIXED))
    count = decision.workers.get(state.job.id, 0)
    changed = now if count != state.workers else state.changed
    return state._replace(workers=count, changed=changed), decision


def test_jobs_double_each_minute_while_that_pays() -> None:
    state, decision = _cycle(_state("a", curve=LINEAR), 0.0, None)
    sizes = [state.workers]
    for minute in range(1, 5):
        assert decision.wake == 60.0 * minute
        state, decision = _cycle(state, 60.0 * minute, decision)
        sizes.append(state.workers)
    # r = 60/80, 100/140, 140/200, 180/260: each time twice as fast is worth more than that.
    assert sizes == [1, 2, 4, 8, 16]
    assert decision.memory[1] == {"a": (16, 4, 16)}, "4 changes after the start"
    assert decision.wake is None


def test_between_minutes_nothing_changes() -> None:
    decision = sia(_snapshot(_state("a")))
    states = [_state("a")._replace(workers=1), _state("b")]
    decision = sia(_snapshot(*states, now=30.0, memory=decision.memory))
    assert (decision.workers, decision.wake) == ({"a": 1}, 60.0)
    shrunk = replace(_snapshot(*states, now=30.0, memory=decision.memory), capacity=0)
    assert sia(shrunk).workers == {}


def test_a_change_is_not_changed() -> None:
    slow = Overheads(name="slow", fixed=100.0)
    state = _state("a", curve=LINEAR)._replace(workers=2, changed=0.0)
    memory = (0.0, {"a": (2, 0, 2)})
    snapshot = _snapshot(state, cluster="4x4", now=60.0, memory=memory, overheads=slow)
    assert sia(snapshot).workers == {"a": 2}
    assert sia(replace(snapshot, now=120.0)).workers == {"a": 4}
