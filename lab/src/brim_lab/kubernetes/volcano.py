"""Volcano, built from its published Go module, as its own manifests install it.

Its webhooks are left out: they fill in what people leave out of its objects.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from brim.errors import EnvironmentFault
from brim_lab.kubernetes.binaries import home
from brim_lab.kubernetes.cluster import NodeCluster
from brim_lab.kubernetes.peers import build_program, copy_module, go

VERSION = "v1.15.0"
NAMESPACE = "volcano-system"
_APIS = "v1.14.0"  # of volcano.sh/apis: that of its own version was never published
# What its own version has beyond that, as far as these programs use it; the value is the one that
# docs/design/scheduling-gates-queue-admission.md has, in the module.
_BEYOND = 'package v1beta1\n\nconst QueueAllocationGateKey = GroupName + "/queue-allocation-gate"\n'
_PROGRAMS = {"vc-scheduler": "./cmd/scheduler", "vc-controller-manager": "./cmd/controller-manager"}
_CONFIGURATION = "volcano-scheduler.conf"


def build_volcano(tell: Callable[[str], object] = print) -> Path:
    """Build the missing parts of Volcano, which takes minutes; return its folder.

    Raises:
        EnvironmentFault: there is no Go, or a source cannot be had.
    """
    folder = home() / "peers" / f"volcano-{VERSION}"
    if all((folder / name).exists() for name in _PROGRAMS):
        return folder
    if shutil.which("go") is None:
        raise EnvironmentFault("go is not on PATH\n  hint: install Go 1.26 or later")
    tell(f"building Volcano {VERSION}: this takes minutes")
    folder.mkdir(parents=True, exist_ok=True)
    source, apis = folder / "source", folder / "apis"
    copy_module("volcano.sh/volcano", VERSION, source)
    copy_module("volcano.sh/apis", _APIS, apis)
    (apis / "pkg/apis/scheduling/v1beta1/beyond.go").write_text(_BEYOND)
    go(source, "mod", "edit", f"-replace=volcano.sh/apis={apis}")
    for name, package in _PROGRAMS.items():
        partial = folder / f"{name}.partial"
        build_program(source, package, partial)
        partial.rename(folder / name)
    return folder


def volcano_manifests(cluster: NodeCluster, configuration: str) -> str:
    """Have the images of Volcano on all nodes; return its own manifests.

    Args:
        configuration: of its scheduler, as its ConfigMap has it.
    """
    folder = build_volcano()
    text = (folder / "source" / "installer" / "volcano-development.yaml").read_text()
    things = [
        manifest
        for manifest in yaml.safe_load_all(text)
        if manifest and not _is_of_webhooks(manifest)
    ]
    for thing in things:
        if thing["metadata"]["name"] == "volcano-scheduler-configmap":
            thing["data"] = {_CONFIGURATION: configuration}
    for container in _containers(things):
        program = container["image"].rpartition("/")[2].partition(":")[0]
        container |= {"imagePullPolicy": "IfNotPresent", "command": [f"/{program}"]}
        cluster.add_image(container["image"], {program: (folder / program).read_bytes()})
    return str(yaml.safe_dump_all(things))


def _is_of_webhooks(thing: dict[str, Any]) -> bool:
    return "Webhook" in thing["kind"] or "volcano-admission" in thing["metadata"]["name"]


def _containers(things: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for thing in things:
        if thing["kind"] == "Deployment":
            yield from thing["spec"]["template"]["spec"]["containers"]
