"""Names, labels and owner of the objects of a Kubeflow job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brim.kubernetes.client.amounts import Totals
from brim.kubernetes.kubeflow.request import (
    KUBEFLOW,
    LAUNCHER,
    MASTER,
    WORKER,
    KubeflowSpec,
    Rank,
)
from brim.kubernetes.objects.identities import MANAGED_BY, OPERATOR
from brim.kubernetes.pods.manifests import Manifest

LABELS = "training.kubeflow.org"
JOB_NAME, OPERATOR_NAME = f"{LABELS}/job-name", f"{LABELS}/operator-name"
JOB_ROLE = f"{LABELS}/job-role"
TYPE, INDEX = f"{LABELS}/replica-type", f"{LABELS}/replica-index"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeflowStart:
    """One start of a job.

    Args:
        uid: of its object.
        slot: the least that a pod asks for.
        tolerated: keys of taints that pods bear.
        seed: of the job's key for ssh, which the operator alone knows.
        kubectl: the image from which a launcher gets the program by which it reaches workers.
        gangs: a job with a scheduling policy is a gang.
        evictions: the operator answers evictions: see `brim.kubernetes.pods.evictions`.
    """

    request: KubeflowSpec
    uid: str
    launch: int
    slot: Totals
    tolerated: tuple[str, ...] = ()
    seed: bytes = b""
    kubectl: str = ""
    gangs: bool = False
    evictions: bool = False


def name_of(request: KubeflowSpec, rank: Rank) -> str:
    """Return the name of a pod, and of its Service."""
    name = f"{request.job.name}-{rank.type}"
    return name if rank.type == LAUNCHER.lower() else f"{name}-{rank.number}"


def common_labels(request: KubeflowSpec) -> dict[str, str]:
    """Return the labels of a job's objects beside its pods: Services, and its autoscaler."""
    return {
        MANAGED_BY: OPERATOR,
        OPERATOR_NAME: request.kind.operator,
        JOB_NAME: request.job.name,
    }


def labels_of(request: KubeflowSpec, rank: Rank) -> dict[str, str]:
    """Return the labels that Kubeflow gives a pod."""
    leads = next((type for type in (LAUNCHER, MASTER) if request.of(type) is not None), WORKER)
    role = {JOB_ROLE: "master"} if rank == Rank(leads.lower(), 0) else {}
    if request.kind.reached_by_ssh:
        role = {JOB_ROLE: rank.type}
    return {
        OPERATOR_NAME: request.kind.operator,
        JOB_NAME: request.job.name,
        TYPE: rank.type,
        INDEX: str(rank.number),
        **role,
    }


def owner_of(request: KubeflowSpec, uid: str) -> Manifest:
    """Return the reference of objects that a job owns, and that are deleted with it."""
    return {
        "apiVersion": f"{KUBEFLOW}/{request.kind.version}",
        "kind": request.kind.name,
        "name": request.job.name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def object_of_job(
    version: str, kind: str, start: KubeflowStart, name: str, labels: Mapping[str, str]
) -> Manifest:
    """Return an object that a job owns, in its namespace, without its content."""
    metadata = {
        "name": name,
        "namespace": start.request.job.namespace,
        "labels": dict(labels),
        "ownerReferences": [owner_of(start.request, start.uid)],
    }
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
