"""The files of deploy/ for kustomize and Helm: current, and the same objects as `brim install` applies."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from brim.kubernetes.install.manifests import Installation, Manifest, foreign_definitions, manifests
from brim.kubernetes.kubeflow.request import KUBEFLOW
from brim_lab.kubernetes.binaries import binary
from clusters import need, no_cluster

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "brim"

# Helm's engine is Go's text/template; these are the only functions of its own that the chart calls.
ENGINE = """
package main

import (
	"encoding/json"
	"os"
	"strconv"
	"text/template"
)

func main() {
	var values, known map[string]any
	if err := json.Unmarshal([]byte(os.Args[1]), &values); err != nil {
		panic(err)
	}
	known = map[string]any{"Values": values, "Release": map[string]any{"Namespace": os.Args[2]}}
	functions := template.FuncMap{
		"quote":    strconv.Quote,
		"toJson":   func(value any) (string, error) { text, err := json.Marshal(value); return string(text), err },
		"required": func(_ string, value any) any { return value },
		"default": func(usual, value any) any {
			if value == "" || value == nil {
				return usual
			}
			return value
		},
	}
	for _, file := range os.Args[3:] {
		text, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		parsed := template.Must(template.New(file).Option("missingkey=error").Funcs(functions).Parse(string(text)))
		if err := parsed.Execute(os.Stdout, known); err != nil {
			panic(err)
		}
		os.Stdout.WriteString("\\n---\\n")
	}
}
"""


def in_order(things: Iterable[Manifest]) -> list[Manifest]:
    plain = json.loads(json.dumps([thing for thing in things if thing]))
    return sorted(
        plain, key=lambda manifest: (manifest["kind"], manifest["metadata"]["name"], str(manifest))
    )


def installed(chosen: Installation) -> list[Manifest]:
    """The objects of an installation without Kubeflow's definitions, which have a file of their own."""
    return [
        manifest for manifest in manifests(chosen) if KUBEFLOW not in manifest["metadata"]["name"]
    ]


def test_all_files_are_current_and_none_is_left() -> None:
    rendered = runpy.run_path(str(DEPLOY / "make_deploy.py"))["render"]()
    assert {path: (DEPLOY / path).read_text() for path in rendered} == rendered
    files = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()}
    written_by_hand = {"make_deploy.py", "Dockerfile", "README.md", "grafana/scheduler.json"}
    assert {
        name for name in files if "__pycache__" not in name
    } - written_by_hand == rendered.keys()


