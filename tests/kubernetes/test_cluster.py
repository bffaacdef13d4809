"""The cluster for tests treats pods as real clusters do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import monotonic, sleep
from brim.host.process import name_of
from brim_lab.kubernetes.cluster import NodeCluster
from brim_lab.kubernetes.control_plane import kubectl, kubectl_command
from brim_lab.kubernetes.groups import members
from brim_lab.kubernetes.settings import group_of
from clusters import image

PATIENCE = 60.0
GPU = "example.com/gpu"
PLACE = "kubernetes.io/hostname"
WAIT = "while 1: time.sleep(0.05)"
SERVE = "import http.server as h; h.ThreadingHTTPServer(('', 8000), h.BaseHTTPRequestHandler).serve_forever()"
# What a namespace needs whose Pod Security is `restricted`.
POD_SECURITY = {
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def until(holds: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    deadline = monotonic() + seconds
    while not (found := holds()):
        assert monotonic() < deadline
        sleep(0.1)
    return found


class Pods:
    """Pods of a namespace of the test's own, in which Pod Security is `restricted`."""

    def __init__(self, config: Path, namespace: str) -> None:
        self._config, self._namespace = config, namespace

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return kubectl(self._config, f"--namespace={self._namespace}", *words, stdin=stdin)

    def create(self, name: str, code: str, **spec: Any) -> None:
        """Start a pod that runs code of Python.

        Args:
            spec: of the pod; `resources`, `node`, and `grace` in seconds.
        """
        container = {
            "name": "main",
            "image": image(),
            "command": ["python3", "-c", code],
            "resources": {"limits": spec.pop("resources", {})},
            "securityContext": CONTAINER_SECURITY,
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }
        if node := spec.pop("node", ""):
            spec["nodeSelector"] = {PLACE: node}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name, "of": "test"}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": spec.pop("grace", 2),
                "securityContext": POD_SECURITY,
                "volumes": [{"name": "tmp", "emptyDir": {}}],
                "containers": [container],
                **spec,
            },
        }
        self.kubectl("create", "-f", "-", stdin=json.dumps(pod))

    def status(self, name: str) -> Any:
        return json.loads(self.kubectl("get", "pod", name, "-o", "json"))["status"]

    def ended(self, name: str) -> Any:
        """How its container has ended; waits for that."""

        def look() -> Any:
            for status in self.status(name).get("containerStatuses", ()):
                return status["state"].get("terminated")

        return until(look)

    def runs(self, name: str) -> None:
        until(lambda: self.status(name)["phase"] == "Running")

    def logs(self, name: str) -> str:
        return self.kubectl("logs", name)

    def says(self, name: str, text: str) -> None:
        """Wait until it has said something."""

        def look() -> bool:
            try:
                return text in self.logs(name)
            except EnvironmentFault:  # its container has not begun
                return False

        until(look)

    def follow(self, name: str) -> subprocess.Popen[str]:
        """Its log, until it has ended."""
        words = (f"--namespace={self._namespace}", "logs", "-f", name)
        command = kubectl_command(self._config, *words)
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def pods(real_kubeconfig: Path, namespace: str) -> Iterator[Pods]:
    pod_runner = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": namespace,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    }
    kubectl(real_kubeconfig, "create", "-f", "-", stdin=json.dumps(pod_runner))
    account = ("get", "serviceaccount", "default", f"--namespace={namespace}", "--ignore-not-found")
    until(lambda: kubectl(real_kubeconfig, *account))
    yield Pods(real_kubeconfig, namespace)
    kubectl(real_kubeconfig, "delete", "namespace", namespace, "--wait=false")


def conditions(cluster: NodeCluster, node: str) -> dict[str, str]:
    status = cluster.api.ask(f"/api/v1/nodes/{node}")["status"]
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


def is_ready(cluster: NodeCluster, node: str) -> bool:
    return conditions(cluster, node)["Ready"] == "True"


