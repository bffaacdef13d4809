"""Templates of pods in an ElasticJob: with any content, pods can be made of them, or they are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.errors import SpecError
from brim.kubernetes.objects.identities import KubeJob
from brim.kubernetes.objects.templates import PodTemplates, read_templates
from brim.kubernetes.pods.manifests import KubeStart, PodWishes, master_pod, worker_pod
from brim_lab.kubernetes.control_plane import ControlPlane
from edges.test_nonsense import twisted
from kube_schema import PodSchema
from kubernetes.test_elastic_jobs import ANYTHING

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "ads"}, "annotations": None},
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"podAffinity": {}},
        "securityContext": {"supplementalGroups": [7]},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "tolerations": None,
        "containers": [
            {
                "name": "worker",
                "image": "images/flights:1",
                "env": [{"name": "A", "value": "1"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
            {"name": "beside", "image": "i", "env": None},
        ],
    },
}
SPEC: dict[str, Any] = {
    "template": TEMPLATE,
    "masterTemplate": {"spec": {"containers": [{"name": "master"}]}},
    "priorityClassName": "low",
    "volumeClaim": {"storageClassName": None, "size": 1 << 30},
}


def pods(chosen: PodTemplates) -> list[dict[str, Any]]:
    start = KubeStart(job=KubeJob("team", "flights"), uid="u", launch=1, token="t")
    wishes = PodWishes(
        image="brim",
        operator_namespace="brim-system",
        slot={"cpu": 1},
        priority_class=chosen.priority_class,
        template=chosen.worker,
        master_template=chosen.master,
        claim=chosen.claim,
    )
    master = master_pod(start, wishes, rejoins=False)
    return [master, worker_pod(start, wishes, name="flights-1-0", node="n1")]


def test_templates_without_their_nulls() -> None:
    chosen = read_templates(SPEC)
    assert chosen.image == "images/flights:1"
    assert (chosen.priority_class, chosen.claim) == ("low", {"size": 1 << 30})
    assert "null" not in json.dumps([chosen.worker, chosen.master, chosen.claim])
    master, worker = pods(chosen)
    assert worker["spec"]["containers"][0]["image"] == "images/flights:1"
    assert {"name": "data", "emptyDir": {}} in worker["spec"]["volumes"]
    assert master["spec"]["priorityClassName"] == "low"
    assert read_templates({}) == PodTemplates()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("volumes",), "x", "spec.template.spec.volumes: got 'x', need a list"),
        (("tolerations",), True, "spec.template.spec.tolerations: got True, need a list"),
        (("nodeName",), "b", "spec.template.spec.nodeName: got 'b', need none: the scheduler"),
        (("volumes",), [3], "spec.template.spec.volumes[0]: got 3"),
        (("securityContext",), [], "spec.template.spec.securityContext: got an empty list"),
        (
            ("containers", 0, "env"),
            [{}],
            "spec.template.spec.containers[0].env[0].name: got nothing",
        ),
        (("containers", 1, "name"), "worker", "containers[1].name: got 'worker' twice"),
        (("containers", 0, "name"), "main", "got 'main', 'beside', need a container 'worker'"),
        (("containers", 0, "image"), 3, "spec.template.spec.containers[0].image: got 3"),
        (("containers",), [3], "spec.template.spec.containers[0]: got 3"),
    ],
)
def test_a_mistake_in_a_template_is_named(path: tuple[Any, ...], value: Any, message: str) -> None:
    template = json.loads(json.dumps(TEMPLATE))
    part = template["spec"]
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(SpecError) as wrong:
        read_templates({"template": template})
    assert message in str(wrong.value)


@settings(max_examples=300, deadline=None)
@given(spec=twisted(SPEC) | st.dictionaries(st.sampled_from(sorted(SPEC)), ANYTHING))
def test_each_accepted_template_makes_pods(spec: Any) -> None:
    if not isinstance(spec, dict):
        return
    try:
        chosen = read_templates(spec)
    except SpecError:
        return
    for pod in pods(chosen):
        assert pod["spec"]["containers"]


# On a server --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema(api_server: ControlPlane) -> PodSchema:
    return PodSchema(api_server.api.ask("/openapi/v3/api/v1"))


def specs(schema: PodSchema) -> st.SearchStrategy[dict[str, Any]]:
    """Specs with any template that the server takes for one, but for the names of its containers."""

    def named(spec: dict[str, Any], container: dict[str, Any], labels: Any) -> dict[str, Any]:
        sidecars = [
            {**container, "name": f"beside-{k}"} for k, container in enumerate(spec["containers"])
        ]
        containers = [{**container, "name": "worker"}, *sidecars]
        return {"template": {"metadata": labels, "spec": {**spec, "containers": containers}}}

    pairs = st.dictionaries(st.sampled_from(["labels", "annotations"]), st.just({"a": "b"}))
    pods, containers = schema.kind("PodSpec"), schema.kind("Container")
    return st.builds(named, schema.values(pods), schema.values(containers), pairs)


def test_pods_of_any_template_match_the_servers_schema(schema: PodSchema) -> None:
    accepted, refused = [], []

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(spec=specs(schema) | twisted(SPEC).filter(lambda spec: isinstance(spec, dict)))
    def check(spec: dict[str, Any]) -> None:
        try:
            chosen = read_templates(spec)
        except SpecError as wrong:
            refused.append(str(wrong))
            return
        accepted.append(spec)
        templates = [chosen.worker, chosen.master]
        kind = schema.kind("PodTemplateSpec")
        faults_found = [fault for part in templates for fault in schema.faults(part, kind)]
        for pod in pods(chosen):
            faults = list(schema.faults(pod, schema.kind("Pod")))
            assert not faults or faults_found, (faults, spec)

    check()
    assert [message for message in refused if not message.startswith("spec.")] == []
    assert min(len(accepted), len(refused)) > 20
