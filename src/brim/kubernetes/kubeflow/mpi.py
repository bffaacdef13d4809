"""Hosts of an MPIJob, and the means by which a launcher of `v1` finds and reaches them. Pure.

mpirun and horovodrun start processes on workers as rsh does: by a script of the job's ConfigMap, which
calls `kubectl exec`. That takes rights, and the launcher has them on the workers of its job alone. The
ConfigMap also says who the workers are: those that there are or are to be (`hostfile`), and those that
run (`discover_hosts.sh`, for an elastic Horovod).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from brim.kubernetes.kubeflow.objects import (
    KubeflowStart,
    common_labels,
    name_of,
    object_of_job,
)
from brim.kubernetes.kubeflow.ranks import RankedPods
from brim.kubernetes.kubeflow.request import LAUNCHER, WORKER, KubeflowSpec, Rank
from brim.kubernetes.objects.identities import GROUP
from brim.kubernetes.pods.manifests import Manifest

HOSTS = f"{GROUP}/hosts"  # an annotation of the launcher: which hosts its ConfigMap has
KUBECTL_IMAGE = "kubeflow/kubectl-delivery:latest"  # as Kubeflow's operator has it
_FOLDER, _PROGRAMS = "/etc/mpi", "/opt/kube"
_HOSTFILE, _REACH, _DISCOVER = "hostfile", "kubexec.sh", "discover_hosts.sh"
_CONFIG_VOLUME, _PROGRAM_VOLUME = "mpi-job-config", "mpi-job-kubectl"
_RUN, _READ = 0o555, 0o444
# kubectl of its own image is copied; then workers have to run, which mpirun does not wait for. The
# launcher may be a host, too, at which it may not look.
_DELIVER = f"""\
cp "$(command -v kubectl)" {_PROGRAMS}/kubectl || exit 1
enough_run() {{
  running=0
  while read -r host _; do
    phase=$({_PROGRAMS}/kubectl get pod "$host" -o 'jsonpath={{.status.phase}}')
    [ "$phase" = Running ] && running=$((running + 1))
  done < {_FOLDER}/{_HOSTFILE}
  [ "$running" -ge "$WORKERS" ]
}}
until enough_run; do sleep 1; done
"""


RIGHTS = frozenset({"ServiceAccount", "Role", "RoleBinding"})  # kinds of `launcher_rights`


class MpiHosts(NamedTuple):
    """The hosts of a job by the names of their pods, in order.

    Attributes:
        planned: those that there are, or are about to be.
        running: those of them on which something can be started.
    """

    planned: tuple[str, ...]
    running: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """A word that other hosts do not have."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()[:16]


def hosts_to_be(request: KubeflowSpec, pods: RankedPods, new: Iterable[Rank]) -> MpiHosts:
    """Return the hosts of a job once these pods are made; one that is leaving is none."""
    stay = {rank for rank, pod in pods.pods.items() if not (pod.has_ended or pod.is_leaving)}
    running = {rank for rank in stay if pods.pods[rank].status.phase == "Running"}
    return MpiHosts(_names(request, {*stay, *new}), _names(request, running))


def hosts_of(request: KubeflowSpec, pods: RankedPods) -> MpiHosts:
    """Return the hosts of a job as they are."""
    return hosts_to_be(request, pods, ())


def _names(request: KubeflowSpec, ranks: Iterable[Rank]) -> tuple[str, ...]:
    types = [LAUNCHER.lower(), WORKER.lower()] if launcher_computes(request) else [WORKER.lower()]
    found = [rank for rank in ranks if rank.type in types]
    order = sorted(found, key=lambda rank: (types.index(rank.type), rank.number))
    return tuple(name_of(request, rank) for rank in order)


def launcher_computes(request: KubeflowSpec) -> bool:
    """Return whether the launcher is one of the hosts: it has a device of its own."""
    launcher = request.of(LAUNCHER)
    assert launcher is not None
    if request.mpi is not None:
        return request.mpi.launcher_works
    return any(
        "gpu" in name
        for container in launcher.template["spec"]["containers"]
        for name in (container.get("resources") or {}).get("limits") or {}
    )


# Objects beside the pods --------------------------------------------------------------------------


def hosts_config(start: KubeflowStart, hosts: MpiHosts) -> Manifest:
    """Return the ConfigMap by which a launcher knows its hosts."""
    request = start.request
    slots = request.spec.get("slotsPerWorker") or 1
    container = request.spec.get("mainContainer")
    option = f" --container {container}" if container else ""
    reach = (
        "#!/bin/sh\n# Called as rsh is: with a host, and what to run there.\n"
        f'host=$1\nshift\nexec {_PROGRAMS}/kubectl exec "$host"{option} -- /bin/sh -c "$*"\n'
    )
    data = {
        _HOSTFILE: "".join(f"{host} slots={slots}\n" for host in hosts.planned),
        _DISCOVER: "".join(["#!/bin/sh\n", *(f"echo {host}:{slots}\n" for host in hosts.running)]),
        _REACH: reach,
    }
    config = object_of_job("v1", "ConfigMap", start, _config_name(request), _labels(request))
    return config | {"data": data}


