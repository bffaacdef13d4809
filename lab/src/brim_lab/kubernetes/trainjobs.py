"""TrainJobs on the real nodes of a test cluster, under the controllers of Kubeflow Trainer and JobSet."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brim.errors import EnvironmentFault
from brim.kubernetes.install.training_runtime import (
    CONTAINER,
    GROUP,
    NAME,
    SECRET,
    SECRET_KEY,
    VERSION,
    training_runtime,
)
from brim_lab.kubernetes.cluster import NodeCluster
from brim_lab.kubernetes.jobs import JobsOnNodes, until
from brim_lab.kubernetes.peers import JOBSET, TRAINER, install_peer, peer_manifests

PEERS = (JOBSET, TRAINER)  # the second needs the first
KEPT = "/kept"  # the volume of a namespace, in each pod
# In Trainer 2.3 the status of TrainJobs is an alpha feature.
_PROGRESS = {"--zap-log-level=2": "--feature-gates=TrainJobStatus=true"}


@contextlib.contextmanager
def trainer_on(cluster: NodeCluster) -> Iterator[None]:
    """Have both on a cluster as their own manifests install them, with their webhooks.

    Raises:
        EnvironmentFault: one cannot be built, or does not become ready.
    """
    changes = {TRAINER: _PROGRESS}
    texts = [
        peer_manifests(cluster, peer, excluded_kind="APIService", changes=changes.get(peer))
        for peer in PEERS
    ]
    try:
        for peer, text in zip(PEERS, texts, strict=True):
            install_peer(cluster, peer, text)
        yield
    finally:
        for text in reversed(texts):
            cluster.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=text)


class TrainJobs(JobsOnNodes):
    """A namespace for TrainJobs, with a volume and brim's runtime as an administrator adds them."""

    def prepare(self) -> None:
        """Add the runtime, the namespace, its Secret and its volume."""
        runtime = json.dumps(training_runtime(image=self._image))
        apply = ("apply", "--server-side", "-f", "-")
        # Their webhooks are called through a service, which may take a moment.
        until(lambda: self.cluster.kubectl(*apply, stdin=runtime), lambda: "no webhook")
        self.add_namespace("baseline")
        token = ("create", "secret", "generic", SECRET, f"--from-literal={SECRET_KEY}=of-the-test")
        self.kubectl(*token)

    def remove(self) -> None:
        """Remove all of that, TrainJobs first: their controllers have to see them go."""
        with contextlib.suppress(EnvironmentFault):  # they were never installed
            self.kubectl("delete", "trainjobs", "--all", "--timeout=120s")
            self.cluster.kubectl("delete", "clustertrainingruntimes", NAME)
        self.uninstall()

    def submit_trainjob(self, name: str, nodes: int, args: Sequence[str]) -> None:
        """Submit a TrainJob with one worker in each of so many pods, which share a volume."""
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
        mounts = [{"name": "data", "mountPath": KEPT}]
        pod = {"volumes": [claim], "containers": [{"name": CONTAINER, "volumeMounts": mounts}]}
        jobs = [{"name": CONTAINER, "template": {"spec": {"template": {"spec": pod}}}}]
        patch = {
            "manager": "example.com/team",
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
        }
        requests = {"cpu": "100m", "memory": "512Mi"}
        trainer = {
            "numNodes": nodes,
            "numProcPerNode": 1,
            "resourcesPerNode": {"requests": requests},
            "args": list(args),
        }
        self.apply(
            {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": "TrainJob",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "runtimeRef": {"name": NAME},
                    "trainer": trainer,
                    "runtimePatches": [patch],
                },
            }
        )

    def trainjob(self, name: str) -> dict[str, Any]:
        """The status of a TrainJob."""
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/trainjobs/{name}"
        return dict(self.api.ask(path).get("status", {}))

    def conditions(self, name: str) -> set[str]:
        """The conditions of a TrainJob that hold."""
        conditions = self.trainjob(name).get("conditions", [])
        return {c["type"] for c in conditions if c["status"] == "True"}

    def pods_of(self, name: str) -> dict[int, dict[str, Any]]:
        """The pods of a TrainJob that run and are to stay, by index."""
        return {
            _index(pod): pod
            for pod in self._pods(name)
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        }

    def summary(self, name: str) -> dict[str, Any]:
        """The summary of the run, which is the termination message of the first pod that has ended."""
        pods = self._pods(name)
        messages = [
            status["state"]["terminated"].get("message", "")
            for pod in pods
            if _index(pod) == 0
            for status in pod["status"].get("containerStatuses", [])
            if status["state"].get("terminated", {}).get("exitCode") == 0
        ]
        return dict(json.loads(messages[-1]))

    def told_of(self, name: str) -> str:
        """A description of a TrainJob, for a failure."""
        parts = [json.dumps(self.trainjob(name), indent=1)]
        for words in (("get", "trainjobs,jobsets,jobs,pods", "-o", "wide"), ("get", "events")):
            parts.append(self.kubectl(*words))
        for pod in self._pods(name):
            with contextlib.suppress(EnvironmentFault):
                logs = self.kubectl("logs", pod["metadata"]["name"], "--tail=30")
                parts.append(f"{pod['metadata']['name']}:\n{logs}")
        return "\n".join(parts)

    def _pods(self, name: str) -> list[dict[str, Any]]:
        label = f"jobset.sigs.k8s.io/jobset-name%3D{name}"
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={label}"
        return list(self.api.ask(path)["items"])


def _index(pod: Mapping[str, Any]) -> int:
    return int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])
