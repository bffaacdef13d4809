"""The objects that run a job, as an API server takes them: pods, and their needs beside them.

Pure: the same job gives the same objects. All of them but the Service that the jobs of a namespace
share have the job as their owner, so nothing is left of it where it is deleted. Pods satisfy the
standard "restricted" of Pod Security.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from brim.coordination.cluster.reconcile import force_begins
from brim.domain.quantities import format_duration
from brim.errors import SpecError
from brim.host.process import run_module
from brim.kubernetes.client.kube_types import Amounts
from brim.kubernetes.nodes.node_selection import nodes_for, preferring
from brim.kubernetes.objects.identities import (
    GROUP,
    JOB,
    KIND,
    MANAGED_BY,
    MASTER,
    NODE,
    OPERATOR,
    ROLE,
    SERVICE,
    VERSION,
    WORKER,
    KubeJob,
    labels_of,
)
from brim.storage.job_file import JOB_FILE

Manifest: TypeAlias = dict[str, Any]

MASTER_PORT = 7077
_WORKER_PORTS = (7100, 7163)
_RUN, _TEMPORARY, _FILES = "/brim", "/tmp", "/etc/brim/job"
_HEARTBEAT = f"{_TEMPORARY}/brim-heartbeat"
_USER = 1000  # whose files are in the volumes; no image has to name one
TO_END = 30  # seconds that a pod has from SIGTERM on: an agent takes 25 of them to leave
USUAL_GRACE = 40.0  # seconds: see `check_grace`
_TO_REJOIN = 600.0  # seconds that a worker waits for another master
_PATIENCE = 7 * 86_400.0  # seconds that a master waits for a worker: suspending is the operator's
_SECRET_KEY = "token"
_NAMESPACE = "kubernetes.io/metadata.name"  # a label that API servers give, and nobody can change
_OPERATOR_POD = {"app.kubernetes.io/name": "brim-operator"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWishes:
    """The wishes of an administrator, and of a job's owner, for the job's pods.

    Args:
        image: has brim and the imports of the job.
        operator_namespace: the one whose pods may pass for the operator's.
        slot: resources of a worker.
        master: resources of a master.
        priority_class: by which kube-scheduler orders and preempts; empty: the cluster's usual.
        template, master_template: fields of pods of workers, and of the master's, that the owner has
            given; those that brim decides are not theirs.
        claim: the `storageClassName` and the `size` of a volume on which the master keeps the run;
            None: it keeps it where its pod is.
        code: the ConfigMap with the job's bundle; empty: it has none.
        tolerated: keys of taints that the nodes of this cluster have and pods bear.
        handed_on: labels and annotations of the job that workers' pods have, too; those of their
            template go before them.
        gang: the fewest workers are bound together, or none: see `brim.kubernetes.pods.gangs`.
        evictions: the operator answers evictions: see `brim.kubernetes.pods.evictions`.
        anywhere: no worker's pod is pinned to a node: the scheduler that binds it chooses one.
        node_labels: a selector of the nodes that the operator may use; empty: all.
    """

    image: str
    operator_namespace: str
    slot: Amounts
    master: Amounts = field(default_factory=lambda: {"cpu": "250m", "memory": "512Mi"})
    priority_class: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)
    master_template: Mapping[str, Any] = field(default_factory=dict)
    claim: Mapping[str, Any] | None = None
    code: str = ""
    tolerated: tuple[str, ...] = ()
    handed_on: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gang: bool = False
    evictions: bool = False
    anywhere: bool = False
    node_labels: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeStart:
    """One start of a job.

    Args:
        uid: of its object.
        token: of its run.
    """

    job: KubeJob
    uid: str
    launch: int
    token: str

    @property
    def files(self) -> str:
        """The name of the Secret of this start.

        Nobody else can know it before it is there: who may make Secrets could otherwise have put
        another in that place, and say what runs.
        """
        mark = hashlib.sha256(self.token.encode()).hexdigest()[:8]
        return f"{self.job.start(self.launch)}-{mark}"


def check_grace(grace: float, *, field: str) -> None:
    """Raises SpecError where a grace period, in seconds, ends pods before they can leave.

    Args:
        field: the option that says it, for the message.
    """
    left_to_end = grace - force_begins(grace)
    if grace - left_to_end < TO_END:
        raise SpecError(
            field,
            got=format_duration(grace),
            need=f"at least {format_duration(TO_END + left_to_end)}: a pod has {TO_END}s to end by itself, "
            f"and force comes {format_duration(left_to_end)} before the grace period is over",
            hint=f"{field} {format_duration(USUAL_GRACE)}",
        )


def volume_claim(start: KubeStart, claim: Mapping[str, Any]) -> Manifest:
    """Return the claim for the volume on which a job's master keeps its run."""
    chosen = {name: claim[name] for name in ("storageClassName",) if claim.get(name) is not None}
    return owned("v1", "PersistentVolumeClaim", start.job.master, start) | {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": claim["size"]}},
            **chosen,
        }
    }