def launcher_rights(start: KubeflowStart) -> list[Manifest]:
    """Return the account of a launcher, and its right to run commands on the workers of its job.

    An account that the owner names gets that right, and is not made.
    """
    request = start.request
    launcher, name = request.of(LAUNCHER), name_of(request, Rank(LAUNCHER.lower(), 0))
    assert launcher is not None
    account_name = launcher.template["spec"].get("serviceAccountName")
    group, labels = "rbac.authorization.k8s.io", _labels(request)
    workers = [
        name_of(request, Rank(WORKER.lower(), number)) for number in range(_maximum(request))
    ]
    role = object_of_job(f"{group}/v1", "Role", start, name, labels)
    role["rules"] = [
        {"apiGroups": [""], "resources": [resource], "verbs": [verb], "resourceNames": workers}
        for resource, verb in (("pods", "get"), ("pods/exec", "create"))
    ]
    binding = object_of_job(f"{group}/v1", "RoleBinding", start, name, labels)
    binding["roleRef"] = {"apiGroup": group, "kind": "Role", "name": name}
    subject = {
        "kind": "ServiceAccount",
        "name": account_name or name,
        "namespace": request.job.namespace,
    }
    binding["subjects"] = [subject]
    account = [] if account_name else [object_of_job("v1", "ServiceAccount", start, name, labels)]
    return [*account, role, binding]


def _maximum(request: KubeflowSpec) -> int:
    workers = request.of(WORKER)
    count = workers.count if workers is not None else 0
    return max(count, request.bounds.maximum if request.bounds is not None else 0)


def fewest_workers(request: KubeflowSpec) -> int:
    """Return the workers without which a launcher has nothing to begin."""
    workers = request.of(WORKER)
    assert workers is not None
    return workers.count if request.bounds is None else request.bounds.minimum


def _labels(request: KubeflowSpec) -> dict[str, str]:
    return {"app": request.job.name, **common_labels(request)}


def _config_name(request: KubeflowSpec) -> str:
    return f"{request.job.name}-config"


# In pods ------------------------------------------------------------------------------------------


def mpi_env(request: KubeflowSpec, rank: Rank, is_main: bool) -> dict[str, str | None]:
    """Return the variables by which MPI of any make finds hosts and how to reach them."""
    if rank.type != LAUNCHER.lower() or not is_main:
        return {}
    reach = f"{_FOLDER}/{_REACH}"
    found: dict[str, str | None] = {
        "OMPI_MCA_plm_rsh_agent": reach,
        "OMPI_MCA_orte_default_hostfile": f"{_FOLDER}/{_HOSTFILE}",
        "I_MPI_HYDRA_BOOTSTRAP": None,
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": None,
    }
    if not launcher_computes(request):
        found |= {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    return found


USUAL_MPI_ENV = {
    "I_MPI_HYDRA_BOOTSTRAP": "rsh",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC": f"{_FOLDER}/{_REACH}",
}


def equip(spec: dict[str, Any], main: dict[str, Any], start: KubeflowStart, rank: Rank) -> None:
    """Give a pod of an MPIJob the means to reach others, or to be reached.

    Args:
        spec: of the pod.
        main: its container that does the work.
    """
    leads = rank.type == LAUNCHER.lower()
    if not leads and not main.get("command"):
        main["command"], main["args"] = ["sleep"], ["365d"]  # what it does is started there
    files = [(_REACH, _RUN), *([(_HOSTFILE, _READ), (_DISCOVER, _RUN)] if leads else [])]
    items = [{"key": name, "path": name, "mode": mode} for name, mode in files]
    config = {"name": _config_name(start.request), "items": items}
    volumes: list[Manifest] = [{"name": _CONFIG_VOLUME, "configMap": config}]
    mounts = [{"name": _CONFIG_VOLUME, "mountPath": _FOLDER}]
    if leads:
        volumes.append({"name": _PROGRAM_VOLUME, "emptyDir": {}})
        mounts.append({"name": _PROGRAM_VOLUME, "mountPath": _PROGRAMS})
        spec.setdefault("serviceAccountName", name_of(start.request, rank))
        spec["initContainers"] = [*(spec.get("initContainers") or []), _delivery(start, mounts)]
    main["volumeMounts"] = [*(main.get("volumeMounts") or []), *mounts]
    spec["volumes"] = [*(spec.get("volumes") or []), *volumes]


def _delivery(start: KubeflowStart, mounts: list[dict[str, str]]) -> Manifest:
    amounts = {"cpu": "100m", "memory": "128Mi"}
    return {
        "name": "kubectl-delivery",
        "image": start.kubectl or KUBECTL_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", _DELIVER],
        "env": [
            {"name": "TARGET_DIR", "value": _PROGRAMS},
            {"name": "NAMESPACE", "value": start.request.job.namespace},
            {"name": "WORKERS", "value": str(fewest_workers(start.request))},
        ],
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [dict(mount) for mount in mounts],
    }
