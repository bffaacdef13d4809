"""A control plane on loopback: the ground for tests of clients and operators."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic, sleep
from brim_lab.kubernetes.binaries import VERSION
from brim_lab.kubernetes.control_plane import (
    API_SERVER,
    ETCD,
    SCHEDULER,
    ControlPlane,
    Features,
    control_plane,
)
from clusters import need

PATIENCE = 120.0  # seconds: nothing is judged by it, and a busy machine is slow
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "pod"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "none",
                "resources": {"limits": {"example.com/gpu": "8"}},
            }
        ]
    },
}


def until(holds: Callable[[], Any]) -> None:
    deadline = monotonic() + PATIENCE
    while not holds():
        assert monotonic() < deadline
        sleep(0.05)


def named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def test_it_is_the_version_that_it_says(api_server: ControlPlane) -> None:
    assert api_server.api.ask("/version")["gitVersion"] == VERSION
    versions = json.loads(api_server.kubectl("version", "-o", "json"))
    assert versions["clientVersion"]["gitVersion"] == versions["serverVersion"]["gitVersion"]


def test_a_stranger_is_told_nothing(api_server: ControlPlane) -> None:
    stranger = type(api_server.api)(api_server.url, api_server.api.authority, "guessed")
    with pytest.raises(EnvironmentFault, match="401"):
        stranger.ask("/api/v1/namespaces")
    for secret in (api_server.kubeconfig, *api_server.folder.glob("*.key")):
        assert secret.stat().st_mode & 0o077 == 0


def test_objects_outlive_the_api_server(api_server: ControlPlane, namespace: str) -> None:
    api_server.api.ask("/api/v1/namespaces", method="POST", body=named(namespace))
    for name in (API_SERVER, ETCD):
        api_server[name].stop(signal.SIGKILL)
        assert not api_server[name].is_up()
        api_server[name].start()
        api_server.wait_ready()
    assert api_server.api.ask(f"/api/v1/namespaces/{namespace}")["metadata"]["name"] == namespace


def test_a_pod_is_scheduled_and_seems_to_run(fake_cluster: ControlPlane, namespace: str) -> None:
    fake_cluster.kubectl("create", "namespace", namespace)
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    until(lambda: fake_cluster.api.ask(account)["items"])
    pods = f"/api/v1/namespaces/{namespace}/pods"
    fake_cluster.api.ask(pods, method="POST", body=POD)
    until(lambda: fake_cluster.api.ask(f"{pods}/pod")["status"]["phase"] == "Running")
    assert fake_cluster.api.ask(f"{pods}/pod")["spec"]["nodeName"].startswith("fake-")


def test_features_off_by_default_can_be_enabled(tmp_path: Path) -> None:
    need(ETCD, API_SERVER, SCHEDULER)
    features = Features(gates=("GenericWorkload",), apis=("scheduling.k8s.io/v1beta1",))
    with control_plane(tmp_path, features=features, programs=(SCHEDULER,)) as plane:
        served = plane.api.ask("/apis/scheduling.k8s.io/v1beta1")["resources"]
        assert {"workloads", "podgroups"} <= {resource["name"] for resource in served}
        plane[SCHEDULER].must_be_up()


def test_unknown_features_are_refused_by_the_server(tmp_path: Path) -> None:
    need(ETCD, API_SERVER)
    features = Features(gates=("NoSuchFeature",))
    with (
        pytest.raises(EnvironmentFault, match=r"(?s)kube-apiserver ended.*NoSuchFeature"),
        control_plane(tmp_path, features=features),
    ):
        raise AssertionError("it is up")


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    need(ETCD, API_SERVER)
    with control_plane(tmp_path) as plane:
        pids = [plane[name].pid for name in (ETCD, API_SERVER)]
    assert all(pids)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
