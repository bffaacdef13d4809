"""Placeholders of Kubeflow's jobs. Pure."""

from __future__ import annotations

from brim.kubernetes.kubeflow.objects import KubeflowStart
from brim.kubernetes.kubeflow.pods import main_container, pod_of
from brim.kubernetes.kubeflow.ranks import RankedPods, changes
from brim.kubernetes.objects.identities import placeholder_of
from brim.kubernetes.pods.manifests import Manifest
from brim.kubernetes.pods.placeholders import placeholder


def of_kubeflow_job(start: KubeflowStart, fewest: int, node_labels: str) -> list[Manifest]:
    """Return the placeholders of a job, of all types of its replicas.

    Args:
        fewest: pods that it needs to run.
        node_labels: a selector of the nodes that they may be on; empty: all.
    """
    request = start.request
    manifests: list[Manifest] = []
    for number, new in enumerate(changes(request, RankedPods(), {"": fewest}).make):
        pod, name = pod_of(start, new), placeholder_of(request.job, number)
        container = main_container(request, pod["spec"])["name"]
        manifests.append(placeholder(pod, name, container=container, node_labels=node_labels))
    return manifests
