"""The jobs and the PriorityClasses of the guide to elastic training, as they are, on real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brim_lab.kubernetes.binaries import binary
from brim_lab.kubernetes.cluster import NodeCluster
from brim_lab.kubernetes.guide import NAME, Guide
from brim_lab.kubernetes.jobs import GPU, until
from clusters import image, namespace, no_cluster, node_cluster, real_kubeconfig
from e2e.running import FILES

__all__ = ["namespace", "node_cluster", "real_kubeconfig"]
pytestmark = pytest.mark.e2e
MPI = "tensorflow-mnist-elastic"
HOROVOD = "docker.io/horovod/horovod:0.20.0-tf2.3.0-torch1.6.0-mxnet1.5.0-py3.7-cpu"
KUBECTL = "localhost/kubectl:1"
MANIFESTS = Path(__file__).parents[1] / "kubernetes" / "files"
SLOT = {"cpu": "100m", "memory": "512Mi", GPU: "8"}  # one pod on each node


@pytest.fixture
def guide(node_cluster: NodeCluster, namespace: str) -> Iterator[Guide]:
    if len(node_cluster.nodes) < 3:
        no_cluster("this takes three nodes: make cluster-down cluster NODES=3")
    test_guide = Guide(node_cluster, namespace, image=image())
    try:
        yield test_guide
    finally:
        test_guide.uninstall()


def test_the_guides_job_is_preempted_and_regrows(guide: Guide) -> None:
    guide.add_its_image()
    guide.install(SLOT, kubeflow=True, security="baseline")
    guide.kubectl("apply", "-f", str(MANIFESTS / "priorityclasses.yaml"))
    guide.kubectl("apply", "-f", str(MANIFESTS / "pytorchjob.yaml"))
    processes = guide.processes()

    def until_training_with(pods: int) -> None:
        until(lambda: guide.trains_with(pods, processes), guide.told_of_guide)
        assert "Failed" not in guide.conditions()

    until_training_with(2)
    guide.kubectl("scale", "pytorchjob", NAME, "--replicas=1")
    until_training_with(1)
    guide.kubectl("scale", "pytorchjob", NAME, "--replicas=2")
    until_training_with(2)

    nodes_before = guide.nodes()
    spare = next(node for node in guide.cluster.nodes if node not in nodes_before.values())
    guide.occupy("spare", spare, "inference-pc")
    guide.occupy("theirs", nodes_before[f"{NAME}-worker-1"], "inference-pc")
    until_training_with(1)
    guide.kubectl("delete", "pod", "theirs", "spare")
    until_training_with(2)

    # That of the first worker, at which the others meet.
    guide.occupy("first", guide.nodes()[f"{NAME}-worker-0"], "inference-pc")
    until_training_with(2)
    guide.hurry_guide()
    until(lambda: guide.conditions().get("Succeeded") == "True", guide.told_of_guide)
    assert "Failed" not in guide.conditions()


@pytest.mark.long
def test_the_guides_launcher_follows_host_changes(guide: Guide) -> None:
    launcher = {"opt/bin/horovodrun": (FILES / "horovodrun.py").read_bytes()}
    guide.cluster.add_image(HOROVOD, launcher)
    guide.cluster.add_image(KUBECTL, {"opt/bin/kubectl": binary("kubectl").read_bytes()})
    guide.install(SLOT, "--kubectl-image", KUBECTL, kubeflow=True, security="baseline")
    guide.kubectl("apply", "-f", str(MANIFESTS / "priorityclasses.yaml"))
    guide.kubectl("apply", "-f", str(MANIFESTS / "mpijob.yaml"))

    def last_words() -> str:
        return guide.kubectl("get", "pods,mpijobs,events", "-o", "wide")

    def until_hosts(count: int) -> None:
        def has_hosts() -> bool:
            last = guide.kubectl("logs", f"{MPI}-launcher", "--tail=1").strip()
            return last == f"hosts {count}"

        until(has_hosts, last_words)

    until_hosts(2)
    node = guide.node_of(f"{MPI}-worker-1")
    guide.occupy("theirs", node, "inference-pc")
    until_hosts(1)
    guide.kubectl("delete", "pod", "theirs")
    until_hosts(2)
    guide.kubectl("exec", f"{MPI}-launcher", "-c", "mpi-launcher", "--", "touch", "/tmp/hurry")
    wait_arguments = f"mpijob/{MPI}", "--for=condition=Succeeded", "--timeout=60s"
    guide.kubectl("wait", *wait_arguments)
    path = f"/apis/kubeflow.org/v1/namespaces/{guide.namespace}/mpijobs/{MPI}"
    conditions = guide.api.ask(path)["status"]["conditions"]
    assert "Failed" not in {condition["type"] for condition in conditions}
