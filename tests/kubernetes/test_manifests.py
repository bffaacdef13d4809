"""The objects that install an operator: whole, agreeing with each other, and no right too many."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from brim.errors import EnvironmentFault, SpecError
from brim.kubernetes.install.manifests import (
    LOADS,
    MEMORY,
    NAME,
    Installation,
    deployment,
    manifests,
)
from brim.kubernetes.kubeflow.request import KINDS, KUBEFLOW
from brim.kubernetes.objects.identities import GROUP, SERVICE, KubeJob
from brim.kubernetes.objects.schemas import in_yaml
from brim.kubernetes.pods.manifests import KubeStart, network_policy
from brim_lab.kubernetes.control_plane import ControlPlane
from brim_lab.kubernetes.jobs import until

FOR_ALL_NAMESPACES = Installation(image="images/brim:1", arguments=("--headroom", "1"))
IN_ONE = Installation(image="images/brim:1", namespace="team-brim", of="team")
WITH_KUBEFLOW = Installation(
    image="images/brim:1", namespace="kf-brim", of="team", foreign_kinds=True
)
WITH_NEIGHBOURS = Installation(
    image="images/brim:1",
    namespace="many-brim",
    of="team",
    gangs=True,
    evictions=True,
    placeholders=3,
    service_urls=("http://metrics:9090/",),
)
ALL = {
    "everywhere": FOR_ALL_NAMESPACES,
    "in one": IN_ONE,
    "with Kubeflow": WITH_KUBEFLOW,
    "with neighbours": WITH_NEIGHBOURS,
}
CHOICES = pytest.mark.parametrize("chosen", ALL.values(), ids=list(ALL))


def named(manifests: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in manifests if item["kind"] == kind}


@CHOICES
def test_manifests_are_in_dependency_order(chosen: Installation) -> None:
    objects = manifests(chosen)
    text = "---\n".join(map(in_yaml, objects))
    assert list(yaml.safe_load_all(text)) == json.loads(json.dumps(objects))
    kinds = [item["kind"] for item in objects]
    assert kinds[0] == "Namespace"
    assert kinds[-1] == "Deployment"
    assert all(item["metadata"]["name"] for item in objects)
    keys = [
        (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
        for item in objects
    ]
    assert len(set(keys)) == len(keys)


@CHOICES
def test_names_agree(chosen: Installation) -> None:
    objects = manifests(chosen)
    accounts, namespaces = named(objects, "ServiceAccount"), named(objects, "Namespace")
    for item in objects:
        if item["kind"].endswith("Binding"):
            assert item["roleRef"]["name"] in named(objects, item["roleRef"]["kind"])
            assert [subject["name"] for subject in item["subjects"]] == list(accounts)
            assert [subject["namespace"] for subject in item["subjects"]] == list(namespaces)
    operator_deployment = deployment(chosen)
    pod = operator_deployment["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] in accounts
    assert operator_deployment["metadata"]["namespace"] in namespaces
    assert (
        pod["metadata"]["labels"].items()
        >= operator_deployment["spec"]["selector"]["matchLabels"].items()
    )


def test_jobs_let_the_operator_call_them() -> None:
    start = KubeStart(job=KubeJob("team", "flights"), uid="u", launch=1, token="t")
    callers = network_policy(start, "brim-system")["spec"]["ingress"][0]["from"]
    labels = deployment(FOR_ALL_NAMESPACES)["spec"]["template"]["metadata"]["labels"].items()
    assert any(labels >= caller["podSelector"]["matchLabels"].items() for caller in callers)


def test_an_installation_that_cannot_be() -> None:
    for wrong in ({"image": ""}, {"image": "x", "replicas": 0}):
        with pytest.raises(SpecError, match="need an image, and at least one replica"):
            Installation(**wrong)


# On a server --------------------------------------------------------------------------------------

# Everything that the operator may do: (namespace, group, resource, verbs); "" is each namespace.
SEES = {("", "", "nodes", "list watch"), ("", "", "pods", "list watch")}
SEES |= {("", GROUP, "tenants", "list watch")}
RUNS = {
    ("", "", "pods", "create delete"),
    ("", "", "secrets", "create delete"),
    ("", "", "configmaps", "get"),
    ("", "", "services", "create"),
    ("", "", "persistentvolumeclaims", "get create"),
    ("", "networking.k8s.io", "networkpolicies", "get create"),
    ("", GROUP, "elasticjobs", "list watch"),
    ("", GROUP, "elasticjobs/status", "patch"),
    ("", GROUP, "elasticjobs/finalizers", "update"),
}
PLURALS = [kind.plural for kind in KINDS.values()]
RUNS_FOR_KUBEFLOW = {
    *(("", KUBEFLOW, plural, "get list watch patch delete") for plural in PLURALS),
    *(("", KUBEFLOW, f"{plural}/status", "patch") for plural in PLURALS),
    *(("", KUBEFLOW, f"{plural}/finalizers", "update") for plural in PLURALS),
    ("", "", "services", "get deletecollection"),
    ("", "", "pods", "get patch"),
    ("", "", "pods/exec", "create"),
    ("", "", "configmaps", "create patch"),
    ("", "", "serviceaccounts", "get create patch"),
    ("", "rbac.authorization.k8s.io", "roles", "get create patch"),
    ("", "rbac.authorization.k8s.io", "rolebindings", "get create patch"),
    ("", "autoscaling", "horizontalpodautoscalers", "get list watch create patch delete"),
}
RUNS_FOR_GANGS = {
    ("", "scheduling.k8s.io", "podgroups", "get create patch"),
    ("", "scheduling.volcano.sh", "podgroups", "get create patch"),
}
RUNS_FOR_EVICTIONS = {
    ("", "lifecycle.k8s.io", "evictions", "list watch"),
    ("", "lifecycle.k8s.io", "evictions/status", "patch"),
}
RUNS_FOR_SERVICES = {
    ("", "apps", "deployments", "list watch"),
    ("", "apps", "statefulsets", "list watch"),
    ("", "apps", "deployments/scale", "patch"),
    ("", "apps", "statefulsets/scale", "patch"),
    ("", "autoscaling", "horizontalpodautoscalers", "list watch"),
    ("", "", "events", "create patch"),
}
KEEPS = {
    ("coordination.k8s.io", "leases", "", "create"),
    ("coordination.k8s.io", "leases", NAME, "get update"),
    ("", "configmaps", "", "create"),
    ("", "configmaps", MEMORY, "get patch"),
    ("", "secrets", "", "create"),
    ("", "secrets", NAME, "get"),
}


@pytest.fixture(params=list(ALL.values()), ids=list(ALL))
def installed(request: pytest.FixtureRequest, api_server: ControlPlane) -> Iterator[Installation]:
    chosen: Installation = request.param
    objects = manifests(chosen)
    text = "---\n".join(map(in_yaml, objects))
    for namespace in ("team", "other"):
        thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        api_server.kubectl("apply", "-f", "-", stdin=json.dumps(thing))
    api_server.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    yield chosen
    for item in objects:
        if "rbac" in item["apiVersion"]:
            namespace_of_item = item["metadata"].get("namespace")
            words = ["delete", item["kind"], item["metadata"]["name"]]
            api_server.kubectl(*words, *(["-n", namespace_of_item] if namespace_of_item else []))


def is_allowed(server: ControlPlane, user: dict[str, Any], **attributes: str) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {**user, "resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(server.api.ask(path, method="POST", body=review)["status"]["allowed"])


def rights(server: ControlPlane, chosen: Installation, namespace: str) -> set[tuple[str, str, str]]:
    """The rights of the operator's account on any object of a namespace, but those of every account."""
    accounts = (f"system:serviceaccount:{chosen.namespace}:{name}" for name in (NAME, "nobody"))
    own_rights, everybodys = (listed(server, account, namespace) for account in accounts)
    return own_rights - everybodys


