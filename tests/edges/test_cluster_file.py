from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from brim.domain.promising import PromiseAt
from brim.domain.tenancy import Tenant
from brim.errors import SpecError
from brim.scheduler.cluster_file import cluster_spec, read_cluster_file
from brim.storage.yaml_file import read_yaml

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cluster-file.md"
WHOLE = """
policy: elasticflow
promise: measured
headroom: 2
grace: 1m
usage_half_life: 7d
nodes:
  - {name: n1, workers: 8}
  - {name: n2, workers: 8, switch: 1}
tenants:
  - {name: ads, cohort: main, guaranteed: 8, exclusive: 2, limit: 12, weight: 2}
"""


def test_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(WHOLE)
    spec = read_cluster_file(tmp_path / "cluster.yaml")
    assert [(node.id, node.devices, node.switch) for node in spec.cluster.nodes] == [
        ("n1", 8, 0),
        ("n2", 8, 1),
    ]
    assert spec.tenants == (
        Tenant(id="ads", cohort="main", guaranteed=8, exclusive=2, limit=12, weight=2.0),
    )
    assert spec.promise is PromiseAt.MEASURED
    assert spec.usage_half_life == 7 * 86_400.0
    assert (spec.policy, spec.headroom, spec.grace, spec.capacity) == ("elasticflow", 2, 60.0, 14)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: []", "nodes: got none, need at least one"),
        ("nodes: [{name: n, workers: -1}]", "nodes: got 'n' with fewer than 0 devices"),
        ("nodes: [{name: n, workers: 1}, {name: n, workers: 1}]", "nodes: got 'n' twice"),
        ("nodes: [{name: n, worker: 1}]", "nodes[0]: got 'worker'"),
        ("nodes: [{name: n, worker: 1}]", "did you mean 'workers'?"),
        ("nodes: [{name: n}]", "nodes[0]: got no 'workers'"),
        ("nodes: [{name: n, workers: many}]", "nodes[0].workers: got 'many', need a whole number"),
        ("polcy: brim", "did you mean 'policy'?"),
        ("nodes: [{name: n, workers: 1}]\njobs: 9", "jobs stands under tenants"),
        ("nodes: [{name: n, workers: 1, policy: brim}]", "policy stands at the top"),
        ("policy: brimm\nnodes: [{name: n, workers: 1}]", "did you mean 'brim'?"),
        ("promise: measure\nnodes: [{name: n, workers: 1}]", "need arrival or measured"),
        (
            "headroom: 1\nnodes: [{name: n, workers: 1}]",
            "cluster.yaml: headroom: got 1, need from 0 to 0",
        ),
        ("grace: soon\nnodes: [{name: n, workers: 1}]", "grace: got 'soon', need a duration"),
        (
            "nodes: [{name: n, workers: 1}]\ntenants: [{name: a, guaranteed: 2}]",
            "2 devices guaranteed",
        ),
        (
            "nodes: [{name: n, workers: 1}]\ntenants: [{name: a, exclusive: 2}]",
            "tenant a: got exclusive 2",
        ),
        ("nodes: [{name: .., workers: 1}]", "nodes: got '..', need 1 to 200 printable"),
        ("nodes: [{name: a/b, workers: 1}]", "nodes: got 'a/b', need 1 to 200 printable"),
        (
            'nodes: [{name: n, workers: 1}]\ntenants: [{name: "a\\e[2J"}]',
            r"tenants: got 'a\x1b[2J'",
        ),
        (
            'nodes: [{name: n, workers: 1}]\ntenants: [{name: a, cohort: ""}]',
            "tenant a: cohort: got ''",
        ),
        (
            "usage_half_life: 5s\nnodes: [{name: n, workers: 1}]\ntenants: [{name: a}]",
            "usage_half_life: got 5s, need a time from 1m to 3650d",
        ),
        (
            "usage_half_life: week\nnodes: [{name: n, workers: 1}]\ntenants: [{name: a}]",
            "usage_half_life: got 'week', need a duration",
        ),
        (
            "usage_half_life: 7d\nnodes: [{name: n, workers: 1}]",
            "usage_half_life: got no tenants, need tenants, whose use is to count",
        ),
        ("nodes: 3\nnodes: 4", "'nodes' twice"),
        ("nodes: [", "valid YAML"),
        ("just words", "got 'just words', need NAME: VALUE pairs"),
        ("nodes: [{name: n, workers: 2.5}]", "nodes[0].workers: got 2.5, need a whole number"),
        ("nodes: [{name: yes, workers: 2}]", "nodes[0].name: got true (yes), need a word"),
        ("nodes: [{name: yes, workers: 2}]", "write it in quotes: 'yes', 'no'"),
        ("nodes: [{name: n, workers: [2]}]", "nodes[0].workers: got a list, need a whole number"),
        (
            "nodes: [{name: n, workers: 1000000001}]",
            "nodes[0].workers: got 1000000001, need at most",
        ),
        (
            "nodes: [{name: n, workers: 1}]\ntenants: [{name: a, jobs: 99999999999999999999}]",
            "tenants[0].jobs: got 99999999999999999999, need at most 1,000,000,000",
        ),
        (
            "nodes: [{name: n, workers: 1}]\nnotify: [{name: a, webhook: 'https://hook/secret'}]",
            "notify[0].webhook: got a word, need NAME: VALUE pairs",
        ),
        (
            "nodes: [{name: n, workers: 1}]\ntenants: [{name: a, weight: 0}]",
            "guaranteed 0, no limit, weight 0.0, need",
        ),
    ],
)
def test_a_wrong_file_says_where_and_what(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as wrong:
        read_cluster_file(path)
    assert message in str(wrong.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        read_cluster_file(tmp_path / "cluster.yaml")


def test_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="got a directory, need a YAML file"):
        read_cluster_file(tmp_path)


def test_words_stay_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("workers: 1:4\nexact: no\nseed: 007\n")
    assert read_yaml(tmp_path / "job.yaml", words=True) == {
        "workers": "1:4",
        "exact": "no",
        "seed": "007",
    }
    assert read_yaml(tmp_path / "job.yaml")["workers"] == 64


def test_headroom_keeps_at_least_one_device_for_training() -> None:
    with pytest.raises(SpecError, match="one device is left for training"):
        cluster_spec({"nodes": [{"name": "n", "workers": 4}], "headroom": 4})


@pytest.mark.parametrize(
    ("struct", "heading"),
    [
        ("_ClusterFile", "# cluster.yaml"),
        ("_NodeEntry", "## Nodes"),
        ("_TenantEntry", "## Tenants"),
    ],
)
def test_the_reference_has_each_key(struct: str, heading: str) -> None:
    fields = pkgutil.resolve_name(f"brim.scheduler.cluster_file:{struct}").__struct_encode_fields__
    part = REFERENCE.read_text().partition(f"{heading}\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) == sorted(fields)
