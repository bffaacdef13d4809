"""Hosts of an MPIJob of `v2beta1`, which its launcher reaches by ssh. Pure.

Each worker runs sshd. A Secret has the one key of the job, for both ends; a headless Service of the
job's name gives each pod a name, and the ConfigMap says who the workers are, in the words of the
job's make of MPI. All of it is as the MPI operator has it, but for the name of the Secret, which
nobody knows before it is there.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from brim.kubernetes.kubeflow.mpi import MpiHosts
from brim.kubernetes.kubeflow.objects import (
    JOB_NAME,
    OPERATOR_NAME,
    KubeflowStart,
    common_labels,
    name_of,
    object_of_job,
)
from brim.kubernetes.kubeflow.request import (
    INTEL,
    LAUNCHER,
    OPEN_MPI,
    ROOT_KEYS,
    KubeflowSpec,
    MpiLaunch,
    Rank,
)
from brim.kubernetes.pods.manifests import Manifest

_FOLDER = "/etc/mpi"
_HOSTFILE, _DISCOVER = "hostfile", "discover_hosts.sh"
_CONFIG_VOLUME, _KEYS_VOLUME = "mpi-job-config", "ssh-auth"
_PRIVATE, _PUBLIC = (
    "ssh-privatekey",
    "ssh-publickey",
)  # keys of the Secret; Kubernetes has the first
_KEY_FILES = ((_PRIVATE, "id_rsa"), (_PUBLIC, "id_rsa.pub"), (_PUBLIC, "authorized_keys"))
_RUN, _READ, _OWN = 0o555, 0o444, 0o600
_SSHD = ["/usr/sbin/sshd", "-De"]
_ATTEMPTS = "-o ConnectionAttempts=10"  # workers may still be on their way


# Objects beside the pods --------------------------------------------------------------------------


def ssh_service(start: KubeflowStart) -> Manifest:
    """Return the headless Service by which each pod of a job has a name."""
    request = start.request
    labels = {"app": request.job.name, **common_labels(request)}
    selector = {name: labels[name] for name in (OPERATOR_NAME, JOB_NAME)}
    spec = {
        "clusterIP": "None",
        "selector": selector,
        # Else a launcher that is a host waits for its own name until it is ready.
        "publishNotReadyAddresses": _launch_of(request).launcher_works,
    }
    return object_of_job("v1", "Service", start, request.job.name, labels) | {"spec": spec}


def ssh_secret(start: KubeflowStart) -> Manifest:
    """Return the Secret with the key of a job, the same for the whole life of its object."""
    # An installation, which knows these kinds, too, need not have the package.
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    # 512 bits are below the order of the curve, so that any number of them is a key.
    number = int.from_bytes(hashlib.sha512(b"key" + start.seed).digest(), "big")
    key = ec.derive_private_key(number or 1, ec.SECP521R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    labels = {"app": start.request.job.name, **common_labels(start.request)}
    data = {_PRIVATE: private, _PUBLIC: public}
    return object_of_job("v1", "Secret", start, _secret_name(start), labels) | {
        "type": "kubernetes.io/ssh-auth",
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }


def _secret_name(start: KubeflowStart) -> str:
    """Return a name that nobody can know before: another Secret could have been put there."""
    mark = hashlib.sha256(b"name" + start.seed).hexdigest()[:8]
    return f"{start.request.job.name}-ssh-{mark}"


def ssh_hosts_config(start: KubeflowStart, hosts: MpiHosts) -> Manifest:
    """Return the ConfigMap by which a launcher knows its hosts."""
    request, launch = start.request, _launch_of(start.request)
    domain = f"{request.job.name}.{request.job.namespace}.svc"
    slots = f" slots={launch.slots}" if launch.implementation == OPEN_MPI else f":{launch.slots}"
    discovered = (f"echo {host}.{domain}\n" for host in hosts.running)
    labels = {"app": request.job.name, **common_labels(request)}
    return object_of_job("v1", "ConfigMap", start, _config_name(request), labels) | {
        "data": {
            _HOSTFILE: "".join(f"{host}.{domain}{slots}\n" for host in hosts.planned),
            _DISCOVER: "".join(["#!/bin/sh\n", *discovered]),
        }
    }


def _config_name(request: KubeflowSpec) -> str:
    return f"{request.job.name}-config"


def _launch_of(request: KubeflowSpec) -> MpiLaunch:
    assert request.mpi is not None
    return request.mpi


# In pods ------------------------------------------------------------------------------------------


def ssh_env(request: KubeflowSpec, rank: Rank, is_main: bool) -> dict[str, str | None]:
    """Return the variables by which the job's make of MPI finds hosts and how to reach them."""
    if not is_main:
        return {}
    launch, role = _launch_of(request), rank.type
    found: dict[str, str | None] = {"K_MPI_JOB_ROLE": role}
    if role != LAUNCHER.lower():
        return found
    hostfile, slots = f"{_FOLDER}/{_HOSTFILE}", str(launch.slots)
    if launch.implementation == OPEN_MPI:
        found |= {
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": hostfile,
            "OMPI_MCA_plm_rsh_args": _ATTEMPTS,
            "OMPI_MCA_orte_set_default_slots": slots,
        }
    elif launch.implementation == INTEL:
        found |= {
            "I_MPI_HYDRA_HOST_FILE": hostfile,
            "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": _ATTEMPTS,
            "I_MPI_PERHOST": slots,
        }
    else:
        found |= {"HYDRA_HOST_FILE": hostfile, "HYDRA_LAUNCH_EXTRA_ARGS": _ATTEMPTS}
    if not launch.launcher_works:
        found |= {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    return found


def equip_with_ssh(
    spec: dict[str, Any], main: dict[str, Any], start: KubeflowStart, rank: Rank
) -> None:
    """Give a pod its name, and the means to reach others, or to be reached.

    Args:
        spec: of the pod.
        main: its container that does the work.
    """
    request, launch = start.request, _launch_of(start.request)
    spec["hostname"], spec["subdomain"] = name_of(request, rank), request.job.name
    if spec.get("hostNetwork"):
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    keys = [{"key": key, "path": path} for key, path in _KEY_FILES]
    secret: dict[str, Any] = {"secretName": _secret_name(start), "items": keys}
    if launch.keys == ROOT_KEYS:
        secret["defaultMode"] = _OWN
    volumes: list[Manifest] = [{"name": _KEYS_VOLUME, "secret": secret}]
    mounts = [{"name": _KEYS_VOLUME, "mountPath": launch.keys}]
    if rank.type == LAUNCHER.lower():
        files = ((_HOSTFILE, _READ), (_DISCOVER, _RUN))
        items = [{"key": name, "path": name, "mode": mode} for name, mode in files]
        config = {"name": _config_name(request), "items": items}
        volumes.append({"name": _CONFIG_VOLUME, "configMap": config})
        mounts.append({"name": _CONFIG_VOLUME, "mountPath": _FOLDER})
    else:
        # Makes of MPI beside Open MPI have workers call the launcher by its bare name.
        dns = dict(spec.get("dnsConfig") or {})
        search = f"{request.job.name}.{request.job.namespace}.svc.cluster.local"
        spec["dnsConfig"] = {**dns, "searches": [*(dns.get("searches") or []), search]}
        if not (main.get("command") or main.get("args")):
            main["command"] = list(_SSHD)
    main["volumeMounts"] = [*(main.get("volumeMounts") or []), *mounts]
    spec["volumes"] = [*(spec.get("volumes") or []), *volumes]
