"""The CustomResourceDefinitions: the committed files are up to date."""

from __future__ import annotations

import runpy
from pathlib import Path

import yaml

from brim.kubernetes.kubeflow.schemas import kubeflow_crds
from brim.kubernetes.objects.schemas import crds

SCRIPT = Path(__file__).parents[2] / "docs" / "reference" / "make_crds.py"


def test_committed_crds_match_the_options() -> None:
    script = runpy.run_path(str(SCRIPT))
    committed = {path.name: path.read_text() for path in script["FOLDER"].iterdir()}
    assert committed == script["render"](), f"run {SCRIPT.relative_to(SCRIPT.parents[2])}"
    assert {name: yaml.safe_load(text) for name, text in committed.items()} == {
        **crds(),
        **kubeflow_crds(),
    }
