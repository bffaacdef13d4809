"""Other people's operators, built from their published Go modules, to be run beside brim's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic, sleep
from brim_lab.kubernetes.binaries import home
from brim_lab.kubernetes.cluster import NodeCluster
from brim_lab.kubernetes.program import READY_WITHIN

_MAJOR = re.compile("v[0-9]+")  # at the end of a module's name


@dataclass(frozen=True, slots=True)
class Peer:
    """An operator.

    Args:
        module, version: of its source.
        package: of its `main`, within the source.
        overlay: the folder of its manifests there, for kustomize.
        namespace: that they put it into.
        without: a part of the overlay that is on another host, and is left out.
    """

    module: str
    version: str
    package: str
    overlay: str
    namespace: str
    without: str = ""

    @property
    def name(self) -> str:
        """The last word of its module that is no version."""
        return next(w for w in reversed(self.module.split("/")) if not _MAJOR.fullmatch(w))

    @property
    def folder(self) -> Path:
        """The folder that it is kept in: `source`, with its manifests, and `program`."""
        return home() / "peers" / f"{self.name}-{self.version}"

    @property
    def program(self) -> Path:
        """The program, which is there whole or not at all."""
        return self.folder / "program"


TRAINING_OPERATOR = Peer(
    module="github.com/kubeflow/training-operator",
    version="v1.9.4",
    package="./cmd/training-operator.v1",
    overlay="manifests/overlays/standalone",
    namespace="kubeflow",
)
KUEUE = Peer(
    module="sigs.k8s.io/kueue",
    version="v0.19.2",
    package="./cmd/kueue",
    overlay="config/default",
    namespace="kueue-system",
)
JOBSET = Peer(
    module="sigs.k8s.io/jobset",
    version="v0.12.0",  # that Kubeflow Trainer installs
    package=".",
    overlay="config/default",
    namespace="jobset-system",
)
TRAINER = Peer(
    module="github.com/kubeflow/trainer/v2",
    version="v2.3.0",
    package="./cmd/trainer-controller-manager",
    overlay="manifests/overlays/manager",
    namespace="kubeflow-system",
    without="../../third-party/jobset",
)
MPI_OPERATOR = Peer(
    module="github.com/kubeflow/mpi-operator",
    version="v0.8.0",
    package="./cmd/mpi-operator",
    overlay="manifests/overlays/standalone",
    namespace="mpi-operator",
)
PEERS = {peer.name: peer for peer in (TRAINING_OPERATOR, MPI_OPERATOR, KUEUE, JOBSET, TRAINER)}
_PROGRAM = "manager"  # what their images call it
_POLL_INTERVAL = 0.3  # seconds


def build_peer(peer: Peer, tell: Callable[[str], object] = print) -> Path:
    """Build the missing parts of a peer, which takes minutes; return its folder.

    Raises:
        EnvironmentFault: there is no Go, or a source cannot be had.
    """
    source = peer.folder / "source"
    if not peer.program.exists():
        if shutil.which("go") is None:
            raise EnvironmentFault("go is not on PATH\n  hint: install Go 1.26 or later")
        tell(f"building {peer.module} {peer.version}: this takes minutes")
        peer.folder.mkdir(parents=True, exist_ok=True)
        copy_module(peer.module, peer.version, source)
        partial = peer.folder / "program.partial"
        build_program(source, peer.package, partial)
        partial.rename(peer.program)
    return peer.folder


def copy_module(module: str, version: str, module_target: Path) -> None:
    """Have the source of a module in a folder, where it is not there yet."""
    if module_target.exists():
        return
    arguments = ("mod", "download", "-json", f"{module}@{version}")
    module_folder = json.loads(go(module_target.parent, *arguments))["Dir"]
    partial = module_target.with_name(f"{module_target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    # Modules are kept read-only, and a build writes beside them.
    shutil.copytree(module_folder, partial, copy_function=shutil.copyfile)
    for folder, _, _ in os.walk(partial):
        Path(folder).chmod(0o755)
    partial.rename(module_target)


def build_program(source: Path, package: str, program: Path) -> None:
    """Build the `main` of a package of a source."""
    go(source, "build", "-trimpath", "-ldflags=-s -w", "-o", str(program), package)


def peer_manifests(
    cluster: NodeCluster,
    peer: Peer,
    *,
    excluded_kind: str,
    changes: Mapping[str, str] | None = None,
    tell: Callable[[str], object] = print,
) -> str:
    """Have the image of a peer on all nodes; return its own manifests.

    Args:
        excluded_kind: leave out the kinds with this in their names.
        changes: of their text, as it is replaced.

    Raises:
        EnvironmentFault: as `build_peer` does, or a node does not take the image.
    """
    build_peer(peer, tell)
    text = cluster.kubectl("kustomize", str(_overlay(peer)))
    for old_text, new_text in (changes or {}).items():
        text = text.replace(old_text, new_text)
    things = [
        manifest for manifest in yaml.safe_load_all(text) if excluded_kind not in manifest["kind"]
    ]
    containers = [
        container
        for thing in things
        if thing["kind"] == "Deployment"
        for container in thing["spec"]["template"]["spec"]["containers"]
    ]
    for container in containers:
        container["imagePullPolicy"] = "IfNotPresent"
        container.setdefault("command", [f"/{_PROGRAM}"])
    for image in {container["image"] for container in containers}:
        cluster.add_image(image, {_PROGRAM: peer.program.read_bytes()})
    return str(yaml.safe_dump_all(things))


def _overlay(peer: Peer) -> Path:
    """Return the folder of its manifests, which need no other host then."""
    folder = peer.folder / "source" / peer.overlay
    if peer.without:
        file = folder / "kustomization.yaml"
        kept = [line for line in file.read_text().splitlines(True) if peer.without not in line]
        file.write_text("".join(kept))
    return folder


def install_peer(cluster: NodeCluster, peer: Peer, text: str) -> None:
    """Put a peer's manifests on the server, and wait until it is ready.

    Raises:
        EnvironmentFault: it does not become ready; the message is its deployment.
    """
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=text)
    own = f"--namespace={peer.namespace}"
    for secret in _certificates(text):
        _wait(cluster, peer, partial(_has_data, cluster, secret, own))
        # A kubelet shows a pod what has come there after two minutes, and another pod at once.
        cluster.kubectl("delete", "pods", "--all", own)

    def is_available() -> bool:
        words = ("wait", "deployment", "--all", own, "--for=condition=Available", "--timeout=5s")
        with contextlib.suppress(EnvironmentFault):
            return bool(cluster.kubectl(*words))
        return False

    _wait(cluster, peer, is_available)


def _certificates(text: str) -> list[str]:
    """Return the names of Secrets that a peer fills by itself for its webhooks, if it has any."""
    things = list(yaml.safe_load_all(text))
    if not any("Webhook" in thing["kind"] for thing in things):
        return []
    secrets = (thing for thing in things if thing["kind"] == "Secret" and not thing.get("data"))
    return [secret["metadata"]["name"] for secret in secrets]


def _has_data(cluster: NodeCluster, secret: str, namespace: str) -> bool:
    return bool(cluster.kubectl("get", "secret", secret, namespace, "-o", "jsonpath={.data}"))


def _wait(cluster: NodeCluster, peer: Peer, holds: Callable[[], bool]) -> None:
    deadline = monotonic() + READY_WITHIN
    while not holds():
        if monotonic() > deadline:
            words = ("describe", "deployments,pods", f"--namespace={peer.namespace}")
            raise EnvironmentFault(f"{peer.name} was not ready: {cluster.kubectl(*words)}")
        sleep(_POLL_INTERVAL)


def go(folder: Path, *words: str) -> str:
    """Run Go in a folder; return its output. Raises EnvironmentFault where it fails."""
    variables = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    done = subprocess.run(
        ["nice", "-n", "5", "go", *words], cwd=folder, env=variables, capture_output=True, text=True
    )
    if done.returncode != 0:
        last = "\n".join(done.stderr.splitlines()[-15:])
        raise EnvironmentFault(f"go {words[0]} failed in {folder}:\n{last}")
    return done.stdout
