"""Objects as an API server would give them."""

from __future__ import annotations

from typing import Any

import msgspec

from brim.kubernetes.client.kube_types import KubeNode, KubePod
from brim.kubernetes.objects.identities import KubeJob
from brim.kubernetes.pods.manifests import KubeStart, PodWishes, master_pod, worker_pod

JOB = KubeJob("team", "flights")
SLOT: dict[str, Any] = {"cpu": "1", "memory": "2Gi"}
WISHES = PodWishes(image="registry.example/brim:1", operator_namespace="brim-system", slot=SLOT)


def start_of(job: KubeJob = JOB, launch: int = 1) -> KubeStart:
    return KubeStart(job=job, uid=f"uid of {job.name}", launch=launch, token=f"t{launch}")


def node(name: str = "n1", *, ready: str = "True", **fields: Any) -> KubeNode:
    allocatable = fields.pop("allocatable", {"cpu": "4", "memory": "16Gi", "pods": "110"})
    taints = [{"key": key, "effect": effect} for key, effect in fields.pop("taints", ())]
    conditions = [{"type": "Ready", "status": ready, "reason": "KubeletReady"}]
    metadata = {"name": name, **fields.pop("metadata", {})}
    manifest = {
        "metadata": metadata,
        "spec": {"taints": taints, **fields},
        "status": {"allocatable": allocatable, "conditions": conditions},
    }
    return msgspec.convert(manifest, KubeNode)


def pod(name: str, node: str = "", *, phase: str = "Running", **requests: str) -> KubePod:
    """A pod of unknown origin."""
    containers = [{"name": "main", "resources": {"requests": requests}}]
    manifest = {
        "metadata": {"name": name, "namespace": "others"},
        "spec": {"nodeName": node, "containers": containers},
        "status": {"phase": phase},
    }
    return msgspec.convert(manifest, KubePod)


def worker(
    number: int,
    node: str = "n1",
    *,
    job: KubeJob = JOB,
    launch: int = 1,
    phase: str = "Running",
    bound: bool = True,
    leaving: bool = False,
    refused: bool = False,
    message: str = "",
    reason: str = "",
) -> KubePod:
    """A worker's pod, some time after it was made.

    Args:
        message: why it was refused.
        reason: of its phase.
    """
    manifest = worker_pod(start_of(job, launch), WISHES, name=job.worker(launch, number), node=node)
    bound_node = node if bound else ""
    found = seen(
        manifest, bound_node, phase=phase, leaving=leaving, refused=refused, message=message
    )
    status = msgspec.structs.replace(found.status, reason=reason)
    return msgspec.structs.replace(found, status=status)


def master(
    *, job: KubeJob = JOB, launch: int = 1, node: str = "n1", phase: str = "Running", **rest: Any
) -> KubePod:
    return seen(master_pod(start_of(job, launch), WISHES, rejoins=False), node, phase=phase, **rest)


def seen(
    manifest: dict[str, Any],
    node: str,
    *,
    phase: str = "Running",
    leaving: bool = False,
    refused: bool = False,
    message: str = "",
) -> KubePod:
    """A pod that was made, as a server gives it."""
    metadata = {**manifest["metadata"], "uid": f"uid of {manifest['metadata']['name']}"}
    if leaving:
        metadata["deletionTimestamp"] = "2026-11-24T17:00:00Z"
    condition = {"reason": "Unschedulable", "message": message}
    conditions = [{"type": "PodScheduled", "status": "False", **condition}]
    status = {"phase": phase, "conditions": conditions if refused else []}
    return msgspec.convert(
        {
            **manifest,
            "metadata": metadata,
            "spec": {**manifest["spec"], "nodeName": node},
            "status": status,
        },
        KubePod,
    )
