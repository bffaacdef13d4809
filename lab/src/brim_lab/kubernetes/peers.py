"""Other people's operators, built from their published Go modules, to be run beside brim's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from brim.errors import EnvironmentFault
from brim_lab.kubernetes.binaries import home
from brim_lab.kubernetes.cluster import NodeCluster


@dataclass(frozen=True, slots=True)
class Peer:
    """An operator.

    Args:
        module, version: of its source.
        package: of its `main`, within the source.
        overlay: the folder of its manifests there, for kustomize.
        namespace: that they put it into.
    """

    module: str
    version: str
    package: str
    overlay: str
    namespace: str

    @property
    def folder(self) -> Path:
        """The folder that it is kept in: `source`, with its manifests, and `program`."""
        return home() / "peers" / f"{self.module.rpartition('/')[2]}-{self.version}"


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
_PROGRAM = "manager"  # what their images call it


def build_peer(peer: Peer, tell: Callable[[str], object] = print) -> Path:
    """Build the missing parts of a peer, which takes minutes; return its folder.

    Raises:
        EnvironmentFault: there is no Go, or a source cannot be had.
    """
    program, source = peer.folder / "program", peer.folder / "source"
    if not program.exists():
        if shutil.which("go") is None:
            raise EnvironmentFault("go is not on PATH\n  hint: install Go 1.26 or later")
        tell(f"building {peer.module} {peer.version}: this takes minutes")
        peer.folder.mkdir(parents=True, exist_ok=True)
        copy_module(peer.module, peer.version, source)
        partial = peer.folder / "program.partial"
        build_program(source, peer.package, partial)
        partial.rename(program)
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
    folder = build_peer(peer, tell)
    text = cluster.kubectl("kustomize", str(folder / "source" / peer.overlay))
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
    for image in {container["image"] for container in containers}:
        cluster.add_image(image, {_PROGRAM: (folder / "program").read_bytes()})
    return str(yaml.safe_dump_all(things))


def install_peer(cluster: NodeCluster, peer: Peer, text: str) -> None:
    """Put a peer's manifests on the server, and wait until it is ready."""
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=text)
    ready = ("--for=condition=Available", "--timeout=180s")
    cluster.kubectl("wait", "deployment", "--all", "-n", peer.namespace, *ready)


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
