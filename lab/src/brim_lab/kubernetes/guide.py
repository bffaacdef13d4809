"""The PyTorchJob of the guide to elastic training with Kubeflow, on the real nodes of a test cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brim_lab.kubernetes.jobs import JobsOnNodes, until

NAME = "elastic-example-imagenet"
IMAGE = "docker.io/kubeflow/pytorch-elastic-example-imagenet:1.0.0-sigterm"
_SCRIPT = Path(__file__).with_name("elastic_imagenet.py")


class Guide(JobsOnNodes):
    """The job of the guide; its image is one in which a small model trains."""

    def add_its_image(self) -> None:
        """Have the image that the manifest names on all nodes."""
        files = {"workspace/examples/imagenet.py": _SCRIPT.read_bytes()}
        self.cluster.add_image(IMAGE, files)

    def job(self) -> dict[str, Any]:
        path = f"/apis/kubeflow.org/v1/namespaces/{self.namespace}/pytorchjobs/{NAME}"
        return dict(self.api.ask(path))

    def conditions(self) -> dict[str, str]:
        """The conditions of the job by type: `True` or `False`."""
        conditions = self.job().get("status", {}).get("conditions", [])
        return {condition["type"]: condition["status"] for condition in conditions}

    def pods_of_job(self) -> list[Mapping[str, Any]]:
        """All pods of the job."""
        label = f"training.kubeflow.org/job-name%3D{NAME}"
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={label}"
        pods: list[Mapping[str, Any]] = self.api.ask(path)["items"]
        return pods

    def nodes(self) -> dict[str, str]:
        """The nodes of the pods that run and are to stay, by name."""
        return {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in self.pods_of_job()
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    def sizes(self) -> dict[str, list[int]]:
        """The numbers of processes that made the latest steps together, by pod."""
        output = {name: self.kubectl("logs", name, "--tail=2") for name in self.nodes()}
        return {
            name: [int(line.split()[-1]) for line in lines.splitlines() if line[:5] == "step "]
            for name, lines in output.items()
        }

    def processes(self) -> int:
        """Wait until both pods train; return how many processes each has: that is torch's choice."""
        until(lambda: len(self.nodes()) == 2 and all(self.sizes().values()), self.told_of_guide)
        return self.sizes().popitem()[1][-1] // 2

    def trains_with(self, pods: int, processes: int) -> bool:
        """Return whether the last two steps were made by all processes of so many pods."""
        return list(self.sizes().values()) == [[pods * processes] * 2] * pods

    def hurry_guide(self) -> None:
        """End the pauses of its processes."""
        for name in self.nodes():
            self.kubectl("exec", name, "--", "touch", "/tmp/hurry")

    def told_of_guide(self) -> str:
        """A description of the job, for a failure."""
        parts = [json.dumps(self.job().get("status"), indent=1), self.kubectl("get", "pods,events")]
        return "\n".join([*parts, *(self.kubectl("logs", name) for name in self.nodes())])
