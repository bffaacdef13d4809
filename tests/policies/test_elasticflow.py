from __future__ import annotations

from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import JobState, Snapshot
from brim.domain.workload import Job
from brim.policies.baselines.elasticflow import elasticflow


def test_a_new_curve_replaces_the_remembered_one() -> None:
    def decide(rates: tuple[float, float], memory: object) -> tuple[int, object]:
        curve = ScalingCurve(points=((1, rates[0]), (2, rates[1])))
        job = Job(id="a", submitted=0.0, work=100.0, curve=curve)
        decision = elasticflow(
            Snapshot(
                now=0.0,
                cluster=Cluster.parse("1x2"),
                capacity=2,
                jobs=(JobState(job, 100.0),),
                overheads=OVERHEADS["none"],
                memory=memory,
            )
        )
        return decision.workers["a"], decision.memory

    believed, memory = decide((1.0, 1.9), None)
    assert believed == 2
    assert decide((1.0, 0.5), memory)[0] == 1
