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
from brim.kubernetes.kubeflow.gangs import gang_of_kubeflow
from brim.kubernetes.kubeflow.mpi import USUAL_MPI_ENV, equip, mpi_env
from brim.kubernetes.kubeflow.mpi_ssh import equip_with_ssh, ssh_env
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
from brim.kubernetes.kubeflow.request import (
    EVALUATOR,
    EXIT_CODE,
    LAUNCHER,
    MPI,
    NEVER,
    KubeflowSpec,
    Rank,
    requests_of,
)
from brim.kubernetes.kubeflow.request import MASTER as MASTERS
from brim.kubernetes.kubeflow.request import WORKER as WORKERS
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
    request = start.request
    labels = {**labels_of(request, rank), **common_labels(request)}
    selector = {name: labels[name] for name in (OPERATOR_NAME, JOB_NAME, TYPE, INDEX)}
    return object_of_job("v1", "Service", start, name_of(request, rank), labels) | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector,
            "ports": _service_ports(request, rank.type),
        }
    }


def _service_ports(request: KubeflowSpec, type: str) -> list[dict[str, Any]]:
    """Return the ports of a pod's Service: that by which replicas meet, and others with a name."""
    found: dict[tuple[object, object], dict[str, Any]] = {}
    meeting = {"name": request.kind.port_name, "containerPort": request.port(type)}
    replicas = request.of(type)
    assert replicas is not None
    for port in [meeting, *(main_container(request, replicas.template["spec"]).get("ports") or [])]:
        number, protocol = port.get("containerPort"), port.get("protocol", "TCP")
        if port.get("name") and isinstance(number, int):
            entry = {"name": port["name"], "port": number}
            found.setdefault((number, protocol), entry | _only_other(protocol))
    return list(found.values())


def _only_other(protocol: str) -> dict[str, str]:
    return {} if protocol == "TCP" else {"protocol": protocol}


def pod_of(start: KubeflowStart, new: NewPod) -> Manifest:
    """Return a pod of a job; it has to be on its node."""
    request, rank = start.request, new.rank
    replicas = request.of(rank.type)
    assert replicas is not None
    template = deepcopy(dict(replicas.template))
    meta, spec = template.get("metadata") or {}, template["spec"]
    labels = {
        MANAGED_BY: OPERATOR,
        JOB: request.job.name,
        ROLE: WORKER,
        LAUNCH: str(start.launch),
        **labels_of(request, rank),
    }
    manifest = object_of_job(
        "v1", "Pod", start, name_of(request, rank), {**(meta.get("labels") or {}), **labels}
    )
    notes = dict(meta.get("annotations") or {})
    manifest["metadata"]["annotations"] = {**notes, NODE: new.node}
    affinity = spec.get("affinity") or {}
    if nodes := nodes_for(affinity.get("nodeAffinity"), node=new.node):
        spec["affinity"] = {**affinity, "nodeAffinity": nodes}
    policy = replicas.restart_policy
    spec["restartPolicy"] = NEVER if policy == EXIT_CODE else policy
    chosen = request.scheduling.priority_class if request.scheduling is not None else ""
    if chosen and not spec.get("priorityClassName"):
        spec["priorityClassName"] = chosen
    bears = [{"key": key, "operator": "Exists"} for key in start.tolerated]
    if bears:
        spec["tolerations"] = [*bears, *(spec.get("tolerations") or [])]
    main = main_container(request, spec)
    # A launcher has a slot, and leaves of it what it does not need.
    if replicas.type != LAUNCHER or (request.mpi is not None and request.mpi.launcher_works):
        _fill_slot(main, replicas.template, start.slot)
    if request.mpi is not None:
        equip_with_ssh(spec, main, start, rank)
    elif request.kind.word == MPI:
        equip(spec, main, start, rank)
    for container in spec["containers"]:
        env = ssh_env if request.mpi is not None else ENV[request.kind.name]
        _set_env(container, env(request, rank, container is main))
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    port = {"name": request.kind.port_name, "containerPort": request.kind.port}
    ports = main.get("ports") or []
    if request.kind.port and all(entry.get("name") != port["name"] for entry in ports):
        main["ports"] = [*ports, port]
    pod = manifest | {"spec": spec}
    if gang := gang_of_kubeflow(start):  # a member of one can have no responder to evictions
        return gang.with_member(request.job.name, pod)
    return with_responder(pod) if start.evictions else pod


