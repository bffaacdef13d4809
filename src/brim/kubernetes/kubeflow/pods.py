"""Pods of Kubeflow's jobs, with the names, labels, variables and Services of its operator. Pure.

The image, the command and everything else is as the owner's template has it. brim says where a pod
runs, and that it asks for what a slot has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from brim.kubernetes.client.amounts import PODS, Totals, write_amount
from brim.kubernetes.kubeflow.asked import (
    EVALUATOR,
    EXIT_CODE,
    LAUNCHER,
    MPI,
    NEVER,
    KubeflowSpec,
    Rank,
    requests_of,
)
from brim.kubernetes.kubeflow.asked import MASTER as MASTERS
from brim.kubernetes.kubeflow.asked import WORKER as WORKERS
from brim.kubernetes.kubeflow.gangs import gang_of_kubeflow
from brim.kubernetes.kubeflow.mpi import USUAL_MPI_ENV, equip, mpi_env
from brim.kubernetes.kubeflow.objects import (
    INDEX,
    JOB_NAME,
    OPERATOR_NAME,
    TYPE,
    KubeflowStart,
    common_labels,
    labels_of,
    name_of,
    object_of_job,
)
from brim.kubernetes.kubeflow.ranks import NewPod
from brim.kubernetes.nodes.node_selection import nodes_for
from brim.kubernetes.objects.identities import (
    JOB,
    LAUNCH,
    MANAGED_BY,
    NODE,
    OPERATOR,
    ROLE,
    WORKER,
)
from brim.kubernetes.pods.evictions import with_responder
from brim.kubernetes.pods.manifests import Manifest


def service(start: KubeflowStart, rank: Rank) -> Manifest:
    """Return the headless Service by whose name a pod is found, ready or not."""
    asked = start.asked
    labels = {**labels_of(asked, rank), **common_labels(asked)}
    selector = {name: labels[name] for name in (OPERATOR_NAME, JOB_NAME, TYPE, INDEX)}
    return object_of_job("v1", "Service", start, name_of(asked, rank), labels) | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector,
            "ports": _service_ports(asked, rank.type),
        }
    }


def _service_ports(asked: KubeflowSpec, type: str) -> list[dict[str, Any]]:
    """Return the ports of a pod's Service: that by which replicas meet, and others with a name."""
    found: dict[tuple[object, object], dict[str, Any]] = {}
    meeting = {"name": asked.kind.port_name, "containerPort": asked.port(type)}
    replicas = asked.of(type)
    assert replicas is not None
    for port in [meeting, *(main_container(asked, replicas.template["spec"]).get("ports") or [])]:
        number, protocol = port.get("containerPort"), port.get("protocol", "TCP")
        if port.get("name") and isinstance(number, int):
            made = {"name": port["name"], "port": number}
            found.setdefault((number, protocol), made | _only_other(protocol))
    return list(found.values())


def _only_other(protocol: str) -> dict[str, str]:
    return {} if protocol == "TCP" else {"protocol": protocol}


def pod_of(start: KubeflowStart, new: NewPod) -> Manifest:
    """Return a pod of a job; it has to be on its node."""
    asked, rank = start.asked, new.rank
    replicas = asked.of(rank.type)
    assert replicas is not None
    template = deepcopy(dict(replicas.template))
    meta, spec = template.get("metadata") or {}, template["spec"]
    ours = {
        MANAGED_BY: OPERATOR,
        JOB: asked.job.name,
        ROLE: WORKER,
        LAUNCH: str(start.launch),
        **labels_of(asked, rank),
    }
    made = object_of_job(
        "v1", "Pod", start, name_of(asked, rank), {**(meta.get("labels") or {}), **ours}
    )
    notes = dict(meta.get("annotations") or {})
    made["metadata"]["annotations"] = {**notes, NODE: new.node}
    affinity = spec.get("affinity") or {}
    if nodes := nodes_for(affinity.get("nodeAffinity"), node=new.node):
        spec["affinity"] = {**affinity, "nodeAffinity": nodes}
    policy = replicas.restart_policy
    spec["restartPolicy"] = NEVER if policy == EXIT_CODE else policy
    chosen = asked.scheduling.priority_class if asked.scheduling is not None else ""
    if chosen and not spec.get("priorityClassName"):
        spec["priorityClassName"] = chosen
    bears = [{"key": key, "operator": "Exists"} for key in start.tolerated]
    if bears:
        spec["tolerations"] = [*bears, *(spec.get("tolerations") or [])]
    main = main_container(asked, spec)
    if replicas.type != LAUNCHER:  # which has a slot, and leaves of it what it does not need
        _fill_slot(main, replicas.template, start.slot)
    if asked.kind.word == MPI:
        equip(spec, main, start, rank)
    for container in spec["containers"]:
        _set_env(container, ENV[asked.kind.name](asked, rank, container is main))
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    port = {"name": asked.kind.port_name, "containerPort": asked.kind.port}
    ports = main.get("ports") or []
    if asked.kind.port and all(each.get("name") != port["name"] for each in ports):
        main["ports"] = [*ports, port]
    pod = made | {"spec": spec}
    if gang := gang_of_kubeflow(start):  # a member of one can have no responder to evictions
        return gang.with_member(asked.job.name, pod)
    return with_responder(pod) if start.evictions else pod