def test_unprivileged_pods_train(pods: Pods) -> None:
    code = """
import os, torch, brim
weights = torch.nn.Linear(2, 1)
weights(torch.ones(2)).sum().backward()
print("gradient", weights.weight.grad.tolist(), "user", os.getuid())
open("/tmp/ours", "w").close()
try:
    open("/ours", "w")
except OSError as error:
    print(error.strerror)
"""
    pods.create("torch", code)
    ended, output = pods.ended("torch"), pods.logs("torch")
    assert ended["exitCode"] == 0, output
    assert "gradient [[1.0, 1.0]] user 65532" in output
    assert "Read-only file system" in output


def test_pods_of_different_nodes_reach_one_another(pods: Pods, node_cluster: NodeCluster) -> None:
    first_node, second_node = node_cluster.nodes[:2]
    for name, node in (("here", first_node), ("there", second_node)):
        pods.create(name, SERVE, node=node, hostname=name, subdomain="all")
        service = ("create", "service", "clusterip", name, "--tcp=80:8000")
        pods.kubectl(*service)
    headless = ("create", "service", "clusterip", "all", "--clusterip=None", "--tcp=8000:8000")
    pods.kubectl(*headless)
    pods.kubectl("set", "selector", "service", "all", "of=test")
    for name in ("here", "there"):
        pods.runs(name)
    places = [
        f"{pods.status(name)['podIP']}:8000 {name}:80 {name}.all:8000" for name in ("here", "there")
    ]
    code = f"""
import socket, time
for place in {" ".join(places).split()!r}:
    host, port = place.split(":")
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=2).close()
            print(place)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
"""
    for node in (first_node, second_node):
        pods.create(f"caller-on-{node}", code, node=node)
    for node in (first_node, second_node):
        assert pods.ended(f"caller-on-{node}")["exitCode"] == 0, pods.logs(f"caller-on-{node}")
        assert pods.logs(f"caller-on-{node}").split() == " ".join(places).split()


def test_pods_call_the_api_server_with_their_account(pods: Pods) -> None:
    code = """
import ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
request = urllib.request.Request("https://kubernetes.default.svc/version")
request.add_header("Authorization", "Bearer " + open(folder + "token").read())
trust = ssl.create_default_context(cafile=folder + "ca.crt")
print(urllib.request.urlopen(request, context=trust, timeout=60).status)
"""
    pods.create("asks", code)
    pods.ended("asks")
    assert pods.logs("asks").strip() == "200"


def test_exit_codes_and_limits_of_memory_are_told(pods: Pods) -> None:
    pods.create("fails", "import sys; print('about to'); sys.exit(3)")
    greedy = "kept = []\nwhile 1: kept.append(bytearray(b'x') * (4 << 20))"
    pods.create("greedy", greedy, resources={"memory": "64Mi"})
    failed, killed = pods.ended("fails"), pods.ended("greedy")
    assert (failed["exitCode"], failed["reason"]) == (3, "Error")
    assert pods.logs("fails") == "about to\n"
    assert (killed["exitCode"], killed["reason"]) == (137, "OOMKilled")


def test_deleted_pods_have_their_grace_only(pods: Pods) -> None:
    tidy = f"""
import signal, sys, time
def leave(*_):
    print("asked", flush=True); time.sleep(3); print("saved", flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
{WAIT}
"""
    deaf = (
        f"import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\n{WAIT}"
    )
    pods.create("tidy", tidy, grace=20)
    pods.create("deaf", deaf, grace=3)
    for name in ("tidy", "deaf"):
        pods.says(name, "up")
    with pods.follow("tidy") as log:
        started = monotonic()
        pods.kubectl("delete", "pod", "tidy")
        took = monotonic() - started
        assert log.stdout is not None
        assert log.stdout.read().split() == ["up", "asked", "saved"]
    assert 3 <= took < 18
    started = monotonic()
    pods.kubectl("delete", "pod", "deaf")
    assert monotonic() - started >= 3


