"""The objects of an MPIJob of v2beta1 under brim and under the MPI operator: equal but for what is listed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from brim.host.clock import monotonic
from brim_lab.kubernetes.api import PATCH
from brim_lab.kubernetes.control_plane import CONTROLLERS, ControlPlane, control_plane
from brim_lab.kubernetes.peers import MPI_OPERATOR
from brim_lab.kubernetes.program import LoggedProgram
from clusters import need
from kubernetes.test_kubeflow_on_a_server import FILES, Place, add_kinds, newer_version_alone
from kubernetes.test_operator import NODES, add_node

pytestmark = pytest.mark.long
PATIENCE = 60.0
EXAMPLE = "mpijob-v2beta1.yaml"
# What a server adds, and what the Job gives its pod that makes the MPI operator's launcher.
OF_THE_SERVER = (
    *("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "namespace"),
    *("finalizers", "generateName", "ownerReferences", "status", "clusterIPs", "serviceAccount"),
    *("batch.kubernetes.io/", "controller-uid", "job-name", "kube-api-access-"),
)
OURS = "brim.dev/"  # labels and annotations by which brim knows its pods
POD = {
    "metadata.labels.app.kubernetes.io/managed-by",
    "metadata.labels.training.kubeflow.org/replica-type",
    "spec.affinity",
    "spec.containers.terminationMessagePolicy",
    "spec.volumes.ssh-auth.secret.secretName",
}
CONTAINERS = ("mpi-launcher", "mpi-worker")
INDEX = "metadata.labels.training.kubeflow.org/replica-index"
BESIDE = {
    "metadata.labels.app.kubernetes.io/managed-by",
    "metadata.labels.training.kubeflow.org/job-name",
    "metadata.labels.training.kubeflow.org/operator-name",
}
DIFFERENCES = {
    "services": BESIDE,
    "configmaps": BESIDE,
    "secrets": BESIDE | {"metadata.name", "data.ssh-privatekey", "data.ssh-publickey"},
    "launcher": POD | {"metadata.name", INDEX},
    "worker": POD,
}
Manifest = dict[str, Any]


def intel(spec: Manifest) -> None:
    spec |= {"mpiImplementation": "Intel", "runLauncherAsWorker": True, "slotsPerWorker": 2}
    spec["sshAuthMountPath"] = "/root/.ssh"


def mpich(spec: Manifest) -> None:
    spec["mpiImplementation"] = "MPICH"
    launcher, worker = (
        spec["mpiReplicaSpecs"][type]["template"] for type in ("Launcher", "Worker")
    )
    launcher["metadata"] = {"labels": {"own": "label"}, "annotations": {"own": "note"}}
    worker["spec"]["dnsConfig"] = {"searches": ["example.com"]}
    for word in ("command", "args"):
        del worker["spec"]["containers"][0][word]


def as_it_is(spec: Manifest) -> None:
    assert spec["slotsPerWorker"] == 1


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A server with MPIJobs of that version, and the controller that makes pods of a launcher's Job."""
    need("etcd", "kube-apiserver", "kube-controller-manager")
    if not MPI_OPERATOR.program.exists():
        build = "python -m brim_lab.kubernetes build mpi-operator"
        pytest.skip(f"mpi-operator not built; to build, in minutes: {build}")
    with control_plane(tmp_path_factory.mktemp("plane"), programs=(CONTROLLERS,)) as plane:
        add_kinds(plane)
        for name in NODES:
            add_node(plane, name)
        with newer_version_alone(plane):
            yield plane


@contextlib.contextmanager
def mpi_operator(plane: ControlPlane, namespace: str, folder: Path) -> Iterator[None]:
    """Have it run the jobs of a namespace."""
    options = ("-kubeConfig", str(plane.kubeconfig), "-lock-namespace", namespace)
    command = [str(MPI_OPERATOR.program), *options, "-namespace", namespace]
    program = LoggedProgram("mpi-operator", command, folder / "mpi-operator.log")
    program.start()
    try:
        yield
    finally:
        program.stop()


def objects(plane: ControlPlane, namespace: str) -> dict[str, Manifest]:
    """The objects of the job by kind; its pods by `launcher` and `worker`, as they are made."""
    found: dict[str, Manifest] = {}
    core = f"/api/v1/namespaces/{namespace}"
    for kind in ("services", "configmaps", "secrets"):
        for item in plane.api.ask(f"{core}/{kind}")["items"]:
            if item["metadata"].get("ownerReferences"):
                found[kind] = item
    for item in plane.api.ask(f"{core}/pods")["items"]:
        name = item["metadata"]["name"]
        for role, prefix in (("launcher", "pi-launcher"), ("worker", "pi-worker-0")):
            if name.startswith(prefix):
                found[role] = item
    return found


