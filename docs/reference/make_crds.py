"""Makes the CustomResourceDefinitions in src/brim/kubernetes/crds from the options of jobs."""

from __future__ import annotations

from pathlib import Path

from brim.kubernetes.kubeflow.schemas import kubeflow_crds
from brim.kubernetes.objects.schemas import crds, in_yaml

FOLDER = Path(__file__).parents[2] / "src" / "brim" / "kubernetes" / "crds"
_HEAD = "# Made by `python docs/reference/make_crds.py`: change what that reads.\n"


def render() -> dict[str, str]:
    """The text of each file, by name."""
    return {name: _HEAD + in_yaml(crd) for name, crd in {**crds(), **kubeflow_crds()}.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in render().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
