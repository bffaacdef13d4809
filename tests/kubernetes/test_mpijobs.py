"""Kubeflow's MPIJob: how many workers it has, and how its launcher finds and reaches them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.install.manifests import foreign_definitions
from brim.kubernetes.install.objects import ForeignObject
from brim.kubernetes.kinds import OperatorContext
from brim.kubernetes.kubeflow.jobs import KubeflowJobs
from brim.kubernetes.kubeflow.mpi import (
    MpiHosts,
    hosts_config,
    hosts_of,
    hosts_to_be,
    launcher_rights,
)
from brim.kubernetes.kubeflow.objects import KubeflowStart
from brim.kubernetes.kubeflow.pods import pod_of
from brim.kubernetes.kubeflow.ranks import NewPod, changes, outcome_of, ranked
from brim.kubernetes.kubeflow.request import KubeflowSpec, Rank, read_asked
from brim.kubernetes.nodes.places import NodePlaces
from brim.kubernetes.pods.known_pods import KnownPods
from brim.kubernetes.settings import OperatorSettings
from kubernetes.test_kubeflow import SLOT, asked_of, env_of, thing
from scripted_api import ScriptedApi

LAUNCHER = Rank("launcher", 0)
JOB = "tensorflow-mnist-elastic"


def mpi(**spec: Any) -> KubeflowSpec:
    return asked_of("mpijob.yaml", **spec)


def launched(*words: str, workers: int = 2, **fields: Any) -> dict[str, Any]:
    """The replicas of a job whose launcher runs a command."""
    container = {"name": "l", "image": "a:1", "command": list(words), **fields}
    launcher = {"template": {"spec": {"containers": [container]}}}
    worker = {"template": {"spec": {"containers": [{"name": "w", "image": "a:1"}]}}}
    return {"Launcher": launcher, "Worker": {**worker, "replicas": workers}}


def start_of(request: KubeflowSpec) -> KubeflowStart:
    return KubeflowStart(request=request, uid="uid 1", launch=1, slot=SLOT)


def pod(request: KubeflowSpec, rank: Rank) -> dict[str, Any]:
    return pod_of(start_of(request), NewPod(rank, "n1"))


def seen(request: KubeflowSpec, rank: Rank, phase: str = "Running", **meta: Any) -> KubePod:
    manifest = pod(request, rank)
    manifest["metadata"] |= {"uid": f"uid of {rank}", **meta}
    return msgspec.convert(manifest | {"status": {"phase": phase}}, KubePod)


def worker(number: int) -> Rank:
    return Rank("worker", number)


def mounts(container: Mapping[str, Any]) -> dict[str, str]:
    return {
        volume_mount["mountPath"]: volume_mount["name"]
        for volume_mount in container["volumeMounts"]
    }


# How many -----------------------------------------------------------------------------------------


def test_guides_mpijob_has_a_launcher_and_its_workers() -> None:
    request = mpi()
    assert (str(request.pods), str(request.bounds)) == ("2:4", "1:3")
    assert request.firsts == (LAUNCHER, worker(0))
    assert request.run.clean == "Running"


@pytest.mark.parametrize(
    ("words", "slots", "pods"),
    [
        (["mpirun", "-np", "8", "python", "train.py"], 4, "3"),
        (["horovodrun", "-np", "2", "python", "train.py"], 1, "3"),
        (["horovodrun", "--host-discovery-script", "d.sh", "-np", "2", "a"], 1, "3"),
        (
            ["horovodrun", "--min-np", "3", "--max-np", "9", "--host-discovery-script", "d"],
            2,
            "3:5",
        ),
        (["horovodrun", "--min-num-proc=1", "--host-discovery-script=d"], 1, "2:3"),
        (["sh", "-c", "exec horovodrun --max-np 6 --min-np 2 --host-discovery-script d"], 1, "3:7"),
    ],
)
def test_launchers_command_decides_the_number_of_workers(
    words: list[str], slots: int, pods: str
) -> None:
    request = mpi(mpiReplicaSpecs=launched(*words), slotsPerWorker=slots)
    assert str(request.pods) == pods


@pytest.mark.parametrize(
    ("words", "env", "pods"),
    [
        ("--min-np $LEAST --max-np ${MOST}", {"LEAST": "2", "MOST": "6"}, "3:7"),
        ("-np $(LEAST) --max-np '$(MOST)'", {"LEAST": "2", "MOST": "6"}, "3:7"),
        ('--min-num-proc="$LEAST" --max-num-proc=$MOST', {"LEAST": "1", "MOST": "$(LEAST)"}, "2"),
        ("$BOUNDS", {"BOUNDS": "--min-np 2 --max-np 6"}, "3:7"),
    ],
)
def test_bounds_of_horovodrun_may_be_variables(words: str, env: dict[str, str], pods: str) -> None:
    command = f"horovodrun {words} --host-discovery-script d python train.py"
    pairs = [{"name": name, "value": value} for name, value in env.items()]
    request = mpi(mpiReplicaSpecs=launched("sh", "-c", command, env=pairs), slotsPerWorker=1)
    assert (str(request.pods), request.elastic) == (pods, True)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"mpiReplicaSpecs": {"Worker": launched()["Worker"]}}, "mpiReplicaSpecs.Launcher"),
        ({"mpiReplicaSpecs": launched(workers=0)}, "Worker.replicas"),
        ({"mpiReplicaSpecs": {"Launcher": launched()["Launcher"]}}, "Worker.replicas"),
        (
            {"mpiReplicaSpecs": {**launched(), "Launcher": launched()["Worker"]}},
            "Launcher.replicas",
        ),
        ({"mpiReplicaSpecs": launched(command="mpirun")}, "containers[0].command"),
        ({"mpiReplicaSpecs": launched(volumeMounts={"a": 1})}, "containers[0].volumeMounts"),
        ({"slotsPerWorker": 0}, "spec.slotsPerWorker"),
        ({"mainContainer": "$(id)"}, "spec.mainContainer"),
        ({"runPolicy": {"cleanPodPolicy": "All"}}, "runPolicy.cleanPodPolicy"),
        (
            {
                "mpiReplicaSpecs": launched(
                    "horovodrun", "--host-discovery-script", "d", "--min-np", "3", "--max-np", "2"
                )
            },
            "spec.mpiReplicaSpecs.Launcher",
        ),
        (
            {
                "mpiReplicaSpecs": launched(
                    "horovodrun", "--host-discovery-script", "d", "--min-np", "$(LEAST)"
                )
            },
            "Launcher.template.spec.containers[0]: got --min-np '$(LEAST)', need a number",
        ),
    ],
)
def test_what_cannot_be_is_told_with_its_field(spec: dict[str, Any], field: str) -> None:
    problems = read_asked(thing("mpijob.yaml", **spec), slot=SLOT)
    assert not isinstance(problems, KubeflowSpec)
    assert any(field in str(problem) for problem in problems), [
        str(problem) for problem in problems
    ]


# Versions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("served", "message"),
    [
        ((), "the server has no MPIJob"),
        (("v1alpha2",), "the server has MPIJob as kubeflow.org/v1alpha2 and not as v1 or v2beta1"),
        (("v2beta1",), ""),
        (("v1", "v2beta1"), ""),
    ],
)
def test_operator_warns_of_unsupported_versions(
    served: tuple[str, ...], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(request: web.Request) -> web.Response:
        found = any(request.path.startswith(f"/apis/kubeflow.org/{version}/") for version in served)
        is_there = found or "mpijobs" not in request.path
        return web.json_response({"metadata": {}, "items": []}, status=200 if is_there else 404)

    async def find() -> None:
        async with ScriptedApi([answer]).served() as server:
            settings = OperatorSettings(
                directory=Path(), namespace="brim-system", image="brim:1", slot={"cpu": 1}
            )
            jobs = KubeflowJobs(
                OperatorContext(
                    server=server,
                    settings=settings,
                    pods=KnownPods(NodePlaces(SLOT)),
                    changed=print,
                    record=lambda _: None,
                    wall=float,
                )
            )
            await jobs.find()
            assert ("mpijob" in jobs.reflectors) is (not message)
            if not message:  # where a server has both, each object says which it is of
                assert jobs._apis["mpijob"] == f"kubeflow.org/{served[0]}"

    asyncio.run(find())
    assert message in caplog.text
    assert bool(caplog.records) is bool(message)


@pytest.mark.parametrize(
    ("versions", "is_warned_of"),
    [
        ({"v1alpha2": True}, True),
        ({"v1": False, "v1alpha2": True}, True),
        ({"v1": False, "v2beta1": True}, False),
        ({"v1": True}, False),
    ],
)
def test_existing_definition_without_our_version_causes_a_warning(
    versions: dict[str, bool], is_warned_of: bool
) -> None:
    (definition,) = (
        definition
        for definition in foreign_definitions()
        if "mpijobs" in definition["metadata"]["name"]
    )
    served = [{"name": name, "served": is_served} for name, is_served in versions.items()]
    found = ForeignObject(definition, {"metadata": {}, "spec": {"versions": served}})
    assert ("serves v1alpha2 and not v1 or v2beta1" in found.warning) is is_warned_of


# Pods ---------------------------------------------------------------------------------------------


def test_launcher_has_kubeflows_names_variables_and_files() -> None:
    request = mpi()
    manifest = pod(request, LAUNCHER)
    assert manifest["metadata"]["name"] == f"{JOB}-launcher"
    labels = manifest["metadata"]["labels"]
    assert labels["training.kubeflow.org/operator-name"] == "mpijob-controller"
    assert labels["training.kubeflow.org/replica-type"] == "launcher"
    assert labels["training.kubeflow.org/job-role"] == "master"
    assert env_of(manifest) == {
        "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "I_MPI_HYDRA_BOOTSTRAP": "rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": "/etc/mpi/kubexec.sh",
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
    }
    spec = manifest["spec"]
    assert (spec["serviceAccountName"], spec["restartPolicy"]) == (f"{JOB}-launcher", "Never")
    assert spec["priorityClassName"] == "preserved-pc"
    assert "resources" not in spec["containers"][0], "it asks for what its template does"
    files = {"/etc/mpi": "mpi-job-config", "/opt/kube": "mpi-job-kubectl"}
    (delivery,) = spec["initContainers"]
    assert mounts(spec["containers"][0]) == mounts(delivery) == files
    assert (delivery["name"], delivery["image"]) == (
        "kubectl-delivery",
        "kubeflow/kubectl-delivery:latest",
    )
    config = next(volume for volume in spec["volumes"] if volume["name"] == "mpi-job-config")
    modes = {item["path"]: item["mode"] for item in config["configMap"]["items"]}
    assert modes == {"kubexec.sh": 0o555, "hostfile": 0o444, "discover_hosts.sh": 0o555}


def test_a_worker_waits_for_what_its_launcher_starts() -> None:
    request = mpi()
    manifest = pod(request, worker(1))
    container = manifest["spec"]["containers"][0]
    assert manifest["metadata"]["name"] == f"{JOB}-worker-1"
    assert (container["command"], container["args"]) == (["sleep"], ["365d"])
    assert mounts(container) == {"/etc/mpi": "mpi-job-config"}
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "1"
    assert "env" not in container or not container["env"]
    assert not {"initContainers", "serviceAccountName"} & manifest["spec"].keys()
    launchers = launched("mpirun")
    launchers["Worker"]["template"]["spec"]["containers"][0]["command"] = ["sshd", "-D"]
    own_container = pod(mpi(mpiReplicaSpecs=launchers), worker(0))["spec"]["containers"][0]
    assert own_container["command"] == ["sshd", "-D"]


def test_launcher_with_a_device_is_a_host() -> None:
    limits = {"limits": {"nvidia.com/gpu": 1}}
    request = mpi(mpiReplicaSpecs=launched("mpirun", resources=limits))
    assert "NVIDIA_VISIBLE_DEVICES" not in env_of(pod(request, LAUNCHER))
    pods = ranked([seen(request, worker(0)), seen(request, LAUNCHER)], 1, "uid 1")
    assert hosts_of(request, pods).running == (f"{JOB}-launcher", f"{JOB}-worker-0")


# Hosts --------------------------------------------------------------------------------------------


def test_hosts_are_the_running_workers() -> None:
    request = mpi()
    pods = [
        seen(request, LAUNCHER),
        seen(request, worker(2)),
        seen(request, worker(0)),
        seen(request, worker(1), deletionTimestamp="2026-12-01T09:00:00Z"),
        seen(request, worker(3), phase="Pending"),
        seen(request, worker(4), phase="Failed"),
    ]
    hosts = hosts_of(request, ranked(pods, 1, "uid 1"))
    assert hosts.planned == tuple(f"{JOB}-worker-{number}" for number in (0, 2, 3))
    assert hosts.running == tuple(f"{JOB}-worker-{number}" for number in (0, 2))
    first = hosts_to_be(
        request, ranked([], 1, "uid 1"), [LAUNCHER, worker(0), worker(10), worker(9)]
    )
    assert first.planned == tuple(f"{JOB}-worker-{number}" for number in (0, 9, 10))
    assert first.running == ()
    assert len({hosts.mark, first.mark, MpiHosts(first.planned, first.planned).mark}) == 3


def test_scripts_list_the_hosts_and_reach_one(tmp_path: Path) -> None:
    request = mpi(slotsPerWorker=2, mainContainer="mpi-worker")
    hosts = MpiHosts(("w-0", "w-1"), ("w-1",))
    manifest = hosts_config(start_of(request), hosts)
    assert manifest["metadata"]["name"] == f"{JOB}-config"
    assert manifest["data"]["hostfile"] == "w-0 slots=2\nw-1 slots=2\n"
    assert shell(manifest["data"]["discover_hosts.sh"]).stdout == "w-1:2\n"
    # What rsh is called with arrives at kubectl: a host, and a command for its shell.
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\nfor word in "$@"; do echo "<$word>"; done\n')
    kubectl.chmod(0o755)
    reach = manifest["data"]["kubexec.sh"].replace("/opt/kube", str(tmp_path))
    words_said = shell(reach, "w-1", "cd /a && orted -mca", "x '1 2'").stdout.split("\n")
    words = ["exec", "w-1", "--container", "mpi-worker", "--", "/bin/sh", "-c"]
    assert words_said[:-1] == [*(f"<{word}>" for word in words), "<cd /a && orted -mca x '1 2'>"]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        # A fixed number of workers has to be there; of an elastic job, the fewest.
        ("mpirun", ["l", "w-0", "w-1", "l", "w-0", "w-1", "l", "w-0", "w-1"]),
        (
            "horovodrun --min-np 1 --host-discovery-script d",
            ["l", "w-0", "w-1", "l", "w-0", "w-1"],
        ),
    ],
)
def test_a_launcher_begins_once_its_workers_run(
    command: str, arguments: list[str], tmp_path: Path
) -> None:
    job = mpi(mpiReplicaSpecs=launched(*command.split()))
    (delivery,) = pod(job, LAUNCHER)["spec"]["initContainers"]
    program, folder, state = tmp_path / "bin", tmp_path / "mpi", tmp_path / "state"
    for entry in (program, folder, state, tmp_path / "kube"):
        entry.mkdir()
    (folder / "hostfile").write_text("l slots=1\nw-0 slots=1\nw-1 slots=1\n")
    # Nobody may look at the launcher; w-0 runs when it is asked for the second time, w-1 for the third.
    kubectl = program / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\n[ "$1 $2 $4" = "get pod -o" ] || exit 1\necho "$3" >> {state}/asked\n'
        f'[ "$3" = l ] && exit 1\ncase $(grep -c "$3" {state}/asked)$3 in\n'
        "1w-?|2w-1) printf Pending ;;\n*) printf Running ;;\nesac\n"
    )
    kubectl.chmod(0o755)
    script = delivery["command"][2].replace("/opt/kube", str(tmp_path / "kube"))
    script = script.replace("/etc/mpi", str(folder)).replace("sleep 1", "sleep 0.01")
    workers = next(
        variable["value"] for variable in delivery["env"] if variable["name"] == "WORKERS"
    )
    done = shell(f"WORKERS={workers}\n{script}", path=str(program))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kube" / "kubectl").read_text() == kubectl.read_text()
    assert (state / "asked").read_text().split() == arguments


def shell(script: str, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{path}:/usr/bin:/bin" if path else "/usr/bin:/bin"}
    command = ["/bin/sh", "-c", script, "script", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


def test_launchers_role_covers_only_its_workers() -> None:
    account, role, binding = launcher_rights(start_of(mpi()))
    names = [f"{JOB}-worker-{number}" for number in range(3)]
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": names},
        {
            "apiGroups": [""],
            "resources": ["pods/exec"],
            "verbs": ["create"],
            "resourceNames": names,
        },
    ]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"] == f"{JOB}-launcher"
    launchers = launched("mpirun")
    launchers["Launcher"]["template"]["spec"]["serviceAccountName"] = "mine"
    role, binding = launcher_rights(start_of(mpi(mpiReplicaSpecs=launchers)))
    assert (role["kind"], binding["subjects"][0]["name"]) == ("Role", "mine")


# What becomes of it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "phase", "outcome"),
    [
        (LAUNCHER, "Succeeded", "done"),
        (LAUNCHER, "Failed", "failed"),
        (worker(1), "Failed", ""),
        (worker(1), "Succeeded", ""),
    ],
)
def test_it_ends_as_its_launcher_does(rank: Rank, phase: str, outcome: str) -> None:
    request = mpi()
    ranks = [other for other in (LAUNCHER, worker(0), worker(1)) if other != rank]
    pods = [*(seen(request, rank) for rank in ranks), seen(request, rank, phase=phase)]
    found = outcome_of(request, ranked(pods, 1, "uid 1"), failures=0, age=0.0)
    assert found.outcome == outcome


def test_launcher_exists_with_any_number_of_workers() -> None:
    request = mpi()
    todo = changes(request, ranked([], 1, "uid 1"), {"n1": 1, "n2": 1})
    assert [new.rank for new in todo.make] == [LAUNCHER, worker(0)]
    pods = [seen(request, rank) for rank in (LAUNCHER, worker(0), worker(1))]
    (ended,) = changes(request, ranked(pods, 1, "uid 1"), {"n1": 2}).end
    assert ended.metadata.name == f"{JOB}-worker-1"