async def wait_for_objects(plane: ControlPlane, namespace: str) -> dict[str, Manifest]:
    """Wait for all of them."""
    deadline = monotonic() + PATIENCE
    while len(found := await asyncio.to_thread(objects, plane, namespace)) < len(DIFFERENCES):
        assert monotonic() < deadline, found.keys()
        await asyncio.sleep(0.1)
    return found


def differences(reference: Any, candidate: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the paths at which two objects differ."""
    reference, candidate = by_name(reference), by_name(candidate)
    if not (isinstance(reference, dict) and isinstance(candidate, dict)):
        if reference != candidate:
            yield ".".join(path)
        return
    for key in reference.keys() | candidate.keys():
        if not key.startswith((*OF_THE_SERVER, OURS)):
            key_path = path if key in CONTAINERS else (*path, key)
            default: Any = {} if key == "annotations" else None
            yield from differences(
                reference.get(key, default), candidate.get(key, default), key_path
            )


def by_name(value: Any) -> Any:
    """Return a list of things with names as these, by name."""
    is_named = isinstance(value, list) and all(isinstance(v, dict) and "name" in v for v in value)
    return {thing["name"]: thing for thing in value} if is_named else value


@pytest.mark.parametrize("change", [as_it_is, intel, mpich])
def test_objects_are_those_of_the_mpi_operator(
    plane: ControlPlane,
    namespace: str,
    tmp_path: Path,
    change: Callable[[Manifest], None],
) -> None:
    job = yaml.safe_load((FILES / EXAMPLE).read_text())
    change(job["spec"])
    place, other_namespace = Place(plane, namespace, tmp_path), f"{namespace}-reference"
    plane.kubectl("create", "namespace", other_namespace)

    async def work() -> dict[str, set[str]]:
        async with place.operator():
            for name in (namespace, other_namespace):
                path = f"/apis/kubeflow.org/v2beta1/namespaces/{name}/mpijobs"
                plane.api.ask(path, method="POST", body=job)
            reference = await wait_for_objects(plane, other_namespace)
            candidate = await wait_for_objects(plane, namespace)
        reference = json.loads(json.dumps(reference).replace(other_namespace, namespace))
        return {kind: set(differences(reference[kind], candidate[kind])) for kind in DIFFERENCES}

    try:
        with mpi_operator(plane, other_namespace, tmp_path):
            found = asyncio.run(work())
    finally:
        place.kubelets.remove_all()
    expected = DIFFERENCES
    if change is intel:  # whose launcher is a host
        expected = expected | {
            "configmaps": BESIDE | {"data.discover_hosts.sh"},  # here only once it runs
            "launcher": expected["launcher"] - {INDEX},  # 0 for both,
            "worker": POD | {INDEX},  # and there those of workers begin at 1
        }
    for kind in expected:
        assert found[kind] == expected[kind], kind


def state(plane: ControlPlane, namespace: str) -> tuple[set[str], set[str]]:
    """The kinds of objects that are there, and the conditions that hold."""
    conditions = plane.api.ask(path_of(namespace)).get("status", {}).get("conditions", [])
    holding = {entry["type"] for entry in conditions if entry["status"] == "True"}
    return set(objects(plane, namespace)), holding


def path_of(namespace: str) -> str:
    return f"/apis/kubeflow.org/v2beta1/namespaces/{namespace}/mpijobs/pi"


def test_suspended_job_is_as_under_the_mpi_operator(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """It keeps its objects but for its pods, and has them again once it is resumed."""
    job = yaml.safe_load((FILES / EXAMPLE).read_text())
    place, other_namespace = Place(plane, namespace, tmp_path), f"{namespace}-reference"
    plane.kubectl("create", "namespace", other_namespace)
    names, of_all = (namespace, other_namespace), {"services", "configmaps", "secrets"}

    async def until(kinds: set[str], conditions: set[str]) -> None:
        deadline = monotonic() + PATIENCE
        while True:
            found = [await asyncio.to_thread(state, plane, name) for name in names]
            if found == [(kinds, conditions)] * 2:
                return
            assert monotonic() < deadline, found
            await asyncio.sleep(0.1)

    def suspend(value: bool) -> None:
        body = {"spec": {"runPolicy": {"suspend": value}}}
        for name in names:
            plane.api.ask(path_of(name), method="PATCH", body=body, kind=PATCH)

    async def work() -> None:
        async with place.operator():
            for name in names:
                path = path_of(name).removesuffix("/pi")
                plane.api.ask(path, method="POST", body=job)
            await until(set(DIFFERENCES), {"Created"})
            suspend(True)
            await until(of_all, {"Created", "Suspended"})
            suspend(False)
            await until(set(DIFFERENCES), {"Created"})

    try:
        with mpi_operator(plane, other_namespace, tmp_path):
            asyncio.run(work())
    finally:
        place.kubelets.remove_all()