def main_container(asked: KubeflowSpec, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container that does the work."""
    containers: list[dict[str, Any]] = spec["containers"]
    name = asked.kind.container or containers[0]["name"]
    return next(each for each in containers if each["name"] == name)


def _fill_slot(container: dict[str, Any], template: Mapping[str, Any], slot: Totals) -> None:
    """Have a pod ask for no less than a slot, so that kube-scheduler counts as brim does."""
    asked = requests_of(template)
    resources = dict(container.get("resources") or {})
    limits, requests = dict(resources.get("limits") or {}), dict(resources.get("requests") or {})
    for name, amount in slot.items():
        if name == PODS or asked.get(name, 0) >= amount:
            continue
        more = amount - asked.get(name, 0)
        mine = requests_of({"spec": {"containers": [container]}}).get(name, 0)
        requests[name] = write_amount(mine + more)
        if "/" in name or name in limits:  # devices are given as a whole
            limits[name] = requests[name]
    container["resources"] = resources | {"requests": requests}
    if limits:
        container["resources"]["limits"] = limits


def _set_env(container: dict[str, Any], env: Mapping[str, str | None]) -> None:
    """Set variables; one that is None is set only where the owner does not."""
    there = list(container.get("env") or [])
    theirs = {each.get("name") for each in there}
    usual = {name: value for name, value in _USUAL.items() if name in env and name not in theirs}
    mine = {**usual, **{name: value for name, value in env.items() if value is not None}}
    container["env"] = [
        *(each for each in there if each.get("name") not in mine),
        *({"name": name, "value": value} for name, value in mine.items()),
    ]


# PyTorch ------------------------------------------------------------------------------------------

# What torch needs to be resized: with its shared store, members of the last round look for one
# another where nobody is any more.
_SHARE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_USUAL = {"PYTHONUNBUFFERED": "1", _SHARE: "1", **USUAL_MPI_ENV}


def _torch_env(asked: KubeflowSpec, rank: Rank, is_main: bool) -> dict[str, str | None]:
    found: dict[str, str | None] = {"PYTHONUNBUFFERED": None}
    total = asked.pods.maximum
    per_node = asked.spec.get("nprocPerNode")
    policy = asked.spec.get("elasticPolicy")
    if asked.of(MASTERS) is not None:
        number = str(rank.number + (rank.type == WORKER))
        address, port = name_of(asked, Rank(MASTERS.lower(), 0)), str(asked.port(MASTERS))
        processes = int(str(per_node)) if str(per_node or "").isdecimal() else 1
        found |= {"MASTER_ADDR": address, "MASTER_PORT": port}
        found |= {"PET_MASTER_ADDR": address, "PET_MASTER_PORT": port}
        found |= {"WORLD_SIZE": str(total * processes), "RANK": number, "PET_NODE_RANK": number}
    if policy is None:
        found |= {"PET_NPROC_PER_NODE": str(per_node or "auto"), "PET_NNODES": str(total)}
        return found
    bounds = asked.bounds
    first = name_of(asked, Rank(WORKER, 0))
    host, at = policy.get("rdzvHost") or first, policy.get("rdzvPort") or asked.port(WORKERS)
    found |= {
        _SHARE: None,
        "PET_NPROC_PER_NODE": str(policy.get("nProcPerNode") or per_node or "auto"),
        "PET_RDZV_ENDPOINT": f"{host}:{at}",
        "PET_RDZV_BACKEND": str(policy.get("rdzvBackend") or "c10d"),
        "PET_NNODES": f"{bounds.minimum}:{bounds.maximum}" if bounds else str(total),
    }
    if policy.get("maxRestarts") is not None:
        found["PET_MAX_RESTARTS"] = str(policy["maxRestarts"])
    if policy.get("rdzvId") is not None:
        found["PET_RDZV_ID"] = str(policy["rdzvId"])
    if policy.get("rdzvConf"):
        pairs = (f"{each.get('key')}={each.get('value')}" for each in policy["rdzvConf"])
        found["PET_RDZV_CONF"] = ",".join(pairs)
    if policy.get("standalone"):
        found["PET_STANDALONE"] = ""
    return found


# TensorFlow ---------------------------------------------------------------------------------------


def _tensorflow_env(asked: KubeflowSpec, rank: Rank, is_main: bool) -> dict[str, str | None]:
    """Return `TF_CONFIG` where there are several; a dynamic worker knows itself and the servers.

    The cluster is of those that train: an evaluator knows them, and none of them knows it.
    """
    if not is_main or asked.pods.maximum == 1:
        return {}
    members = {
        each.type.lower(): [
            f"{name_of(asked, Rank(each.type.lower(), index))}.{asked.job.namespace}.svc:{asked.port(each.type)}"
            for index in range(_most_of(asked, each.type))
        ]
        for each in asked.replicas
        if each.type != EVALUATOR
    }
    task = {"type": rank.type, "index": rank.number}
    if asked.spec.get("enableDynamicWorker"):
        mine = members.get(rank.type, [])[rank.number : rank.number + 1]
        servers = mine if rank.type == "ps" or not mine else members.get("ps", [])
        worker = {str(rank.number): mine[0]} if rank.type == WORKER else {}
        config: dict[str, Any] = {"cluster": {"worker": worker, "ps": servers}, "task": task}
    else:
        config = {"cluster": members, "task": task, "environment": "cloud"}
    return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}


def _most_of(asked: KubeflowSpec, type: str) -> int:
    replicas = asked.of(type)
    assert replicas is not None
    if type != WORKERS:
        return replicas.count
    return max(replicas.count, asked.pods.maximum - asked.others)


ENV: Mapping[str, Callable[[KubeflowSpec, Rank, bool], dict[str, str | None]]] = {
    "PyTorchJob": _torch_env,
    "TFJob": _tensorflow_env,
    "MPIJob": mpi_env,
}