def test_pods_yield_to_higher_priorities(
    pods: Pods, node_cluster: NodeCluster, namespace: str
) -> None:
    node, all_of_it = node_cluster.nodes[1], {GPU: "8"}
    patient = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("asked", flush=True), sys.exit(0)))
print("up", flush=True)
{WAIT}
"""
    classes = [f"{namespace}-{name}" for name in ("low", "high")]
    try:
        for name, value in zip(classes, (10, 1000), strict=True):
            pods.kubectl("create", "priorityclass", name, f"--value={value}")
        low, high = classes
        first = {"priorityClassName": low, "resources": all_of_it, "node": node, "grace": 20}
        pods.create("first", patient, **first)
        pods.says("first", "up")
        with pods.follow("first") as log:
            second = {"priorityClassName": high, "resources": all_of_it, "node": node}
            pods.create("second", "print('ran')", **second)
            assert pods.ended("second")["exitCode"] == 0
            assert log.stdout is not None
            assert log.stdout.read().split() == ["up", "asked"]
    finally:
        pods.kubectl("delete", "priorityclass", "--ignore-not-found", *classes)


def test_a_dead_node_is_not_ready(pods: Pods, node_cluster: NodeCluster) -> None:
    stays, dies = node_cluster.nodes[:2]
    pods.create("lost", f"import time\n{WAIT}", node=dies)
    pods.runs("lost")
    node_cluster.kill(dies)
    try:
        pods.create("after", "print('ran')", node=stays)  # at once: nobody else is cut off
        assert pods.ended("after")["exitCode"] == 0
        assert pods.logs("after") == "ran\n"
        until(lambda: conditions(node_cluster, dies)["Ready"] == "Unknown")
    finally:
        node_cluster.boot(dies)
    until(lambda: is_ready(node_cluster, dies))

    def has_devices() -> bool:
        status = node_cluster.api.ask(f"/api/v1/nodes/{dies}")["status"]
        return bool(status["allocatable"].get(GPU) == "8")

    until(has_devices)
    pods.create("again", "print('ran')", node=dies, resources={GPU: "1"})
    assert pods.ended("again")["exitCode"] == 0


def test_a_disconnected_node_is_found_again(pods: Pods, node_cluster: NodeCluster) -> None:
    node = node_cluster.nodes[1]
    pods.create("counts", f"import time; print('up', flush=True)\n{WAIT}", node=node)
    pods.says("counts", "up")
    container_before = pods.status("counts")["containerStatuses"][0]["containerID"]
    node_cluster.partition(node)
    try:
        until(lambda: conditions(node_cluster, node)["Ready"] == "Unknown")
    finally:
        node_cluster.heal(node)
    until(lambda: is_ready(node_cluster, node))
    status_after = pods.status("counts")
    assert status_after["containerStatuses"][0]["containerID"] == container_before
    assert status_after["phase"] == "Running"
    assert pods.logs("counts") == "up\n"


def test_a_node_that_is_up_cannot_boot(node_cluster: NodeCluster) -> None:
    with pytest.raises(EnvironmentFault, match="is up"):
        node_cluster.boot(node_cluster.nodes[0])


def test_a_node_that_is_not_there_is_refused(node_cluster: NodeCluster) -> None:
    with pytest.raises(SpecError, match="node-9"):
        node_cluster.kill("node-9")


def test_a_kubelet_that_ends_is_started_again(node_cluster: NodeCluster) -> None:
    def kubelets() -> set[int]:
        pids = members(group_of(node_cluster.name))
        return {pid for pid in pids if name_of(pid) == "kubelet"}

    pids_before = kubelets()
    assert len(pids_before) == len(node_cluster.nodes)
    victim = min(pids_before)
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(kubelets() - {victim}) == len(pids_before))
    until(lambda: all(is_ready(node_cluster, node) for node in node_cluster.nodes))
