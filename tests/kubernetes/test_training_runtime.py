"""The runtime of TrainJobs: valid for Kubeflow's own models, and its Job for a server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from brim.kubernetes.install.training_runtime import RUNS, training_runtime
from brim_lab.kubernetes.control_plane import ControlPlane
from brim_lab.kubernetes.jobs import until

FAILURES = "batch.kubernetes.io/job-index-failure-count"
NOW = "2026-11-30T00:00:00Z"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "kubeflow-trainer.md"


def job_of(runtime: dict[str, Any]) -> dict[str, Any]:
    """The Job that JobSet makes of a TrainJob of three nodes."""
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    spec = {**replicated["template"]["spec"], "parallelism": 3, "completions": 3}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "flights-node-0"},
        "spec": spec,
    }


def same(read: Any, written: Any, place: str = "") -> None:
    """Check that a model keeps all that was written: others are dropped without a word."""
    if isinstance(written, dict):
        for name, part in written.items():
            assert name in read, f"{place}.{name}"
            same(read[name], part, f"{place}.{name}")
    elif isinstance(written, list):
        assert len(read) == len(written), place
        for number, part in enumerate(written):
            same(read[number], part, f"{place}[{number}]")
    else:
        assert read == written, place


@pytest.mark.parametrize("namespace", ["", "team"])
def test_models_of_kubeflow_take_it_whole(namespace: str) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install -e '.[dev]'")
    runtime = training_runtime(image="brim:1", namespace=namespace)
    model = getattr(models, f"TrainerV1alpha1{runtime['kind']}")
    read = model.from_json(json.dumps(runtime))
    same(json.loads(read.to_json()), runtime)
    assert runtime["metadata"].get("namespace", "") == namespace


def test_server_takes_its_job(api_server: ControlPlane) -> None:
    job = job_of(training_runtime(image="brim:1"))
    text = api_server.kubectl(
        *("create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-"),
        stdin=json.dumps(job),
    )
    same(json.loads(text)["spec"], job["spec"])


def test_models_of_kubeflow_take_the_guides_jobs() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install -e '.[dev]'")
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    job, with_volume = (yaml.safe_load(block) for block in blocks)
    job["spec"] |= with_volume["spec"]
    read = models.TrainerV1alpha1TrainJob.from_json(json.dumps(job))
    same(json.loads(read.to_json()), job)
    assert f"mountPath: {RUNS}" in blocks[1]


class Job:
    """The runtime's Job on a server whose controller of Jobs is Kubernetes' own.

    Its pods find no node: this says how they end, in the place of kubelets.
    """

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane, self._namespace = plane, namespace
        job = job_of(training_runtime(image="brim:1"))
        job["spec"]["template"]["spec"]["nodeSelector"] = {"no": "node"}
        self._call("create", "-f", "-", stdin=json.dumps(job))

    def _call(self, *words: str, stdin: str | None = None) -> str:
        return self._plane.kubectl("-n", self._namespace, *words, stdin=stdin)

    def conditions(self) -> set[str]:
        job = json.loads(self._call("get", "job", "flights-node-0", "-o", "json"))
        return {c["type"] for c in job["status"].get("conditions", []) if c["status"] == "True"}

    def pods(self, index: int) -> dict[str, dict[str, str]]:
        """The annotations of the pods of an index that have not ended, by name."""
        label = f"batch.kubernetes.io/job-completion-index={index}"
        pods = json.loads(self._call("get", "pods", "-l", label, "-o", "json"))["items"]
        return {
            pod["metadata"]["name"]: pod["metadata"]["annotations"]
            for pod in pods
            if pod["status"].get("phase") == "Pending"
        }

    def end(self, index: int, *, status: int) -> None:
        """Have the pod of an index end with an exit status."""
        (name,) = self.pods(index)
        terminated = {"exitCode": status, "startedAt": NOW, "finishedAt": NOW, "reason": "Ended"}
        container = {
            "name": "node",
            "image": "brim:1",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": terminated},
        }
        phase = "Failed" if status else "Succeeded"
        patch = {"status": {"phase": phase, "containerStatuses": [container]}}
        self._call("patch", "pod", name, "--subresource=status", "-p", json.dumps(patch))


@pytest.fixture
def job(fake_cluster: ControlPlane, namespace: str) -> Job:
    fake_cluster.kubectl("create", "namespace", namespace)
    job = Job(fake_cluster, namespace)
    until(lambda: all(len(job.pods(index)) == 1 for index in range(3)), job.conditions)
    return job


@pytest.mark.long
def test_job_replaces_pods_until_the_first_ends(job: Job) -> None:
    (annotations,) = job.pods(0).values()
    assert annotations[FAILURES] == "0", "so that a run begins at once"
    lost = job.pods(1)
    job.end(1, status=143)
    until(lambda: bool(job.pods(1).keys() - lost.keys()), job.conditions)
    (annotations,) = job.pods(1).values()
    assert annotations[FAILURES] == "1"
    job.end(0, status=0)
    until(lambda: "Complete" in job.conditions(), job.conditions)


@pytest.mark.long
def test_job_fails_with_a_run_that_failed(job: Job) -> None:
    job.end(0, status=1)
    until(lambda: "Failed" in job.conditions(), job.conditions)