def in_force_as(
    server: ControlPlane, chosen: Installation, namespace: str, own: set[tuple[str, str, str]]
) -> None:
    """Check these rights: the server acts by a change of a role some time after its answer."""
    until(
        lambda: rights(server, chosen, namespace) == own,
        lambda: (namespace, rights(server, chosen, namespace) ^ own),
    )


def listed(server: ControlPlane, account: str, namespace: str) -> set[tuple[str, str, str]]:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    words = ["create", "-f", "-", "-o", "json", "--validate=false", f"--as={account}"]
    answer = json.loads(server.kubectl(*words, stdin=json.dumps(review)))
    assert not answer["status"]["incomplete"]
    return {
        (group, resource, verb)
        for rule in answer["status"]["resourceRules"]
        if not rule.get("resourceNames")
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def expected(table: set[tuple[str, str, str, str]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb) for _, group, resource, verbs in table for verb in verbs.split()
    }


def test_the_operator_has_these_rights_and_no_others(
    api_server: ControlPlane, installed: Installation
) -> None:
    seen, run = expected(SEES), expected(RUNS)
    run |= expected(RUNS_FOR_KUBEFLOW) if installed.foreign_kinds else set()
    run |= expected(RUNS_FOR_GANGS) if installed.gangs else set()
    run |= expected(RUNS_FOR_EVICTIONS) if installed.evictions else set()
    run |= expected(RUNS_FOR_SERVICES) if installed.service_urls else set()
    creations = {(group, resource, "create") for group, resource, name, _ in KEEPS if not name}
    expected_everywhere = seen if installed.of else seen | run
    for namespace, own in (
        ("team", seen | run),
        ("other", expected_everywhere),
        (installed.namespace, expected_everywhere | creations),
    ):
        in_force_as(api_server, installed, namespace, own)
    user = {"user": f"system:serviceaccount:{installed.namespace}:{NAME}"}
    for group, resource, name, verbs in KEEPS:
        for verb in verbs.split():
            attributes = {"namespace": installed.namespace, "group": group, "resource": resource}
            attributes |= {"name": name} if name else {}
            assert is_allowed(api_server, user, verb=verb, **attributes), (resource, name, verb)
    loads = {"namespace": installed.namespace, "group": "", "resource": "configmaps", "name": LOADS}
    for verb in ("get", "patch"):
        assert is_allowed(api_server, user, verb=verb, **loads) == (
            bool(installed.service_urls) or (verb == "get" and not installed.of)
        )
    for name in (SERVICE, "theirs"):  # of Services, it deletes the one that its jobs share
        attributes = {"namespace": "team", "group": "", "resource": "services", "name": name}
        assert is_allowed(api_server, user, verb="delete", **attributes) == (name == SERVICE)


def test_people_may_have_jobs_but_no_status(
    api_server: ControlPlane, installed: Installation
) -> None:
    roles = {manifest["metadata"]["name"]: manifest for manifest in manifests(installed)}
    edit, view = roles["brim-jobs-edit"], roles["brim-jobs-view"]
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    api_server.kubectl(
        "create", "rolebinding", "ann", "--clusterrole=brim-jobs-edit", "--user=ann", "-n", "team"
    )
    user = {"user": "ann"}

    def counts() -> bool:
        return is_allowed(
            api_server, user, namespace="team", group=GROUP, resource="elasticjobs", verb="get"
        )

    try:
        until(counts, lambda: "the new binding has no effect")
        for verb in ("create", "patch", "delete", "get"):
            attributes = {"group": GROUP, "resource": "elasticjobs", "verb": verb}
            assert is_allowed(api_server, user, namespace="team", **attributes)
            assert not is_allowed(api_server, user, namespace="other", **attributes)
        scale = {
            "group": GROUP,
            "resource": "elasticjobs",
            "subresource": "scale",
            "verb": "update",
        }
        assert is_allowed(api_server, user, namespace="team", **scale)
        for sub in ("status", "finalizers"):
            for verb in ("update", "patch"):
                attributes = {
                    "group": GROUP,
                    "resource": "elasticjobs",
                    "subresource": sub,
                    "verb": verb,
                }
                assert not is_allowed(api_server, user, namespace="team", **attributes)
        assert not is_allowed(api_server, user, group=GROUP, resource="tenants", verb="create")
        for plural in PLURALS:
            attributes = {"namespace": "team", "group": KUBEFLOW, "resource": plural}
            assert (
                is_allowed(api_server, user, verb="create", **attributes) == installed.foreign_kinds
            )
            assert not is_allowed(
                api_server, user, verb="patch", subresource="status", **attributes
            )
    finally:
        api_server.kubectl("delete", "rolebinding", "ann", "-n", "team")
    until(lambda: not counts(), lambda: "the binding that is deleted has effect still")


def test_the_operator_pod_passes_restricted_admission(
    api_server: ControlPlane, installed: Installation
) -> None:
    template = deployment(installed)["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        **template,
        "metadata": {**template["metadata"], "name": "one"},
    }
    path = f"/api/v1/namespaces/{installed.namespace}/pods?dryRun=All"
    admitted = api_server.api.ask(path, method="POST", body=pod)
    assert admitted["spec"]["containers"][0]["command"][1:5] == ["-P", "-m", "brim", "operator"]
    pod["spec"] = {**template["spec"], "hostNetwork": True}
    with pytest.raises(EnvironmentFault, match="violates PodSecurity"):
        api_server.api.ask(path, method="POST", body=pod)
