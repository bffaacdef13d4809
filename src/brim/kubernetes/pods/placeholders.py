"""Placeholders: pods that stand for the fewest workers of a job that waits for places. Pure.

A cluster autoscaler adds nodes for pods that find no room. A job without a plan has none: its
placeholders are what it would have, with the same requests, on the same nodes. They do nothing, and
all other pods go before them. One that a new node has bound keeps it until its job is planned.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from brim.kubernetes.client.amounts import PODS, Totals, asked_by, write_amount
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.nodes.node_selection import nodes_for
from brim.kubernetes.objects.identities import (
    GROUP,
    JOB,
    MANAGED_BY,
    OPERATOR,
    PLACEHOLDER,
    PLACEHOLDER_CLASS,
    ROLE,
    WORKER,
    KubeJob,
    placeholder_of,
    stands_for,
)
from brim.kubernetes.pods.manifests import KubeStart, Manifest, PodWishes, worker_pod

# Cluster Autoscaler adds no nodes for pods below this one, which it may be told (its
# `--expendable-pods-priority-cutoff`).
PRIORITY = -10
_MARK = f"{GROUP}/as"  # an annotation: the mark of what it asks for
# The fields of a pod that say on which nodes it can be.
_PLACING = (
    "nodeSelector",
    "tolerations",
    "topologySpreadConstraints",
    "runtimeClassName",
    "schedulerName",
    "resourceClaims",
)
_RUNNING = ("imagePullSecrets", "securityContext")
_IMAGE = ("image", "imagePullPolicy", "securityContext")
_TO_END = 1  # seconds: it has nothing to end


def priority_class() -> Manifest:
    """Return the PriorityClass of placeholders: they take no place from anybody, and give theirs to all."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PLACEHOLDER_CLASS},
        "value": PRIORITY,
        "preemptionPolicy": "Never",
        "description": "Pods that stand for workers of jobs that wait for places.",
    }


def placeholder(worker: Manifest, name: str, *, container: str, node_labels: str = "") -> Manifest:
    """Return the placeholder of a worker's pod.

    It runs the worker's image, which its node then has. Labels and annotations are not the worker's:
    nobody's Service finds it, and it is in nobody's queue.

    Args:
        worker: which the plan has on no node.
        container: the name of the one whose image it runs.
        node_labels: a selector of the nodes that it may be on; empty: all.
    """
    meta, spec = worker["metadata"], worker["spec"]
    main = next(entry for entry in spec["containers"] if entry["name"] == container)
    requested = _asked_by(spec)
    amounts = {
        key: write_amount(amount) for key, amount in sorted(requested.items()) if key != PODS
    }
    affinity = dict(spec.get("affinity", {}))
    if nodes := nodes_for(affinity.get("nodeAffinity"), labels=node_labels):
        affinity["nodeAffinity"] = nodes
    # Where a claim is on some nodes alone, so is who mounts it.
    claims = [entry for entry in spec.get("volumes", []) if "persistentVolumeClaim" in entry]
    waits = {
        **{field: main[field] for field in _IMAGE if field in main},
        "name": PLACEHOLDER,
        "command": ["sleep", "365d"],
        "args": [],
        "resources": {
            "requests": amounts,
            "limits": {key: amount for key, amount in amounts.items() if key != "cpu"},
        },
    }
    pod = {
        **{field: spec[field] for field in (*_PLACING, *_RUNNING) if field in spec},
        **({"affinity": affinity} if affinity else {}),
        **({"volumes": claims} if claims else {}),
        "priorityClassName": PLACEHOLDER_CLASS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _TO_END,
        "containers": [waits],
    }
    mark = hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()[:16]
    metadata = {
        "name": name,
        "namespace": meta["namespace"],
        "labels": {MANAGED_BY: OPERATOR, JOB: meta["labels"][JOB], ROLE: PLACEHOLDER},
        "annotations": {_MARK: mark},
        "ownerReferences": meta["ownerReferences"],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def _asked_by(spec: Mapping[str, Any]) -> Totals:
    """Return the requests of a pod: a container that says its limits alone requests as much."""
    parts = {
        part: [
            {
                **container,
                "resources": {
                    "requests": {**resources.get("limits", {}), **resources.get("requests", {})}
                },
            }
            for container in spec.get(part) or []
            for resources in [container.get("resources") or {}]
        ]
        for part in ("containers", "initContainers")
    }
    return asked_by(msgspec.convert({"metadata": {"name": ""}, "spec": {**spec, **parts}}, KubePod))


def of_elastic_job(job: KubeJob, uid: str, wishes: PodWishes, fewest: int) -> list[Manifest]:
    """Return the placeholders of an ElasticJob.

    Args:
        fewest: workers that it needs to run.
    """
    start = KubeStart(job=job, uid=uid, launch=0, token="")
    worker = worker_pod(start, replace(wishes, anywhere=True), name=job.worker(0, 0), node="")
    names = [placeholder_of(job, number) for number in range(fewest)]
    return [placeholder(worker, name, container=WORKER) for name in names]


class PlaceholderChanges(NamedTuple):
    """The changes that are left to make.

    Attributes:
        end: pods to delete.
        make: pods, as they are wanted.
    """

    end: tuple[KubePod, ...] = ()
    make: tuple[Manifest, ...] = ()


def placeholder_changes(
    wanted: Iterable[Manifest],
    there: Iterable[KubePod],
    *,
    in_the_way: Callable[[str], bool] = lambda node: False,
) -> PlaceholderChanges:
    """Decide which placeholders to end, and which to make.

    One that is asked for otherwise now, has ended, or is in the way of a worker is ended, and made
    again once it is gone, wherever there is room.

    Args:
        wanted: as they should be.
        in_the_way: whether a worker waits for room on a node.
    """
    wishes = {
        f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}": manifest
        for manifest in wanted
    }
    pods = {pod.metadata.key: pod for pod in there}
    end = [
        pod
        for key, pod in pods.items()
        if not pod.is_leaving
        and (
            pod.has_ended
            or key not in wishes
            or not _is_as_asked(pod, wishes[key])
            or (pod.spec.node_name != "" and in_the_way(pod.spec.node_name))
        )
    ]
    return PlaceholderChanges(
        tuple(end), tuple(manifest for key, manifest in wishes.items() if key not in pods)
    )


def _is_as_asked(pod: KubePod, manifest: Manifest) -> bool:
    meta, owner = manifest["metadata"], stands_for(pod)
    uid = meta["ownerReferences"][0]["uid"]
    is_same = pod.metadata.annotations.get(_MARK) == meta["annotations"][_MARK]
    return owner is not None and owner.uid == uid and is_same


def bound_on(nodes: Collection[str], pods: Iterable[KubePod]) -> list[KubePod]:
    """Return the placeholders that are on some nodes, in the way of workers that are to be there."""
    return [pod for pod in pods if pod.spec.node_name in nodes and not pod.has_ended]