@pytest.mark.parametrize(
    ("overlay", "chosen"),
    [
        ("all-namespaces", Installation(image="brim:1")),
        ("one-namespace", Installation(image="brim:1", of="team")),
        ("all-namespaces-kubeflow", Installation(image="brim:1", foreign_kinds=True)),
        ("one-namespace-kubeflow", Installation(image="brim:1", of="team", foreign_kinds=True)),
    ],
)
def test_an_overlay_gives_what_brim_install_prints(overlay: str, chosen: Installation) -> None:
    need("kubectl")
    words = [str(binary("kubectl")), "kustomize", str(DEPLOY / "kustomize" / overlay)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert in_order(yaml.safe_load_all(done.stdout)) == in_order(installed(chosen))


@pytest.mark.parametrize("component_of", ["", "team"])
@pytest.mark.parametrize(
    "chosen",
    [
        {"gangs": True},
        {"evictions": True},
        {"placeholders": 10},
        {"service_urls": ("http://prometheus.monitoring.svc:9090/",)},
        {"gangs": True, "evictions": True, "placeholders": 10},
    ],
    ids=lambda chosen: "+".join(chosen),
)
def test_components_match_brim_install(
    tmp_path: Path, component_of: str, chosen: dict[str, Any]
) -> None:
    need("kubectl")
    shutil.copytree(DEPLOY / "kustomize", tmp_path / "kustomize")
    overlay = "one-namespace" if component_of else "all-namespaces"
    own_manifests = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../kustomize/{overlay}"],
        "components": [
            f"../kustomize/components/{overlay}/{name}" for name in map(component_of_field, chosen)
        ],
    }
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "kustomization.yaml").write_text(json.dumps(own_manifests))
    words = [str(binary("kubectl")), "kustomize", str(tmp_path / "own")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    expected = in_order(installed(Installation(image="brim:1", of=component_of, **chosen)))
    assert [
        without_options(manifest) for manifest in in_order(yaml.safe_load_all(done.stdout))
    ] == [without_options(manifest) for manifest in expected]
    assert [options(manifest) for manifest in in_order(yaml.safe_load_all(done.stdout))] == [
        options(manifest) for manifest in expected
    ]


def component_of_field(field: str) -> str:
    """The component that stands for a field of an installation."""
    return "services" if field == "service_urls" else field


def options(thing: Manifest) -> list[str]:
    """The words of the operator, whose options may be in any order."""
    if thing["kind"] != "Deployment":
        return []
    return sorted(thing["spec"]["template"]["spec"]["containers"][0]["command"])


def without_options(thing: Manifest) -> Manifest:
    if thing["kind"] != "Deployment":
        return thing
    (container,) = thing["spec"]["template"]["spec"]["containers"]
    pod = {**thing["spec"]["template"]["spec"], "containers": [{**container, "command": []}]}
    return {
        **thing,
        "spec": {**thing["spec"], "template": {**thing["spec"]["template"], "spec": pod}},
    }


def test_kubeflow_definitions_have_their_own_file() -> None:
    file = DEPLOY / "kubeflow-kinds.yaml"
    assert in_order(yaml.safe_load_all(file.read_text())) == in_order(foreign_definitions())


def test_the_image_name_is_in_one_place(tmp_path: Path) -> None:
    need("kubectl")
    shutil.copytree(DEPLOY / "kustomize", tmp_path / "kustomize")
    file = tmp_path / "kustomize" / "one-namespace" / "kustomization.yaml"
    file.write_text(file.read_text().replace("newName: brim", "newName: images/brim"))
    words = [str(binary("kubectl")), "kustomize", str(file.parent)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    chosen = Installation(image="images/brim:1", of="team")
    assert in_order(yaml.safe_load_all(done.stdout)) == in_order(manifests(chosen))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that fills templates in as Helm does."""
    go = shutil.which("go")
    if go is None:
        no_cluster(
            "no Go, whose text/template fills Helm's charts in; to have it: go.dev/doc/install"
        )
    folder = tmp_path_factory.mktemp("engine")
    (folder / "main.go").write_text(ENGINE)
    words = [go, "build", "-o", str(folder / "engine"), str(folder / "main.go")]
    subprocess.run(words, check=True, capture_output=True, timeout=240, cwd=folder)
    return folder / "engine"


def charted(engine: Path, namespace: str, **values: Any) -> list[Manifest]:
    usual = yaml.safe_load((CHART / "values.yaml").read_text())
    files = sorted(map(str, (CHART / "templates").iterdir()))
    words = [str(engine), json.dumps(usual | values), namespace, *files]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    crds = [yaml.safe_load(path.read_text()) for path in (CHART / "crds").iterdir()]
    return [*crds, *yaml.safe_load_all(done.stdout)]


@pytest.mark.parametrize(
    ("values", "chosen"),
    [
        ({"image": "images/brim:1"}, {"image": "images/brim:1"}),
        (
            {"image": "images/brim:1", "kubeflow": True},
            {"image": "images/brim:1", "foreign_kinds": True},
        ),
        (
            {"image": "images/brim:1", "watch": "team", "jobImage": "images/job:2", "replicas": 2,
             "slot": {"cpu": "4", "nvidia.com/gpu": 1}, "arguments": ["--headroom=2"],
             "resources": {"requests": {"cpu": "1"}}, "kubeflow": True, "gangs": True, "evictions": True,
             "placeholders": 3, "serviceUrls": ["http://metrics:9090/", "https://queue.example/a/"]},
            {"image": "images/brim:1", "of": "team", "foreign_kinds": True, "gangs": True, "evictions": True,
             "placeholders": 3, "service_urls": ("http://metrics:9090/", "https://queue.example/a/"),
             "job_image": "images/job:2", "replicas": 2,
             "slot": {"cpu": "4", "nvidia.com/gpu": 1}, "arguments": ("--headroom=2",),
             "resources": {"requests": {"cpu": "1"}}},
        ),
    ],
    ids=["usual", "kubeflow", "everything"],
)  # fmt: skip
def test_the_chart_gives_what_brim_install_prints(
    engine: Path, values: dict[str, Any], chosen: dict[str, Any]
) -> None:
    whole = installed(Installation(**chosen, namespace="own"))
    own_manifests = [
        manifest for manifest in whole if manifest["kind"] != "Namespace"
    ]  # helm --create-namespace
    assert in_order(charted(engine, "own", **values)) == in_order(own_manifests)


def test_values_and_their_schema_name_the_same() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"].keys() == yaml.safe_load((CHART / "values.yaml").read_text()).keys()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["image"]
