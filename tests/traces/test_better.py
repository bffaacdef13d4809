"""brim against every other policy and against the ceiling, on real traces,
with one ruler for all.
"""

from __future__ import annotations

import pytest

from brim.domain.cluster import Cluster
from brim.policies.baselines.ceiling import ceiling_per_job
from brim.policies.brim import brim
from brim.simulator.engine import Settings, simulate
from brim.simulator.run import Metrics, measure
from brim.user_code.policies import POLICIES
from tiers import long_after
from tracedata import TRACES, jobs_of

SMALL = ["195job", "cluster10", "t4", "fig10", "fig9", "fig11-20", "fig11-50", "cluster06"]
# brim itself, and those that call a solver in each of many cycles
SOLVED = ("brim", "chronus", "lyra", "sia")


def _run(name: str, policy: str) -> Metrics:
    return measure(simulate(jobs_of(name), Cluster.parse(TRACES[name][1]), POLICIES[policy]))


@pytest.mark.traces
@pytest.mark.parametrize(
    "trace", long_after(4, ["195job", "cluster01", "cluster06", "cluster10", "cluster09"])
)
def test_brim_reaches_97_percent_of_the_ceiling(trace: str) -> None:
    jobs = jobs_of(trace)
    cluster = Cluster.parse(TRACES[trace][1])
    found = measure(simulate(jobs, cluster, brim))
    limit = ceiling_per_job(jobs, devices=cluster.devices)
    assert limit is not None
    assert (found.deadline_satisfactory_ratio or 0.0) >= 0.97 * limit
    assert found.admitted_missed == 0


@pytest.mark.traces
@pytest.mark.parametrize("trace", long_after(len(SMALL) - 1, SMALL))
def test_brim_is_as_good_as_any_policy(trace: str) -> None:
    own_run = _run(trace, "brim")
    other_runs = {name: _run(trace, name) for name in POLICIES if name not in SOLVED}
    best = max(other_run.deadline_satisfactory_ratio or 0.0 for other_run in other_runs.values())
    assert (own_run.deadline_satisfactory_ratio or 0.0) >= best
    assert (own_run.average_jct_seconds or 0.0) <= (
        other_runs["elasticflow"].average_jct_seconds or 0.0
    )
    assert own_run.admitted_missed == 0


@pytest.mark.traces
@pytest.mark.parametrize("trace", ["195job", "t4", "fig9"])
def test_an_admitted_deadline_is_kept_with_migrations_charged(trace: str) -> None:
    jobs = jobs_of(trace)
    found = measure(
        simulate(jobs, Cluster.parse(TRACES[trace][1]), brim, settings=Settings(placed=True))
    )
    assert found.admitted_missed == 0
