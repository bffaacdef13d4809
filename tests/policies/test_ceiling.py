from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS
from brim.domain.scaling import ScalingCurve
from brim.domain.workload import Job
from brim.policies.baselines.ceiling import (
    ceiling_per_job,
    ceiling_with_capacity,
    least_device_time,
)
from brim.simulator.engine import Settings, simulate
from brim.simulator.run import measure
from brim.user_code.policies import POLICIES
from workloads import CONCAVE, random_jobs

pytest.importorskip("highspy", reason="the solver is in the extra `simulate`")


def test_two_full_size_jobs_cannot_both_finish() -> None:
    curve = ScalingCurve.linear(rate=1.0, maximum=8)
    jobs = [Job(id=name, submitted=0.0, work=800.0, curve=curve, deadline=120.0) for name in "ab"]
    assert ceiling_per_job(jobs, devices=8) == 1.0
    assert ceiling_with_capacity(jobs, devices=8) == 0.5


def test_an_even_pace_needs_the_least_device_time() -> None:
    job = Job(id="a", submitted=0.0, work=340.0, curve=CONCAVE, deadline=100.0)
    assert least_device_time(job) == pytest.approx(400.0)  # 4 workers run at 3.4
    loose = Job(id="a", submitted=0.0, work=50.0, curve=CONCAVE, deadline=100.0)
    assert least_device_time(loose) == pytest.approx(50.0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(("brim", "elasticflow", "edf", "pollux")))
def test_no_policy_is_above_the_ceiling(seed: int, name: str) -> None:
    jobs = random_jobs(seed, 12, spread=500.0)
    world = Settings(overheads=OVERHEADS["none"])
    figures = measure(simulate(jobs, Cluster.parse("1x8"), POLICIES[name], settings=world))
    bound = ceiling_with_capacity(jobs, devices=8)
    assert (
        figures.deadline_satisfactory_ratio is None
        or figures.deadline_satisfactory_ratio <= (bound or 0.0) + 1e-9
    )
    assert ceiling_with_capacity(jobs, devices=8, buckets=5) >= (bound or 0.0)  # type: ignore[operator]
