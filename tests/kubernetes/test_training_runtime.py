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
