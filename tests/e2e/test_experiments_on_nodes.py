"""Experiments 1 and 2 on three real nodes of Kubernetes, in small.

In full: `python -m benchmarks.live-experiments.run 1 --kubernetes`, and 2.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from brim_lab.experiments import scale
from brim_lab.experiments.beside_service import beside_service
from brim_lab.experiments.on_nodes import nodes_cluster
from brim_lab.experiments.two_jobs import two_jobs
from brim_lab.kubernetes.cluster import NodeCluster
from clusters import no_cluster, node_cluster, real_kubeconfig

__all__ = ["node_cluster", "real_kubeconfig"]
pytestmark = [pytest.mark.e2e, pytest.mark.long]
TWO_JOBS = replace(
    scale.QUICK_TWO_JOBS,
    slots=3,
    workers=2,
    micro_batches=6,
    sizes=(2, 1),
    gap=5.0,
    parameters={"months": "4"},
)
BESIDE = replace(
    scale.QUICK_BESIDE_SERVICE,
    slots=3,
    workers=3,
    micro_batches=6,
    sizes=(3, 1),
    service=(0, 2, 1),
    every=20.0,
    parameters={"months": "4"},
)


@pytest.fixture
def three_nodes(node_cluster: NodeCluster) -> NodeCluster:
    if len(node_cluster.nodes) != 3:
        no_cluster("this takes three nodes: make cluster-down cluster NODES=3")
    return node_cluster


def _silent(_: str) -> None:
    """Report no progress."""


def test_two_jobs_have_the_weights_of_undisturbed_runs(
    three_nodes: NodeCluster, tmp_path: Path
) -> None:
    found = two_jobs(
        TWO_JOBS, tmp_path, _silent, make_cluster=partial(nodes_cluster, cluster=three_nodes)
    )
    (sides,) = found.rounds
    courses = [course for side in sides.values() for course in side]
    assert [course.digest for course in courses] == 2 * list(found.calm.values())
    assert [course.redone for course in courses] == [0] * 4
    first, second = sides["gang"]
    assert second.steps[0] > first.steps[-1]
    first, second = sides["elastic"]
    assert second.steps[0] < first.steps[-1]


def test_a_job_yields_to_a_service_without_restart(
    three_nodes: NodeCluster, tmp_path: Path
) -> None:
    make_cluster = partial(nodes_cluster, cluster=three_nodes)
    found = beside_service(BESIDE, tmp_path, _silent, make_cluster=make_cluster)
    (run,) = found.rounds
    assert (run.launches, run.course.redone) == (1, 0)
    assert run.course.digest == found.calm
    assert {count for _, count in run.course.workers} >= {1, 3}
    assert max(run.waited) < BESIDE.every, run.waited
