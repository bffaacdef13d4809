"""Kubeflow's MPIJob of v2beta1: what it may ask for, and how its launcher reaches workers by ssh."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.kubeflow.kubeflow_pods import _waits_for_workers
from brim.kubernetes.kubeflow.mpi import MpiHosts, hosts_of
from brim.kubernetes.kubeflow.mpi_ssh import ssh_hosts_config, ssh_secret, ssh_service
from brim.kubernetes.kubeflow.objects import KubeflowStart
from brim.kubernetes.kubeflow.pods import pod_of
from brim.kubernetes.kubeflow.ranks import NewPod, changes, outcome_of, ranked
from brim.kubernetes.kubeflow.request import (
    MPI_VERSION,
    ROOT_KEYS,
    KubeflowSpec,
    Rank,
    kind_of,
    read_asked,
)
from kubernetes.test_kubeflow import SLOT, asked_of, env_of, thing
from kubernetes.test_mpijobs import LAUNCHER, launched, mounts, worker

FILE = "mpijob-v2beta1.yaml"  # the example of the MPI operator, as it is
HOROVODRUN = ("horovodrun", "--host-discovery-script", "d", "--min-np", "1", "--max-np", "3")


def mpi(**spec: Any) -> KubeflowSpec:
    return asked_of(FILE, **spec)


def start_of(request: KubeflowSpec, *, seed: bytes = b"seed") -> KubeflowStart:
    return KubeflowStart(request=request, uid="uid 1", launch=1, slot=SLOT, seed=seed)


def pod(request: KubeflowSpec, rank: Rank) -> dict[str, Any]:
    return pod_of(start_of(request), NewPod(rank, "n1"))


def seen(request: KubeflowSpec, rank: Rank, *, ready: bool = True, **status: Any) -> KubePod:
    manifest = pod(request, rank)
    manifest["metadata"] |= {"uid": f"uid of {rank}"}
    condition = {"type": "Ready", "status": str(ready)}
    status = {"phase": "Running", "conditions": [condition], **status}
    return msgspec.convert(manifest | {"status": status}, KubePod)


# What it asks for ---------------------------------------------------------------------------------


def test_example_of_the_mpi_operator_is_understood() -> None:
    request = mpi()
    assert (str(request.pods), request.elastic) == ("3", False)
    assert request.firsts == (LAUNCHER, worker(0), worker(1))
    assert (request.run.clean, request.run.to_live) == ("Running", 60)
    policies = {part.type: part.restart_policy for part in request.replicas}
    assert policies == {"Launcher": "OnFailure", "Worker": "Never"}
    assert request.run.most_failures == 6  # as the Job of a launcher has it
    assert mpi(runPolicy={"backoffLimit": 1}).run.most_failures == 1


@pytest.mark.parametrize(
    ("api", "spec", "version"),
    [
        ("kubeflow.org/v2beta1", {}, MPI_VERSION),
        ("kubeflow.org/v1", {}, "v1"),
        # A server with both gives each object as the version that it is asked for.
        ("kubeflow.org/v1", {"sshAuthMountPath": ROOT_KEYS}, MPI_VERSION),
    ],
)
def test_version_of_an_object_is_known(api: str, spec: dict[str, Any], version: str) -> None:
    assert kind_of({"kind": "MPIJob", "apiVersion": api, "spec": spec}).version == version


@pytest.mark.parametrize(
    ("spec", "pods", "bounds"),
    [
        ({"mpiReplicaSpecs": launched("mpirun", workers=4)}, "5", "None"),
        ({"mpiReplicaSpecs": launched(*HOROVODRUN)}, "2:4", "1:3"),
        ({"mpiReplicaSpecs": launched("mpirun"), "runLauncherAsWorker": True}, "3", "None"),
        (
            {
                "mpiReplicaSpecs": {"Launcher": launched("mpirun")["Launcher"]},
                "runLauncherAsWorker": True,
            },
            "1",
            "None",
        ),
    ],
)
def test_pods_are_a_launcher_and_its_workers(spec: dict[str, Any], pods: str, bounds: str) -> None:
    request = mpi(**spec)
    assert (str(request.pods), str(request.bounds)) == (pods, bounds)


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ({"mpiImplementation": "LAM"}, "spec.mpiImplementation: got 'LAM', need one of OpenMPI"),
        ({"launcherCreationPolicy": "Later"}, "spec.launcherCreationPolicy: got 'Later', need one"),
        ({"slotsPerWorker": 0}, "spec.slotsPerWorker: got 0"),
        ({"sshAuthMountPath": "keys"}, "spec.sshAuthMountPath: got 'keys', need a path from"),
        ({"runLauncherAsWorker": "yes"}, "spec.runLauncherAsWorker: got 'yes'"),
        (
            {"runLauncherAsWorker": True, "mpiReplicaSpecs": launched(*HOROVODRUN)},
            "spec.runLauncherAsWorker: got true, beside --host-discovery-script",
        ),
        (
            {"mpiReplicaSpecs": {"Launcher": launched("mpirun")["Launcher"]}},
            "Worker.replicas: got 0, need at least 1",
        ),
        (
            {
                "mpiReplicaSpecs": launched("mpirun")
                | {"Worker": {**launched()["Worker"], "restartPolicy": "ExitCode"}}
            },
            "Worker.restartPolicy: got 'ExitCode', need one of OnFailure, Never",
        ),
    ],
)
def test_impossible_fields_are_refused_by_name(spec: dict[str, Any], refusal: str) -> None:
    problems = read_asked(thing(FILE, **spec), slot=SLOT)
    assert not isinstance(problems, KubeflowSpec)
    assert any(refusal in str(problem) for problem in problems), [str(each) for each in problems]


# Pods ---------------------------------------------------------------------------------------------


def test_launcher_has_names_variables_and_keys() -> None:
    manifest = pod(mpi(), LAUNCHER)
    assert manifest["metadata"]["name"] == "pi-launcher"
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert owner["apiVersion"] == "kubeflow.org/v2beta1"
    labels = manifest["metadata"]["labels"]
    assert labels["training.kubeflow.org/operator-name"] == "mpi-operator"
    assert labels["training.kubeflow.org/job-role"] == "launcher"
    assert env_of(manifest) == {
        "K_MPI_JOB_ROLE": "launcher",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": "1",
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
    }
    spec = manifest["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("pi-launcher", "pi")
    assert (spec["restartPolicy"], "initContainers" in spec) == ("OnFailure", False)
    assert mounts(spec["containers"][0]) == {
        "/home/mpiuser/.ssh": "ssh-auth",
        "/etc/mpi": "mpi-job-config",
    }
    assert spec["containers"][0]["command"] == ["mpirun"]
    assert "nvidia.com/gpu" not in spec["containers"][0]["resources"].get("requests", {})


def test_worker_runs_sshd_and_fills_its_slot() -> None:
    manifest = pod(mpi(mpiReplicaSpecs=launched("mpirun"), sshAuthMountPath=ROOT_KEYS), worker(1))
    spec, container = manifest["spec"], manifest["spec"]["containers"][0]
    assert container["command"] == ["/usr/sbin/sshd", "-De"]
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "1"
    assert env_of(manifest) == {"K_MPI_JOB_ROLE": "worker"}
    assert (spec["hostname"], spec["subdomain"]) == ("pi-worker-1", "pi")
    assert spec["dnsConfig"] == {"searches": ["pi.team.svc.cluster.local"]}
    (volume,) = spec["volumes"]
    assert volume["secret"]["defaultMode"] == 0o600  # ssh takes no others for root
    own = pod(mpi(), worker(0))["spec"]
    assert own["containers"][0]["args"] == ["-De", "-f", "/home/mpiuser/.sshd_config"]
    assert "defaultMode" not in own["volumes"][0]["secret"]


@pytest.mark.parametrize(
    ("make", "variables", "line"),
    [
        ("Intel", {"I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile", "I_MPI_PERHOST": "2"}, ":2"),
        ("MPICH", {"HYDRA_HOST_FILE": "/etc/mpi/hostfile"}, ":2"),
        ("OpenMPI", {"OMPI_MCA_orte_set_default_slots": "2"}, " slots=2"),
    ],
)
def test_hosts_are_in_the_words_of_a_make(make: str, variables: dict[str, str], line: str) -> None:
    request = mpi(mpiImplementation=make, slotsPerWorker=2)
    assert variables.items() <= env_of(pod(request, LAUNCHER)).items()
    hosts = MpiHosts(("pi-worker-0", "pi-worker-1"), ("pi-worker-1",))
    data = ssh_hosts_config(start_of(request), hosts)["data"]
    assert data["hostfile"] == "".join(f"pi-worker-{n}.pi.team.svc{line}\n" for n in (0, 1))
    assert data["discover_hosts.sh"] == "#!/bin/sh\necho pi-worker-1.pi.team.svc\n"


def test_working_launcher_is_a_host() -> None:
    request = mpi(runLauncherAsWorker=True)
    manifest = pod(request, LAUNCHER)
    assert "NVIDIA_VISIBLE_DEVICES" not in env_of(manifest)
    assert manifest["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "1"
    pods = ranked([seen(request, worker(0)), seen(request, LAUNCHER)], 1, "uid 1")
    assert hosts_of(request, pods).running == ("pi-launcher", "pi-worker-0")
    assert ssh_service(start_of(request))["spec"]["publishNotReadyAddresses"]
    assert not ssh_service(start_of(mpi()))["spec"]["publishNotReadyAddresses"]


def test_launcher_waits_for_ready_workers_where_asked() -> None:
    request = mpi(launcherCreationPolicy="WaitForWorkersReady")
    ready, starting = seen(request, worker(0)), seen(request, worker(1), ready=False)
    assert _waits_for_workers(request, LAUNCHER, [ready, starting])
    assert not _waits_for_workers(request, worker(1), [])
    assert not _waits_for_workers(request, LAUNCHER, [ready, seen(request, worker(1))])
    assert not _waits_for_workers(mpi(), LAUNCHER, [])  # it retries by itself


# Beside pods --------------------------------------------------------------------------------------


def test_service_gives_all_pods_of_a_job_names() -> None:
    service = ssh_service(start_of(mpi()))
    assert (service["metadata"]["name"], service["spec"]["clusterIP"]) == ("pi", "None")
    selector = service["spec"]["selector"]
    for rank in (LAUNCHER, worker(0)):
        assert selector.items() <= pod(mpi(), rank)["metadata"]["labels"].items()


def test_key_is_the_jobs_own(tmp_path: Path) -> None:
    secret = ssh_secret(start_of(mpi()))
    assert secret == ssh_secret(start_of(mpi())), "an operator that comes up makes the same"
    second = ssh_secret(start_of(mpi(), seed=b"of another object"))
    assert second["metadata"]["name"] != secret["metadata"]["name"]
    assert second["data"] != secret["data"]
    (volume,) = pod(mpi(), worker(0))["spec"]["volumes"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    for item in volume["secret"]["items"]:
        (tmp_path / item["path"]).write_bytes(base64.b64decode(secret["data"][item["key"]]))
    assert (tmp_path / "authorized_keys").read_text().startswith("ecdsa-sha2-nistp521 ")
    (tmp_path / "id_rsa").chmod(0o600)
    made = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(tmp_path / "id_rsa")], capture_output=True, text=True
    )
    assert made.stdout.split()[:2] == (tmp_path / "id_rsa.pub").read_text().split()[:2], made.stderr


# What becomes of it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "phase", "failures", "outcome"),
    [
        (LAUNCHER, "Succeeded", 0, "done"),
        (LAUNCHER, "Failed", 1, ""),  # another takes its place
        (LAUNCHER, "Running", 7, "failed"),  # more than it may
        (worker(1), "Failed", 1, "failed"),
    ],
)
def test_job_ends_with_its_launcher(rank: Rank, phase: str, failures: int, outcome: str) -> None:
    request = mpi()
    ranks = [second for second in (LAUNCHER, worker(0), worker(1)) if second != rank]
    pods = [*(seen(request, second) for second in ranks), seen(request, rank, phase=phase)]
    found = outcome_of(request, ranked(pods, 1, "uid 1"), failures=failures, age=0.0)
    assert found.outcome == outcome


def test_elastic_job_keeps_its_launcher_as_it_shrinks() -> None:
    request = mpi(mpiReplicaSpecs=launched(*HOROVODRUN))
    pods = [seen(request, rank) for rank in (LAUNCHER, worker(0), worker(1))]
    (ended,) = changes(request, ranked(pods, 1, "uid 1"), {"n1": 2}).end
    assert ended.metadata.name == "pi-worker-1"