def secret(start: KubeStart, spec: bytes) -> Manifest:
    """Return the Secret with the token of a start, and its spec, as `brim master` reads it."""
    data = {_SECRET_KEY: _encoded(start.token.encode()), JOB_FILE: _encoded(spec)}
    return owned("v1", "Secret", start.files, start) | {"type": "Opaque", "data": data}


def masters_service(namespace: str) -> Manifest:
    """Return the Service that gives each master of a namespace its name, ready or not.

    The name is that of the pod, in front of the Service's. It is of no job: one for each would be a
    request more for every job, and none is needed, since pods say by which name they are found.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": SERVICE,
            "namespace": namespace,
            "labels": {MANAGED_BY: OPERATOR},
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {MANAGED_BY: OPERATOR, ROLE: MASTER},
            "ports": [{"name": MASTER, "port": MASTER_PORT}],
        },
    }


def network_policy(start: KubeStart, operator_namespace: str) -> Manifest:
    """Return the policy by which only the job's pods, and the operator, may call its pods.

    Anybody can have a label, and nobody a namespace that is not theirs: the operator is known by both.
    """
    of_the_job = {"podSelector": {"matchLabels": {JOB: start.job.name}}}
    own_namespace = {"matchLabels": {_NAMESPACE: operator_namespace}}
    operator = {
        "namespaceSelector": own_namespace,
        "podSelector": {"matchLabels": _OPERATOR_POD},
    }
    first, last = _WORKER_PORTS
    return owned("networking.k8s.io/v1", "NetworkPolicy", start.job.master, start) | {
        "spec": {
            "podSelector": {"matchLabels": {MANAGED_BY: OPERATOR, JOB: start.job.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [of_the_job, operator], "ports": [{"port": MASTER_PORT}]},
                {"from": [of_the_job], "ports": [{"port": first, "endPort": last}]},
            ],
        }
    }


def master_pod(start: KubeStart, wishes: PodWishes, *, rejoins: bool) -> Manifest:
    """Return the pod of a job's master.

    Args:
        rejoins: workers of this start may be there, which keep copies of its journal.
    """
    command = run_module(
        "brim", "master", f"{_FILES}/{JOB_FILE}", "--auto-resume", python="python3"
    )
    command += ["--run-dir", f"{_RUN}/{start.job.id}", "--listen", f"0.0.0.0:{MASTER_PORT}"]
    command += ["--patience", f"{_PATIENCE:.0f}s", "--heartbeat-file", _HEARTBEAT]
    command += ["--summary-file", "/dev/termination-log"]  # which the pod's status has
    if not rejoins:
        command += ["--rejoin-timeout", "0s"]
    spec = {"name": start.files, "items": [{"key": JOB_FILE, "path": JOB_FILE}]}
    code = [{"configMap": {"name": wishes.code}}] if wishes.code else []
    files = {"name": "files", "projected": {"sources": [{"secret": spec}, *code]}}
    mount = {"name": "files", "mountPath": _FILES, "readOnly": True}
    claim = {"persistentVolumeClaim": {"claimName": start.job.master}}
    run = {"name": "run", **(claim if wishes.claim else {"emptyDir": {}})}
    pod = _pod(start, start.job.master, MASTER, wishes, command, requests=wishes.master)
    pod["spec"] |= {"hostname": start.job.master, "subdomain": SERVICE}
    pod["spec"]["volumes"] += [run, files]
    pod["spec"]["containers"][0]["volumeMounts"] += [{"name": "run", "mountPath": _RUN}, mount]
    pod["spec"]["containers"][0]["ports"] = [{"name": MASTER, "containerPort": MASTER_PORT}]
    return pod


def with_preferred_node(pod: Manifest, node: str) -> Manifest:
    """Return a pod that is to be on a node, where kube-scheduler may have it there."""
    affinity = pod["spec"].get("affinity", {})
    nodes = preferring(affinity.get("nodeAffinity"), node)
    return {**pod, "spec": {**pod["spec"], "affinity": {**affinity, "nodeAffinity": nodes}}}


def worker_pod(
    start: KubeStart, wishes: PodWishes, *, name: str, node: str, processes: int = 1
) -> Manifest:
    """Return the pod of a worker.

    Args:
        processes: that train in it.
        node: on which it is to be: it has to be there, or that is how the plan counts it until the
            scheduler that binds it has said where it is. Empty: the plan has none for it.
    """
    first, last = _WORKER_PORTS
    master = f"{start.job.master}.{SERVICE}:{MASTER_PORT}"
    command = run_module("brim", "agent", master, "--workers", str(processes), python="python3")
    command += ["--patience", f"{_TO_REJOIN:.0f}s", "--ports", f"{first}-{last}"]
    command += ["--heartbeat-file", _HEARTBEAT]
    pod = _pod(start, name, WORKER, wishes, command, requests=wishes.slot)
    pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), NODE: node}
    affinity = pod["spec"].get("affinity", {})
    placing = {"labels": wishes.node_labels} if wishes.anywhere else {"node": node}
    if nodes := nodes_for(affinity.get("nodeAffinity"), **placing):
        pod["spec"]["affinity"] = {**affinity, "nodeAffinity": nodes}
    return pod


def _pod(
    start: KubeStart,
    name: str,
    role: str,
    wishes: PodWishes,
    command: Sequence[str],
    *,
    requests: Amounts,
) -> Manifest:
    pod = owned("v1", "Pod", name, start)
    template = wishes.template if role == WORKER else wishes.master_template
    labels = labels_of(start.job, role, start.launch)
    theirs_too = wishes.handed_on if role == WORKER else {}
    noted = {
        part: {**theirs_too.get(part, {}), **template.get("metadata", {}).get(part, {})}
        for part in ("labels", "annotations")
    }
    pod["metadata"]["labels"] = {**noted["labels"], **labels}
    if noted["annotations"]:
        pod["metadata"]["annotations"] = noted["annotations"]
    pod_spec = dict(template.get("spec", {}))
    containers = pod_spec.pop("containers", [])
    container: Mapping[str, Any] = next(
        (entry for entry in containers if entry.get("name") == role), {}
    )
    rest = [entry for entry in containers if entry.get("name") != role]
    spec: Manifest = {
        **pod_spec,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": TO_END,
        "securityContext": {**pod_spec.get("securityContext", {}), **_restricted_pod()},
        "tolerations": [
            *({"key": key, "operator": "Exists"} for key in wishes.tolerated),
            *pod_spec.get("tolerations", []),
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *pod_spec.get("volumes", [])],
        "containers": [_container(start, role, wishes, container, command, requests), *rest],
    }
    if wishes.priority_class:
        spec["priorityClassName"] = wishes.priority_class
    return pod | {"spec": spec}


def _container(
    start: KubeStart,
    role: str,
    wishes: PodWishes,
    container: Mapping[str, Any],
    command: Sequence[str],
    requests: Amounts,
) -> Manifest:
    token = {"secretKeyRef": {"name": start.files, "key": _SECRET_KEY}}
    env: list[Manifest] = [
        {"name": "BRIM_TOKEN", "valueFrom": token},
        {"name": "BRIM_MACHINE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "TMPDIR", "value": _TEMPORARY},
    ]
    names = {variable["name"] for variable in env}
    variables = [
        variable for variable in container.get("env", []) if variable.get("name") not in names
    ]
    if not any(variable.get("name") == "HOME" for variable in variables):
        env.append({"name": "HOME", "value": _TEMPORARY})  # its root cannot be written
    mounts = [{"name": "tmp", "mountPath": _TEMPORARY}, *container.get("volumeMounts", [])]
    return {
        **container,
        "name": role,
        "image": container.get("image") or wishes.image,
        "command": list(command),
        "args": [],
        "env": [*env, *variables],
        "resources": {"requests": dict(requests), "limits": _limits(requests)},
        "volumeMounts": mounts,
        "securityContext": _restricted_container(),
        # The status of a pod that fails has the last of its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # Until it beats for the first time, which on a busy node takes as long as it takes.
        "startupProbe": _probe(f"open({_HEARTBEAT!r})", period=2, failures=300),
        "readinessProbe": _probe(f"assert 'ready' in open({_HEARTBEAT!r}).read()", period=5),
        "livenessProbe": _probe(
            f"import os, time; assert time.time() - os.stat({_HEARTBEAT!r}).st_mtime < 120",
            period=30,
            failures=4,
        ),
    }


def _limits(requests: Amounts) -> Amounts:
    """Return the limits: idle processor time may be used beyond requests, and nothing else."""
    return {name: amount for name, amount in requests.items() if name != "cpu"}


def _probe(statement: str, *, period: int, failures: int = 3) -> Manifest:
    """Return a probe by a statement of Python: an image may have nothing else.

    Args:
        period: seconds between two attempts.
        failures: attempts in turn that have to fail. One has long enough for a node so busy that
            Python takes many seconds to start.
    """
    return {
        "exec": {"command": ["python3", "-I", "-S", "-c", statement]},
        "periodSeconds": period,
        "timeoutSeconds": 30,
        "failureThreshold": failures,
    }


def _restricted_pod() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _restricted_container() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def owned(version: str, kind: str, name: str, start: KubeStart) -> Manifest:
    """Return an object of a job, without its content: it goes with the job."""
    owner = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": start.job.name,
        "uid": start.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": name,
        "namespace": start.job.namespace,
        "labels": {MANAGED_BY: OPERATOR, JOB: start.job.name},
        "ownerReferences": [owner],
    }
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