def main_container(request: KubeflowSpec, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container that does the work."""
    containers: list[dict[str, Any]] = spec["containers"]
    name = request.kind.container or containers[0]["name"]
    return next(container for container in containers if container["name"] == name)


def _fill_slot(container: dict[str, Any], template: Mapping[str, Any], slot: Totals) -> None:
    """Have a pod ask for no less than a slot, so that kube-scheduler counts as brim does."""
    requested = requests_of(template)
    resources = dict(container.get("resources") or {})
    limits, requests = dict(resources.get("limits") or {}), dict(resources.get("requests") or {})
    for name, amount in slot.items():
        if name == PODS or requested.get(name, 0) >= amount:
            continue
        missing = amount - requested.get(name, 0)
        own_amount = requests_of({"spec": {"containers": [container]}}).get(name, 0)
        requests[name] = write_amount(own_amount + missing)
        if "/" in name or name in limits:  # devices are given as a whole
            limits[name] = requests[name]
    container["resources"] = resources | {"requests": requests}
    if limits:
        container["resources"]["limits"] = limits


def _set_env(container: dict[str, Any], env: Mapping[str, str | None]) -> None:
    """Set variables; one that is None is set only where the owner does not."""
    variables = list(container.get("env") or [])
    names = {variable.get("name") for variable in variables}
    usual = {name: value for name, value in _USUAL.items() if name in env and name not in names}
    values = {**usual, **{name: value for name, value in env.items() if value is not None}}
    container["env"] = [
        *(variable for variable in variables if variable.get("name") not in values),
        *({"name": name, "value": value} for name, value in values.items()),
    ]


# PyTorch ------------------------------------------------------------------------------------------

# What torch needs to be resized: with its shared store, members of the last round look for one
# another where nobody is any more.
_SHARE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_USUAL = {"PYTHONUNBUFFERED": "1", _SHARE: "1", **USUAL_MPI_ENV}


def _torch_env(request: KubeflowSpec, rank: Rank, is_main: bool) -> dict[str, str | None]:
    found: dict[str, str | None] = {"PYTHONUNBUFFERED": None}
    total = request.pods.maximum
    per_node = request.spec.get("nprocPerNode")
    policy = request.spec.get("elasticPolicy")
    if request.of(MASTERS) is not None:
        number = str(rank.number + (rank.type == WORKER))
        address, port = name_of(request, Rank(MASTERS.lower(), 0)), str(request.port(MASTERS))
        processes = int(str(per_node)) if str(per_node or "").isdecimal() else 1
        found |= {"MASTER_ADDR": address, "MASTER_PORT": port}
        found |= {"PET_MASTER_ADDR": address, "PET_MASTER_PORT": port}
        found |= {"WORLD_SIZE": str(total * processes), "RANK": number, "PET_NODE_RANK": number}
    if policy is None:
        found |= {"PET_NPROC_PER_NODE": str(per_node or "auto"), "PET_NNODES": str(total)}
        return found
    bounds = request.bounds
    first = name_of(request, Rank(WORKER, 0))
    host = policy.get("rdzvHost") or first
    rendezvous_port = policy.get("rdzvPort") or request.port(WORKERS)
    found |= {
        _SHARE: None,
        "PET_NPROC_PER_NODE": str(policy.get("nProcPerNode") or per_node or "auto"),
        "PET_RDZV_ENDPOINT": f"{host}:{rendezvous_port}",
        "PET_RDZV_BACKEND": str(policy.get("rdzvBackend") or "c10d"),
        "PET_NNODES": f"{bounds.minimum}:{bounds.maximum}" if bounds else str(total),
    }
    if policy.get("maxRestarts") is not None:
        found["PET_MAX_RESTARTS"] = str(policy["maxRestarts"])
    if policy.get("rdzvId") is not None:
        found["PET_RDZV_ID"] = str(policy["rdzvId"])
    if policy.get("rdzvConf"):
        pairs = (f"{pair.get('key')}={pair.get('value')}" for pair in policy["rdzvConf"])
        found["PET_RDZV_CONF"] = ",".join(pairs)
    if policy.get("standalone"):
        found["PET_STANDALONE"] = ""
    return found


# TensorFlow ---------------------------------------------------------------------------------------


def _tensorflow_env(request: KubeflowSpec, rank: Rank, is_main: bool) -> dict[str, str | None]:
    """Return `TF_CONFIG` where there are several; a dynamic worker knows itself and the servers.

    The cluster is of those that train: an evaluator knows them, and none of them knows it.
    """
    if not is_main or request.pods.maximum == 1:
        return {}
    domain = f"{request.job.namespace}.svc"
    members = {
        replicas.type.lower(): [
            f"{name_of(request, Rank(replicas.type.lower(), index))}.{domain}:{request.port(replicas.type)}"
            for index in range(_most_of(request, replicas.type))
        ]
        for replicas in request.replicas
        if replicas.type != EVALUATOR
    }
    task = {"type": rank.type, "index": rank.number}
    if request.spec.get("enableDynamicWorker"):
        members_here = members.get(rank.type, [])[rank.number : rank.number + 1]
        servers = members_here if rank.type == "ps" or not members_here else members.get("ps", [])
        worker = {str(rank.number): members_here[0]} if rank.type == WORKER else {}
        config: dict[str, Any] = {"cluster": {"worker": worker, "ps": servers}, "task": task}
    else:
        config = {"cluster": members, "task": task, "environment": "cloud"}
    return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}


def _most_of(request: KubeflowSpec, type: str) -> int:
    replicas = request.of(type)
    assert replicas is not None
    if type != WORKERS:
        return replicas.count
    return max(replicas.count, request.pods.maximum - request.others)


ENV: Mapping[str, Callable[[KubeflowSpec, Rank, bool], dict[str, str | None]]] = {
    "PyTorchJob": _torch_env,
    "TFJob": _tensorflow_env,
    "MPIJob": mpi_env,
}
